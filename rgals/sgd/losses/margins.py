"""Margin losses whose boundary or margin is learned for every user."""

from dataclasses import dataclass

import numpy as np

from rgals.runtime.checks import check_real
from rgals.sgd.losses._base import Rows, Sampled, State


def hinge(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[x]_+`` and its derivative, 0 at 0; -inf is absent."""
    inside = x > 0
    return np.where(inside, x, x.dtype.type(0)), inside.astype(x.dtype)


@dataclass(eq=False, repr=False)
class UIB(Sampled, raw_scores=True, score="dot"):
    """User interest boundary: a score per user that positives shall exceed and negatives shall not.

    ``l = phi(b_u - s_+) + sum_j phi(s_j - b_u)``, ``phi(x) = [x + margin]_+``

    Pu et al., appendix B.2, where phi is "MarginLoss", undefined: the hinge and its margin of 1 are our
    choice. b_u is learned with the learning rate of the factors.

    Parameters
    ----------
    margin : float >= 0, default 1
    """

    state = (State("boundary"),)

    margin: float = 1.0

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        """Values (B,) and gradients (B,), (B, n), and (B, 1) of the boundary."""
        margin = check_real("margin", self.margin, 0)
        boundary = rows.state[:, 0].astype(pos.dtype, copy=False)
        first, dpos = hinge(boundary - pos + margin)
        rest, dneg = hinge(neg - boundary[:, None] + margin)
        value = first + rest.sum(axis=1, dtype=np.float64)
        return value, -dpos, dneg, (dpos - dneg.sum(axis=1))[:, None]


@dataclass(eq=False, repr=False)
class SML(Sampled, raw_scores=True):
    """Symmetric metric learning without its item-item term (lambda = 0): margins learned per user.

    ``l = sum_j [ D(u, i) - D(u, j) + m_u ]_+ - gamma mean_u m_u``, ``m_u in (0, limit]``; on unit rows
    ``D = 2 - 2 s``, so that the hinge is ``[2 (s_j - s_+) + m_u]_+``.

    Pu et al., appendix B.2. The term with lambda needs distances between items, which no loss sees here. The
    reward of wide margins, ``-gamma / M``, acts on every user at every step; it is not part of the value.

    Parameters
    ----------
    gamma : float >= 0, default 0.1
        Not published.
    limit : float > 0, default 1
        Largest margin, and the first.
    """

    gamma: float = 0.1
    limit: float = 1.0

    @property
    def state(self) -> tuple[State, ...]:
        """The margin of every user."""
        gamma, limit = check_real("gamma", self.gamma, 0), check_real("limit", self.limit, 0, open_min=True)
        return (State("margin", start=limit, low=1e-6 * limit, high=limit, drift=-gamma),)

    def value_and_grad(self, pos: np.ndarray, neg: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
        """Values (B,) and gradients (B,), (B, n), and (B, 1) of the margin."""
        margin = rows.state[:, :1].astype(pos.dtype, copy=False)
        value, active = hinge(2 * (neg - pos[:, None]) + margin)
        total = active.sum(axis=1)
        return value.sum(axis=1, dtype=np.float64), -2 * total, 2 * active, total[:, None]
