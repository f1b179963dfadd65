"""The file of a fitted SGDRanker: what every model stores, with losses and optimisers by name."""

from typing import Any

from rgals.model.file import ModelFormat, model_spec, pack_object, unpack_object
from rgals.runtime.errors import InputTypeError
from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS

SPEC = model_spec("rgals-sgd-model", 1)


def _pack(params: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(params["schedule"], str):
        raise InputTypeError("a model whose schedule is a function cannot be saved; set schedule to a name")
    return {**params, **{name: pack_object(name, params[name], kinds) for name, kinds in _OBJECTS.items()}}


def _unpack(params: dict[str, Any]) -> dict[str, Any]:
    return {**params, **{name: unpack_object(params[name], kinds) for name, kinds in _OBJECTS.items()}}


_OBJECTS: dict[str, Any] = {"loss": LOSSES, "optimizer": OPTIMIZERS}
_FITTED = {"n_iter_": int, "history_": list, "n_features_in_": int}
FORMAT = ModelFormat("SGDRanker", SPEC, _FITTED, _pack, _unpack)
