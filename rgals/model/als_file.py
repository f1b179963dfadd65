"""The file of a fitted RGALS model: its loss, regularisation and margins beside what every model stores."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.files.archive import ArraySpec
from rgals.losses import LOSSES, Degrees, Loss
from rgals.matrix.validate import fault
from rgals.model.file import REAL, ModelFormat, model_spec, pack_object, unpack_object
from rgals.model.state import FittedState, check_readout
from rgals.runtime.checks import check_real
from rgals.solvers.hard_negatives import HardNegatives, read_hard_negatives
from rgals.solvers.prior import Prior

_DEGREES = ("user_sum", "item_sum", "user_count", "item_count")
_SIDES = ("user", "item")


def _prior_arrays(side: str) -> dict[str, ArraySpec]:
    """What a file has of a side's features."""
    shapes: dict[str, tuple[str, ...]] = {"indptr": (f"n_{side}s+1",), "indices": (f"n_{side}_entries",)}
    shapes |= {"data": shapes["indices"], "weights": (f"n_{side}_features", "K")}
    kinds = {"indptr": "i8", "indices": "i8", "data": "f8", "weights": "f8"}
    return {name: ArraySpec((kinds[name],), shape, required=False) for name, shape in shapes.items()}


SPEC = model_spec(
    "rgals-model",
    1,
    {
        f"degrees_{name}": ArraySpec(("f8" if name.endswith("sum") else "i8",), (f"n_{name[:4]}s",))
        for name in _DEGREES
    }
    | {"item_scale": ArraySpec(REAL, ("n_items",), required=False)}
    | {f"{side}_feature_{name}": spec for side in _SIDES for name, spec in _prior_arrays(side).items()},
)


def _prior(side: str, arrays: dict[str, np.ndarray], meta: Any) -> tuple[Prior | None, Any]:
    """The features of a side and their weights, checked, and how a frame was encoded."""
    parts = [arrays.get(f"{side}_feature_{name}") for name in ("data", "indices", "indptr", "weights")]
    data, indices, indptr, weights = parts
    if meta is None or data is None or indices is None or indptr is None or weights is None:
        return None, None
    wrong = fault(indptr, indices, len(data), len(weights))
    if wrong or indptr[-1] != len(data) or not (np.isfinite(data).all() and np.isfinite(weights).all()):
        raise ValueError(f"the features of {side}s are damaged{'' if wrong is None else f': {wrong}'}")
    features = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, len(weights)))
    return Prior(features, check_real("feature_reg", meta["reg"], 0.0), None, weights), meta["encoding"]


def _kinds(own: type[Loss] | None) -> dict[str, type[Loss]]:
    """What a file calls a loss: rgals' own by their names, ``own`` by where it is imported from."""
    kinds = {kind.name: kind for kind in LOSSES.values()}
    return kinds if own is None else {**kinds, f"{own.__module__}.{own.__qualname__}": own}


def _pack_loss(loss: str | Loss) -> Any:
    return pack_object("loss", loss, _kinds(type(loss) if isinstance(loss, Loss) else None))


def _unpack_loss(packed: Any, own: type[Loss] | None) -> Any:
    """The loss of a file; ``own`` is the class that the caller gave, as nothing is imported for a file."""
    kinds = _kinds(own)
    if not isinstance(packed, str) and packed["name"] not in kinds:
        name = str(packed["name"])[:200]
        given = "" if own is None else f", not {list(kinds)[-1]}"
        what = f"its loss is {name}, which is none of rgals'{given}: import the class and give it"
        raise ValueError(f"{what}, as in RGALS.load(path, loss={name.rpartition('.')[2]})")
    return unpack_object(packed, kinds)


def _format(own: type[Loss] | None = None) -> ModelFormat:
    return ModelFormat(
        "RGALS",
        SPEC,
        {"n_iter_": int, "history_": list, "solver_": str, "n_features_in_": int},
        lambda given: (
            given | {"loss": _pack_loss(given["loss"]), "hard_negatives": _pack_hard(given["hard_negatives"])}
        ),
        # Files of releases without `init` are of random starts.
        lambda params: {
            "init": "random",
            **params,
            "loss": _unpack_loss(params["loss"], own),
            "hard_negatives": _unpack_hard(params.get("hard_negatives")),
        },
    )


def _pack_hard(given: Any) -> Any:
    return given.get_params() if isinstance(given, HardNegatives) else given


def _unpack_hard(packed: Any) -> Any:
    """``hard_negatives`` as it was given; files of older releases have none."""
    given = HardNegatives(**packed) if isinstance(packed, dict) else packed
    read_hard_negatives(given)
    return given


def save(state: FittedState, path: str | os.PathLike) -> None:
    """Write a fitted model; an `InputTypeError` says which parameter of its loss JSON cannot hold."""
    arrays = {f"degrees_{name}": getattr(state.degrees, name) for name in _DEGREES}
    meta = {"loss": _pack_loss(state.loss), "reg": state.reg, "reg_exponent": state.reg_exponent}
    if state.item_scale is not None:
        arrays["item_scale"] = state.item_scale
        meta["readout_exponent"] = state.readout_exponent
    if state.hard_negatives is not None:
        meta["hard_negatives"] = _pack_hard(state.hard_negatives)
    for side, prior, encoding in zip(_SIDES, state.priors, state.encodings, strict=True):
        if prior is not None:
            features = prior.features
            arrays[f"{side}_feature_indptr"] = features.indptr.astype(np.int64)
            arrays[f"{side}_feature_indices"] = features.indices.astype(np.int64)
            arrays[f"{side}_feature_data"] = features.data
            arrays[f"{side}_feature_weights"] = prior.weights_of(state.item_factors.shape[1])
            meta[f"{side}_features"] = {"reg": prior.reg, "encoding": encoding}
    _format().save(state, path, arrays, meta)


def load(kind: type, path: str | os.PathLike, own: type[Loss] | None = None) -> Any:
    """Read what `save` wrote; ``own`` is the class of its loss where that is none of rgals'."""

    def make_state(fields: dict, arrays: dict[str, np.ndarray], meta: dict) -> FittedState:
        loss = _unpack_loss({"name": meta["loss"]["name"], "params": meta["loss"]["params"]}, own)
        loss.validate()
        degrees = {name: arrays[f"degrees_{name}"] for name in _DEGREES}
        if any((array < 0).any() for array in degrees.values()):
            raise ValueError("a sum or count of interactions is negative")
        scale = arrays.get("item_scale")
        if scale is not None and not (scale > 0).all():
            raise ValueError("the read-out's scale of an item is not positive")
        found = [_prior(side, arrays, meta.get(f"{side}_features")) for side in _SIDES]
        return FittedState(
            **fields,
            priors=(found[0][0], found[1][0]),
            encodings=(found[0][1], found[1][1]),
            loss=loss,
            reg=check_real("reg", meta["reg"], 0.0),
            reg_exponent=check_real("reg_exponent", meta["reg_exponent"], -4.0, 4.0),
            degrees=Degrees(reference=None, matrix=None, **degrees),
            readout_exponent=0.0 if scale is None else check_readout(meta["readout_exponent"]),
            item_scale=scale,
            hard_negatives=read_hard_negatives(_unpack_hard(meta.get("hard_negatives"))),
        )

    return replace(_format(own), make=make_state).load(kind, path)
