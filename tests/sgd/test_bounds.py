"""What the papers prove of their losses, as properties; where a printed form fails, a counterexample.

T1 to T18 number the statements; M those of the papers that are wrong as printed.
"""

from __future__ import annotations

import numpy as np
import pytest
from instruments.scores import central, csr
from scipy.stats import hypergeom

from rgals import losses as als_losses
from rgals.matrix.csr import CSR
from rgals.sgd.losses import (
    BCE,
    BPR,
    PSL,
    RG2,
    RGX,
    SL,
    AdvInfoNCE,
    ListNRBP,
    Rows,
    RSAtK,
    SampledCCE,
    SampledSoftmaxAtK,
    SampledTalos,
    Softmax,
    SoftmaxAtK,
    Talos,
    get_loss,
)
from rgals.sgd.losses.topk import kth_largest, quantile_gradient

TRIALS = 300


def one_hot(n, at) -> CSR:
    return csr(np.eye(n)[at])


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def rows_with_ties(rng, n=9):
    pos, neg = rng.standard_normal(TRIALS) * 3, rng.standard_normal((TRIALS, n)) * 3
    tied = rng.random(neg.shape) < 0.2
    return pos, np.where(tied, pos[:, None], neg)


def values(loss, pos, neg, state=None):
    rows = () if state is None else (Rows(np.ones(len(pos)), 1000, state),)
    return loss.value_and_grad(pos.copy(), neg.copy(), *rows)[0]


# T1 to T4: di Teodoro et al. -log NDCG of one positive of rank r is log log2(1 + r).


def test_t1_losses_over_all_items_bound_ndcg_and_mrr(rng):
    pos, neg = rows_with_ties(rng)
    rank = 1 + (neg >= pos[:, None]).sum(axis=1)
    assert len(np.unique(rank)) > 5 and (neg == pos[:, None]).any()
    cce, bpr, bce = (values(loss, pos, neg) for loss in (SampledCCE(), BPR(), BCE()))
    # With ties the bound for MRR is an equality at best: not an ulp is to spare.
    assert (np.log(np.log2(1 + rank)) <= cce + 1e-12).all() and (np.log(rank) <= cce + 1e-12).all()
    assert (cce <= bpr + 1e-12).all() and (bpr <= bce + 1e-12)[pos >= 0].all() and (bpr > bce)[pos < 0].any()
    everything = np.column_stack([pos, neg])
    positives = one_hot(neg.shape[1] + 1, np.zeros(TRIALS, int))
    for name, sampled in (("full_bpr", bpr), ("full_bce", bce), ("softmax", cce)):
        full = get_loss(name).value_and_grad(everything.copy(), positives)[0]
        np.testing.assert_allclose(full, sampled, rtol=1e-12)


def test_t2_the_order_of_the_losses_holds_for_any_sample(rng):
    pos, neg = rows_with_ties(rng)
    sample = np.where(rng.random(neg.shape) < 0.5, neg, -np.inf)
    cce, bpr, bce = (values(loss, pos, sample) for loss in (SampledCCE(), BPR(), BCE()))
    assert (cce <= bpr + 1e-12).all() and (bpr <= bce + 1e-12)[pos >= 0].all()


def test_t3_losses_count_the_negatives_above(rng):
    """Sharp: with X negatives at the positive's score CCE is log(1 + X). The printed log X is less."""
    pos, neg = rows_with_ties(rng)
    above, above_zero = (neg >= pos[:, None]).sum(axis=1), (neg >= 0).sum(axis=1)
    assert (values(BPR(), pos, neg) >= above * np.log(2) - 1e-12).all()
    assert (values(BCE(), pos, neg) >= above_zero * np.log(2) - 1e-12).all()
    assert (values(SampledCCE(), pos, neg) >= np.log(1 + above) - 1e-12).all()
    level = np.full((1, 7), -900.0)
    level[0, :4] = 0
    np.testing.assert_allclose(values(SampledCCE(), np.zeros(1), level), np.log(1 + 4))


@pytest.mark.parametrize("rank", [1, 2, 3, 8, 40])
def test_t4_how_often_a_sampled_loss_bounds_ndcg(rank, rng):
    """P(-log NDCG <= loss) >= 1 - CDF(ceil(rho) - 1), for sampling without replacement."""
    n, k = 100, 20
    s = np.sort(rng.standard_normal(n))[::-1]
    pos = s[rank - 2 : rank - 1] if rank > 1 else s[:1] + 1
    assert (s >= pos).sum() == rank - 1
    draws = s[np.argsort(rng.random((2000, n)), axis=1)[:, :k]]
    target = np.log(np.log2(1 + rank))
    for loss, rho, good in (
        (BPR(), np.log2(np.log2(1 + rank)), rank - 1),
        (SampledCCE(), np.log2(1 + rank) - 1, rank - 1),
        (BCE(), np.log2(np.log2(1 + rank)), int((s >= 0).sum())),
    ):
        bound = 1 - hypergeom.cdf(np.ceil(rho - 1e-12) - 1, n, good, k)
        often = (values(loss, np.repeat(pos, 2000), draws) >= target - 1e-12).mean()
        assert often >= bound - 3 * np.sqrt(bound * (1 - bound) / 2000) - 1e-12
        if rank == 1:
            assert bound == often == 1
            if good == 0:  # M15: 1 - CDF(rho) says nothing of a positive that ranks first
                assert 1 - hypergeom.cdf(rho, n, good, k) == 0


# T5 to T7: Talos.


def cosines(rng, n=40, most=8):
    s, c = rng.uniform(-1, 1, n), int(rng.integers(1, most))
    return s, rng.permutation(n)[:c]


def test_t5_talos_bounds_precision_at_any_temperature(rng):
    tried = 0
    for _ in range(TRIALS):
        (s, positive), k = cosines(rng), int(rng.integers(1, 12))
        t = float(np.exp(rng.uniform(-3.5, 1)))
        hits, c = int((s[positive] >= np.sort(s)[-k]).sum()), len(positive)
        if hits:
            row = csr(np.isin(np.arange(40), positive)[None].astype(float))
            loss = Talos(k=k, temperature=t, form="3.6").value_and_grad(s[None].copy(), row)[0][0]
            gap = np.log(2) / t + np.log1p((c - hits) / hits * 2 ** (-1 / t))
            assert -np.log(hits / k) <= loss + gap + 1e-9
            tried += 1
    assert tried > 100


def test_t6_jensens_step_needs_the_positives_in_the_sum(rng):
    """3.6 <= 3.7 - log c, 3.7 a mean over positives. M3: with the negatives alone in 3.7 it fails."""
    failures = 0
    for _ in range(TRIALS):
        s, positive = cosines(rng)
        c, t, k = len(positive), 0.1, 5
        row = csr(np.isin(np.arange(40), positive)[None].astype(float))
        forms = [Talos(k, t, form).value_and_grad(s[None].copy(), row)[0][0] for form in ("3.6", "3.7")]
        assert forms[0] <= forms[1] / c - np.log(c) + 1e-9
        beta, rest = np.full((c, 1), kth_largest(s[None], k)[0]), np.tile(np.delete(s, positive), (c, 1))
        printed = values(SampledTalos(k, t), s[positive], rest, beta).mean()
        failures += forms[0] > printed - np.log(c) + 1e-9
    assert failures > 10


def test_t7_talos_is_robust_optimisation_over_negatives(rng):
    """t log mean sigma^(1/t) = max over Q of E_Q log sigma - t KL(Q | uniform), Q the gradient's weights."""
    t, beta, n = 0.3, 0.2, 12
    s = rng.uniform(-1, 1, n)
    logs = log_sigmoid(s - beta)
    whole = t * np.log(np.mean(np.exp(logs / t)))

    def objective(Q):
        return Q @ logs - t * (Q * np.log(Q * n)).sum()

    dneg = SampledTalos(temperature=t).value_and_grad(
        np.zeros(1), s[None], Rows(np.ones(1), 99, np.full((1, 1), beta))
    )[2][0]
    Q = dneg * t / np.exp(log_sigmoid(beta - s))
    np.testing.assert_allclose([Q.sum(), objective(Q)], [1, whole], rtol=1e-12)
    assert all(objective(rng.dirichlet(np.ones(n))) <= whole + 1e-12 for _ in range(200))


# T8: SL@K.


def test_t8_softmax_at_k_bounds_dcg_at_k(rng):
    """-log DCG@K <= L with two hits or more, half of it with one; sums over all items. M8: not otherwise."""
    counts, broken = [0, 0], 0
    for _ in range(2 * TRIALS):
        (s, positive), k = cosines(rng, most=12), int(rng.integers(1, 12))
        t, tw = np.exp(rng.uniform(-3, 1, 2))
        s[positive] += rng.uniform(0, 1.5)
        ranks = 1 + np.argsort(np.argsort(-s))[positive]
        hits, c = int((ranks <= k).sum()), len(positive)
        if not hits:
            continue
        target = -np.log((1 / np.log2(1 + ranks[ranks <= k])).sum())
        row = csr(np.isin(np.arange(40), positive)[None].astype(float))
        loss = SoftmaxAtK(k, tw / t).value_and_grad(s[None] / t, row)[0][0]
        assert (target if hits > 1 else target / 2) <= loss + 1e-9
        counts[hits > 1] += 1
        rest = np.tile(np.delete(s, positive), (c, 1)) / t
        beta = np.full((c, 1), np.sort(s)[-k] / t)
        printed = values(SampledSoftmaxAtK(k, tw / t), s[positive] / t, rest, beta).sum()
        broken += hits > 1 and target > printed + 1e-9
    assert min(counts) > 50 and broken > 10


# T9: limits.


def test_t9_limits(rng):
    pos, neg = rng.uniform(-1, 1, 50), rng.uniform(-1, 1, (50, 6))
    sl = values(SL(), pos / 0.2, neg / 0.2)
    np.testing.assert_allclose(values(PSL(0.1, "exp"), pos, neg), sl, rtol=1e-10)
    beta = np.full((50, 1), 40.0)
    np.testing.assert_allclose(values(SampledTalos(temperature=0.2), pos, neg, beta), sl, rtol=1e-10)
    shift = np.full((50, 1), 0.3)
    for loss in (SampledTalos(), SampledTalos(with_positive=True)):
        moved = values(loss, pos + 5, neg + 5, shift + 5)
        np.testing.assert_allclose(moved, values(loss, pos, neg, shift), rtol=1e-9, atol=1e-12)
    half = values(SampledSoftmaxAtK(weight_temperature=1e12), pos, neg, beta)
    np.testing.assert_allclose(2 * half, values(SL(), pos, neg), atol=1e-9)
    level = Rows(np.ones(50), 99, np.empty((50, 0)), np.zeros((50, 6)))
    adversarial = AdvInfoNCE(0.2, weight=1.0).value_and_grad(pos, neg, level)[0]
    np.testing.assert_allclose(adversarial, values(SampledCCE(), pos / 0.2, neg / 0.2), rtol=1e-10)
    rank = 1 + (neg > pos[:, None]).sum(axis=1)
    step = values(RSAtK(3, 1e-6, 1e-6, rescale=False), pos, neg, np.empty((50, 0)))
    np.testing.assert_allclose(step, np.where(rank == 3, 0.5, rank > 3), atol=1e-9)
    assert len(np.unique(rank)) > 4


def test_m1_bpr_as_talos_prints_it_has_no_lower_bound():
    """The sum of log sigmoid(s_j - s_+), minimised, goes down for ever; BPR's is above 0."""
    printed = [log_sigmoid(np.array([0.0 - s]))[0] for s in (1.0, 100.0, 1e4)]
    assert printed[2] < -9e3 and printed[2] < printed[1] < printed[0]
    assert values(BPR(), np.array([1e4]), np.zeros((1, 1)))[0] >= 0


# T10, T11: thresholds.


def test_t10_the_bound_on_sampled_quantiles_holds_and_is_often_empty(rng):
    n, p = 200, 0.9
    found = np.sort(rng.random((2000, n)), axis=1)[:, int(np.ceil(p * n)) - 1]
    for eps in (0.03, 0.05, 0.1):
        bound = 4 * np.exp(-2 * n * eps**2)
        often = (np.abs(found - p) > eps).mean()
        assert often <= bound
        assert (bound >= 1) == (eps <= np.sqrt(np.log(4) / (2 * n)))
    assert (np.abs(found - p) > 0.03).mean() > 0.05


def test_t11_thresholds(rng):
    """A part's K-th largest is never above the whole's; the quantile loss is flat between K-th and next."""
    s, k = rng.standard_normal((TRIALS, 30)), 4
    part = np.where(rng.random(s.shape) < 0.5, s, -np.inf)
    assert (kth_largest(part, k) <= kth_largest(s, k)).all()
    assert kth_largest(np.array([[1.0, -np.inf, 2.0]]), 9).tolist() == [1.0]
    n, c, k = 30, 5, 7
    for scores in s[:20]:
        ordered = np.sort(scores)[::-1]
        own, rest = scores[:c], np.tile(scores[c:], (c, 1))

        def slope(beta, own=own, rest=rest):
            rows = Rows(np.full(c, c), n, np.full((c, 1), beta))
            return quantile_gradient(own, rest, rows, k).mean()

        inside = np.linspace(ordered[k], ordered[k - 1], 5)[1:-1]
        np.testing.assert_allclose([slope(b) for b in inside], 0, atol=1e-12)
        assert slope(ordered[k] - 1e-9) < -1e-3 and slope(ordered[k - 1] + 1e-9) > 1e-3

        def loss(beta, scores=scores):
            x = scores - beta
            return np.mean((1 - k / n) * np.maximum(x, 0) + k / n * np.maximum(-x, 0))

        at = rng.standard_normal() + 1e-7
        derivative = (loss(at + 1e-8) - loss(at - 1e-8)) / 2e-8
        np.testing.assert_allclose(slope(at), derivative, atol=1e-6)


# T12 to T14: Pu et al.


def test_t12_minimisers_of_the_risk_keep_the_order_of_the_clicks(rng):
    """Clicks i ~ eta: the gradient of the expected loss is 0 at the stated scores, which rise with eta."""
    n, a = 6, 0.3
    eta = rng.dirichlet(np.ones(n) * 2)
    every = one_hot(n, np.arange(n))
    squared = (eta * (1 + 2 * a) - 1 / n) / (1 / n + 2 * a * eta)
    for loss, at in (
        (Softmax(), np.log(eta)),
        (get_loss("full_bpr"), np.log(eta)),
        (get_loss("full_bce"), np.log(eta / (1 - eta))),
        (RG2(0.0, 0.0), n * eta - 1),
        (RGX(0.0, 1.0, 0.0), n * eta - 1),
        (RGX(0.0, 1.0, 0.0), n * eta + 4),
        (RG2(a, 0.0), squared),
        (get_loss("sparsemax"), eta),
    ):
        grad = loss.value_and_grad(np.tile(at, (n, 1)), every)[1]
        np.testing.assert_allclose(eta @ grad, 0, atol=1e-12)
        assert (np.argsort(at) == np.argsort(eta)).all()
        assert np.abs(eta @ loss.value_and_grad(np.tile(at * 1.3 + at[::-1], (n, 1)), every)[1]).max() > 1e-3

    def risk(o):
        wrmf = als_losses.WRMF(a)
        users = (one_hot(n, np.array([i])) for i in range(n))
        return sum(
            e * wrmf.objective(X, np.ones((1, 1)), o[:, None], 0.0, 1.0)
            for e, X in zip(eta, users, strict=True)
        )

    at = (1 + a) * eta / (1 + a * eta)
    np.testing.assert_allclose(central(risk, at, 1e-5), 0, atol=1e-8)
    assert (np.argsort(at) == np.argsort(eta)).all(), "M23: WRMF is consistent too"


def test_t13_dcg_lost_by_wrong_scores(rng):
    discount = 1 / np.log2(1 + np.arange(1, 11))
    for _ in range(TRIALS):
        eta = rng.random(10)
        f = eta + rng.standard_normal(10) * rng.choice([0.05, 0.3, 1])
        lost = np.sort(eta)[::-1] @ discount - eta[np.argsort(-f)] @ discount
        assert lost <= np.sqrt(2 * (discount**2).sum()) * np.linalg.norm(f - eta) + 1e-12


def test_t14_rg2_is_not_above_softmax_at_its_optimum():
    """M18, Proposition 7: with N = 10 and one click RG2 with its constant goes down to -2.2, softmax to 0."""
    n = 10
    o = np.full((1, n), -1.0)
    o[0, 0] = n - 1
    value, grad = RG2(0.0, 0.0).value_and_grad(o.copy(), one_hot(n, np.array([0])))
    np.testing.assert_allclose(grad, 0, atol=1e-12)
    np.testing.assert_allclose(np.log(n) + value[0], np.log(n) + 0.5 - n / 2)
    assert np.log(n) + value[0] < -2 < 0 < Softmax().value_and_grad(o, one_hot(n, np.array([0])))[0][0]


# T16, T18.


@pytest.mark.parametrize("denominator", [True, False])
def test_t16_talos_falls_at_every_step_while_thresholds_stand(denominator, rng):
    """Steps below 2 / smoothness; M26: the paper lets beta move. What moves it is measured after."""
    s, positive = rng.uniform(-0.2, 0.2, 30), np.arange(4)
    row, t, c = csr(np.isin(np.arange(30), positive)[None].astype(float)), 0.5, 4
    smoothness = c / (4 * t) + c / (2 * t * t)
    step, loss = 1 / smoothness, Talos(5, t)

    def gradient(s, beta):
        if denominator:
            loss.thresholds = lambda scores: np.array([beta])
            value, grad = loss.value_and_grad(s[None].copy(), row)
            return value[0], grad[0]
        own = beta - s[positive]
        grad = np.zeros_like(s)
        grad[positive] = -np.exp(log_sigmoid(own)) / t
        return -log_sigmoid(-own).sum() / t, grad

    beta, at, record = kth_largest(s[None], 5)[0], s.copy(), []
    for _ in range(200):
        value, grad = gradient(at, beta)
        record.append((value, grad @ grad))
        at = at - step * grad
    losses, norms = np.array(record).T
    assert (np.diff(losses) <= 1e-12).all()
    assert norms.min() <= (losses[0] - losses[-1]) / (step * 199 * (1 - step * smoothness / 2)) + 1e-12
    moving = s.copy()
    for _ in range(200):
        moving = moving - step * gradient(moving, kth_largest(moving[None], 5)[0])[1]
    drift = kth_largest(moving[None], 5)[0] - beta
    # The denominator takes down what comes near the threshold; without it only positives move, upwards.
    assert moving[positive].min() > np.delete(moving, positive).max()
    assert (np.delete(moving, positive) < np.delete(s, positive)).all() == denominator
    assert drift < 0.2 if denominator else drift >= 0


def test_t18_active_users_dominate_the_loss_named_nrbp(rng):
    norms = []
    for c in (5, 50):
        grad = ListNRBP().value_and_grad(
            0.01 * rng.standard_normal(6 * c), np.array([0, 6 * c]), np.array([c])
        )[1]
        norms.append(np.linalg.norm(grad))
    assert norms[1] > 20 * norms[0]
    even = [
        np.linalg.norm(
            ListNRBP("pairs").value_and_grad(np.zeros(6 * c), np.array([0, 6 * c]), np.array([c]))[1]
        )
        for c in (5, 50)
    ]
    assert even[1] < even[0]


def test_m9_a_swap_of_rbp_has_to_do_with_the_rank_of_the_negative():
    p, own, others = 0.8, 3.0, np.array([1.0, 9.0, 30.0])
    swap, printed = np.abs(p ** (own - 1) - p ** (others - 1)), np.full(3, p ** (own - 1))
    assert np.ptp(swap) > 0.1 and np.ptp(printed) == 0
