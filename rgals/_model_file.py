"""The file of a fitted RGALS model: which arrays and parameters it holds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rgals._csr import CSR
from rgals._errors import InputError, InputTypeError, ModelFileError
from rgals.datasets.ids import IdMap
from rgals.losses import LOSSES, Degrees, Loss
from rgals.persistence import ArraySpec, FileSpec, load_npz, save_npz

_REAL = ("f4", "f8")
_ARRAYS = {
    "user_factors": ArraySpec(_REAL, ("n_users", "K")),
    "item_factors": ArraySpec(_REAL, ("n_items", "K")),
    "seen_indptr": ArraySpec(("i8",), ("n_users+1",)),
    "seen_indices": ArraySpec(("i4",), ("nnz",)),
    "seen_values": ArraySpec(_REAL, ("n_values",)),
    "degrees_user_sum": ArraySpec(("f8",), ("n_users",)),
    "degrees_item_sum": ArraySpec(("f8",), ("n_items",)),
    "degrees_user_count": ArraySpec(("i8",), ("n_users",)),
    "degrees_item_count": ArraySpec(("i8",), ("n_items",)),
}
for _side in ("user", "item"):
    _ARRAYS[f"{_side}_ids_labels"] = ArraySpec(("i8",), (f"n_{_side}s",), required=False)
    _ARRAYS[f"{_side}_ids_text"] = ArraySpec(("u1",), (f"{_side}_text",), required=False)
    _ARRAYS[f"{_side}_ids_offsets"] = ArraySpec(("i8",), (f"n_{_side}s+1",), required=False)
    _ARRAYS[f"{_side}_ids_integer"] = ArraySpec(("b1",), (f"n_{_side}s",), required=False)
SPEC = FileSpec("rgals-model", 1, _ARRAYS)
_FITTED = ("n_iter_", "history_", "solver_", "n_features_in_")
_DEGREES = ("user_sum", "item_sum", "user_count", "item_count")


def _pack_loss(loss: str | Loss) -> Any:
    return loss if isinstance(loss, str) else {"name": loss.name, "params": loss.get_params()}


def _unpack_loss(packed: Any) -> Any:
    if isinstance(packed, str):
        return packed
    names = {kind.name: kind for kind in LOSSES.values()}
    return names[packed["name"]](**packed["params"])


def save(model: Any, state: Any, path: str | os.PathLike) -> None:
    """Write a fitted model.

    Parameters
    ----------
    model : RGALS
        Gives parameters and the record of the fit.
    state : FittedState
    path : str or path
    """
    arrays = {
        "user_factors": state.user_factors,
        "item_factors": state.item_factors,
        "seen_indptr": state.seen.indptr,
        "seen_indices": state.seen.indices,
        "seen_values": state.seen.values,
    }
    arrays |= {f"degrees_{name}": getattr(state.degrees, name) for name in _DEGREES}
    for side, labels in (("user", state.user_ids), ("item", state.item_ids)):
        if labels is not None:
            arrays |= IdMap(labels, side).to_arrays(f"{side}_ids_")
    params = model.get_params(deep=False)
    if type(state.loss) not in LOSSES.values():
        raise InputTypeError(
            f"a model with the loss {type(state.loss).__name__} cannot be saved: only the losses of "
            "rgals can be found again when it is loaded"
        )
    random_state = params["random_state"]
    if not (random_state is None or isinstance(random_state, int | np.integer)):
        params["random_state"] = None  # a generator's state is no parameter of the fitted model
    params["loss"] = _pack_loss(params["loss"])
    params["dtype"] = np.dtype(params["dtype"]).name
    meta = {
        "estimator": "RGALS",
        "params": params,
        "fitted": {name: getattr(model, name) for name in _FITTED},
        "loss": _pack_loss(state.loss),
        "reg": state.reg,
        "reg_exponent": state.reg_exponent,
    }
    save_npz(path, arrays, meta, spec=SPEC)


def load(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Read what `save` wrote.

    Returns
    -------
    (params, fitted, state) : dict
        Parameters of the estimator, its fitted attributes and the fields of its state.

    Raises
    ------
    ModelFileError
    """
    arrays, meta = load_npz(path, expected=SPEC)
    try:
        params = dict(meta["params"])
        params["loss"] = _unpack_loss(params["loss"])
        loss = _unpack_loss(meta["loss"])
        loss.validate()
        fitted = {name: meta["fitted"][name] for name in _FITTED}
        reg, reg_exponent = float(meta["reg"]), float(meta["reg_exponent"])
        labels = {side: _labels(arrays, side) for side in ("user", "item")}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(
            f"{os.fspath(path)}: the description of the model is damaged: {error}"
        ) from error
    n_users, n_items = len(arrays["user_factors"]), len(arrays["item_factors"])
    indptr, indices = arrays["seen_indptr"], arrays["seen_indices"]
    whole = len(indices) == 0 or (indices.min() >= 0 and indices.max() < n_items)
    if not whole or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ModelFileError(f"{os.fspath(path)}: the stored interactions are damaged")
    if len(arrays["seen_values"]) not in (0, len(indices)):
        raise ModelFileError(f"{os.fspath(path)}: {len(indices)} interactions need as many values or none")
    for side, n in (("user", n_users), ("item", n_items)):
        found = labels[side]
        if found is not None and len(found) != n:
            raise ModelFileError(f"{os.fspath(path)}: {len(found)} {side} ids for {n} {side}s")
    state = {
        "user_factors": arrays["user_factors"],
        "item_factors": arrays["item_factors"],
        "seen": CSR(indptr, indices, arrays["seen_values"], n_items),
        "user_ids": labels["user"],
        "item_ids": labels["item"],
        "loss": loss,
        "reg": reg,
        "reg_exponent": reg_exponent,
        "degrees": _degrees(arrays),
    }
    return params, fitted, state


def _degrees(arrays: dict[str, np.ndarray]) -> Degrees:
    user_sum, item_sum, user_count, item_count = (arrays[f"degrees_{name}"] for name in _DEGREES)
    return Degrees(user_sum, item_sum, user_count, item_count)


def _labels(arrays: dict[str, np.ndarray], side: str) -> np.ndarray | None:
    prefix = f"{side}_ids_"
    if not any(name.startswith(prefix) for name in arrays):
        return None
    try:
        return IdMap.from_arrays(arrays, prefix, side).labels
    except InputError as error:
        raise ValueError(str(error)) from error
