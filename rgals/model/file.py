"""The files of fitted models: what all estimators store, and what RGALS adds."""

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import scipy.sparse as sp

from rgals.datasets.ids import IdMap
from rgals.files.archive import ArraySpec, FileSpec, load_npz, save_npz
from rgals.losses import LOSSES, Degrees
from rgals.losses.base import takes_dislikes
from rgals.matrix.csr import CSR
from rgals.matrix.validate import fault
from rgals.matrix.weighting import AUTO, VALUES, Weighting
from rgals.model.state import FitRecord, FittedState, Snapshot, parameters_of
from rgals.runtime.aligned import read_only
from rgals.runtime.checks import check_int, check_real
from rgals.runtime.errors import InputTypeError, ModelFileError
from rgals.solvers.hard_negatives import HardNegatives, read_hard_negatives
from rgals.solvers.prior import Prior

REAL = ("f4", "f8")
FACTORS = {
    "user_factors": ArraySpec(REAL, ("n_users", "K")),
    "item_factors": ArraySpec(REAL, ("n_items", "K")),
}
_ARRAYS = FACTORS | {
    "seen_indptr": ArraySpec(("i8",), ("n_users+1",)),
    "seen_indices": ArraySpec(("i4",), ("nnz",)),
    "seen_values": ArraySpec(REAL, ("n_values",)),
    "seen_times": ArraySpec(("f8",), ("nnz",), required=False),
    "weighting_idf": ArraySpec(("f8",), ("n_items",), required=False),
}
for _side in ("user", "item", "column"):  # "column": the column names of a frame
    _ARRAYS[f"{_side}_ids_labels"] = ArraySpec(("i8", "u8"), (f"n_{_side}s",), required=False)
    _ARRAYS[f"{_side}_ids_text"] = ArraySpec(("u1",), (f"{_side}_text",), required=False)
    _ARRAYS[f"{_side}_ids_offsets"] = ArraySpec(("i8",), (f"n_{_side}s+1",), required=False)
    _ARRAYS[f"{_side}_ids_integer"] = ArraySpec(("b1",), (f"n_{_side}s",), required=False)


@dataclass(frozen=True)
class ModelFormat:
    """The file format of an estimator; those that store more than others override `more` and `make`."""

    estimator: str  # name of its class
    spec: FileSpec  # made by `model_spec`
    # The class of a loss from outside rgals, for `load`, which imports nothing that a file names.
    own: type | None = None
    # Losses of rgals, by their names in a file.
    losses: ClassVar[Mapping[str, type]] = {}
    # Fitted attributes that are stored, and their types.
    fitted: ClassVar[dict[str, type]] = {"n_iter_": int, "history_": list, "n_features_in_": int}

    def pack(self, params: dict[str, Any]) -> dict[str, Any]:
        """Parameters as JSON values."""
        return params

    def unpack(self, params: dict[str, Any]) -> dict[str, Any]:
        """Parameters from JSON values; KeyError, TypeError and ValueError mean a damaged file."""
        return params

    def more(self, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Further arrays and metadata that this estimator stores."""
        return {}, {}

    def make(self, fields: dict[str, Any], arrays: dict[str, np.ndarray], meta: dict) -> Snapshot:
        """The state from the ``fields`` that all models have, and what else the file holds."""
        return Snapshot(**fields)

    def save(self, state: Snapshot, path: str | os.PathLike) -> None:
        """Write a fitted model; an `InputTypeError` names a parameter that JSON cannot hold."""
        arrays, meta = self.more(state)
        seen, record = state.seen, state.record
        assert seen is not None
        stored = {
            **{f: getattr(state, f) for f in ("user_factors", "item_factors") if f in self.spec.arrays},
            "seen_indptr": seen.indptr,
            "seen_indices": np.asarray(seen.indices),  # those of a store are memory-mapped
            "seen_values": np.asarray(seen.values),
            **arrays,
        }
        ids = ("user", state.user_ids), ("item", state.item_ids), ("column", record.feature_names)
        for side, labels in ids:
            if labels is not None:
                stored |= IdMap(labels, side).to_arrays(f"{side}_ids_")
        weighting = asdict(state.weighting)
        if (idf := weighting.pop("idf")) is not None:
            stored["weighting_idf"] = idf
        if state.weighting.half_life is None:  # the file is one that releases without half-lives read
            weighting = {k: v for k, v in weighting.items() if k not in ("half_life", "newest", "left")}
        else:
            stored["seen_times"] = seen.times
        told = vars(record) | {"n_features_in": len(state.item_factors)}
        params = dict(record.params)
        if not (isinstance(params.get("random_state"), int | np.integer | None)):
            params["random_state"] = None  # a generator's state is no parameter of the fitted model
        if "dtype" in params:
            params["dtype"] = np.dtype(params["dtype"]).name
        content = {
            "estimator": self.estimator,
            "params": self.pack(params),
            "fitted": {name: told[name.removesuffix("_")] for name in self.fitted},
            "weighting": weighting,
            **({"merged": record.merged} if record.merged else {}),
            **meta,
        }
        save_npz(path, stored, content, spec=self.spec)

    def load(self, kind: type, path: str | os.PathLike) -> Any:
        """The fitted model that `save` wrote; ``kind`` must take all parameters that are in the file."""
        arrays, meta = load_npz(path, expected=self.spec)
        try:
            model = kind(**self._parameters(meta, kind))
            fitted = self._record(meta["fitted"], len(arrays["item_factors"]))
            fields = {
                "user_factors": arrays.get("user_factors"),
                "item_factors": arrays["item_factors"],
                "seen": _seen(arrays),
                "weighting": _weighting(meta.get("weighting", {}), arrays),
                **{f"{side}_ids": _labels(arrays, side) for side in ("user", "item")},
            }
            state = self.make(fields, arrays, meta)
            if state.seen is not None and state.seen.has_dislikes and not takes_dislikes(state):
                raise ValueError("a stored interaction has a value that is not positive")
            how = fitted["history_"], fitted["n_iter_"], fitted.get("solver_", ""), _labels(arrays, "column")
            merged = check_int("merged", meta.get("merged", 0), 0)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = "the description of the model cannot be read"
            raise ModelFileError(f"{os.fspath(path)}: {what}: {error}") from error
        model._snapshot = replace(state, record=FitRecord(parameters_of(model), *how, merged))
        return model

    def pack_loss(self, loss: Any) -> Any:
        """A loss as a JSON value; one from outside rgals by its module and name."""
        return pack_object("loss", loss, {**self.losses, **_named(type(loss))})

    def unpack_loss(self, packed: Any) -> Any:
        """The loss that `pack_loss` packed."""
        own = {} if self.own is None else _named(self.own)
        if not isinstance(packed, str) and packed["name"] not in (known := {**self.losses, **own}):
            name, given = str(packed["name"])[:200], "".join(f", not {name}" for name in own)
            what = f"its loss is {name}, which is none of rgals'{given}: import the class and give it"
            raise ValueError(f"{what}, as in {self.estimator}.load(path, loss={name.rpartition('.')[2]})")
        return packed if isinstance(packed, str) else unpack_object(packed, known)

    def _parameters(self, meta: Mapping[str, Any], kind: type) -> dict[str, Any]:
        if meta["estimator"] != self.estimator:
            raise ValueError(f"it is of a {str(meta['estimator'])[:40]!r}, not of a {self.estimator}")
        params = meta["params"]
        if not isinstance(params, dict):
            raise TypeError("the parameters are no mapping")
        known = inspect.signature(kind).parameters
        unknown = sorted(set(params) - set(known))
        if unknown:
            raise ValueError(f"{self.estimator} has no parameter {unknown[0][:40]!r}")
        # What fits did before these were parameters.
        was = {"values": "raw", "init": "random", "user_mean": False, "offset": 0.0}
        older = {name: value for name, value in was.items() if name in known}
        return self.unpack({**older, **params})

    def _record(self, stored: Any, n_items: int) -> dict[str, Any]:
        if not isinstance(stored, dict) or stored.keys() != self.fitted.keys():
            raise ValueError("the record of the fit is not that of this estimator")
        for name, kind in self.fitted.items():
            if not isinstance(stored[name], kind) or isinstance(stored[name], bool):
                raise TypeError(f"{name} is not of type {kind.__name__}")
        if not all(isinstance(record, dict) for record in stored["history_"]) or stored["n_iter_"] < 0:
            raise ValueError("the history is damaged")
        if stored["n_features_in_"] != n_items:
            raise ValueError(f"n_features_in_ is not {n_items}, the number of items")
        return stored


def pack_object(what: str, value: Any, kinds: Mapping[str, Any]) -> Any:
    """A loss or an optimiser as a JSON value: its name in ``kinds`` and its parameters; a name unchanged."""
    if isinstance(value, str):
        return value
    for name, kind in kinds.items():
        if type(value) is kind:
            params = value.get_params() if hasattr(value, "get_params") else dict(vars(value))
            try:
                inspect.signature(kind).bind(**params)
            except TypeError as error:
                why = f"{kind.__name__} cannot be made of its attributes ({error}); give it get_params()"
                raise InputTypeError(f"a model with {what}={value!r:.80} cannot be saved: {why}") from None
            return {"name": name, "params": params}
    why = f"a file has classes of rgals by name; give one, such as {what}={next(iter(kinds))!r}"
    raise InputTypeError(f"a model with {what}={value!r:.80} cannot be saved: {why}")


def unpack_object(packed: Any, kinds: Mapping[str, type]) -> Any:
    """The loss or optimiser that `pack_object` packed."""
    return packed if isinstance(packed, str) else kinds[packed["name"]](**packed["params"])


def _named(own: type) -> dict[str, type]:
    """A class from outside rgals, by its name in a file."""
    return {f"{own.__module__}.{own.__qualname__}": own}


def model_spec(name: str, version: int, arrays: Mapping[str, ArraySpec] | None = None) -> FileSpec:
    """A file format: the arrays of every model, and those of this one."""
    return FileSpec(name, version, {**_ARRAYS, **(arrays or {})})


def _seen(arrays: Mapping[str, np.ndarray]) -> CSR:
    indptr, indices, values = (read_only(arrays[f"seen_{part}"]) for part in ("indptr", "indices", "values"))
    n_items = len(arrays["item_factors"])
    seen = CSR(indptr, indices, values, n_items, arrays.get("seen_times"))
    wrong = fault(indptr, indices, len(indices), n_items)
    if wrong or indptr[-1] != len(indices) or not seen.rises.all():
        raise ValueError(f"the stored interactions are damaged: {wrong or 'columns do not rise'}")
    if len(values) not in (0, len(indices)):
        raise ValueError(f"{len(indices)} interactions need as many values or none")
    if not values.all():
        raise ValueError("a stored interaction has no value")
    return seen


def _weighting(stored: Any, arrays: Mapping[str, np.ndarray]) -> Weighting:
    """The weighting of a file, checked; older files have none, and values were the weights."""
    made = Weighting(**stored, idf=arrays.get("weighting_idf"))
    ages = () if made.half_life is None else (made.half_life, made.left)
    numbers = made.scale, made.mean_length, *ages
    if made.kind == AUTO or made.kind not in VALUES or not all(0 < float(x) < np.inf for x in numbers):
        raise ValueError("the weighting of its values is damaged")
    if (made.half_life is None) != ("seen_times" not in arrays) or not np.isfinite(float(made.newest)):
        raise ValueError("the half-life of its weights is damaged")
    if (made.kind == "bm25") != (made.idf is not None) or not isinstance(made.n_users, int):
        raise ValueError("the statistics of its values are damaged")
    if made.idf is not None and not (made.idf > 0).all():
        raise ValueError("the weight of an item is not positive")
    return made


def _labels(arrays: Mapping[str, np.ndarray], side: str) -> np.ndarray | None:
    prefix = f"{side}_ids_"
    if not any(name.startswith(prefix) for name in arrays):
        return None
    labels = IdMap.from_arrays(arrays, prefix, side).labels
    n = len(arrays["seen_indptr"]) - 1 if side == "user" else len(arrays["item_factors"])
    if len(labels) != n:
        raise ValueError(f"{len(labels)} {side} ids for {n} {side}s")
    return labels


# ------------------------------------------------------------------ of RGALS

_DEGREES = ("user_sum", "item_sum", "user_count", "item_count", "user_pairs", "item_pairs")
_SIDES = ("user", "item")

#: Arrays of a side's features: types and shapes.
_PRIOR = {
    "indptr": ("i8", ("n_{}s+1",)),
    "indices": ("i8", ("n_{}_entries",)),
    "data": ("f8", ("n_{}_entries",)),
    "weights": ("f8", ("n_{}_features", "K")),
    "encoding": ("u1", ("n_{}_encoding",)),  # how a frame became columns, as JSON
}
# Sums are float64 and counts int64. Pairs are stored if the matrix has dislikes; older files have none.
_MORE = {
    f"degrees_{name}": ArraySpec(("f8" if "sum" in name else "i8",), (f"n_{name[:4]}s",), "pairs" not in name)
    for name in _DEGREES
}
_MORE |= {
    f"{side}_feature_{name}": ArraySpec((kind,), tuple(n.format(side) for n in shape), required=False)
    for side in _SIDES
    for name, (kind, shape) in _PRIOR.items()
}
SPEC = model_spec("rgals-model", 1, {"item_scale": ArraySpec(REAL, ("n_items",), required=False), **_MORE})


def _prior(side: str, arrays: dict[str, np.ndarray], meta: Any) -> tuple[Prior | None, Any]:
    """The features of a side with their weights, checked, and the encoding of a frame."""
    found = [arrays.get(f"{side}_feature_{name}") for name in _PRIOR]
    if meta is None or any(array is None for array in found):
        return None, None
    indptr, indices, data, weights, encoding = cast(list[np.ndarray], found)
    wrong = fault(indptr, indices, len(data), len(weights))
    if wrong or indptr[-1] != len(data):
        raise ValueError(f"the features of {side}s are damaged{'' if wrong is None else f': {wrong}'}")
    features = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, len(weights)))
    reg = check_real("feature_reg", meta["reg"], 0.0)
    prior = Prior(features, reg, None, weights, meta.get("mean") is True)
    return prior, json.loads(encoding.tobytes())


def _unpack_hard(packed: Any) -> Any:
    """The parameter ``hard_negatives``, checked; older files have none."""
    given = HardNegatives(**packed) if isinstance(packed, dict) else packed
    read_hard_negatives(given)
    return given


@dataclass(frozen=True)
class _ALSFormat(ModelFormat):
    fitted: ClassVar = {"n_iter_": int, "history_": list, "solver_": str, "n_features_in_": int}

    losses: ClassVar = {kind.name: kind for kind in LOSSES.values()}

    def pack(self, params: dict[str, Any]) -> dict[str, Any]:
        packed = dict(params)  # a subclass with an __init__ of its own may lack loss and hard_negatives
        if "loss" in params:
            packed["loss"] = self.pack_loss(params["loss"])
        if isinstance(hard := params.get("hard_negatives"), HardNegatives):
            packed["hard_negatives"] = hard.get_params()
        return packed

    def unpack(self, params: dict[str, Any]) -> dict[str, Any]:
        kinds = {"loss": self.unpack_loss, "hard_negatives": _unpack_hard}
        return params | {name: unpack(params[name]) for name, unpack in kinds.items() if name in params}

    def more(self, state: FittedState) -> tuple[dict[str, Any], dict[str, Any]]:
        margins = {f"degrees_{name}": getattr(state.degrees, name) for name in _DEGREES}
        arrays = {name: array for name, array in margins.items() if array is not None}
        meta = {"loss": self.pack_loss(state.loss), "reg": state.reg, "reg_exponent": state.reg_exponent}
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
                meta[f"{side}_features"] = {"reg": prior.reg, **({"mean": True} if prior.mean else {})}
        return arrays, meta

    def make(self, fields: dict, arrays: dict[str, np.ndarray], meta: dict) -> FittedState:
        # Never a bare name.
        loss = self.unpack_loss({name: meta["loss"][name] for name in ("name", "params")})
        loss.validate()
        degrees = {name: arrays[at] for name in _DEGREES if (at := f"degrees_{name}") in arrays}
        if any((array < 0).any() for array in degrees.values()):
            raise ValueError("a sum or count of interactions is negative")
        aged, scale = fields["weighting"].half_life is not None, arrays.get("item_scale")
        exponent = 0.0 if scale is None else meta["readout_exponent"]
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
            degrees=Degrees(reference=None, matrix=None, **degrees, aged=aged),
            readout_exponent=check_real("readout_exponent", exponent, -1.0, 1.0),
            item_scale=scale,
            hard_negatives=read_hard_negatives(_unpack_hard(meta.get("hard_negatives"))),
        )


FORMAT = _ALSFormat("RGALS", SPEC)
