"""Every loss against its formula, central differences, extreme scores and identities of the literature."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from instruments.scores import block, call, central, csr
from scipy.special import logsumexp

from rgals import losses as als_losses
from rgals.runtime.errors import InputTypeError, ParameterError
from rgals.sgd.losses import (
    BCE,
    BPR,
    BSL,
    LLPAUC,
    LOSSES,
    PSL,
    RG2,
    RGX,
    SL,
    AdvInfoNCE,
    RSAtK,
    SampledCCE,
    SampledSoftmax,
    SampledSoftmaxAtK,
    SampledTalos,
    SmoothIAtK,
    Softmax,
    SoftmaxAtK,
    Talos,
    get_loss,
)
from rgals.sgd.losses._base import logistic, row_softmax, softplus

#: Every switch of a loss stands here beside the loss as it is by default.
SWITCHES = {
    "sl, with the positive": SL(with_positive=True),
    "bsl, two temperatures": BSL(0.5, 0.2),
    "bsl, with the positive": BSL(0.2, 0.4, with_positive=True),
    "psl, atan": PSL(activation="atan", temperature=0.5),
    "psl, relu": PSL(activation="relu", temperature=0.3),
    "psl, exp": PSL(activation="exp"),
    "psl, with the positive": PSL(with_positive=True),
    "adv_info_nce, weight 1": AdvInfoNCE(weight=1.0, temperature=1.0),
    "sampled_softmax_at_k, with the positive": SampledSoftmaxAtK(weight_temperature=0.7, with_positive=True),
    "sampled_talos, with the positive": SampledTalos(with_positive=True, temperature=0.5),
    "rs_at_k, smooth": RSAtK(3, 0.5, 2.0, rescale=False),
    "rs_at_k, rescaled": RSAtK(k=3, score_temperature=0.5, rank_temperature=9.0, rescale=True),
    "smooth_i_at_k, published": SmoothIAtK(published=True),
    "llpauc, all down": LLPAUC(0.3, 0.9, ascend=False),
    "talos, 3.6": Talos(form="3.6", k=3),
}
EVERY = {name: kind() for name, kind in LOSSES.items()} | SWITCHES
FULL = [name for name, loss in EVERY.items() if loss.kind == "full"]
SAMPLED = [name for name, loss in EVERY.items() if loss.kind == "sampled"]
#: Weights or products of these losses are constants for the gradient: test_lists.py holds them.
DETACHED = ("full_lambda_rank", "full_lambda_loss", "smooth_i_at_k", "smooth_i_at_k, published")


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("name", [name for name in FULL if name not in DETACHED])
def test_gradient_of_full_losses(name, valued, rng, monkeypatch):
    loss, positives = EVERY[name], block(rng, valued=valued)
    scores = rng.standard_normal((5, 7))
    if hasattr(loss, "thresholds"):  # constants for the gradient
        fixed = loss.thresholds(scores)
        monkeypatch.setattr(loss, "thresholds", lambda scores: fixed)
    _, grad = loss.value_and_grad(scores.copy(), positives)
    numeric = central(lambda s: loss.value_and_grad(s, positives)[0].sum(), scores, 1e-5)
    np.testing.assert_allclose(grad, numeric, rtol=1e-6, atol=1e-6)
    assert np.abs(numeric).max() > 0.1


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in DETACHED])
def test_gradient_of_sampled_losses(name, n, scale, rng):
    loss = EVERY[name]
    pos, neg = rng.standard_normal(4) * scale, rng.standard_normal((4, n)) * scale
    neg[1, 0], neg[2] = -np.inf, pos[2]  # one that is absent, and ties
    if n > 1 and name not in ("uib", "sml"):  # the hinge has no derivative there
        neg[2] = pos[2]
    else:
        neg[2] = pos[2] + 0.1
    given = [pos, neg, rng.random((4, len(loss.state))), rng.standard_normal(neg.shape)]
    _, *grads = call(loss, *(part.copy() for part in given))
    whose = [0, 1]
    if loss.state and not hasattr(loss, "k"):  # thresholds follow a loss of their own
        whose.append(2)
    if loss.adversary:
        whose, grads = [0, 1, 3], [*grads[:2], *grads[2:]]
    largest = 0.0
    for place, grad in zip(whose, grads, strict=False):

        def value(part, place=place):
            return call(loss, *(part if k == place else x.copy() for k, x in enumerate(given)))[0].sum()

        numeric = central(value, given[place], 1e-6)
        finite = np.isfinite(given[place])
        assert not grad[~finite].any()
        np.testing.assert_allclose(grad[finite], numeric[finite], rtol=1e-6, atol=1e-6)
        largest = max(largest, np.abs(numeric[finite]).max())
    assert largest > 0.01 or name == "rs_at_k", "its step is narrower than these scores"


@pytest.mark.parametrize("dtype, scale", [("float32", 1e4), ("float32", 3e37), ("float64", 1e4)])
@pytest.mark.parametrize("name", EVERY)
def test_extreme_scores_do_not_overflow(name, dtype, scale, rng):
    loss = EVERY[name]
    if name in ("mse", "rg2", "rgx", "sparsemax") and scale > 1e30:
        scale = 1e18  # they square their scores
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for sign in (1, -1):
            if name in FULL:
                scores = (rng.choice([0, 1, -1], (5, 7)) * sign * scale).astype(dtype)
                results = loss.value_and_grad(scores, block(rng))
            elif name in SAMPLED:
                pos = (rng.choice([0, 1, -1], 20) * sign * scale).astype(dtype)
                neg = (rng.choice([0, 1, -1], (20, 3)) * sign * scale).astype(dtype)
                neg[0, 0] = -np.inf
                results = call(loss, pos, neg)[:3]
            else:
                scores = (rng.choice([0, 1, -1], 12) * sign * scale).astype(dtype)
                results = loss.value_and_grad(scores, np.array([0, 5, 6, 6, 12]), np.array([2, 1, 0, 6]))
            assert all(np.isfinite(r).all() for r in results)
            assert all(r.dtype == dtype for r in results[1:])
            assert results[0].dtype == np.float64


@pytest.mark.parametrize("name", EVERY)
def test_single_precision_is_double_precision(name, rng):
    """On cosines, as the losses of raw scores see them."""
    loss = EVERY[name]
    results = []
    pos, neg = rng.uniform(-1, 1, 30), rng.uniform(-1, 1, (30, 8))
    scores = rng.uniform(-1, 1, (5, 7))
    for dtype in ("float64", "float32"):
        if name in FULL:
            results.append(loss.value_and_grad(scores.astype(dtype), block(np.random.default_rng(1))))
        elif name in SAMPLED:
            results.append(call(loss, pos.astype(dtype), neg.astype(dtype)))
        else:
            lists = np.array([0, 12, 20, 30]), np.array([4, 8, 1])
            results.append(loss.value_and_grad(pos.astype(dtype), *lists))
    for double, single in zip(*results, strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4 * max(np.abs(double).max(), 1e-3))


@pytest.mark.parametrize("name", SAMPLED)
def test_a_negative_of_minus_infinity_is_absent(name, rng):
    loss = EVERY[name]
    pos, neg = rng.standard_normal(3), rng.standard_normal((3, 4))
    state = rng.random((3, len(loss.state)))
    g = rng.standard_normal((3, 6)) if loss.adversary else None
    padded = np.concatenate([neg, np.full((3, 2), -np.inf)], axis=1)
    found = call(loss, pos.copy(), neg.copy(), state, None if g is None else g[:, :4])
    with np.errstate(all="raise", under="ignore"):
        found_padded = call(loss, pos.copy(), padded.copy(), state, g)
    for a, b in zip(found, found_padded, strict=True):
        if b.shape == padded.shape:
            assert not b[:, 4:].any()
            b = b[:, :4]
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)
    for nothing in (np.full((3, 2), -np.inf), np.empty((3, 0))):
        with np.errstate(all="raise", under="ignore"):
            value, dpos, dneg, *_ = call(loss, pos, nothing, state)
        assert np.isfinite(value).all() and np.isfinite(dpos).all() and not dneg.any()
        if name.split(",")[0] in ("sl", "bsl", "psl", "sampled_talos", "sampled_softmax_at_k"):
            assert not value.any() and not dpos.any(), "nothing to compare with"


@pytest.mark.parametrize("name", FULL)
def test_a_user_without_positives_costs_nothing(name, rng):
    nobody = csr(np.zeros((2, 6)))
    value, grad = EVERY[name].value_and_grad(rng.standard_normal((2, 6)), nobody)
    assert not value.any() and not grad.any()


@pytest.mark.parametrize("name", FULL)
def test_a_catalogue_of_one_item(name):
    value, grad = EVERY[name].value_and_grad(np.array([[0.7]]), csr([[1]]))
    assert np.isfinite(value).all() and grad.shape == (1, 1)
    if name in ("softmax", "sparsemax"):
        np.testing.assert_allclose([value[0], grad[0, 0]], 0, atol=1e-12)


def test_softmax_is_the_sum_of_cross_entropies(rng):
    scores, positives = rng.standard_normal((5, 7)), block(rng)
    dense = positives.to_scipy(np.float64).toarray()
    expected = (dense * (logsumexp(scores, axis=1, keepdims=True) - scores)).sum(axis=1)
    np.testing.assert_allclose(Softmax().value_and_grad(scores.copy(), positives)[0], expected)


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
    """Along any direction, what softmax has beside log N + RGx is its third cumulant, and less of it."""
    positives = block(rng, valued=True)
    direction, count = rng.standard_normal((5, 7)), positives.row_sums
    rgx, h = RGX(alpha=0.0, beta=1.0, reg=0.0), 1e-2
    exact = Softmax().value_and_grad(h * direction, positives)[0]
    rest = exact - count * np.log(7) - rgx.value_and_grad(h * direction, positives)[0]
    centred = direction - direction.mean(axis=1, keepdims=True)
    third = count * h**3 * (centred**3).mean(axis=1) / 6
    # A fourth cumulant on an interval of length r is at most 3/16 r^4 under any distribution.
    bound = count * h**4 * np.ptp(direction, axis=1) ** 4 / 128
    assert (np.abs(rest - third) <= bound + 1e-14).all()
    assert (bound < 0.01 * count * h**2 * direction.var(axis=1))[1:].all(), (
        "a second-order rest would be seen"
    )


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
        # log(1 + x) of a sum that begins with 1 has the digits of the 1: log1p has more where x is small.
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=4e-15)


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
        get_loss(RGX(beta=2))


@pytest.mark.parametrize("name", LOSSES)
def test_parameters_are_described_and_those_out_of_range_refused_by_name(name):
    for parameter, default in LOSSES[name]().get_params().items():
        assert re.search(rf"^{parameter} : .+", inspect.getdoc(LOSSES[name]), re.MULTILINE)
        if not isinstance(default, bool):
            for wrong in ("neither", np.inf, -5):
                if (parameter, wrong) not in (("start", -5), ("reg_exponent", -5)):
                    with pytest.raises(ParameterError, match=f"{parameter}="):
                        get_loss(LOSSES[name](**{parameter: wrong}))


def test_a_loss_from_outside_declares_parameters_as_it_likes():
    class Written(SampledCCE):
        """With a constructor of its own."""

        def __init__(self, margin=1.0):
            super().__init__()
            self.margin = margin

    class Below(Written):
        """Which one below has, too."""

    assert Below(2.0).get_params() == {"margin": 2.0} and Below(2.0).with_positive
    assert "Parameters" not in inspect.getdoc(Below)
    get_loss(Below(2.0))


def test_rows_of_exponentials_against_logaddexp(rng):
    x, beside = rng.standard_normal((40, 5)) * 3, rng.standard_normal(40) * 3
    x[3], x[4, 2] = -np.inf, -np.inf
    for t in (1.0, 0.02):
        value, share = row_softmax(x.copy(), t, beside)
        np.testing.assert_allclose(value, logsumexp(np.column_stack([x, beside]) / t, axis=1))
        np.testing.assert_allclose(share, np.exp(x / t - value[:, None]), atol=1e-14)
    value, share = row_softmax(x.copy())
    assert value[3] == 0 and not share[3].any(), "a row without any term"
    value, slope = logistic(np.array([-np.inf, -800.0, -3.0, 0.0, 800.0]))
    np.testing.assert_allclose(value, [0, 0, 1 / (1 + np.exp(3)), 0.5, 1], atol=1e-300)
    np.testing.assert_allclose(slope, value * (1 - value), atol=1e-15)
