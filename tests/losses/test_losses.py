"""The losses are what their formulas say, and their gradients are those of their objectives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import LOSSES, factors, interactions
from sklearn.base import clone

from rgals import IALS, RG2, RGALS, RGX, WRMF, InputTypeError, ParameterError
from rgals.losses import Degrees, get_loss
from rgals.losses.base import weight_sums
from rgals.matrix.validate import as_csr

K, REG, NU = 5, 0.07, 0.8


def scores(P, Q):
    return P @ Q.T


@pytest.fixture(scope="module", params=[False, True], ids=["binary", "valued"])
def data(request):
    X = interactions(valued=request.param)
    P, Q = factors(X.shape[0], K, seed=1), factors(X.shape[1], K, seed=2)
    return X.toarray(), X, P, Q


def softmax_expansion(V, scored, beta):
    """Sum over interactions of the second-order expansion of -log softmax at zero, Eq. 13, entry by entry."""
    N = V.shape[1]
    total = 0.0
    for x, y in zip(*np.nonzero(V), strict=True):
        o = scored[x]
        hessian = (np.eye(N) - beta * np.ones((N, N)) / N) / N
        gradient = np.full(N, 1 / N)
        gradient[y] -= 1
        total += V[x, y] * (np.log(N) + gradient @ o + 0.5 * o @ hessian @ o)
    return total


def test_rgx_without_extra_weight_is_the_softmax_expansion_term_by_term(data):
    V, X, P, Q = data
    constant = V.sum() * (np.log(V.shape[1]) - 0.5)
    for beta in (0.0, 0.4, 1.0):
        loss = RGX(alpha=0.0, beta=beta)
        expected = softmax_expansion(V, scores(P, Q), beta)
        assert loss.objective(X, P, Q) + constant == pytest.approx(expected, rel=1e-12)


def test_softmax_itself_agrees_with_rgx_up_to_third_order(data):
    V, X, P, Q = data
    constant = V.sum() * (np.log(V.shape[1]) - 0.5)

    def softmax(scored):
        log_z = np.log(np.exp(scored).sum(axis=1))
        return (V * (log_z[:, None] - scored)).sum()

    errors = []
    for size in (0.2, 0.1):
        scored = size * scores(P, Q)
        errors.append(abs(softmax(scored) - constant - RGX(alpha=0.0).objective(X, size * P, Q)))
    assert errors[0] > 1e-6
    assert errors[1] < errors[0] / 6  # third order: an eighth, up to the fourth-order term


def test_rg2_is_equation_16(data):
    V, X, P, Q = data
    N = V.shape[1]
    scored = scores(P, Q)
    per_pair = -scored + ((scored + 1) ** 2).sum(axis=1, keepdims=True) / (2 * N)
    alpha = 0.3
    expected = (V * per_pair).sum() + alpha * (V * (scored - 1) ** 2).sum()
    assert RG2(alpha=alpha).objective(X, P, Q) == pytest.approx(expected, rel=1e-12)


def test_sampled_rg2_weighs_pairs_as_equations_18_and_19(data):
    V, X, P, Q = data
    M, N = V.shape
    n = 7
    c = V.sum(axis=1, keepdims=True)
    w = np.where(V > 0, c, c * (n + 1) / N)
    S = np.divide(V * N, c, out=np.zeros_like(V), where=c > 0) - 1
    loss = RG2(alpha=0.0, n_negatives=n)

    def squares(scored):
        return (w * (S - scored) ** 2).sum() / (2 * N)

    # Equal up to a constant: compare differences of two points.
    other = factors(M, K, seed=9)
    expected = squares(scores(P, Q)) - squares(scores(other, Q))
    assert loss.objective(X, P, Q) - loss.objective(X, other, Q) == pytest.approx(expected, rel=1e-11)


def test_wrmf_and_ials_are_their_papers_formulas(data):
    V, X, P, Q = data
    scored = scores(P, Q)
    R = (V > 0).astype(float)
    assert WRMF(alpha=3.0).objective(X, P, Q) == pytest.approx(
        ((1 + 3 * V) * (R - scored) ** 2).sum(), rel=1e-12
    )
    expected = (V * (scored - 1) ** 2).sum() + 0.2 * (scored**2).sum()
    assert IALS(alpha0=0.2).objective(X, P, Q) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dislikes", [False, True])
def test_exponents_of_wrmf_weigh_what_a_positive_adds_to_all_pairs(data, dislikes):
    """Dense, in float64: mathematics without the factorisation into terms of users and of items."""
    V, _, P, Q = data
    signs = np.where(np.random.default_rng(0).random(V.shape) < 0.3, -1 if dislikes else 1, 1)
    liked, disliked = np.maximum(V * signs, 0), np.maximum(-V * signs, 0)
    c_x, c_y, hits = liked.sum(axis=1), liked.sum(axis=0), liked > 0
    users, items = np.maximum(c_x, 1e-300) ** 0.5, np.maximum(c_y, 1e-300) ** -0.7
    users = users / (users * hits.sum(axis=1)).sum() * hits.sum()
    items = np.where(c_y > 0, items, 0) / np.where(c_y > 0, items * hits.sum(axis=0), 0).sum() * hits.sum()
    w, o = np.outer(users, items), scores(P, Q)
    expected = (o**2 + hits * w * ((1 + 1.7 * liked) * (o - 1) ** 2 - o**2)).sum()
    expected += (0.6 * 1.7 * disliked * (o + 1) ** 2).sum()
    loss = WRMF(1.7, user_exponent=0.5, item_exponent=-0.7, dislikes=dislikes, dislike_weight=0.6)
    assert loss.objective(sp.csr_array(V * signs), P, Q) == pytest.approx(expected, rel=1e-12)


def test_regularisation_weights_are_exact_sums(data):
    V, X, P, Q = data
    M, N = V.shape
    c, D = V.sum(axis=1), V.sum()
    alpha = 0.3
    rho_x = c / 2 + alpha * c
    rho_y = D / (2 * N) + alpha * V.sum(axis=0)
    loss = RG2(alpha=alpha)
    expected = REG * (rho_x**NU @ (P**2).sum(axis=1) + rho_y**NU @ (Q**2).sum(axis=1))
    got = loss.objective(X, P, Q, REG, NU) - loss.objective(X, P, Q)
    assert got == pytest.approx(expected, rel=1e-9)


def test_degree_weights_have_mean_one_over_the_interactions(data):
    V, X, _, _ = data
    matrix = as_csr(X, dtype=np.float64)
    degrees = Degrees.of(matrix)
    for factor, axis in ((degrees.user_factor(-0.4), 0), (degrees.item_factor(0.3), 1)):
        shaped = factor[:, None] if axis == 0 else factor[None, :]
        weights = np.broadcast_to(shaped, V.shape)[V > 0]
        assert weights.std() > 0
        assert weights.mean() == pytest.approx(1.0)
    h = degrees.proposal(0.7)
    assert h.mean() == pytest.approx(1.0)
    assert h[5] == 0.0  # an item nobody has is never proposed


def test_degree_weights_of_faded_values_take_no_sum_for_less_than_one_interaction():
    """Nearly forgotten interactions get no giant weight, which would leave nothing of all others."""
    V = np.array([[1, 1, 0, 1e-12], [1, 0, 1, 0], [0, 1, 1, 0]])  # the last item has a single one
    weights = Degrees.of(as_csr(V, dtype=np.float64), aged=True).item_factor(-0.5)
    raised = np.maximum(V.sum(axis=0), V.sum() / 7) ** -0.5
    np.testing.assert_allclose(weights, raised * 7 / ((V > 0).sum(axis=0) @ raised), rtol=1e-12)
    assert weights.std() > 0.1


def test_objectives_take_values_in_float64(rng):
    V, P, Q = rng.random((9, 7)), rng.standard_normal((9, 3)), rng.standard_normal((7, 3))
    scores = P @ Q.T
    expected = (V * (scores - 1) ** 2).sum() + 0.5 * (scores**2).sum()
    assert IALS(alpha0=0.5).objective(V, P, Q) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("side", ["user", "item"])
def test_degree_weights_of_faded_rows_that_come_later_are_in_the_units_of_the_training(side):
    V = np.array([[1, 1, 0, 1e-12], [1, 0, 1, 0], [0, 1, 1, 0]])
    later = np.array([[1e-9, 0, 0], [0, 3, 3], [0, 1, 0]])  # rows of this side
    known = Degrees.of(as_csr(V if side == "item" else V.T, dtype=np.float64), aged=True)
    least = V.sum() / 7
    total = (V > 0).sum(axis=0) @ np.maximum(V.sum(axis=0), least) ** -0.5
    given = getattr(known, f"with_{side}s")(as_csr(later, dtype=np.float64))
    for degrees, sums in ((known, V.sum(axis=0)), (given, later.sum(axis=1))):
        expected = np.maximum(sums, least) ** -0.5 * 7 / total
        np.testing.assert_allclose(getattr(degrees, f"{side}_factor")(-0.5), expected, rtol=1e-12)
        assert expected.std() > 0.1


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_equals_central_differences(name, data):
    _, X, P, Q = data
    loss = LOSSES[name]
    dP, dQ = loss.gradient(X, P, Q, REG, NU)
    rng = np.random.default_rng(0)
    for _ in range(3):
        u, v = rng.standard_normal(P.shape), rng.standard_normal(Q.shape)
        e = 1e-5
        above = loss.objective(X, P + e * u, Q + e * v, REG, NU)
        below = loss.objective(X, P - e * u, Q - e * v, REG, NU)
        numeric = (above - below) / (2 * e)
        size = np.sqrt((dP**2).sum() + (dQ**2).sum())
        assert (dP * u).sum() + (dQ * v).sum() == pytest.approx(numeric, rel=1e-6, abs=1e-7 * size)


def test_rgx_row_only_ignores_a_shift_of_a_users_scores_as_softmax_does(data):
    _, X, P, Q = data
    P = np.hstack([P, np.ones((len(P), 1))])
    Q = np.hstack([Q, np.zeros((len(Q), 1))])
    shifted = Q.copy()
    shifted[:, -1] = 3.7
    loss = RGX(alpha=0.0, beta=1.0)
    assert loss.objective(X, P, Q) == pytest.approx(loss.objective(X, P, shifted), rel=1e-12)
    assert abs(RG2(alpha=0.0).objective(X, P, Q) - RG2(alpha=0.0).objective(X, P, shifted)) > 1.0


def test_parameters_can_be_searched_and_cloned():
    loss = RGX(alpha=0.3, form="gramian")
    twin = clone(loss)
    assert twin is not loss
    assert twin.get_params() == loss.get_params()
    assert get_loss("RGX").get_params() == RGX().get_params()


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (RG2(alpha=-1), "RG2.alpha"),
        (RG2(alpha=float("nan")), "RG2.alpha"),
        (RG2(alpha="x"), "RG2.alpha"),
        (RG2(n_negatives=0), "n_negatives"),
        (RG2(n_negatives=1.5), "n_negatives"),
        (RG2(item_exponent=float("inf")), "item_exponent"),
        (RGX(beta=1.5), "beta"),
        (RGX(form="other"), "form"),
        (IALS(alpha0=-0.1), "alpha0"),
        ("bpr", "loss"),
    ],
)
def test_bad_parameters_are_named(loss, word):
    with pytest.raises(ParameterError, match=word):
        get_loss(loss)


@pytest.mark.parametrize(
    "name, value", [("reg", "auto"), ("reg", -0.1), ("reg", np.nan), ("reg_exponent", 9)]
)
def test_objectives_refuse_what_no_fit_takes_as_reg(name, value):
    """A model's ``reg="auto"`` was an error of numpy's, NaN and values below 0 gave a number."""
    for method in (RG2(0.1).objective, RG2(0.1).gradient):
        with pytest.raises(ParameterError, match=f"^{name}={value!r} is not valid: give a finite number"):
            method(np.eye(3), np.ones((3, 2)), np.ones((3, 2)), **{name: value})


@pytest.mark.parametrize("loss", [None, 3, RG2])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(InputTypeError, match="loss"):
        get_loss(loss)


def test_a_subclass_that_hides_an_automatic_parameter_is_told_so():
    class Own(IALS):
        def __init__(self, foo=1.0):
            super().__init__()
            self.foo = foo

    with pytest.raises(InputTypeError, match=r"loss Own: its __init__ has no alpha0"):
        RGALS(K=2, loss=Own()).fit(np.eye(6))


def test_the_ridge_of_a_row_is_the_same_alone_and_among_many(monkeypatch):
    """Rows were cut at every chunk of entries, where sums rounded otherwise than those of the row alone."""
    monkeypatch.setattr("rgals.matrix.csr._CHUNK", 1000)
    rng = np.random.default_rng(0)
    X = as_csr(sp.csr_array((rng.random((90, 400)) < 0.3).astype(np.float64)), dtype=np.float64)
    assert not np.isin(np.arange(1000, X.nnz, 1000), X.indptr).any(), "every chunk ends within a row"
    of_rows, of_columns = np.ones((90, 4)), rng.random((400, 4))
    alone = [weight_sums(X.slice_rows(r, r + 1), of_rows[:1], of_columns)[0] for r in range(90)]
    np.testing.assert_array_equal(weight_sums(X, of_rows, of_columns), alone)
