"""Formulas, properties, metrics as elsewhere, numerical failure, Ctrl-C, float32."""

from __future__ import annotations

import signal
import time
import warnings

import numpy as np
import pytest
from helpers import LOSSES, factors, interactions
from hypothesis import given, settings
from hypothesis import strategies as st
from instruments.harness import ready
from instruments.properties import PROPERTIES
from metrics import test_evaluation as test_metrics

from rgals import IALS, RG2, RGALS, WRMF, NumericalError, RgalsError
from rgals.losses import Degrees
from rgals.matrix.validate import as_csr
from rgals.solvers.cpu import CPUBackend

# ------------------------------------------------------------------ formulas


def pair(side, solved, fixed):
    return (solved, fixed) if side == "user" else (fixed, solved)


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_formulas(tally, amount, side, dtype):
    """Central differences, zero gradient after a half-step, perturbations never better."""
    names = list(LOSSES)[:: amount(4, 1)]
    count = tally(f"formulas, {side} side, {np.dtype(dtype).name}", len(names), len(LOSSES))
    rng = np.random.default_rng(3)
    exact = dtype == np.float64
    for name in names:
        with count.case(name):
            loss = LOSSES[name]
            X = interactions(40, 30, valued=True, seed=6)
            users = as_csr(X, dtype=dtype)
            coefficients = loss.coefficients(Degrees.of(users))
            rows = users if side == "user" else users.transpose()
            sided = getattr(coefficients, f"{side}_side")(rows, 0.03, 0.9)
            fixed = factors(rows.n_cols, 6, dtype, seed=1)
            start = factors(rows.n_rows, 6, seed=2)

            def value(at, loss=loss, X=X, fixed=fixed):
                return loss.objective(X, *pair(side, at, fixed), 0.03, 0.9)

            def slope(at, loss=loss, X=X, fixed=fixed):
                return loss.gradient(X, *pair(side, at, fixed), 0.03, 0.9)[side == "item"]

            for _ in range(3):
                direction = rng.standard_normal(start.shape)
                step = 1e-5
                central = (value(start + step * direction) - value(start - step * direction)) / (2 * step)
                assert central == pytest.approx((slope(start) * direction).sum(), rel=1e-6)
            solved = CPUBackend().half_step(rows, fixed, sided).factors
            assert np.abs(slope(solved)).max() < (1e-9 if exact else 1e-3) * np.abs(slope(start)).max()
            best = value(solved)
            slack = 0.0 if exact else 1e-5 * abs(best)
            for scale in (1e-3, 1e-1, 1.0):
                moved = solved + scale * rng.standard_normal(solved.shape)
                assert value(moved) >= best - slack
    count.check()


# ------------------------------------------------------------------ properties


def over_seeds(check, number, examples, tried):
    """A property over many random generators; notes how long each took."""

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**32 - 1))
    def run(seed):
        started = time.perf_counter()
        check(np.random.default_rng([number, seed]))
        tried.append(time.perf_counter() - started)

    return run


def test_properties(tally, amount):
    examples = amount(3, 200)
    count = tally("properties (hypothesis)", len(PROPERTIES) * 3, 20 * 200)
    assert len(PROPERTIES) >= 20
    for number, check in enumerate(PROPERTIES):
        tried: list[float] = []
        try:
            over_seeds(check, number, examples, tried)()
        except Exception as error:
            count.add(0.0, f"{check.__name__}: {type(error).__name__}: {error}")
        count.add(max(tried, default=0.0), None, len(tried))
    count.check()


# ------------------------------------------------------------------ metrics


def test_metrics_equal_an_outside_evaluator(tally):
    count = tally("metrics on rankings with ties", 1000, 1000)
    started = time.perf_counter()
    test_metrics.test_equal_to_trec_eval_on_rankings_with_ties()
    count.add(time.perf_counter() - started, None, len(test_metrics.outside_cases()[0]))
    count.check()


# ------------------------------------------------------------------ numerical failure


def failing():
    """(name, parameters, matrix, what the error says): fits that cannot go on."""
    X = interactions(60, 45)
    huge = X.copy()
    huge.data = np.full(len(huge.data), 1e30)
    yield (
        "no ridge and nothing to hold it",
        {"loss": IALS(alpha0=0.0), "reg": 0.0, "K": 60},
        X,
        "half-step.*row",
    )
    yield "no ridge, float64", {"loss": IALS(alpha0=0.0), "reg": 0.0, "K": 60, "dtype": "float64"}, X, "row"
    yield "overflow of weights", {"loss": WRMF(alpha=1e10), "reg": 1e-30}, huge, "row"
    yield "overflow of the start", {"init_scale": 1e30}, X, "row|Gramian"
    yield "a start beyond float32", {"init_scale": 1e38}, X, "row|Gramian"


def test_numerical_failure_names_the_row_and_leaves_the_last_good_state(tally):
    count = tally("numerical failure", 5, 5)
    X = interactions(60, 45)
    for name, params, matrix, words in failing():
        with count.case(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = RGALS(K=4, n_iter=2, random_state=0).fit(X)
            before, record = model._snapshot, model.history_
            model.set_params(**{"loss": "rg2", "n_iter": 30, **params})
            with pytest.raises(NumericalError, match=words):
                model.fit(matrix)
            assert model._snapshot is before
            assert model.history_ is record
            assert (model.recommend([0], n=2)[0] >= 0).any()
    count.check()


def test_a_failed_refit_of_another_shape_leaves_a_model_that_works():
    X = interactions(60, 45)
    model = RGALS(K=4, n_iter=2, random_state=0).fit(X)
    before = model.transform(X)
    with pytest.raises(RgalsError):
        model.set_params(loss=IALS(alpha0=0.0), reg=0.0, K=60).fit(interactions(50, 20))
    np.testing.assert_array_equal(model.transform(X), before)
    assert model.n_features_in_ == 45


def test_nan_that_a_callback_sees_is_no_surprise():
    """Factors are finite after every iteration of an ordinary fit, and read-only."""

    def look(now):
        assert np.isfinite(now.user_factors).all()
        assert np.isfinite(now.item_factors).all()
        with pytest.raises(ValueError, match="read-only"):
            now.item_factors[0, 0] = np.nan

    RGALS(K=8, n_iter=5, random_state=0).fit(interactions(), callbacks=look)


# ------------------------------------------------------------------ Ctrl-C


def interrupted(kind: str) -> dict:
    """Fit until a signal comes; what the model is then, and when that was."""
    X = interactions(1200, 400, seed=2)
    model = RGALS(K=16, n_iter=2, random_state=0).fit(X)
    before, answers = model._snapshot, model.recommend([1, 2], n=5)
    other = interactions(6000, 1000, seed=3)
    # float32 is at its rounding, and the fit at its end, within a second.
    params = {"n_iter": 100_000, "dtype": "float64", **({"solver": "pcg"} if kind == "pcg" else {})}
    if kind == "one long half-step":
        params["K"], params["n_iter"] = 512, 50
    model.set_params(**params)
    try:
        ready()
        model.fit(other if kind != "warm" else X)
    except KeyboardInterrupt:
        after = time.monotonic()
    else:
        raise AssertionError("the fit ended by itself")
    again = model.recommend([1, 2], n=5)
    return {
        "after": after,
        "same": model._snapshot is before
        and all((a == b).all() for a, b in zip(answers, again, strict=True)),
        "folds in": bool(np.array_equal(model.transform(X), before.user_factors)),
        "refits": model.set_params(n_iter=1, K=4).fit(X).n_iter_ == 1,
    }


def test_ctrl_c_during_a_fit(zygote, tally, amount):
    delays = amount([0.3], [0.1, 0.3, 0.8, 1.5])
    # Half-steps are exact in the last two as well, of a matrix as before and of another one.
    kinds = amount((), ("exact",)) + ("pcg", "warm", "one long half-step")
    count = tally("Ctrl-C during a fit", len(delays) * len(kinds), 16)
    for kind in kinds:
        for delay in delays:
            outcome = zygote.run(
                "test_numerics:interrupted", kind, signal_after=(signal.SIGINT, delay, "ready")
            )
            fault, seconds = None, 0.0
            if not outcome.returned:
                fault = f"{outcome}"
            else:
                seconds = outcome.value["after"] - outcome.sent
                if not all(outcome.value[name] for name in ("same", "folds in", "refits")):
                    fault = f"{outcome.value}"
            count.add(seconds, fault and f"{kind}, after {delay} s: {fault}")
    count.check()


# ------------------------------------------------------------------ float32 that cannot be trusted


def collinear(kinds=8, n_users=200, n_items=60):
    """Users of a few kinds only: beyond so many factors nothing but the ridge holds the systems together."""
    rng = np.random.default_rng(5)
    rows = rng.random((kinds, n_items)) < 0.3
    return rows[rng.integers(kinds, size=n_users)].astype(float)


@pytest.mark.parametrize("loss", ["rg2", "rgx", "ials", "wrmf"])
def test_an_untrustworthy_float32_fit_says_so_and_offers_float64(loss):
    X = collinear()
    params = {"K": 32, "loss": loss, "reg": 1e-9, "n_iter": 8, "random_state": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            RGALS(**params).fit(X)
        except NumericalError as error:
            assert "float64" in str(error)
            return
    assert any("dtype='float64'" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("K", [8, 64])
@pytest.mark.parametrize("loss", [RG2(), RG2(alpha=0.0), IALS(alpha0=0.2), WRMF(), LOSSES["rgx"]], ids=str)
def test_ordinary_fits_are_not_warned_about(loss, K):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for reg in (0.002, 0.05, 5.0):
            RGALS(K=K, loss=loss, reg=reg, n_iter=6, random_state=0).fit(interactions(300, 120))
            RGALS(K=K, loss=loss, reg=reg, n_iter=3, random_state=0, dtype="float64").fit(collinear())
