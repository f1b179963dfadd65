"""Losses for the top K of a list: items count by a threshold score or by a smooth rank."""

from functools import partial
from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime.checks import parameter
from rgals.sgd.losses._base import (
    FullThresholds,
    Rows,
    Sampled,
    State,
    hinge,
    kth_largest,
    logistic,
    row_softmax,
    row_sums,
    softplus,
    weights_of,
)

__all__ = ["SampledSoftmaxAtK", "SampledTalos", "SampledAATP", "Talos", "AATP"]
__all__ += ["RSAtK", "SmoothIAtK", "LLPAUC"]
#: Where thresholds start: estimated from the scores of all items, from positives and a sample, or a number.
ESTIMATES = ("exact", "sampled", float)


def quantile_gradient(pos: np.ndarray, neg: np.ndarray, rows: Rows, k: int) -> np.ndarray:
    """Derivative of the quantile loss by the threshold b, (B, 1), from each row's positive and negatives."""
    # dQ/db = 1/N [ c r_+ + (N - c)/n sum_j r_j ], r = -(1 - K/N) for a score above b and K/N below: Talos,
    # section 3.3, with c times one positive of the user as an unbiased estimate of the sum over all c. It is
    # 0 where K of all N scores are above b. Negatives must be drawn uniformly, without the user's positives.
    # Weights of positives do not enter: the state is not ``weighted``.
    threshold, share = rows.state[:, 0], k / rows.n_items
    there = (neg > -np.inf).sum(axis=1)
    own, rest = share - (pos > threshold), share * there - (neg > threshold[:, None]).sum(axis=1)
    scale = (rows.n_items - rows.count) / np.maximum(there, 1)
    return ((rows.count * own + scale * rest) / rows.n_items)[:, None]


class _Thresholds(Sampled):
    """Base of the sampled losses with a threshold per user: its start and its estimates."""

    k: int = parameter(20, "int > 0")
    threshold_lr = 0.0

    @property
    def state(self: Any) -> tuple[State, ...]:
        """The threshold; with a learning rate of 0 it changes by estimates alone."""
        start = 0.0 if isinstance(self.start, str) else self.start
        return (State("threshold", start=start, lr=self.threshold_lr, weighted=False),)

    def refresh(self: Any, epoch: int) -> str | None:
        """The source that ``start`` names, before the first epoch."""
        return self.start if epoch == 0 and isinstance(self.start, str) else None

    def estimate(self: Any, scores: np.ndarray) -> np.ndarray:
        """The K-th largest score of every user, (B, 1)."""
        return kth_largest(scores, self.k)[:, None]


class SampledSoftmaxAtK(_Thresholds):
    """SL@K with sampled negatives: softmax weighted towards positives near or inside the user's top K.

    ``l = w log sum_j exp(o_j - o_+)``, ``w = sigmoid((o_+ - beta_u) / weight_temperature)``

    SL@K, Eq. 3.5 and Algorithm E.1. beta_u is a constant for the gradient, w is not (C.9). Eq. 3.5 sums over
    all items, the algorithm over the negatives alone: then the log-sum can be below 0, and w pulls its
    positive up. Public code refreshes beta_u in the last of every ``every`` epochs, batch by batch; here it
    is refreshed after that epoch: the K-th largest score among the user's positives and as many negatives as
    a row has ("sampled"), which is never above the exact one, or among all items ("exact"), which costs an
    evaluation. `SoftmaxAtK` is the loss over the catalogue.
    """

    weight_temperature: float = parameter(12.5, "float > 0", "As in `SoftmaxAtK`: the paper's 2.5 at 0.2.")
    every: int = parameter(5, "int > 0", "Epochs between two estimates of beta_u (published: 5, 20).")
    threshold: str = parameter("sampled", ("exact", "sampled"), "How beta_u is estimated; see above.")
    start: float | str = parameter(0.0, ESTIMATES, "beta_u in the first epochs.")
    with_positive: bool = parameter(False, "bool", "Whether the positive has a term, the 1 of `SampledCCE`.")

    def refresh(self, epoch: int) -> str | None:
        """The source that ``threshold`` names, after every ``every`` epochs."""
        return self.threshold if epoch and epoch % self.every == 0 else super().refresh(epoch)

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        cost, dneg = row_softmax(neg - pos[:, None], beside=0.0 if self.with_positive else -np.inf)
        weight, slope = logistic(pos.astype(np.float64) - rows.state[:, 0], self.weight_temperature)
        dneg *= weight.astype(dneg.dtype)[:, None]
        dpos = (slope * cost / self.weight_temperature).astype(pos.dtype) - dneg.sum(axis=1)
        return weight * cost, dpos, dneg, np.zeros((len(pos), 1))


class SampledTalos(_Thresholds, raw_scores=True):
    """Talos: a ratio of bounded scores above a learned threshold, for Precision@K.

    ``l = log(1 + exp(beta_u - s_+)) / t + log sum_j (1 + exp(beta_u - s_j))^(-1/t)``

    Talos, Eq. 3.7, a constant for the gradient of the scores being beta_u, which is learned by quantile
    regression (section 3.3). The printed sum over negatives alone (``with_positive=False``) does not bound
    Eq. 3.6; over all items it does, plus log c. The temperature stands outside the logistic function: inside
    is the paper's ablation, 7 to 11 % worse. The regression is unbiased for uniform negatives without the
    user's positives (``exclude_positives=True``). By Adam beta_u moves about as much at each of a user's
    updates, so that from 0, as published, it takes hundreds of them to arrive: it starts with an estimate
    from the initial factors, or at a number.
    """

    temperature: float = parameter(0.1, "float > 0")
    threshold_lr: float = parameter(1e-3, "float >= 0", "Of beta_u.")
    start: float | str = parameter("exact", ESTIMATES, "beta_u at first; see above.")
    with_positive: bool = parameter(False, "bool", "Whether the positive has a term in the sum.")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        temperature = self.temperature
        beta = rows.state[:, 0].astype(pos.dtype, copy=False)
        any_left = (neg > -np.inf).any(axis=1)
        own, own_slope = softplus(beta - pos)
        logits, slope = softplus(beta[:, None] - neg)
        beside = -own if self.with_positive else -np.inf
        rest, dneg = row_softmax(np.negative(logits, out=logits), temperature, beside)
        value = np.where(any_left, own.astype(np.float64) / temperature + rest, 0.0)
        # A positive that has a term in the sum counts by the share of the negatives in it.
        share = np.where(any_left, dneg.sum(axis=1) if self.with_positive else pos.dtype.type(1), 0)
        dneg *= slope
        dneg /= dneg.dtype.type(temperature)
        dpos = (-share * own_slope / temperature).astype(pos.dtype)
        return value, dpos, dneg, quantile_gradient(pos, neg, rows, self.k)


class SampledAATP(_Thresholds, raw_scores=True, score="dot"):
    """Accuracy at the top: hinges of positives and negatives on a learned threshold.

    ``l = [1 + beta_u - s_+]_+ + mean_j [1 + s_j - beta_u]_+``

    Talos, appendix D.5, in words; the formula is that of the code. beta_u is learned as in `SampledTalos`.
    With cosines both hinges are active unless ``|s - beta| >= 1``, which makes the loss nearly linear.
    """

    threshold_lr: float = parameter(1e-3, "float >= 0")
    start: float | str = parameter("exact", ESTIMATES)

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        beta = rows.state[:, 0].astype(pos.dtype, copy=False)
        first, dpos = hinge(1 + beta - pos)
        rest, dneg = hinge(1 + neg - beta[:, None])
        there = np.maximum((neg > -np.inf).sum(axis=1), 1)
        dneg /= there.astype(dneg.dtype)[:, None]
        value = first + rest.sum(axis=1, dtype=np.float64) / there
        return value, -dpos, dneg, quantile_gradient(pos, neg, rows, self.k)


class Talos(FullThresholds, raw_scores=True):
    """Talos over the catalogue, with the exact threshold at every step.

    Eq. 3.7: ``L_x = sum_{y in I_x} v_xy [ log(1 + exp(beta_x - s_xy)) / t + log Z_x ]``; Eq. 3.6:
    ``L_x = log Z_x - log sum_{y in I_x} v_xy b_xy``; ``b_xy = (1 + exp(beta_x - s_xy))^(-1/t)``, ``Z_x`` its
    sum over all items, beta_x the K-th largest score of the user, a constant for the gradient.

    Talos, section 3. 3.6 is at most 3.7 (its mean over the positives) less log c, both over all items; the
    paper's step from one to the other leaves the positives out of 3.7, where that fails. Its Theorem 3.1
    holds for a narrow window of temperatures; a bound for all of them is tested.
    """

    temperature: float = parameter(0.1, "float > 0")
    form: str = parameter("3.7", ("3.7", "3.6"))

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        temperature, beta = self.temperature, self.thresholds(scores)
        where, v, count = positives.positions, weights_of(positives), positives.row_sums
        logits, slope = softplus(beta[:, None] - scores)
        own = -logits.reshape(-1)[where].astype(np.float64) / temperature
        total, grad = row_softmax(np.negative(logits, out=logits), temperature)
        flat, rows = grad.reshape(-1), positives.rows
        if self.form == "3.7":
            value = count * total - row_sums(v * own, positives)
            grad *= count.astype(grad.dtype)[:, None]
            flat[where] -= v
        else:
            top = np.full(len(scores), -np.inf)
            np.maximum.at(top, rows, own)
            share = v * np.exp(own - top[rows])
            mass = row_sums(share, positives)
            some = mass > 0
            inside = np.log(np.where(some, mass, 1)) + np.where(some, top, 0)
            value = np.where(some, total - inside, 0)
            grad *= some[:, None]
            flat[where] -= (share / mass[rows]).astype(grad.dtype)
        grad *= slope
        grad /= grad.dtype.type(temperature)
        return value, grad


class AATP(FullThresholds, raw_scores=True, score="dot"):
    """`SampledAATP` over the catalogue, with the exact threshold at every step.

    ``L_x = sum_{y in I_x} v_xy ( [1 + beta_x - s_xy]_+ + mean_{j not in I_x} [1 + s_xj - beta_x]_+ )``
    """

    def value_and_grad(self, scores: np.ndarray, positives: CSR) -> tuple[np.ndarray, np.ndarray]:
        beta = self.thresholds(scores)
        where, v, count = positives.positions, weights_of(positives), positives.row_sums
        own, active = hinge(1 + beta[positives.rows] - scores.reshape(-1)[where])
        rest, grad = hinge(1 + scores - beta[:, None])
        rest.reshape(-1)[where] = 0
        scale = count / np.maximum(scores.shape[1] - positives.row_counts, 1)
        grad *= scale.astype(grad.dtype)[:, None]
        grad.reshape(-1)[where] = -v * active
        return row_sums(v * own, positives) + scale * rest.sum(axis=1, dtype=np.float64), grad


class RSAtK(Sampled, raw_scores=True, takes_rows=True):
    """Recall surrogate: a smooth rank, and a smooth step at K.

    ``l = 1 - sigmoid((K - 1 - r) / t2)``, ``r = sum_j sigmoid((s_j - s_+) / t1)``

    Talos, appendix D.5. r counts sampled negatives while K counts items: ``rescale=True`` takes r N / n. The
    gradient vanishes for rows far from K, beyond about 23 t2 ranks, so that narrow steps hardly learn.
    """

    k: int = parameter(20, "int > 0")
    score_temperature: float = parameter(0.2, "float > 0", "t1 (published: 0.01).")
    rank_temperature: float = parameter(300.0, "float > 0", "t2 (published: 1).")
    rescale: bool = parameter(True, "bool", "Take the rank among n negatives N / n times (published: not).")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        first, second = self.score_temperature, self.rank_temperature
        above, dneg = logistic(neg - pos[:, None], first)
        there = neg > -np.inf
        above[~there], dneg[~there] = 0, 0
        factor = rows.n_items / np.maximum(there.sum(axis=1), 1) if self.rescale else np.ones(len(pos))
        rank = factor * above.sum(axis=1, dtype=np.float64)
        inside, slope = logistic(self.k - 1 - rank, second)
        dneg *= (slope * factor / (first * second)).astype(dneg.dtype)[:, None]
        # 1 - sigmoid(x) is computed as sigmoid(-x), without cancellation.
        value = logistic(rank - (self.k - 1), second)[0]
        return value, -dneg.sum(axis=1), dneg


class SmoothIAtK(Sampled, raw_scores=True):
    """Smooth rank indicators, for Precision@K: K softmaxes that peel off one rank after the other.

    ``l = 1 - 1/K sum_k I^k_+``, ``I^k = softmax_j(x_j prod_{l<k} (1 - I^l_j - delta) / t)`` over the positive
    and its negatives, ``x = s + 1``. The product is a constant for the gradient.

    Thonet et al. (2022); Talos, appendix D.5. The public code of Talos multiplies every item by the product
    of the *positive*, with which ranks are never peeled off: ``published=True``; its figures are of that.
    """

    k: int = parameter(20, "int > 0")
    temperature: float = parameter(0.1, "float > 0", "Of the papers: 0.2.")
    delta: float = parameter(0.05, "float >= 0")
    published: bool = parameter(False, "bool", "The variant of the public code.")

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = np.concatenate([pos[:, None], neg], axis=1)
        absent = scores == -np.inf
        x = np.where(absent, scores.dtype.type(0), scores + 1)
        product, grad = np.ones_like(x), np.zeros_like(x)
        hits, own = np.zeros(len(pos)), np.zeros(len(pos))
        for _ in range(self.k):
            logits = np.where(absent, scores, x * product)
            _, share = row_softmax(logits, self.temperature)
            first = share[:, 0].copy()
            hits += first
            own += product[:, 0] * first
            left = 1 - self.delta - (first[:, None] if self.published else share)
            share *= first[:, None]
            share *= product
            grad += share
            product *= left
        scale = 1 / (self.k * self.temperature)
        dpos = (scale * (grad[:, 0] - own)).astype(pos.dtype)
        return 1 - hits / self.k, dpos, grad[:, 1:] * grad.dtype.type(scale)


class LLPAUC(Sampled, raw_scores=True, lr=0.01):
    """Lower-left partial AUC: positives of low and negatives of high score, by a minimax over seven scalars.

    With ``P = sigmoid(s_+)``, ``Q_j = sigmoid(s_j)``, ``r(x) = log(1 + exp(5 x)) / 5``::

        l = -s1 - r(-(P - a)^2 + 2 (1 + g) P - s1) / alpha
            + s2 + mean_j r((Q_j - b)^2 + 2 (1 + g) Q_j - s2) / beta
            - g^2 + ta (a + g) + tb (g + 1 - b)

    scores, a, b, s2, ta and tb go down, s1 and g up.

    SL@K, appendix F.4, and Talos, section 2.4. The public code of SL@K takes all scalars *down* and holds g
    in ``[max(-a, b - 1), 1]``: ``ascend=False``. That of Talos ascends, which ranks better: NDCG@20 .129 on
    amazon-health-10core and .051 on -electronics-10core, downwards .125 and .034; SL@K prints .122 and .050.
    """

    alpha: float = parameter(0.7, "float in (0, 1]", "Share of the positives.")
    beta: float = parameter(0.1, "float in (0, 1]", "Share of the negatives.")
    ascend: bool = parameter(True, "bool", "Whether s1 and g go up.")

    @property
    def state(self) -> tuple[State, ...]:
        """a, b, g, s1, s2, ta, tb."""
        down = partial(State, scope="model")
        up = partial(down, ascend=bool(self.ascend), rate=2.0)
        return (
            down("a", start=1.0, low=0.0, high=1.0),
            down("b", low=0.0, high=1.0),
            up("g", low=-1.0, high=1.0),
            up("s1", start=0.5, low=-1.0, high=4.0),
            down("s2", start=0.5, low=0.0, high=5.0, rate=2.0),
            down("ta", start=0.5, low=0.0),
            down("tb", start=0.5, low=0.0),
        )

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        alpha, beta = self.alpha, self.beta
        a, b, g, s1, s2, ta, tb = rows.state.T.astype(np.float64)
        if not self.ascend:
            # Below that bound, ta and tb would lower the value for ever.
            g = np.maximum(g, np.maximum(-a, b - 1))
        p, dp = logistic(pos.astype(np.float64))
        q, dq = logistic(neg)
        n = np.maximum((neg > -np.inf).sum(axis=1), 1)
        first, p_slope = softplus(5 * (-((p - a) ** 2) + 2 * (1 + g) * p - s1))
        gap = q - b.astype(neg.dtype)[:, None]
        inner = gap * gap + (2 * (1 + g)).astype(neg.dtype)[:, None] * q - s2.astype(neg.dtype)[:, None]
        inner *= neg.dtype.type(5)
        inner[neg == -np.inf] = -np.inf
        rest, c = softplus(inner)
        c /= (beta * n).astype(neg.dtype)[:, None]
        value = -s1 - first / (5 * alpha) + s2 + rest.sum(axis=1, dtype=np.float64) / (5 * beta * n)
        value += -(g**2) + ta * (a + g) + tb * (g + 1 - b)
        hit = p_slope / alpha
        dpos = -hit * (-2 * (p - a) + 2 * (1 + g)) * dp
        dneg = (2 * gap + (2 * (1 + g)).astype(neg.dtype)[:, None]) * dq * c
        total, weighted = c.sum(axis=1), np.einsum("bn,bn->b", c, q)
        of_ab = -2 * hit * (p - a) + ta, -2 * np.einsum("bn,bn->b", c, gap) - tb
        of_g = -2 * p * hit + 2 * weighted - 2 * g + ta + tb
        dstate = np.column_stack([*of_ab, of_g, hit - 1, 1 - total, a + g, g + 1 - b])
        return value, dpos.astype(pos.dtype), dneg, dstate
