"""The file of a fitted SGDRanker: what every model stores, with losses and optimisers by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rgals._errors import InputTypeError
from rgals._snapshot import Snapshot
from rgals._snapshot_file import ModelFormat, model_spec
from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS

SPEC = model_spec("rgals-sgd-model", 1)


def _pack_one(what: str, value: Any, table: dict[str, type], params: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return value
    for name, kind in table.items():
        if type(value) is kind:
            return {"name": name, "params": params(value)}
    raise InputTypeError(
        f"a model with the {what} {value!r} cannot be saved: only those of rgals.sgd can be found again"
    )


def _unpack_one(packed: Any, table: dict[str, type]) -> Any:
    return packed if isinstance(packed, str) else table[packed["name"]](**packed["params"])


def _pack(params: dict[str, Any]) -> dict[str, Any]:
    params["loss"] = _pack_one("loss", params["loss"], LOSSES, lambda loss: loss.get_params())
    params["optimizer"] = _pack_one("optimizer", params["optimizer"], OPTIMIZERS, asdict)
    if not isinstance(params["schedule"], str):
        raise InputTypeError("a model whose schedule is a function cannot be saved; set schedule to a name")
    return params


def _unpack(params: dict[str, Any]) -> dict[str, Any]:
    params["loss"] = _unpack_one(params["loss"], LOSSES)
    params["optimizer"] = _unpack_one(params["optimizer"], OPTIMIZERS)
    return params


FORMAT = ModelFormat(
    "SGDRanker", SPEC, {"n_iter_": int, "history_": list, "n_features_in_": int}, _pack, _unpack
)


def save(state: Snapshot, path: str | os.PathLike) -> None:
    """Write a fitted model."""
    FORMAT.save(path, state)


def load(kind: type, path: str | os.PathLike) -> Any:
    """Read what `save` wrote."""
    found = FORMAT.load(path, kind)
    return found.build(kind, Snapshot(**found.fields))
