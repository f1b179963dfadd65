"""The file of a fitted RGALS model: its loss, regularisation and margins beside what every model stores."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rgals.files.archive import ArraySpec
from rgals.losses import LOSSES, Degrees, Loss
from rgals.model.file import ModelFormat, model_spec
from rgals.model.state import FittedState
from rgals.runtime.checks import check_real
from rgals.runtime.errors import InputError, ModelFileError

_DEGREES = ("user_sum", "item_sum", "user_count", "item_count")
SPEC = model_spec(
    "rgals-model",
    1,
    {
        f"degrees_{name}": ArraySpec(("f8" if name.endswith("sum") else "i8",), (f"n_{name[:4]}s",))
        for name in _DEGREES
    },
)


def _name(kind: type[Loss]) -> str:
    """What a file calls a loss: rgals' own by their names, others by where they are imported from."""
    return kind.name if kind in LOSSES.values() else f"{kind.__module__}.{kind.__qualname__}"


def _pack_loss(loss: str | Loss) -> Any:
    return loss if isinstance(loss, str) else {"name": _name(type(loss)), "params": loss.get_params()}


def _unpack_loss(packed: Any, own: type[Loss] | None) -> Any:
    """The loss of a file; ``own`` is the class that the caller gave, as nothing is imported for a file."""
    if isinstance(packed, str):
        return packed
    kinds = {_name(kind): kind for kind in (*LOSSES.values(), *([] if own is None else [own]))}
    name = str(packed["name"])[:200]
    if name not in kinds:
        given = "" if own is None else f", not {_name(own)}"
        raise ValueError(
            f"its loss is {name}, which is none of rgals'{given}: import the class and give it, as in "
            f"RGALS.load(path, loss={name.rpartition('.')[2]})"
        )
    return kinds[name](**packed["params"])


def _format(own: type[Loss] | None = None) -> ModelFormat:
    return ModelFormat(
        "RGALS",
        SPEC,
        {"n_iter_": int, "history_": list, "solver_": str, "n_features_in_": int},
        lambda params: {**params, "loss": _pack_loss(params["loss"])},
        lambda params: {**params, "loss": _unpack_loss(params["loss"], own)},
    )


def save(state: FittedState, path: str | os.PathLike) -> None:
    """Write a fitted model; an `InputTypeError` says which parameter of its loss JSON cannot hold."""
    arrays = {f"degrees_{name}": getattr(state.degrees, name) for name in _DEGREES}
    meta = {"loss": _pack_loss(state.loss), "reg": state.reg, "reg_exponent": state.reg_exponent}
    _format().save(path, state, arrays, meta)


def load(kind: type, path: str | os.PathLike, own: type[Loss] | None = None) -> Any:
    """Read what `save` wrote; ``own`` is the class of its loss where that is none of rgals'."""
    found = _format(own).load(path, kind)
    try:
        meta = found.meta
        loss = _unpack_loss({"name": meta["loss"]["name"], "params": meta["loss"]["params"]}, own)
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
