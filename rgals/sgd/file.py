"""The file of a fitted SGDRanker: what every model stores, with losses and optimisers by name."""

from typing import Any

from rgals.model.file import ModelFormat, model_spec, pack_object, unpack_object
from rgals.runtime.errors import InputTypeError
from rgals.sgd.losses import LOSSES
from rgals.sgd.optimizers import OPTIMIZERS

_OBJECTS: dict[str, Any] = {"loss": LOSSES, "optimizer": OPTIMIZERS}


class _Format(ModelFormat):
    def pack(self, params: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(params["schedule"], str):
            what = "a model whose schedule is a function cannot be saved"
            raise InputTypeError(f"{what}; set schedule to a name")
        return params | {name: pack_object(name, params[name], kinds) for name, kinds in _OBJECTS.items()}

    def unpack(self, params: dict[str, Any]) -> dict[str, Any]:
        return params | {name: unpack_object(params[name], kinds) for name, kinds in _OBJECTS.items()}


FORMAT = _Format("SGDRanker", model_spec("rgals-sgd-model", 1))
