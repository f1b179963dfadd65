"""The file of a fitted RGALS model: its loss, regularisation and margins beside what every model stores."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import scipy.sparse as sp

from rgals.files.archive import ArraySpec
from rgals.losses import LOSSES, Degrees, Loss
from rgals.matrix.validate import fault
from rgals.model.file import REAL, ModelFormat, model_spec, pack_object, unpack_object
from rgals.model.state import FittedState
from rgals.runtime.checks import check_real
from rgals.solvers.hard_negatives import HardNegatives, read_hard_negatives
from rgals.solvers.prior import Prior
from rgals.solvers.readout import check_readout

_DEGREES = ("user_sum", "item_sum", "user_count", "item_count")
_SIDES = ("user", "item")


#: What a file has of a side's features: types and shapes.
_PRIOR = {
    "indptr": ("i8", ("n_{}s+1",)),
    "indices": ("i8", ("n_{}_entries",)),
    "data": ("f8", ("n_{}_entries",)),
    "weights": ("f8", ("n_{}_features", "K")),
    "encoding": ("u1", ("n_{}_encoding",)),  # of a frame, as JSON
}
_ARRAYS = {
    f"degrees_{name}": ArraySpec(("f8" if name.endswith("sum") else "i8",), (f"n_{name[:4]}s",))
    for name in _DEGREES
}
_ARRAYS["item_scale"] = ArraySpec(REAL, ("n_items",), required=False)
_ARRAYS |= {
    f"{side}_feature_{name}": ArraySpec((kind,), tuple(n.format(side) for n in shape), required=False)
    for side in _SIDES
    for name, (kind, shape) in _PRIOR.items()
}
SPEC = model_spec("rgals-model", 1, _ARRAYS)


def _prior(side: str, arrays: dict[str, np.ndarray], meta: Any) -> tuple[Prior | None, Any]:
    """The features of a side and their weights, checked, and how a frame was encoded."""
    found = [arrays.get(f"{side}_feature_{name}") for name in _PRIOR]
    if meta is None or any(array is None for array in found):
        return None, None
    indptr, indices, data, weights, encoding = cast(list[np.ndarray], found)
    wrong = fault(indptr, indices, len(data), len(weights))
    if wrong or indptr[-1] != len(data) or not (np.isfinite(data).all() and np.isfinite(weights).all()):
        raise ValueError(f"the features of {side}s are damaged{'' if wrong is None else f': {wrong}'}")
    features = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, len(weights)))
    reg = check_real("feature_reg", meta["reg"], 0.0)
    return Prior(features, reg, None, weights), json.loads(encoding.tobytes())


def _unpack_hard(packed: Any) -> Any:
    """``hard_negatives`` as it was given; files of older releases have none."""
    given = HardNegatives(**packed) if isinstance(packed, dict) else packed
    read_hard_negatives(given)
    return given


@dataclass(frozen=True)
class _Format(ModelFormat):
    """The file of an `RGALS`."""

    own: type[Loss] | None = None  # class of the loss, where it is none of rgals': a file makes none known
    fitted: ClassVar = {"n_iter_": int, "history_": list, "solver_": str, "n_features_in_": int}

    def _kinds(self, own: type[Loss] | None) -> dict[str, type[Loss]]:
        """What a file calls a loss: rgals' own by their names, ``own`` by where it is imported from."""
        kinds = {kind.name: kind for kind in LOSSES.values()}
        return kinds if own is None else {**kinds, f"{own.__module__}.{own.__qualname__}": own}

    def _pack(self, loss: str | Loss) -> Any:
        return pack_object("loss", loss, self._kinds(type(loss) if isinstance(loss, Loss) else None))

    def _unpack(self, packed: Any) -> Any:
        kinds = self._kinds(self.own)
        if not isinstance(packed, str) and packed["name"] not in kinds:
            name = str(packed["name"])[:200]
            given = "" if self.own is None else f", not {list(kinds)[-1]}"
            what = f"its loss is {name}, which is none of rgals'{given}: import the class and give it"
            raise ValueError(f"{what}, as in RGALS.load(path, loss={name.rpartition('.')[2]})")
        return unpack_object(packed, kinds)

    def pack(self, params: dict[str, Any]) -> dict[str, Any]:
        hard = params["hard_negatives"]
        hard = hard.get_params() if isinstance(hard, HardNegatives) else hard
        return params | {"loss": self._pack(params["loss"]), "hard_negatives": hard}

    def unpack(self, params: dict[str, Any]) -> dict[str, Any]:
        found = {"loss": self._unpack(params["loss"])}
        found["hard_negatives"] = _unpack_hard(params.get("hard_negatives"))
        return {"init": "random", **params, **found}  # files of releases without `init` are of random starts

    def more(self, state: FittedState) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {f"degrees_{name}": getattr(state.degrees, name) for name in _DEGREES}
        meta = {"loss": self._pack(state.loss), "reg": state.reg, "reg_exponent": state.reg_exponent}
        if state.item_scale is not None:
            arrays["item_scale"] = state.item_scale
            meta["readout_exponent"] = state.readout_exponent
        if state.hard_negatives is not None:
            meta["hard_negatives"] = state.hard_negatives.get_params()
        for side, prior, encoding in zip(_SIDES, state.priors, state.encodings, strict=True):
            if prior is not None:
                features, weights = prior.features, prior.weights_of(state.item_factors.shape[1])
                parts = features.indptr.astype(np.int64), features.indices.astype(np.int64), features.data
                text = np.frombuffer(json.dumps(encoding).encode(), np.uint8)
                named = zip(_PRIOR, (*parts, weights, text), strict=True)
                arrays |= {f"{side}_feature_{name}": array for name, array in named}
                meta[f"{side}_features"] = {"reg": prior.reg}
        return arrays, meta

    def make(self, fields: dict, arrays: dict[str, np.ndarray], meta: dict) -> FittedState:
        loss = self._unpack({"name": meta["loss"]["name"], "params": meta["loss"]["params"]})
        loss.validate()
        degrees = {name: arrays[f"degrees_{name}"] for name in _DEGREES}
        if any((array < 0).any() for array in degrees.values()):
            raise ValueError("a sum or count of interactions is negative")
        scale = arrays.get("item_scale")
        if scale is not None and not (scale > 0).all():
            raise ValueError("the read-out's scale of an item is not positive")
        (users, of_users), (items, of_items) = (_prior(s, arrays, meta.get(f"{s}_features")) for s in _SIDES)
        return FittedState(
            **fields,
            priors=(users, items),
            encodings=(of_users, of_items),
            loss=loss,
            reg=check_real("reg", meta["reg"], 0.0),
            reg_exponent=check_real("reg_exponent", meta["reg_exponent"], -4.0, 4.0),
            degrees=Degrees(reference=None, matrix=None, **degrees),
            readout_exponent=0.0 if scale is None else check_readout(meta["readout_exponent"]),
            item_scale=scale,
            hard_negatives=read_hard_negatives(_unpack_hard(meta.get("hard_negatives"))),
        )


FORMAT = _Format("RGALS", SPEC)
