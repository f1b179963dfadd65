"""The file of a fitted SGDRanker: which arrays and parameters it holds."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import numpy as np

from rgals._csr import CSR
from rgals._errors import InputError, InputTypeError, ModelFileError
from rgals._ranker import Snapshot
from rgals.datasets.ids import IdMap
from rgals.persistence import ArraySpec, FileSpec, load_npz, save_npz
from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS

_REAL = ("f4", "f8")
_ARRAYS = {
    "user_factors": ArraySpec(_REAL, ("n_users", "K")),
    "item_factors": ArraySpec(_REAL, ("n_items", "K")),
    "seen_indptr": ArraySpec(("i8",), ("n_users+1",)),
    "seen_indices": ArraySpec(("i4",), ("nnz",)),
    "seen_values": ArraySpec(_REAL, ("n_values",)),
}
for _side in ("user", "item"):
    _ARRAYS[f"{_side}_ids_labels"] = ArraySpec(("i8",), (f"n_{_side}s",), required=False)
    _ARRAYS[f"{_side}_ids_text"] = ArraySpec(("u1",), (f"{_side}_text",), required=False)
    _ARRAYS[f"{_side}_ids_offsets"] = ArraySpec(("i8",), (f"n_{_side}s+1",), required=False)
    _ARRAYS[f"{_side}_ids_integer"] = ArraySpec(("b1",), (f"n_{_side}s",), required=False)
SPEC = FileSpec("rgals-sgd-model", 1, _ARRAYS)
_FITTED = ("n_iter_", "history_", "n_features_in_")


def _pack(what: str, value: Any, table: dict[str, type], params: Any) -> Any:
    if isinstance(value, str):
        return value
    for name, kind in table.items():
        if type(value) is kind:
            return {"name": name, "params": params(value)}
    raise InputTypeError(
        f"a model with the {what} {value!r} cannot be saved: only those of rgals.sgd can be found again"
    )


def _unpack(packed: Any, table: dict[str, type]) -> Any:
    return packed if isinstance(packed, str) else table[packed["name"]](**packed["params"])


def save(model: Any, state: Snapshot, path: str | os.PathLike) -> None:
    """Write a fitted model."""
    seen = state.seen
    assert seen is not None
    arrays = {
        "user_factors": state.user_factors,
        "item_factors": state.item_factors,
        "seen_indptr": seen.indptr,
        "seen_indices": seen.indices,
        "seen_values": seen.values,
    }
    for side, labels in (("user", state.user_ids), ("item", state.item_ids)):
        if labels is not None:
            arrays |= IdMap(labels, side).to_arrays(f"{side}_ids_")
    params = model.get_params(deep=False)
    params["loss"] = _pack("loss", params["loss"], LOSSES, lambda loss: loss.get_params())
    params["optimizer"] = _pack("optimizer", params["optimizer"], OPTIMIZERS, asdict)
    if not isinstance(params["schedule"], str):
        raise InputTypeError("a model whose schedule is a function cannot be saved; set schedule to a name")
    if not (params["random_state"] is None or isinstance(params["random_state"], int | np.integer)):
        params["random_state"] = None  # a generator's state is no parameter of the fitted model
    params["dtype"] = np.dtype(params["dtype"]).name
    meta = {
        "estimator": "SGDRanker",
        "params": params,
        "fitted": {name: getattr(model, name) for name in _FITTED},
    }
    save_npz(path, arrays, meta, spec=SPEC)


def load(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Any], Snapshot]:
    """Read what `save` wrote: parameters, fitted attributes and the state."""
    arrays, meta = load_npz(path, expected=SPEC)
    name = os.fspath(path)
    try:
        params = dict(meta["params"])
        params["loss"] = _unpack(params["loss"], LOSSES)
        params["optimizer"] = _unpack(params["optimizer"], OPTIMIZERS)
        fitted = {key: meta["fitted"][key] for key in _FITTED}
        labels = [_labels(arrays, side) for side in ("user", "item")]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{name}: the description of the model is damaged: {error}") from error
    n_items = len(arrays["item_factors"])
    indptr, indices, values = (arrays[f"seen_{part}"] for part in ("indptr", "indices", "values"))
    within = len(indices) == 0 or (indices.min() >= 0 and indices.max() < n_items)
    if not within or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ModelFileError(f"{name}: the stored interactions are damaged")
    if len(values) not in (0, len(indices)):
        raise ModelFileError(f"{name}: {len(indices)} interactions need as many values or none")
    for labels_of, n in zip(labels, (len(arrays["user_factors"]), n_items), strict=True):
        if labels_of is not None and len(labels_of) != n:
            raise ModelFileError(f"{name}: {len(labels_of)} labels for {n} rows")
    seen = CSR(indptr, indices, values, n_items)
    return params, fitted, Snapshot(arrays["user_factors"], arrays["item_factors"], seen, *labels)


def _labels(arrays: dict[str, np.ndarray], side: str) -> np.ndarray | None:
    prefix = f"{side}_ids_"
    if not any(name.startswith(prefix) for name in arrays):
        return None
    try:
        return IdMap.from_arrays(arrays, prefix, side).labels
    except InputError as error:
        raise ValueError(str(error)) from error
