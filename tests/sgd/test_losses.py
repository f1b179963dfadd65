"""Every loss against its formula, central differences, extreme scores and identities of the literature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from rgals import losses as als_losses
from rgals.matrix.csr import CSR
from rgals.runtime.errors import InputTypeError, ParameterError
from rgals.sgd.losses import (
    BCE,
    BPR,
    LOSSES,
    RG2,
    RGX,
    SampledCCE,
    SampledSoftmax,
    Softmax,
    SoftmaxAtK,
    get_loss,
)
from rgals.sgd.losses._base import softplus

FULL = [name for name, kind in LOSSES.items() if kind.kind == "full"]
SAMPLED = [name for name, kind in LOSSES.items() if kind.kind == "sampled"]


def csr(dense) -> CSR:
    dense = np.asarray(dense, dtype=np.float64)
    rows, cols = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(dense)))])
    values = dense[rows, cols]
    return CSR(indptr, cols.astype(np.int32), values[:0] if (values == 1).all() else values, dense.shape[1])


def block(rng, n=7, valued=False) -> CSR:
    """Rows with no, one, some and all positives."""
    dense = (rng.random((5, n)) < 0.4).astype(float)
    dense[0], dense[1], dense[2] = 0, np.eye(n)[n // 2], 1
    if valued:
        dense *= rng.integers(1, 5, dense.shape)
        assert len(np.unique(dense)) > 2
    return csr(dense)


def central(f, x, h):
    out = np.empty_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        out[i] = (f(up) - f(down)) / (2 * h)
    return out


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("name", FULL)
def test_gradient_of_full_losses(name, valued, rng):
    loss, positives = get_loss(name), block(rng, valued=valued)
    scores = rng.standard_normal((5, 7))
    # The threshold of the top-K form is a constant for the gradient.
    fixed = {"thresholds": loss.thresholds(scores)} if hasattr(loss, "thresholds") else {}
    _, grad = loss.value_and_grad(scores.copy(), positives, **fixed)
    numeric = central(lambda s: loss.value_and_grad(s, positives, **fixed)[0].sum(), scores, 1e-5)
    np.testing.assert_allclose(grad, numeric, rtol=1e-6, atol=1e-6)
    assert np.abs(numeric).max() > 0.1


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("name", SAMPLED)
def test_gradient_of_sampled_losses(name, n, rng):
    loss = get_loss(name)
    pos, neg = rng.standard_normal(4) * 2, rng.standard_normal((4, n)) * 2
    _, dpos, dneg = loss.value_and_grad(pos.copy(), neg.copy())
    numeric = central(lambda s: loss.value_and_grad(s.copy(), neg.copy())[0].sum(), pos, 1e-5)
    np.testing.assert_allclose(dpos, numeric, rtol=1e-6, atol=1e-6)
    numeric = central(lambda s: loss.value_and_grad(pos.copy(), s.copy())[0].sum(), neg, 1e-5)
    np.testing.assert_allclose(dneg, numeric, rtol=1e-6, atol=1e-6)
    assert np.abs(numeric).max() > 0.01


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*FULL, *SAMPLED])
def test_extreme_scores_do_not_overflow(name, dtype, rng):
    loss = get_loss(name)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for scale in (1e4, -1e4):
            if name in FULL:
                scores = (rng.choice([0, 1, -1], (5, 7)) * scale).astype(dtype)
                results = loss.value_and_grad(scores, block(rng))
            else:
                pos = (rng.choice([0, 1, -1], 20) * scale).astype(dtype)
                neg = (rng.choice([0, 1, -1], (20, 3)) * scale).astype(dtype)
                results = loss.value_and_grad(pos, neg)
            assert all(np.isfinite(r).all() for r in results)
            assert all(r.dtype == dtype for r in results[1:])


@pytest.mark.parametrize("name", SAMPLED)
def test_a_negative_of_minus_infinity_is_absent(name, rng):
    loss = get_loss(name)
    pos, neg = rng.standard_normal(3), rng.standard_normal((3, 4))
    padded = np.concatenate([neg, np.full((3, 2), -np.inf)], axis=1)
    value, dpos, dneg = loss.value_and_grad(pos.copy(), neg.copy())
    value_padded, dpos_padded, dneg_padded = loss.value_and_grad(pos.copy(), padded.copy())
    np.testing.assert_allclose(value_padded, value)
    np.testing.assert_allclose(dpos_padded, dpos)
    np.testing.assert_allclose(dneg_padded[:, :4], dneg)
    assert not dneg_padded[:, 4:].any()
    value, dpos, dneg = loss.value_and_grad(pos, np.full((3, 2), -np.inf))
    assert np.isfinite(value).all() and np.isfinite(dpos).all() and not dneg.any()


@pytest.mark.parametrize("name", FULL)
def test_a_user_without_positives_costs_nothing(name, rng):
    nobody = csr(np.zeros((2, 6)))
    value, grad = get_loss(name).value_and_grad(rng.standard_normal((2, 6)), nobody)
    assert not value.any() and not grad.any()


@pytest.mark.parametrize("name", FULL)
def test_a_catalogue_of_one_item(name):
    value, grad = get_loss(name).value_and_grad(np.array([[0.7]]), csr([[1]]))
    assert np.isfinite(value).all() and grad.shape == (1, 1)
    if name in ("softmax", "sparsemax"):
        np.testing.assert_allclose([value[0], grad[0, 0]], 0, atol=1e-12)


def test_softmax_is_the_sum_of_cross_entropies(rng):
    scores, positives = rng.standard_normal((5, 7)), block(rng)
    dense = positives.to_scipy(np.float64).toarray()
    expected = (dense * (logsumexp(scores, axis=1, keepdims=True) - scores)).sum(axis=1)
    np.testing.assert_allclose(Softmax().value_and_grad(scores.copy(), positives)[0], expected)


def test_softmax_at_zero_is_log_n():
    value, _ = Softmax().value_and_grad(np.zeros((1, 9)), csr(np.eye(9)[:1]))
    np.testing.assert_allclose(value, np.log(9))


def test_softmax_at_k_weighs_by_the_distance_to_the_k_th_score(rng):
    scores, positives = rng.standard_normal((5, 7)) * 3, block(rng, valued=True)
    loss = SoftmaxAtK(k=2, weight_temperature=0.4)
    np.testing.assert_array_equal(loss.thresholds(scores), np.sort(scores, axis=1)[:, -2])
    dense = positives.to_scipy(np.float64).toarray()
    weight = 1 / (1 + np.exp(-(scores - np.sort(scores, axis=1)[:, -2:-1]) / 0.4))
    expected = (dense * weight * (logsumexp(scores, axis=1, keepdims=True) - scores)).sum(axis=1)
    np.testing.assert_allclose(loss.value_and_grad(scores.copy(), positives)[0], expected)
    assert SoftmaxAtK(k=50).thresholds(scores).tolist() == scores.min(axis=1).tolist()


def test_softmax_at_k_with_flat_weights_is_half_of_softmax(rng):
    scores, positives = rng.standard_normal((5, 7)), block(rng)
    flat = SoftmaxAtK(weight_temperature=1e12).value_and_grad(scores.copy(), positives)
    for half, whole in zip(flat, Softmax().value_and_grad(scores.copy(), positives), strict=True):
        np.testing.assert_allclose(2 * half, whole, atol=1e-9)


def test_second_order_expansion_of_softmax_is_exact_rgx(rng):
    """Along any direction, softmax minus (log N + RGx) vanishes to third order."""
    positives = block(rng, valued=True)
    direction, count = rng.standard_normal((5, 7)), positives.row_sums
    rgx = RGX(alpha=0.0, beta=1.0, reg=0.0)
    rest = []
    for h in (1e-2, 5e-3):
        exact = Softmax().value_and_grad(h * direction, positives)[0]
        rest.append(exact - count * np.log(7) - rgx.value_and_grad(h * direction, positives)[0])
    # Halving the step divides a third-order remainder by 8 and a second-order one by 4.
    np.testing.assert_allclose(rest[0][1:] / rest[1][1:], 8, rtol=0.1)
    assert np.abs(rest[0]).max() < 1e-5


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (RG2(alpha=0.3, reg=0.2), als_losses.RG2(alpha=0.3)),
        (RGX(alpha=0.3, beta=0.7, reg=0.2), als_losses.RGX(0.3, 0.7)),
    ],
)
def test_squared_losses_are_the_objective_of_als(ours, theirs, rng):
    X = block(rng, valued=True)
    P, Q = rng.standard_normal((5, 3)), rng.standard_normal((7, 3))
    P2 = rng.standard_normal((5, 3))

    def whole(P):
        users, items = ours.penalties(X)
        ridge = users @ (P**2).sum(axis=1) + items @ (Q**2).sum(axis=1)
        return ours.value_and_grad(P @ Q.T, X)[0].sum() + ridge

    reference = [theirs.objective(X, each, Q, 0.2, 1.0) for each in (P, P2)]
    np.testing.assert_allclose(whole(P) - whole(P2), reference[0] - reference[1], rtol=1e-9)


def test_sparsemax_gradient_is_the_projection_on_the_simplex(rng):
    scores = rng.standard_normal((200, 11)) * rng.choice([0.1, 1, 10], (200, 1))
    _, grad = get_loss("sparsemax").value_and_grad(scores.copy(), csr(np.eye(11)[rng.integers(11, size=200)]))
    one = csr(np.eye(11)[np.zeros(200, int)])
    probability = get_loss("sparsemax").value_and_grad(scores.copy(), one)[1]
    probability[:, 0] += 1
    for z, p in zip(scores, probability, strict=True):
        ordered = np.sort(z)[::-1]  # the closed form: sort, then the longest prefix above its threshold
        prefix = np.cumsum(ordered)
        k = np.flatnonzero(1 + np.arange(1, 12) * ordered > prefix)[-1] + 1
        np.testing.assert_allclose(p, np.maximum(z - (prefix[k - 1] - 1) / k, 0), atol=1e-12)
    assert (probability == 0).any() and grad.shape == (200, 11)


def test_bpr_is_cce_with_one_negative(rng):
    pos, neg = rng.standard_normal(50) * 3, rng.standard_normal((50, 1)) * 3
    for a, b in zip(
        BPR().value_and_grad(pos, neg.copy()), SampledCCE().value_and_grad(pos, neg.copy()), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_cce_is_below_bpr_and_bpr_below_bce_for_positive_scores(rng):
    pos, neg = rng.standard_normal(500) * 4, rng.standard_normal((500, 9)) * 4
    values = {name: get_loss(name).value_and_grad(pos.copy(), neg.copy())[0] for name in ("bpr", "bce")}
    cce = SampledCCE().value_and_grad(pos.copy(), neg.copy())[0]
    assert (cce <= values["bpr"] + 1e-12).all()
    ahead = pos >= 0
    assert (values["bpr"] <= values["bce"] + 1e-12)[ahead].all()
    assert (values["bpr"] > values["bce"])[~ahead].any(), "the condition on the positive's score matters"


def test_cce_bounds_the_log_of_ndcg(rng):
    """-log NDCG <= CCE for one positive among all negatives (loss bounds, Theorem 1)."""
    pos, neg = rng.standard_normal(500) * 4, rng.standard_normal((500, 9)) * 4
    rank = 1 + (neg >= pos[:, None]).sum(axis=1)
    assert len(np.unique(rank)) > 5
    assert (np.log(np.log2(1 + rank)) <= SampledCCE().value_and_grad(pos, neg)[0]).all()


def test_sampled_softmax_over_all_items_is_softmax(rng):
    scores, positive = rng.standard_normal((6, 8)), rng.integers(8, size=6)
    others = np.array([np.delete(row, y) for row, y in zip(scores, positive, strict=True)])
    full = Softmax().value_and_grad(scores.copy(), csr(np.eye(8)[positive]))
    value, dpos, dneg = SampledSoftmax().value_and_grad(scores[np.arange(6), positive], others)
    np.testing.assert_allclose(value, full[0])
    np.testing.assert_allclose(dpos, full[1][np.arange(6), positive])
    rest = [np.delete(row, y) for row, y in zip(full[1], positive, strict=True)]
    np.testing.assert_allclose(dneg, rest)


def test_bce_by_hand():
    value, dpos, dneg = BCE().value_and_grad(np.array([np.log(3.0)]), np.array([[np.log(4.0), 0.0]]))
    np.testing.assert_allclose(value, -np.log(3 / 4) - np.log(1 / 5) - np.log(1 / 2))
    np.testing.assert_allclose([dpos[0], *dneg[0]], [-1 / 4, 4 / 5, 1 / 2])


def test_softplus_against_logaddexp(rng):
    x = rng.standard_normal(100) * 30
    value, slope = softplus(x)
    np.testing.assert_allclose(value, np.logaddexp(0, x), rtol=1e-12)
    np.testing.assert_allclose(slope, np.exp(x - np.logaddexp(0, x)), rtol=1e-10)


def test_unknown_losses_are_named():
    with pytest.raises(ParameterError, match="loss='hinge'.*'softmax'.*'bpr'"):
        get_loss("hinge")
    for wrong in (Softmax, 3, None):
        with pytest.raises(InputTypeError, match="loss must be"):
            get_loss(wrong)
    with pytest.raises(ParameterError, match="beta"):
        RGX(beta=2).value_and_grad(np.zeros((1, 2)), csr([[1, 0]]))
