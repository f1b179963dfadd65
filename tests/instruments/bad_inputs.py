"""Inputs that nobody should give, each with what the error must say.

A case is (name, function that makes it, what the message must match). The function returns a callable and its
arguments; what the arguments hold must be the same afterwards.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from rgals import IALS, RG2, RGALS, RGX, WRMF, Checkpoint
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import k_core, split_interactions
from rgals.scoring import topk

CASES: list[tuple] = []


def case(name, pattern):
    def keep(make):
        CASES.append((name, make, pattern))
        return make

    return keep


def matrix() -> np.ndarray:
    rng = np.random.default_rng(4)
    X = (rng.random((12, 9)) < 0.4).astype(np.float64)
    X[2, 3] = 1.0
    return X


def fit(X, **more):
    return RGALS(K=3, n_iter=2, random_state=0).fit(X, **more)


def raw_csr(indptr, indices, data, shape, kind=sp.csr_array):
    """A matrix that scipy has not checked."""
    X = kind(shape, dtype=data.dtype)
    X.indptr, X.indices, X.data = indptr, indices, data
    return X


# ------------------------------------------------------------------ values

FORMATS = {
    "array": lambda X: X,
    "nested lists": lambda X: X.tolist(),
    **{
        kind: (lambda X, kind=kind: getattr(sp, f"{kind}_array")(X))
        for kind in ("csr", "csc", "coo", "lil", "dok", "bsr")
    },
}
for _format, _make in FORMATS.items():
    for _value, _word in ((np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity"), (-1.0, "Negative")):

        def _bad_value(make=_make, value=_value):
            X = matrix()
            X[2, 3] = value
            return fit, (make(X),)

        CASES.append(
            (f"{_value} in {_format}", _bad_value, rf"{_word}.*row 2, column 3|row 2, column 3.*{_word}")
        )

for _dtype, _pattern in (
    ("complex64", "Complex"),
    ("complex128", "Complex"),
    ("U3", "U3|numeric|numbers|convert"),
    ("S3", "S3|numeric|numbers|convert"),
    ("M8[s]", "numbers|datetime|DType|numeric"),
    ("m8[s]", "numbers|timedelta|DType|numeric"),
    ("O", "numeric|text"),
):

    def _bad_dtype(dtype=_dtype):
        X = matrix().astype(int)
        X = np.array([["a"] * 3] * 3, object) if dtype == "O" else X.astype(dtype)
        return (as_csr if dtype == "O" else fit), (X,)

    CASES.append((f"dense {_dtype}", _bad_dtype, _pattern))
    if _dtype.startswith("complex"):
        CASES.append(
            (f"sparse {_dtype}", lambda d=_dtype: (fit, (sp.csr_array(matrix().astype(d)),)), "Complex")
        )

# ------------------------------------------------------------------ structure

for _kind, _line in ((sp.csr_array, "row"), (sp.csc_array, "column")):
    for _name, _indptr, _indices, _pattern in (
        ("index too large", [0, 1, 2], [0, 7], f"{_line} 1 holds .* index 7"),
        ("index one too large", [0, 1, 2], [0, 3], f"{_line} 1 holds .* index 3, outside 0..2"),
        ("negative index", [0, 1, 2], [-1, 0], f"{_line} 0 holds .* index -1"),
        ("index of 2^40", [0, 1, 2], [0, 1 << 40], f"{_line} 1 holds .* index {1 << 40}"),
        ("most negative index", [0, 1, 2], [-(1 << 63), 0], f"{_line} 0 holds"),
        ("indptr from 1", [1, 1, 2], [0, 1], "indptr must start with 0"),
        ("negative indptr", [-1, 1, 2], [0, 1], "indptr must start with 0"),
        ("decreasing indptr", [0, 2, 1], [0, 1], f"indptr decreases after {_line} 1"),
        ("indptr past the data", [0, 1, 9], [0, 1], f"{_line} 1 ends at entry 9"),
        ("indptr of 2^62", [0, 1, 1 << 62], [0, 1], f"{_line} 1 ends at entry"),
        ("short indptr", [0, 2], [0, 1], "indptr has 2 entries"),
        ("long indptr", [0, 1, 2, 2], [0, 1], "indptr has 4 entries"),
        ("empty indptr", [], [], "indptr has 0 entries"),
        ("fractional indptr", [0.0, 1.0, 2.0], [0, 1], "must be integers"),
        ("fractional indices", [0, 1, 2], [0.0, 1.0], "must be integers"),
    ):

        def _corrupt(kind=_kind, indptr=_indptr, indices=_indices):
            n = len(indices)
            shape = (2, 3) if kind is sp.csr_array else (3, 2)
            return as_csr, (raw_csr(np.array(indptr), np.array(indices), np.ones(n), shape, kind),)

        CASES.append((f"{_name}, by {_line}", _corrupt, _pattern))

for _row, _col, _pattern in (
    (2, 9, "column index 9"),
    (12, 0, "row index 12"),
    (-1, 0, "row index -1"),
    (0, -3, "column index -3"),
):

    def _bad_pair(row=_row, col=_col):
        X = sp.coo_array(matrix())
        X.coords[0][1], X.coords[1][1] = row, col
        return fit, (X,)

    CASES.append((f"pair ({_row}, {_col})", _bad_pair, f"entry 1 has {_pattern}"))

# ------------------------------------------------------------------ no matrix at all

for _name, _thing, _pattern in (
    ("None", None, "NoneType"),
    ("text", "ratings.csv", "str"),
    ("bytes", b"x", "bytes"),
    ("number", 3, "int"),
    ("float", 2.5, "float"),
    ("mapping", {"a": 1}, "dict"),
    ("vector", np.ones(4), "2D"),
    ("cube", np.ones((2, 2, 2)), "2D|dim 3|3"),
    ("scalar array", np.array(1.0), "2D|scalar|0D"),
    ("empty list", [], "2D|1D"),
    ("no users", np.empty((0, 3)), "0 sample"),
    ("no items", np.empty((3, 0)), "0 feature"),
    ("no users, sparse", sp.csr_array((0, 3)), "0 sample"),
    ("no items, sparse", sp.csr_array((3, 0)), "0 feature"),
    ("all zero", np.zeros((3, 4)), "no interactions"),
    ("all zero, sparse", sp.csr_array((3, 4)), "no interactions"),
    ("sparse vector", sp.coo_array(np.ones(3)), "two dimensions"),
):
    CASES.append((_name, lambda thing=_thing: (fit, (thing,)), _pattern))

# ------------------------------------------------------------------ parameters


def build(**params):
    return RGALS(**{"K": 3, "n_iter": 2, "random_state": 0, **params}).fit(matrix())


PARAMETERS = {
    "K": [0, -1, 1.5, "8", None, True, 1 << 40],
    "reg": [-1, np.nan, np.inf, "x", None],
    "reg_exponent": [9, np.nan, "a"],
    "n_iter": [0, -1, 2.5, None, "many"],
    "init": ["svd", 1, None],
    "solver": ["x", None, 1],
    "dtype": ["int32", "f2", "x", object],
    "device": ["tpu"],
    "n_jobs": [0, "2", 1.5],
    "init_scale": [0, -1, np.nan, "x"],
    "tol": [-1, np.nan, "a"],
    "patience": [0, 1.5],
    "pcg_steps": [0, "3"],
    "values": ["tfidf", None, 1, True],
    "random_state": ["x", -1],
    "loss": ["nope", None, 3],
}
for _name, _values in PARAMETERS.items():
    for _value in _values:
        CASES.append(
            (
                f"{_name}={_value!r}",
                lambda n=_name, v=_value: ((lambda: build(**{n: v})), ()),
                f"^{_name}=|loss",
            )
        )
for _loss, _pattern in (
    (RG2(alpha=-1), "alpha=-1"),
    (RG2(alpha="x"), "alpha='x'"),
    (RG2(n_negatives=0), "n_negatives=0"),
    (RG2(user_exponent=np.nan), "user_exponent=nan"),
    (RGX(form="z"), "form='z'"),
    (RGX(beta=-3), "beta=-3"),
    (IALS(alpha0=-1), "alpha0=-1"),
    (WRMF(alpha=np.nan), "alpha=nan"),
):
    CASES.append((repr(_loss), lambda v=_loss: ((lambda: build(loss=v)), ()), _pattern))
for _name, _more, _pattern in (
    ("svd with alpha", {"solver": "svd", "loss": RG2(alpha=0.1)}, "solver='svd'"),
    ("unknown metric", {"early_stopping": True, "metric": "foo@10"}, "foo"),
    ("metric at 0", {"early_stopping": True, "metric": "ndcg@0"}, "ndcg@0"),
):
    CASES.append((_name, lambda m=_more: ((lambda: build(**m)), ()), _pattern))
for _name, _more, _pattern in (
    ("callback that is none", {"callbacks": 3}, "callbacks|iterable"),
    ("list of no callbacks", {"callbacks": [3]}, "callbacks"),
    ("validation too small", {"validation": np.ones((3, 9))}, "validation has shape"),
    ("validation transposed", {"validation": np.ones((9, 12))}, "transposed"),
    ("validation with NaN", {"validation": np.full((12, 9), np.nan)}, "validation.*NaN.*row 0, column 0"),
    ("labels too few", {"user_ids": ["a"]}, "user_ids has shape"),
    ("labels in two dimensions", {"item_ids": np.ones((9, 1))}, "item_ids has shape"),
    ("checkpoint of 5", {"checkpoint": 5}, "checkpoint=5"),
):
    CASES.append((_name, lambda m=_more: ((lambda X: fit(X, **m)), (matrix(),)), _pattern))
CASES.append(("interval without folder", lambda: ((lambda: Checkpoint(every=5)), ()), "folder"))
CASES.append(("interval of 0", lambda: ((lambda: Checkpoint("x", every=0)), ()), "every=0"))

# ------------------------------------------------------------------ a fitted model


def on_model(method, *args, **kwargs):
    def make():
        model = fit(matrix())
        return (lambda *given: getattr(model, method)(*given, **kwargs)), args

    return make


for _name, _make, _pattern in (
    ("user too large", on_model("recommend", [0, 12]), r"users\[1\]=12.*0 to 11"),
    ("user negative", on_model("recommend", [-1]), r"users\[0\]=-1"),
    ("user of 2^63", on_model("recommend", np.array([1 << 63], np.uint64)), r"users\[0\]="),
    ("user as text", on_model("recommend", ["a"]), "users must be integers"),
    ("user as float", on_model("recommend", [1.0]), "users must be integers"),
    ("users in two dimensions", on_model("recommend", [[1]]), "users must be integers"),
    ("n=0", on_model("recommend", [1], n=0), "n=0"),
    ("n=-1", on_model("recommend", [1], n=-1), "n=-1"),
    ("n=2.5", on_model("recommend", [1], n=2.5), "n=2.5"),
    ("exclude='foo'", on_model("recommend", [1], exclude="foo"), "foo"),
    ("exclude for all", on_model("recommend", [1], exclude=sp.csr_array((12, 9))), "exclude"),
    ("exclude too narrow", on_model("recommend", [1], exclude=sp.csr_array((1, 4))), "exclude"),
    ("candidate too large", on_model("recommend", [1], candidates=[9]), r"candidates\[0\]=9"),
    ("candidates too narrow", on_model("recommend", [1], candidates=sp.csr_array((1, 8))), "candidates"),
    ("excluded item too large", on_model("recommend", [1], exclude_items=[99]), r"exclude_items\[0\]=99"),
    ("similar item too large", on_model("similar_items", [9]), r"items\[0\]=9"),
    ("similar by magic", on_model("similar_items", [1], metric="magic"), "metric='magic'"),
    ("similar user negative", on_model("similar_users", [-5]), r"users\[0\]=-5"),
    ("pairs of two lengths", on_model("predict", [1, 2, 3], [1, 2]), "3 users and 2 items"),
    ("pair with a bad item", on_model("predict", [1], [9]), r"items\[0\]=9"),
    ("fold-in transposed", on_model("transform", sp.csr_array((9, 12))), "transposed|features"),
    ("fold-in too wide", on_model("transform", np.ones((2, 10))), "10"),
    ("fold-in with NaN", on_model("transform", np.full((1, 9), np.nan)), "NaN at row 0, column 0"),
    ("fold-in negative", on_model("transform", sp.csr_array(-np.ones((1, 9)))), "row 0, column 0"),
    ("newcomer too narrow", on_model("recommend_new", np.ones((1, 8))), "X_rows has shape"),
    ("newcomer with infinity", on_model("recommend_new", np.full((1, 9), np.inf)), "X_rows.*row 0, column 0"),
    ("score transposed", on_model("score", sp.csr_array((9, 12))), "transposed"),
    ("objective of other shape", on_model("objective", np.ones((3, 9))), "12"),
    ("save to a folder", on_model("save", "/tmp"), "not a file"),
):
    CASES.append((_name, _make, _pattern))

# ------------------------------------------------------------------ functions

F = np.ones((4, 3))
for _name, _call, _args, _pattern in (
    ("topk of two widths", topk, (F, np.ones((5, 2))), "3 columns.*2"),
    ("topk of a vector", topk, (np.ones(3), F), "two dimensions"),
    ("topk of text", topk, (np.array([["a"]]), F), "real numbers"),
    ("topk of complex", topk, (F.astype(complex), F), "real numbers"),
    ("topk without factors", topk, (np.ones((2, 0)), np.ones((2, 0))), "no factors"),
    ("topk of n='3'", topk, (F, F, "3"), "n='3'"),
    ("evaluate of two shapes", evaluate, ((F, F), matrix(), matrix()), "shape|12|4"),
    ("split by nothing", split_interactions, (matrix(), ()), "fractions|parts|shares|two"),
    ("split by more than all", split_interactions, (matrix(), (0.9, 0.9)), "0.9|1.8|sum"),
    ("k-core of -1", k_core, (sp.csr_array(matrix()), -1), "-1"),
):
    CASES.append((_name, lambda c=_call, a=_args: (c, a), _pattern))


def arrays_of(value) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if sp.issparse(value):
        names = ("data", "indices", "indptr", "rows")
        arrays = [
            getattr(value, name) for name in names if isinstance(getattr(value, name, None), np.ndarray)
        ]
        return arrays + ([np.asarray(c) for c in value.coords] if value.format == "coo" else [])
    return []


def picture(values) -> list[bytes]:
    return [
        array.dtype.str.encode()
        + (repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
        for value in values
        for array in arrays_of(value)
    ]


def run(number: int) -> bool:
    """Make the call; raises what it raises, naming a modified input first."""
    call, args = CASES[number][1]()
    before = picture(args)
    try:
        call(*args)
    finally:
        if picture(args) != before:
            raise RuntimeError("the input was modified")
    return True
