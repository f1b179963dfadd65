"""Every matrix is brought into one form or refused: mutants, weights, shapes, more than 2^31 interactions."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES

from rgals import RGALS, InsufficientMemoryError, RgalsError
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime import memory as _memory

BATCH = 200


def test_mutants_of_csr(zygote, tally):
    count = tally("CSR mutants", 200, 10_000)
    totals = np.zeros(2, int)
    for start in range(0, count.figure, BATCH):
        outcome = zygote.run("instruments.mutants:batch", start, start + BATCH)
        if not outcome.returned:
            count.add(outcome.seconds, f"seeds {start}..{start + BATCH - 1}: {outcome}", BATCH)
            continue
        faults, accepted, refused = outcome.value
        totals += accepted, refused
        count.add(outcome.seconds, None, BATCH - len(faults))
        for fault in faults:
            count.add(0.0, fault)
    count.check()
    assert (totals > count.figure / 10).all(), f"accepted, refused: {totals}"


def test_the_mutants_catch_whoever_trusts_scipys_check(zygote):
    outcome = zygote.run("instruments.mutants:batch", 0, 200, True)
    assert not outcome.returned or len(outcome.value[0]) > 5


# ------------------------------------------------------------------ weights

BIG = 1e38
# Value, dtype it is stored in, dtype asked for; then the number that is computed with, 0 where the entry is
# dropped, or what the error says.
WEIGHTS = [
    (np.nan, "f8", "f4", "NaN at row 1, column 2"),
    (np.nan, "f4", "f8", "NaN at row 1, column 2"),
    (np.inf, "f8", "f4", "row 1, column 2 is infinity"),
    (np.inf, "f4", "f8", "row 1, column 2 is infinity"),
    (-np.inf, "f8", "f4", "row 1, column 2 is infinity"),
    (-np.inf, "f4", "f4", "row 1, column 2 is infinity"),
    (-1.0, "f8", "f4", "Negative values.*row 1, column 2"),
    (-1e-300, "f8", "f8", "Negative values.*row 1, column 2"),
    (-1, "i1", "f4", "Negative values.*row 1, column 2"),
    (-5, "i8", "f8", "Negative values.*row 1, column 2"),
    (-0.0, "f8", "f4", 0.0),
    (-0.0, "f4", "f8", 0.0),
    (0.0, "f8", "f4", 0.0),
    (0, "i4", "f4", 0.0),
    (False, "?", "f4", 0.0),
    (True, "?", "f4", 1.0),
    (True, "?", "f8", 1.0),
    (1, "i1", "f4", 1.0),
    (7, "u1", "f4", 7.0),
    (7, "i2", "f8", 7.0),
    (7, "u2", "f4", 7.0),
    (7, "i4", "f4", 7.0),
    (7, "u4", "f8", 7.0),
    (7, "i8", "f4", 7.0),
    (7, "u8", "f8", 7.0),
    (2**53, "i8", "f8", 2.0**53),
    (2**63, "u8", "f8", 2.0**63),
    (0.5, "f2", "f4", 0.5),
    (0.1, "f4", "f4", float(np.float32(0.1))),
    (0.1, "f8", "f8", 0.1),
    (0.1, "f8", "f4", float(np.float32(0.1))),
    (0.5, "g", "f8", 0.5),
    (5e-324, "f8", "f8", 5e-324),  # subnormal
    (1e-45, "f4", "f4", float(np.float32(1e-45))),
    (5e-324, "f8", "f4", 0.0),  # below what float32 can hold
    (BIG, "f8", "f4", float(np.float32(BIG))),
    (BIG, "f4", "f8", float(np.float32(BIG))),
    (1e39, "f8", "f4", "too large for float32"),
    (1e39, "f8", "f8", 1e39),
    (1.7e308, "f8", "f8", 1.7e308),
    (1j, "c8", "f4", "Complex"),
    (1j, "c16", "f8", "Complex"),
    ("x", "O", "f4", "numeric array, not of objects: could not convert string to float: 'x'"),
    ("x" * 300, "O", "f4", "numeric array, not of objects: could .{1,100}$"),
    (3, "O", "f4", 3.0),
]


def test_weights(tally):
    count = tally("weights", 40, 40)
    for value, stored, dtype, wanted in WEIGHTS:
        with count.case(f"{value!r} in {stored} as {dtype}"):
            dense = np.zeros((3, 4), stored)
            dense[0, 0] = dense[2, 1] = 1
            dense[1, 2] = value
            # scipy has no sparse half or object; such come as arrays.
            forms = [dense] if stored in ("O", "f2") else [dense, sp.csr_array(dense)]
            if len(forms) == 2 and value == 0 and not isinstance(value, str):
                forms[1] = sp.csr_array(
                    (np.array([1, value, 1], stored), [0, 2, 1], [0, 1, 2, 3]), shape=(3, 4)
                )
                assert forms[1].nnz == 3
            for X in forms:
                if isinstance(wanted, str):
                    with pytest.raises(RgalsError, match=wanted):
                        as_csr(X, dtype=np.dtype(dtype).type)
                    continue
                got = as_csr(X, dtype=np.dtype(dtype).type)
                assert got.to_scipy(np.float64).toarray()[1, 2] == wanted
                assert got.nnz == 2 + (wanted != 0)
    count.check()


@pytest.mark.parametrize("weight", [1e-30, 1e-6, 1e6, 1e30])
def test_a_fit_with_an_extreme_weight_is_finite_or_a_typed_error(weight):
    X = np.eye(6) + np.eye(6)[::-1]
    X[1, 2] = weight
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = RGALS(K=3, n_iter=3, random_state=0).fit(X)
    except RgalsError as error:
        assert "float64" in str(error)
        return
    assert np.isfinite(model.user_factors_).all()
    assert np.isfinite(model.item_factors_).all()


# ------------------------------------------------------------------ shapes

SHAPES = [
    ("0 x n", (0, 4), None), ("n x 0", (4, 0), None), ("0 x 0", (0, 0), None), ("all zero", (5, 4), "zero"),
    ("1 x 1", (1, 1), "full"), ("1 x n", (1, 7), "full"), ("n x 1", (7, 1), "full"),
    ("full", (6, 5), "full"), ("one interaction", (6, 5), "one"), ("diagonal", (6, 6), "diagonal"),
    ("empty first row", (6, 5), "no row 0"), ("empty last row", (6, 5), "no row 5"),
    ("empty first column", (6, 5), "no column 0"), ("empty last column", (6, 5), "no column 4"),
    ("only the last pair", (9, 9), "last"), ("one long row", (9, 40), "row"),
    ("one long column", (40, 9), "column"),
    ("tall", (300, 3), "random"), ("wide", (3, 300), "random"), ("K of both sides", (8, 8), "random"),
    ("K above users", (5, 30), "random"), ("K above items", (30, 5), "random"),
    ("K above both", (5, 4), "random"),
    ("thin", (50, 50), "thin"), ("wholly observed but one", (6, 6), "all but one"),
]  # fmt: skip


def shaped(shape, kind):
    rng = np.random.default_rng(1)
    X = np.zeros(shape)
    if kind == "full" or (kind or "").startswith("no "):
        X[:] = 1.0
        if kind.startswith("no row"):
            X[int(kind.split()[-1])] = 0.0
        elif kind.startswith("no column"):
            X[:, int(kind.split()[-1])] = 0.0
    elif kind == "one":
        X[2, 3] = 1.0
    elif kind == "diagonal":
        X = np.eye(*shape)
    elif kind == "last":
        X[-1, -1] = 1.0
    elif kind == "row":
        X[3] = 1.0
    elif kind == "column":
        X[:, 3] = 1.0
    elif kind == "all but one":
        X[:] = 1.0
        X[2, 2] = 0.0
    elif kind in ("random", "thin"):
        X = (rng.random(shape) < (0.4 if kind == "random" else 0.02)).astype(float)
        assert 0 < X.sum() < X.size
    return X


def test_shapes(tally, amount):
    count = tally("shapes", 25, 25)
    for name, shape, kind in SHAPES:
        with count.case(name), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            X = shaped(shape, kind)
            losses = amount(("rgx", "wrmf"), ("rg2", "rgx", "ials", "wrmf"))
            for loss, form in zip(losses, itertools.cycle((X, sp.csr_array(X))), strict=False):
                model = RGALS(K=8, loss=LOSSES[loss], n_iter=3, random_state=0)
                if not X.any():
                    with pytest.raises(RgalsError, match="no interactions|sample|feature"):
                        model.fit(form)
                    continue
                model.fit(form)
                assert np.isfinite(model.user_factors_).all()
                assert np.isfinite(model.item_factors_).all()
                empty = ~X.any(axis=1)
                assert not model.user_factors_[empty].any()
                ids, scores = model.recommend(np.arange(len(X)), n=3)
                assert (ids[empty] == -1).all()
                assert (scores[empty] == -np.inf).all()
                for row in np.flatnonzero(~empty):
                    given = ids[row][ids[row] >= 0]
                    assert not X[row, given].any(), "what a user has is not recommended"
                    assert len(given) == min(3, int((X[row] == 0).sum()))
    count.check()


# ------------------------------------------------------------------ beyond 2^31


def virtual(n: int, dtype) -> np.ndarray:
    """n equal entries that take no memory."""
    return np.lib.stride_tricks.as_strided(np.ones(1, dtype), (n,), (0,), writeable=False)


def test_more_than_two_to_the_31_interactions(monkeypatch, tally):
    count = tally("beyond 2^31 interactions", 5, 5)
    many = (1 << 31) + 8
    with count.case("64-bit indices at small size are narrowed"):
        X = sp.csr_array((np.ones(3), np.array([0, 2, 1], np.int64), np.array([0, 2, 3], np.int64)), (2, 3))
        got = as_csr(X)
        assert (got.indptr.dtype, got.indices.dtype) == (np.int64, np.int32)
        np.testing.assert_array_equal(got.to_scipy().toarray(), X.toarray())
    with count.case("an indptr beyond the data is refused"):
        X = sp.csr_array((2, 3))
        X.indptr, X.indices, X.data = np.array([0, many, many + 1]), np.zeros(4, np.int32), np.ones(4)
        with pytest.raises(RgalsError, match=f"row 0 ends at entry {many}"):
            as_csr(X)
    with count.case("a row that lies beyond 2^31 is read where it is"):
        indices = virtual(many + 3, np.int32)
        matrix = CSR(np.array([0, many, many + 3]), indices, virtual(many + 3, np.float32), 5)
        part = matrix.take_rows(np.array([1]))
        np.testing.assert_array_equal(part.indptr, [0, 3])
        np.testing.assert_array_equal(part.indices, [1, 1, 1])
        assert matrix.row_counts[0] == many
    with count.case("a conversion that does not fit is refused before it starts"):
        monkeypatch.setattr(_memory, "available_bytes", lambda: 1 << 30)
        X = sp.csr_array((1, 5), dtype=np.float32)
        X.indptr, X.indices, X.data = np.array([0, many]), virtual(many, np.int32), virtual(many, np.float32)
        with pytest.raises(InsufficientMemoryError, match="2,147,483,656 interactions"):
            as_csr(X)
    with count.case("a fit that does not fit is refused before it starts"):
        matrix = CSR(np.array([0, many]), virtual(many, np.int32), np.empty(0, np.float32), 5)
        monkeypatch.setattr(CSR, "col_counts", property(lambda self: np.array([1])))
        with pytest.raises(InsufficientMemoryError, match="K=64.*2,147,483,656 interactions"):
            RGALS(K=64).fit(matrix)
    count.check()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float32])
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_duplicates_are_added_in_any_type(dtype, form):
    """Pairs of a COO matrix were added in its own type: 200 + 200 was 144, and True + True 1."""
    most = 1 if dtype is bool else min(np.iinfo(dtype).max, 2**30) if np.dtype(dtype).kind in "iu" else 3
    rows, cols, values = np.array([0, 0, 0, 1]), np.array([2, 2, 2, 0]), np.full(4, most, dtype)
    X = sp.coo_array((values, (rows, cols)), shape=(2, 3))
    if form == "csr":
        X = sp.csr_array((values, cols, np.array([0, 3, 4])), shape=(2, 3))
    elif form == "csc":
        X = sp.csc_array((values[[3, 0, 1, 2]], rows[[3, 0, 1, 2]], np.array([0, 1, 1, 4])), shape=(2, 3))
    found = as_csr(X, dtype=np.float64).to_scipy(np.float64).toarray()
    np.testing.assert_array_equal(found, [[0, 0, 3.0 * most], [most, 0, 0]])


def test_duplicates_are_added_in_double_precision_and_must_fit():
    where = np.array([1, 1, 1]), np.array([0, 3])
    small = sp.csr_array((np.array([1, 2.0**24, 1], np.float32), *where), shape=(1, 2))
    assert np.float32(2.0**24) + np.float32(1) == 2.0**24
    assert as_csr(small).values.tolist() == as_csr(small.tocoo()).values.tolist() == [2.0**24 + 2]
    large = sp.csr_array((np.array([3e38, 1, 3e38], np.float32), *where), shape=(1, 2))
    for X in (large, large.tocoo()):
        with pytest.raises(RgalsError, match="overflows float32|too large for float32"):
            as_csr(X)
        assert as_csr(X, dtype=np.float64).values.tolist() == [2 * float(np.float32(3e38))]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda matrix: pickle.loads(pickle.dumps(matrix))])
def test_copies_of_a_matrix_are_read_only_too(again):
    """`drift` of a model from another process compiled its kernels a second time, for writable arrays."""
    known = CSR(np.array([0, 1]), np.zeros(1, np.int32), np.array([2.0]), 1, np.zeros(1))
    made = again(known)
    for name in ("indptr", "indices", "values", "times"):
        np.testing.assert_array_equal(getattr(made, name), getattr(known, name))
        assert not getattr(made, name).flags.writeable


class Asks:
    """What another thread does while a pickle or a copy of a matrix is made."""

    def __init__(self, matrix):
        self.matrix = matrix

    def __reduce__(self):
        assert self.matrix.col_counts.tolist() == [1]
        return Asks, (None,)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda matrix: pickle.loads(pickle.dumps(matrix))])
def test_a_matrix_is_copied_while_it_is_asked(again):
    """Column counts are kept where the pickle went through: a RuntimeError."""
    known = CSR(np.array([0, 1]), np.zeros(1, np.int32), np.array([2.0]), 1)
    vars(known)["thread"] = Asks(known)
    assert again(known).col_counts.tolist() == [1]
