"""Losses of whole lists against references in float64 that go list by list and pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from instruments.scores import block, central

from rgals.runtime.errors import ParameterError
from rgals.sgd.losses import (
    BCE,
    BPR,
    BSL,
    SL,
    FullBPR,
    FullLambdaLoss,
    FullLambdaRank,
    LambdaLoss,
    LambdaRank,
    ListAP,
    ListNDCG,
    ListNRBP,
    ListRR,
    SmoothIAtK,
    get_loss,
)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def ideal(m):
    return sum(1 / np.log2(1 + r) for r in range(1, m + 1))


def swaps(metric, p, ranks, m):
    """The metric's change for every (positive, negative), by exchanging their ranks and computing it anew."""

    def value(r):
        own = np.sort(r[:m])
        if metric == "ndcg":
            return sum(1 / np.log2(1 + own)) / ideal(m)
        if metric == "nrbp":
            return (1 - p) / (1 - p**m) * sum(p ** (own - 1.0))
        if metric == "rr":
            return 1 / own[0]
        return sum((k + 1) / r for k, r in enumerate(own)) / m

    out = np.zeros((m, len(ranks)))
    for i in range(m):
        for j in range(m, len(ranks)):
            other = ranks.copy()
            other[[i, j]] = other[[j, i]]
            out[i, j] = abs(value(other) - value(ranks))
    return out


def ranks_of(s):
    ranks = np.empty(len(s), int)
    ranks[np.argsort(-s, kind="stable")] = np.arange(1, len(s) + 1)
    return ranks


def weights(loss, s, m):
    """W of a lambda loss for one list."""
    ranks = ranks_of(s)
    if isinstance(loss, LambdaRank):
        return swaps(loss.metric, loss.p, ranks, m)
    distance = np.abs(ranks[:m, None] - ranks) + 0.0
    distance[:, :m] = 1
    lower = np.maximum(ranks[:m, None], ranks)
    if loss.published:
        w, cut = 1 / np.log2(1 + distance), 1 - 1 / np.maximum(lower, 1.5)
    else:
        w = 1 / np.log2(1 + distance) - 1 / np.log2(2 + distance)
        cut = 1 - 1 / np.log2(1 + np.maximum(lower, 1.5))
    return w if loss.k is None else np.where(lower > loss.k, w / cut, w)


def reference(loss, s, m, v=None, held=None):
    """Value of one list, its first m items being positives; W is ``held`` where it is given."""
    v = np.ones(m) if v is None else v
    S = sigmoid(s - s[:m, None])
    S[np.arange(m), np.arange(m)] = 0
    R = 1 + S.sum(axis=1)
    if isinstance(loss, ListNDCG):
        return -sum(v / np.log2(1 + R)) / ideal(m) if m else 0.0
    if isinstance(loss, ListAP):
        return -sum(v * (1 + S[:, :m].sum(axis=1)) / R) / m if m else 0.0
    if isinstance(loss, ListRR):
        return -sum(v * np.prod(1 - S[:, :m], axis=1) / R)
    if isinstance(loss, ListNRBP):
        whole = (v * S[:, m:].sum(axis=1)).sum()
        return whole / {"none": 1, "positives": max(m, 1), "pairs": max(m * (len(s) - m), 1)}[loss.normalise]
    W = weights(loss, s, m) if held is None else held
    x = s[m:] - s[:m, None]
    how = sigmoid(x) if getattr(loss, "smooth", "logistic") == "sigmoid" else np.logaddexp(0, x)
    return (v[:, None] * W[:, m:] * how).sum()


LISTWISE = [ListNDCG(), ListAP(), ListRR(), *(ListNRBP(n) for n in ("none", "positives", "pairs"))]
LAMBDA = [*(LambdaRank(metric) for metric in ("ndcg", "ap", "rr", "nrbp")), LambdaRank("nrbp", p=0.5)]
LAMBDA += [LambdaRank("ndcg", smooth="sigmoid"), LambdaLoss(), LambdaLoss(3), LambdaLoss(3, published=False)]
LAMBDA += [LambdaLoss(published=False)]
SIZES = np.array([9, 1, 6, 0, 5, 4, 30])
POSITIVES = np.array([3, 1, 6, 0, 0, 1, 7])  # also nobody's, all, one without negatives, none


def ragged(rng, scale=1.0):
    indptr = np.concatenate([[0], np.cumsum(SIZES)])
    return rng.standard_normal(indptr[-1]) * scale, indptr


@pytest.mark.parametrize("loss", [*LISTWISE, *LAMBDA, LambdaRank("nrbp", p=1 - 1e-7)], ids=str)
def test_in_single_precision_they_are_those_of_double_precision(loss, rng):
    """Where exponentials, logarithms and orders are computed in other ways; longer than any vector."""
    m = np.array([3, 40])
    indptr = np.array([0, 50, 700])
    scores = np.concatenate([rng.standard_normal(600), -np.zeros(60), np.zeros(40)]).astype(np.float32)
    answers = [loss.value_and_grad(scores.astype(dtype), indptr, m) for dtype in ("f4", "f8")]
    for single, double in zip(*answers, strict=True):
        assert np.any(double)
        np.testing.assert_allclose(single, double, rtol=2e-4, atol=1e-6 * np.abs(double).max())


@pytest.mark.parametrize("scale", [1.0, 50.0, 0.0])
@pytest.mark.parametrize("loss", [*LISTWISE, *LAMBDA], ids=str)
def test_values_and_gradients_are_those_of_the_reference(loss, scale, rng):
    """Lists of all kinds, weighted positives, ties; weights of swaps held."""
    scores, indptr = ragged(rng, scale)
    v = rng.integers(1, 4, POSITIVES.sum()).astype(float)
    values, grad = loss.value_and_grad(scores.copy(), indptr, POSITIVES, v)
    first = 0
    for b, (start, stop) in enumerate(zip(indptr, indptr[1:], strict=False)):
        s, m = scores[start:stop], int(POSITIVES[b])
        own, first = v[first : first + m], first + m
        held = weights(loss, s, m) if loss in LAMBDA else None
        np.testing.assert_allclose(values[b], reference(loss, s, m, own, held), rtol=1e-10, atol=1e-14)

        def at(s, m=m, own=own, held=held):
            return reference(loss, s, m, own, held)

        np.testing.assert_allclose(grad[start:stop], central(at, s, 1e-5), rtol=1e-6, atol=1e-6 * m)
    assert scale == 50 or np.abs(grad).max() > 1e-3
    plain = loss.value_and_grad(scores.copy(), indptr, POSITIVES)
    for a, b in zip(plain, loss.value_and_grad(scores, indptr, POSITIVES, np.ones(len(v))), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "full, listed",
    [
        (FullLambdaRank("ap"), LambdaRank("ap")),
        (FullLambdaLoss(2), LambdaLoss(2)),
        (FullBPR(), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("valued", [False, True])
def test_over_the_catalogue_every_user_has_one_list_of_all_items(full, listed, valued, rng):
    scores, positives = rng.standard_normal((5, 7)), block(rng, valued=valued)
    values, grad = full.value_and_grad(scores.copy(), positives)
    for b in range(5):
        row = positives.slice_rows(b, b + 1)
        order = np.concatenate([row.indices, np.setdiff1d(np.arange(7), row.indices)])
        m, v = row.nnz, np.ones(row.nnz) if positives.is_binary else row.values
        s = scores[b, order]
        if listed is None:  # W = 1: BPR with all negatives
            one = BPR().value_and_grad(s[:m], np.tile(s[m:], (m, 1)))
            expected = (one[0] * v).sum(), np.concatenate([one[1] * v, (one[2] * v[:, None]).sum(axis=0)])
        else:
            value, slope = listed.value_and_grad(s, np.array([0, 7]), np.array([m]), v)
            expected = value[0], slope
        np.testing.assert_allclose(values[b], expected[0], rtol=1e-12)
        np.testing.assert_allclose(grad[b, order], expected[1], atol=1e-12)


def test_full_bce_is_bce_with_all_negatives(rng):
    scores, positives = rng.standard_normal((5, 7)), block(rng, valued=True)
    values, _ = get_loss("full_bce").value_and_grad(scores.copy(), positives)
    for b in range(5):
        row = positives.slice_rows(b, b + 1)
        rest = np.tile(np.delete(scores[b], row.indices), (row.nnz, 1))
        one = BCE().value_and_grad(scores[b, row.indices], rest)[0]
        np.testing.assert_allclose(values[b], (one * row.values).sum(), atol=1e-12)


def test_steep_scores_give_the_metrics(rng):
    """At scores 1e4 apart smooth ranks are ranks, and each loss its metric."""
    for _ in range(20):
        n, m = 12, int(rng.integers(1, 6))
        s = rng.permutation(n) * 1e4
        own = np.sort(ranks_of(s)[:m])
        metric = {
            ListNDCG: sum(1 / np.log2(1 + own)) / ideal(m),
            ListAP: sum((k + 1) / r for k, r in enumerate(own)) / m,
            ListRR: 1 / own[0],
        }
        for kind, expected in metric.items():
            found = kind().value_and_grad(s, np.array([0, n]), np.array([m]))[0][0]
            np.testing.assert_allclose(-found, expected, rtol=1e-12)


def test_the_loss_named_nrbp_is_auc(rng):
    """Pairs of positives cancel in Eq. 19; what is left does not see the top of the list."""
    s, m = rng.standard_normal(15), 4
    S = sigmoid(s - s[:m, None])
    S[np.arange(m), np.arange(m)] = 0
    found = ListNRBP().value_and_grad(s, np.array([0, 15]), np.array([m]))[0][0]
    np.testing.assert_allclose(found, S.sum() - m * (m - 1) / 2, rtol=1e-12)


def test_reciprocal_rank_vanishes_where_many_positives_are_level():
    m = 20
    value, grad = ListRR().value_and_grad(np.zeros(60), np.array([0, 60]), np.array([m]))
    np.testing.assert_allclose(value[0], -m * 2.0 ** -(m - 1) / 30.5, rtol=1e-12)
    assert np.abs(grad).max() < 1e-6


def test_tied_items_have_distinct_ranks():
    """|difference of ranks| = 0 would make LambdaLoss infinite."""
    for loss in (LambdaLoss(), LambdaLoss(2), LambdaRank("ap")):
        values, grad = loss.value_and_grad(np.zeros(8), np.array([0, 8]), np.array([3]))
        assert np.isfinite(values).all() and np.isfinite(grad).all() and grad.any()


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_smooth_rank_indicators(n, published, rng):
    """Value and gradient, products held, in the words of the formula; then the limit of low temperatures."""
    k, delta, t = 4, 0.1, 0.3
    loss = SmoothIAtK(k, t, delta, published)
    s = rng.uniform(-1, 1, 1 + n)

    def products(s):
        out, product = [], np.ones(1 + n)
        for _ in range(k):
            out.append(product.copy())
            e = np.exp((s + 1) * product / t)
            share = e / e.sum()
            product = product * (1 - (share[0] if published else share) - delta)
        return out

    held = products(s)

    def value(s):
        shares = (np.exp((s + 1) * product / t) for product in held)
        return 1 - sum(e[0] / e.sum() for e in shares) / k

    found, dpos, dneg = loss.value_and_grad(s[:1], s[None, 1:])
    np.testing.assert_allclose(found[0], value(s), rtol=1e-12)
    np.testing.assert_allclose([dpos[0], *dneg[0]], central(value, s, 1e-6), rtol=1e-6, atol=1e-8)
    padded = loss.value_and_grad(s[:1], np.concatenate([s[None, 1:], [[-np.inf, -np.inf]]], axis=1))
    np.testing.assert_allclose([padded[0][0], padded[1][0]], [found[0], dpos[0]], rtol=1e-12)
    assert not padded[2][0, n:].any()


def test_the_published_smooth_indicators_never_peel_a_rank_off():
    """A positive that ranks 3rd of 6 is in the top 4: a quarter of the indicators is its own, or none."""
    s = np.array([0.3, 0.9, 0.6, 0.1, -0.2, -0.5])
    for published, hits in ((False, 0.25), (True, 0.0)):
        value = SmoothIAtK(4, 0.01, 0.0, published).value_and_grad(s[:1], s[None, 1:])[0][0]
        np.testing.assert_allclose(1 - value, hits, atol=1e-6)
    for rank in range(1, 7):
        own, rest = np.sort(s)[-rank : len(s) - rank + 1], np.delete(np.sort(s), len(s) - rank)
        value = SmoothIAtK(4, 0.001, 0.0).value_and_grad(own, rest[None])[0][0]
        np.testing.assert_allclose(1 - value, (rank <= 4) / 4, atol=1e-6)


def test_bilateral_softmax_with_equal_temperatures_is_softmax(rng):
    pos, neg = rng.uniform(-1, 1, 9), rng.uniform(-1, 1, (9, 5))
    bsl, sl = BSL(0.3, 0.3).value_and_grad(pos, neg), SL().value_and_grad(pos / 0.3, neg / 0.3)
    for a, b in zip(bsl, (sl[0], sl[1] / 0.3, sl[2] / 0.3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    scores, positives = rng.uniform(-1, 1, (5, 7)), block(rng, valued=True)
    full = get_loss("full_bsl").value_and_grad(scores.copy(), positives)
    softmax = get_loss("softmax").value_and_grad(scores / 0.2, positives)
    np.testing.assert_allclose(full[0], softmax[0], rtol=1e-10)
    np.testing.assert_allclose(full[1], softmax[1] / 0.2, atol=1e-12)


def test_wrong_switches_of_lists_are_named():
    for loss, match in (
        (ListNRBP("users"), "normalise='users'"),
        (LambdaRank("mrr"), "metric='mrr'"),
        (LambdaRank("nrbp", p=1.0), "p=1.0 .*between 0 and 1"),
        (LambdaLoss(0), "k=0"),
        (LambdaRank(smooth="relu"), "smooth='relu'"),
    ):
        with pytest.raises(ParameterError, match=match):
            get_loss(loss)
