"""Where good parameters lie, as a rule of the matrix's shape and density alone."""

from __future__ import annotations

import math

from rgals.losses.base import Loss
from rgals.losses.ials import IALS
from rgals.losses.rg2 import RG2
from rgals.losses.rgx import RGX
from rgals.losses.wrmf import WRMF


def rule(loss: Loss | type[Loss], n_users: int, n_items: int, nnz: int) -> dict[str, float]:
    """Starting values of a loss's weight and of ``reg`` (with ``reg_exponent=1``) for a binary matrix.

    With M users, N items and n interactions::

        RG2, RGX   alpha  = 0.05 (3000 / N)^0.75     reg = s,  s = sqrt(max(M, N) / n)
        IALS       alpha0 = n / (2 M N alpha)        reg = s 2 alpha / (1 + 2 alpha)
        WRMF       alpha  = 1 / alpha0               reg = that of IALS, times 1 + alpha0

    ``s`` is half the edge of the spectrum of a random matrix of this shape and density, in units of ``reg``:
    what the closed form of RG2 with alpha=0 shrinks every singular value by. iALS follows from RG2 by
    comparing coefficients at the mean user, WRMF from iALS exactly. The power of N is a fit to
    tuned values.

    Parameters
    ----------
    loss : Loss or class of one
    n_users, n_items, nnz : int

    Returns
    -------
    dict of str to float
        ``alpha`` or ``alpha0``, and ``reg``; ``reg`` alone for a loss of another kind.

    Examples
    --------
    >>> from rgals import RG2
    >>> {name: round(value, 3) for name, value in rule(RG2, 6038, 3307, 674131).items()}
    {'alpha': 0.046, 'reg': 0.095}
    """
    kind = loss if isinstance(loss, type) else type(loss)
    nnz = max(nnz, 1)
    noise = math.sqrt(max(n_users, n_items, 1) / nnz)
    alpha = 0.05 * (3000 / max(n_items, 1)) ** 0.75
    if issubclass(kind, RG2 | RGX):
        return {"alpha": alpha, "reg": noise}
    alpha0 = min(nnz / (2.0 * max(n_users, 1) * max(n_items, 1) * alpha), 10.0)
    reg = noise * 2 * alpha / (1 + 2 * alpha)
    if issubclass(kind, IALS):
        return {"alpha0": alpha0, "reg": reg}
    if issubclass(kind, WRMF):
        return {"alpha": 1 / alpha0, "reg": reg * (1 + alpha0)}
    return {"reg": reg}
