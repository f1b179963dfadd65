"""The file of a fitted RGALS model: its loss, regularisation and margins beside what every model stores."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rgals._errors import InputError, InputTypeError, ModelFileError
from rgals._fit import FittedState
from rgals._snapshot_file import ModelFormat, model_spec
from rgals._validation import check_real
from rgals.losses import LOSSES, Degrees, Loss
from rgals.persistence import ArraySpec

_DEGREES = ("user_sum", "item_sum", "user_count", "item_count")
SPEC = model_spec(
    "rgals-model",
    1,
    {
        f"degrees_{name}": ArraySpec(("f8" if name.endswith("sum") else "i8",), (f"n_{name[:4]}s",))
        for name in _DEGREES
    },
)


def _pack_loss(loss: str | Loss) -> Any:
    return loss if isinstance(loss, str) else {"name": loss.name, "params": loss.get_params()}


def _unpack_loss(packed: Any) -> Any:
    if isinstance(packed, str):
        return packed
    names = {kind.name: kind for kind in LOSSES.values()}
    return names[packed["name"]](**packed["params"])


FORMAT = ModelFormat(
    "RGALS",
    SPEC,
    {"n_iter_": int, "history_": list, "solver_": str, "n_features_in_": int},
    lambda params: {**params, "loss": _pack_loss(params["loss"])},
    lambda params: {**params, "loss": _unpack_loss(params["loss"])},
)


def save(state: FittedState, path: str | os.PathLike) -> None:
    """Write a fitted model.

    Raises
    ------
    InputTypeError
        Its loss is none of rgals'.
    """
    if type(state.loss) not in LOSSES.values():
        raise InputTypeError(
            f"a model with the loss {type(state.loss).__name__} cannot be saved: only the losses of "
            "rgals can be found again when it is loaded"
        )
    arrays = {f"degrees_{name}": getattr(state.degrees, name) for name in _DEGREES}
    meta = {"loss": _pack_loss(state.loss), "reg": state.reg, "reg_exponent": state.reg_exponent}
    FORMAT.save(path, state, arrays, meta)


def load(kind: type, path: str | os.PathLike) -> Any:
    """Read what `save` wrote.

    Raises
    ------
    ModelFileError
    OSError
    """
    found = FORMAT.load(path, kind)
    try:
        meta = found.meta
        loss = _unpack_loss({"name": meta["loss"]["name"], "params": meta["loss"]["params"]})
        loss.validate()
        state = FittedState(
            **found.fields,
            loss=loss,
            reg=check_real("reg", meta["reg"], 0.0),
            reg_exponent=check_real("reg_exponent", meta["reg_exponent"], -4.0, 4.0),
            degrees=_degrees(found.arrays),
        )
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        raise ModelFileError(f"{found.path}: the description of the model is damaged: {error}") from error
    return found.build(kind, state)


def _degrees(arrays: dict[str, np.ndarray]) -> Degrees:
    user_sum, item_sum, user_count, item_count = (arrays[f"degrees_{name}"] for name in _DEGREES)
    if any((array < 0).any() for array in (user_sum, item_sum, user_count, item_count)):
        raise ValueError("a sum or count of interactions is negative")
    return Degrees(user_sum, item_sum, user_count, item_count)
