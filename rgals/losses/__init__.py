"""The losses, and the table of their names. A new loss is one file and one row here."""

from __future__ import annotations

from typing import Any

from rgals.losses.base import AUTO, Coefficients, Loss, Side, spectral_edge
from rgals.losses.degrees import Degrees
from rgals.losses.ials import IALS
from rgals.losses.rg2 import RG2
from rgals.losses.rgx import RGX
from rgals.losses.wrmf import WRMF
from rgals.runtime.errors import InputTypeError, ParameterError

LOSSES: dict[str, type[Loss]] = {"rg2": RG2, "rgx": RGX, "wrmf": WRMF, "ials": IALS}

__all__ = [
    "AUTO",
    "IALS",
    "LOSSES",
    "RG2",
    "RGX",
    "WRMF",
    "Coefficients",
    "Degrees",
    "Loss",
    "Side",
    "get_loss",
    "rule",
    "spectral_edge",
]


def rule(loss: Loss | type[Loss], n_users: int, n_items: int, nnz: int) -> dict[str, float]:
    """What ``"auto"`` stands for: a loss's own parameters and ``reg`` (with ``reg_exponent=1``).

    With M users, N items and n interactions::

        RG2, RGX   alpha  = 0.05 (3000 / N)^0.75     reg = s,  s = sqrt(max(M, N) / n)
        IALS       alpha0 = n / (2 M N alpha)        reg = s 2 alpha / (1 + 2 alpha)
        WRMF       alpha  = 1 / alpha0               reg = that of IALS, times 1 + alpha0

    Parameters
    ----------
    loss : Loss or class of one
    n_users, n_items, nnz : int

    Returns
    -------
    dict of str to float
        See `Loss.defaults`.

    Examples
    --------
    >>> from rgals import RG2
    >>> {name: round(value, 3) for name, value in rule(RG2, 6038, 3307, 674131).items()}
    {'alpha': 0.046, 'reg': 0.095}
    """
    made: Any = loss() if isinstance(loss, type) else loss
    return made.defaults(n_users, n_items, nnz)


def get_loss(loss: str | Loss) -> Loss:
    """The loss object for a name (with its defaults) or an object (checked).

    Parameters
    ----------
    loss : str or Loss
        ``"rg2"``, ``"rgx"``, ``"wrmf"``, ``"ials"`` or an instance.

    Returns
    -------
    Loss

    Raises
    ------
    ParameterError
        Unknown name, or a parameter of the object is out of range.
    InputTypeError
        Neither a name nor a loss object.

    Examples
    --------
    >>> from rgals.losses import get_loss
    >>> get_loss("ials")
    IALS()
    """
    if isinstance(loss, str):
        if loss.lower() not in LOSSES:
            raise ParameterError(
                "loss", loss, "choose one of " + ", ".join(map(repr, LOSSES)) + " or an object"
            )
        loss = LOSSES[loss.lower()]()
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise InputTypeError(f"loss must be an instance: write {loss.__name__}() with brackets")
    if not isinstance(loss, Loss):
        raise InputTypeError(f"loss must be a name or a Loss object, not {type(loss).__name__}")
    loss.validate()
    return loss
