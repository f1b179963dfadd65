"""Rounding that shows in scores is warned of, and only that; weights that are next to nothing are refused."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import rgals.solvers.precision
from rgals import IALS, RG2, RGALS, RGX, WRMF, NumericalError, PrecisionWarning
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.dense import DenseBackend
from rgals.solvers.precision import LIMIT, RISKY, rows_at_risk

LOSSES = {
    "WRMF 1": WRMF(alpha=1.0),
    "WRMF 10": WRMF(alpha=10.0),
    "WRMF 40": WRMF(alpha=40.0),
    "iALS": IALS(alpha0=0.1),
    "RG2": RG2(alpha=0.05),
    "RGx": RGX(alpha=0.05),
}
KINDS = ["ones", "log-normal", "1 to 1e6"]
QUICK = [("WRMF 40", 0, 32, "1 to 1e6"), ("WRMF 40", 1, 32, "1 to 1e6"), ("RGx", 0, 32, "ones")]
GRID = [(name, nu, K, kind) for kind in KINDS for nu in (0, 1) for name in LOSSES for K in (32, 64, 128, 256)]


def counts(kind: str, n_users: int = 120, n_items: int = 200, dtype=np.float32) -> sp.csr_array:
    """Popular and rare items, long and short rows; values of a kind."""
    rng = np.random.default_rng(0)
    popular = np.arange(1.0, n_items + 1) ** -0.7
    n = np.clip(rng.lognormal(3.0, 0.9, n_users), 3, 0.7 * n_items).astype(int)
    cols = np.concatenate([rng.choice(n_items, k, replace=False, p=popular / popular.sum()) for k in n])
    values = {
        "ones": np.ones(len(cols)),
        "log-normal": np.ceil(rng.lognormal(1.0, 1.5, len(cols))),
        "1 to 1e6": np.round(10 ** rng.uniform(0, 6, len(cols))),
    }[kind]
    return sp.csr_array((values.astype(dtype), (np.repeat(np.arange(n_users), n), cols)), (n_users, n_items))


def errors(found, right, fixed) -> np.ndarray:
    """Of every row: the largest error of a score, relative to the row's largest score."""
    scores, exact = found.astype(np.float64) @ fixed.T, right @ fixed.T.astype(np.float64)
    return np.abs(scores - exact).max(axis=1) / np.abs(exact).max(axis=1)


def fit(X, loss, nu, K, reg=0.01, n_iter=5):
    """A float32 fit, its warnings, and the errors of its user rows and of item rows with the same users."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = RGALS(
            K=K, loss=loss, reg=reg, reg_exponent=nu, n_iter=n_iter, values="raw", random_state=0
        ).fit(X)
    users, items = model.user_factors_, model.item_factors_
    matrix = as_csr(X, dtype=np.float32)
    coefficients = loss.coefficients(Degrees.of(matrix))
    side = coefficients.user_side(matrix, reg, nu)
    of_users = errors(users, DenseBackend().half_step(matrix, items.astype(float), side).factors, items)
    rows = matrix.transpose()
    side = coefficients.item_side(rows, reg, nu)
    found = CPUBackend().half_step(rows, users, side).factors
    of_items = errors(found, DenseBackend().half_step(rows, users.astype(float), side).factors, users)
    told = [str(w.message) for w in seen if issubclass(w.category, PrecisionWarning)]
    return told, of_users, of_items


def test_every_error_of_a_score_is_small_or_warned_of(amount):
    """At most 1e-3, or a warning or an error names the row; no warning below 1e-4."""
    faults = []
    print(f"\n{'loss':9}{'exponent':>9}{'K':>5}  {'values':11}{'user rows':>10}{'item rows':>10}  warned of")
    for name, nu, K, kind in amount(QUICK, GRID):
        size = (120, 200) if K < 100 else (280, 300)  # more than factors, of either
        try:
            told, of_users, of_items = fit(counts(kind, *size), LOSSES[name], nu, K)
        except NumericalError as error:
            assert re.search(r"row \d+ .*dtype='float64'", str(error))
            print(f"{name:9}{nu:9}{K:5}  {kind:11}  refused: {error}")
            continue
        named = [re.search(r"(user|item) \d+ .*?off by \S+", line)[0] for line in told]
        worst = max(of_users.max(), of_items.max())
        cell = (
            f"{name:9}{nu:9}{K:5}  {kind:11}{of_users.max():10.1e}{of_items.max():10.1e}  {'; '.join(named)}"
        )
        print(cell)
        if (worst > 1e-3 and not told) or (worst < 1e-4 and told):
            faults.append(cell)
    assert not faults, "\n".join(faults)


def test_the_warning_names_a_row_and_its_error():
    told, of_users, of_items = fit(counts("1 to 1e6"), WRMF(alpha=40.0), 0, 32)
    assert max(of_users.max(), of_items.max()) > 0.01, "this fit is to be too hard for float32"
    for what, error in (("user", of_users), ("item", of_items)):
        lines = [line for line in told if f" {what} " in line]
        assert len(lines) == 1
        row, measured = re.search(rf"{what} (\d+) are off by (\S+) of", lines[0]).groups()
        assert float(measured) == pytest.approx(error[int(row)], rel=0.1)
        assert float(measured) > error.max() / 3
        assert "dtype='float64'" in lines[0] and "objectives" in lines[0]


def test_one_row_among_thousands_is_found():
    rng = np.random.default_rng(1)
    X = sp.random_array((5000, 300), density=0.05, rng=rng, format="csr", dtype=np.float32)
    X.data[:] = 1.0
    here = slice(X.indptr[3210], X.indptr[3211])
    X.data[here] = 10 ** rng.uniform(0, 6, here.stop - here.start)
    matrix = as_csr(X, dtype=np.float32)
    items = rng.standard_normal((300, 16)).astype(np.float32) / 4
    side = WRMF(alpha=40.0).coefficients(Degrees.of(matrix)).user_side(matrix, 0.01, 0)
    assert rows_at_risk(matrix, items, side)[0] == 3210


def test_the_risk_of_a_row_is_no_less_than_its_error():
    """Rows beyond the limit are among those that are looked at, whatever the loss."""
    for kind in KINDS[1:]:
        matrix = as_csr(counts(kind, 100, 120), dtype=np.float32)
        for loss in LOSSES.values():
            for reg in (1e-6, 1e-2):
                items = (np.random.default_rng(2).standard_normal((120, 32)) * 0.2).astype(np.float32)
                items += 0.3  # all items alike: the interaction of RGx takes most of the Gramian away
                side = loss.coefficients(Degrees.of(matrix)).user_side(matrix, reg, 0)
                found = CPUBackend().half_step(matrix, items, side).factors
                exact = DenseBackend().half_step(matrix, items.astype(np.float64), side).factors
                error = errors(found, exact, items)
                if error.max() > 1e-3:
                    seen = rows_at_risk(matrix, items, side)
                    assert error[seen].max() > LIMIT, (kind, loss, reg)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_is_solved_again_in_an_ordinary_fit(name, monkeypatch):
    def never(*args):
        raise AssertionError("solved again in float64")

    monkeypatch.setattr(rgals.solvers.precision, "shared", never)  # not even a Gramian
    RGALS(K=16, loss=LOSSES[name], reg=0.1, n_iter=3, random_state=0).fit(counts("ones"))
    assert RISKY["float32"] * np.finfo(np.float32).eps < LIMIT


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_row_of_short_factors_is_not_at_risk_for_long_ones_of_others(sign):
    """A bound by the longest factor is above the threshold for both rows."""
    fixed = np.array([[100.0, 0.0], [0.0, 0.01]], np.float32)
    rows = as_csr(np.array([[0.0, 1.0], [1.0, 0.0]]))
    side = IALS(alpha0=0.0).coefficients(Degrees.of(rows)).user_side(rows, 1.0, 0.0)
    side = replace(side, row_terms=sign * side.row_terms)
    np.testing.assert_array_equal(side.ridge, 1.0)  # so that risks are the squared lengths
    assert 0.01**2 < RISKY["float32"] < 100**2
    assert rows_at_risk(rows, fixed, side).tolist() == [1]


def test_float64_is_not_judged():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = counts("1 to 1e6", dtype=np.float64)
        RGALS(
            K=16, loss=WRMF(alpha=40.0), reg=0.01, reg_exponent=0, n_iter=2, dtype="float64", values="raw"
        ).fit(X)


# ------------------------------------------------------------------ weights that are next to nothing


@pytest.mark.parametrize("dtype, tiny", [("float32", 1e-24), ("float32", 1e-36), ("float64", 1e-200)])
@pytest.mark.parametrize("name", ["iALS", "RG2", "RGx"])
def test_weights_that_are_nothing_beside_the_rest_are_refused(name, dtype, tiny):
    X = counts("ones", 30, 40, np.dtype(dtype))
    X.data *= tiny
    with pytest.raises(NumericalError, match=r"user 0 .*too small for " + dtype) as raised:
        settings = {"reg": 0.01, "reg_exponent": 0, "n_iter": 3, "values": "raw", "random_state": 0}
        RGALS(K=8, loss=LOSSES[name], dtype=dtype, **settings).fit(X)
    # With float64, float64 was advised.
    assert ("dtype='float64'" in str(raised.value)) == (dtype == "float32")


@pytest.mark.parametrize("dtype, power", [("float32", -80), ("float64", -700)])
@pytest.mark.parametrize("name", ["RG2", "RGx"])
def test_a_loss_without_units_takes_tiny_weights(name, dtype, power):
    """All weights of these scale with the values, so that a power of two changes nothing but exponents."""
    X = counts("log-normal", 30, 40, np.dtype(dtype))
    found = []
    for values in (X.data, X.data * np.dtype(dtype).type(2.0**power)):
        Y = sp.csr_array((values, X.indices, X.indptr), X.shape)
        model = RGALS(
            K=8, loss=LOSSES[name], reg=0.1, n_iter=3, dtype=dtype, random_state=0, values="raw"
        ).fit(Y)
        found.append(model.user_factors_ @ model.item_factors_.T)
    np.testing.assert_allclose(*found, rtol=0, atol=1e-4 * np.abs(found[0]).max())


def test_one_user_of_tiny_weights_is_right():
    X = counts("ones", 30, 40)
    X.data[X.indptr[7] : X.indptr[8]] = 1e-24
    matrix = as_csr(X, dtype=np.float32)
    items = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    for name in ("iALS", "RG2"):
        side = LOSSES[name].coefficients(Degrees.of(matrix)).user_side(matrix, 0.01, 0)
        found = CPUBackend().half_step(matrix, items, side).factors
        exact = DenseBackend().half_step(matrix, items.astype(np.float64), side).factors
        assert errors(found, exact, items)[7] < 1e-5


def test_factors_that_regularisation_brings_to_nothing_are_told_of():
    with pytest.warns(PrecisionWarning) as seen:
        RGALS(K=8, loss="ials", reg=1e3, n_iter=20, random_state=0).fit(counts("ones", 30, 40))
    assert re.search(r"user 0 \(and of up to 29 more\) have come to 0.*Lower reg", str(seen[0].message))
    assert {warning.filename for warning in seen} == {__file__}


@pytest.mark.parametrize("sides", ["user", "item", "both"])
def test_rows_that_features_pull_are_compared_with_what_they_are_pulled_to(sides, monkeypatch):
    monkeypatch.setitem(RISKY, "float32", 1.0)  # rows are solved again in a fit that loses nothing
    X, rng = counts("ones", 60, 40), np.random.default_rng(0)
    features = {f"{side}_features": rng.standard_normal((n, 5)) for side, n in (("user", 60), ("item", 40))}
    features = {name: F for name, F in features.items() if sides == "both" or name.startswith(sides)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RGALS(K=8, n_iter=3, random_state=0).fit(X, **features)


def test_a_system_without_full_rank_is_named():
    items = np.zeros((40, 8), np.float32)
    items[:, :4] = np.random.default_rng(0).standard_normal((40, 4))
    matrix = as_csr(counts("ones", 30, 40), dtype=np.float32)
    side = WRMF(alpha=1.0).coefficients(Degrees.of(matrix)).user_side(matrix, 0.0, 0)
    with pytest.warns(PrecisionWarning, match=r"system of user \d+ is singular.*dtype='float64'"):
        solved = np.ones((30, 8), np.float32)
        rgals.solvers.precision.warn_of_rounding(matrix, solved, items, side, CPUBackend(), "user")


@pytest.mark.parametrize("solver", ["exact", "pcg"])
def test_more_factors_than_items_without_regularisation_are_told_of_in_float64_too(solver):
    X = counts("ones", 60, 40, dtype=np.float64)
    fit = RGALS(K=48, reg=0.0, solver=solver, dtype="float64", init="random", n_iter=6, random_state=0).fit
    with pytest.warns(PrecisionWarning, match=r"float64.*user \d+ is singular.*Raise reg") as seen:
        fit(X)
    assert {warning.category for warning in seen} == {PrecisionWarning}  # nothing of scipy's
    assert {warning.filename for warning in seen} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RGALS(K=48, reg=1e-8, solver=solver, dtype="float64", n_iter=6, random_state=0).fit(X)
