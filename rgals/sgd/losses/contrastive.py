"""Softmax losses that replace the exponential, split the temperature, or weight the negatives."""

from dataclasses import dataclass

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime.checks import check_choice, check_int, check_real
from rgals.sgd.losses._base import Adversary, Full, Rows, Sampled, row_softmax, row_sums, softplus, weights_of


@dataclass(eq=False, repr=False)
class BSL(Sampled, raw_scores=True):
    """Bilateral softmax loss: temperatures of their own for the positive and for the negatives.

    ``l = -s_+ / t1 + (t2 / t1) log sum_j exp(s_j / t2)``

    Compared in SL@K, appendix F.4, and Talos, appendix D.5; neither prints the formula, which is that of the
    public code. That takes exp and a power in single precision, which overflow for small temperatures; here
    both stay logarithms. Equal temperatures give `SL`. The value has no lower bound in s_+: for cosines.

    Parameters
    ----------
    positive_temperature, negative_temperature : float > 0, default 0.2
        t1, t2. Published: 0.5, 0.2 (Electronics).
    with_positive : bool, default False
        Whether the positive has a term in the sum.
    """

    positive_temperature: float = 0.2
    negative_temperature: float = 0.2
    with_positive: bool = False

    def _temperatures(self) -> tuple[float, float]:
        names = "positive_temperature", "negative_temperature"
        first, second = (check_real(name, getattr(self, name), 0, open_min=True) for name in names)
        return first, second

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        first, second = self._temperatures()
        any_left = (neg > -np.inf).any(axis=1)
        rest, dneg = row_softmax(neg.copy(), second, pos if self.with_positive else None)
        value = np.where(any_left, second / first * rest - pos.astype(np.float64) / first, 0.0)
        dpos = np.where(any_left, -(dneg.sum(axis=1) if self.with_positive else pos.dtype.type(1)), 0)
        dneg /= dneg.dtype.type(first)
        return value, (dpos / first).astype(pos.dtype), dneg


class FullBSL(Full, BSL):
    """`BSL` over the whole catalogue, the positives included: one log-sum serves all positives of a user.

    ``L_x = sum_{y in I_x} v_xy [ (t2 / t1) log sum_{y'} exp(s_xy' / t2) - s_xy / t1 ]``

    Parameters
    ----------
    positive_temperature, negative_temperature : float > 0, default 0.2
        t1, t2.
    """

    def __init__(self, positive_temperature: float = 0.2, negative_temperature: float = 0.2) -> None:
        self.positive_temperature = positive_temperature
        self.negative_temperature = negative_temperature

    def value_and_grad(  # type: ignore[override]
        self, scores: np.ndarray, positives: CSR
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values (B,) and gradient (B, N); ``scores`` is overwritten by the gradient."""
        first, second = self._temperatures()
        where, weights, count = positives.positions, weights_of(positives), positives.row_sums
        own = row_sums(scores.reshape(-1)[where].astype(np.float64) * weights, positives)
        value, grad = row_softmax(scores, second)
        grad *= count.astype(grad.dtype)[:, None]
        grad.reshape(-1)[where] -= weights
        grad /= grad.dtype.type(first)
        return count * value * (second / first) - own / first, grad


def _tanh(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log(1 + tanh(d / 2)) = log 2 - log(1 + exp(-d))``: the second form does not underflow."""
    value, slope = softplus(-d)
    return np.log(d.dtype.type(2)) - value, slope


def _atan(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = np.clip(d / 2, -1e15, 1e15)  # its square is finite in single precision
    base = 1 + np.arctan(half)
    return _logarithm(base, 0.5 / (1 + half * half))


def _relu(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = 1 + d / 2
    return _logarithm(base, np.full_like(base, 0.5))


def _exp(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return d / 2, np.full_like(d, 0.5)


def _logarithm(base: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of what is above 0, else -inf, and its derivative, else 0."""
    inside = base > 0
    value = np.log(base, out=np.full_like(base, -np.inf), where=inside)
    return value, np.divide(slope, base, out=np.zeros_like(base), where=inside)


#: What takes the place of ``d / 2`` in softmax: logarithms of activations, and their derivatives.
ACTIVATIONS = {"tanh": _tanh, "atan": _atan, "relu": _relu, "exp": _exp}


@dataclass(eq=False, repr=False)
class PSL(Sampled, raw_scores=True):
    """Pairwise softmax loss: another activation in place of the exponential.

    ``l = log sum_j exp(a(s_j - s_+) / t)`` with ``a(d) = log(1 + tanh(d/2))``, ``log(1 + atan(d/2))``,
    ``log [1 + d/2]_+`` or, which is `SL` at the temperature 2t, ``d/2``.

    Talos, appendix D.5, in words. Where an activation is 0 ("relu": d <= -2, "atan": d <= -2 tan 1) the
    negative is absent.

    Parameters
    ----------
    temperature : float > 0, default 0.1
    activation : {"tanh", "atan", "relu", "exp"}, default "tanh"
    with_positive : bool, default False
        Whether the positive has a term in the sum, which is 1: a(0) = 0.
    """

    temperature: float = 0.1
    activation: str = "tanh"
    with_positive: bool = False

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values (B,) and gradients (B,), (B, n)."""
        temperature = check_real("temperature", self.temperature, 0, open_min=True)
        activation = ACTIVATIONS[check_choice("activation", self.activation, tuple(ACTIVATIONS))]
        logits, slope = activation(neg - pos[:, None])
        logits[neg == -np.inf] = -np.inf
        rest, dneg = row_softmax(logits, temperature, 0.0 if self.with_positive else None)
        dneg *= slope
        dneg /= dneg.dtype.type(temperature)
        return rest, -dneg.sum(axis=1), dneg


@dataclass(eq=False, repr=False)
class AdvInfoNCE(Sampled, raw_scores=True):
    """Softmax whose negatives are weighted by an adversary, a second pair of factors.

    ``l = log [ 1 + sum_j exp((s_j - s_+) / t) k n q_j ]``, ``q = softmax(g)`` over the row's n negatives, g
    their scores by the adversary. In every ``every``-th epoch the adversary alone steps, upwards:
    ``dl/dg_j = p_j - q_j sum_k p_k``.

    SL@K, appendix F.4, and Talos, appendix D.5, in words; scores of the adversary are cosines in their code,
    dot products in the original. With a constant adversary and ``weight=1`` it is `SampledCCE`.

    Parameters
    ----------
    temperature : float > 0, default 0.2
    weight : float > 0, default 64
        k.
    every : int, default 5
        Epochs between two of the adversary (published: 5 to 20).
    adversary_lr : float > 0, default 5e-5
    adversary_epochs : int, optional
        At most so many epochs of the adversary; None for no limit.
    adversary_score : {"cosine", "dot"}, default "cosine"
    """

    temperature: float = 0.2
    weight: float = 64.0
    every: int = 5
    adversary_lr: float = 5e-5
    adversary_epochs: int | None = None
    adversary_score: str = "cosine"

    @property
    def adversary(self) -> Adversary:
        """The second pair of factors."""
        if self.adversary_epochs is not None:
            check_int("adversary_epochs", self.adversary_epochs, 0)
        return Adversary(
            check_int("every", self.every, 1),
            check_real("adversary_lr", self.adversary_lr, 0, open_min=True),
            check_choice("adversary_score", self.adversary_score, ("cosine", "dot")),
            self.adversary_epochs,
        )

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        """Values (B,) and gradients (B,), (B, n), and (B, n) of the adversary's scores."""
        temperature = check_real("temperature", self.temperature, 0, open_min=True)
        weight = check_real("weight", self.weight, 0, open_min=True)
        there = neg > -np.inf
        assert rows.adversary is not None
        g = np.where(there, rows.adversary, -np.inf).astype(neg.dtype, copy=False)
        log_sum, q = row_softmax(g.copy())
        # log(k n q_j), as a score: what is divided by the temperature later.
        shift = np.log(weight * np.maximum(there.sum(axis=1), 1)) - log_sum
        logits = neg - pos[:, None]
        logits += temperature * (g + shift.astype(g.dtype)[:, None])
        value, dneg = row_softmax(logits, temperature, 0.0)
        dg = dneg - q * dneg.sum(axis=1)[:, None]
        dneg /= dneg.dtype.type(temperature)
        return value, -dneg.sum(axis=1), dneg, dg
