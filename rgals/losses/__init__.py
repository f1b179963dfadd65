"""The losses of ALS and the table of their names: a new loss is one file and one row here."""

from typing import Any

from rgals.losses.base import AUTO, Coefficients, Loss, Side, check_methods
from rgals.losses.degrees import Degrees
from rgals.losses.fitted import spectral_edge
from rgals.losses.ials import IALS
from rgals.losses.rg2 import RG2
from rgals.losses.rgx import RGX
from rgals.losses.wrmf import WRMF
from rgals.matrix.validate import as_csr
from rgals.runtime.checks import check_int
from rgals.runtime.errors import InputTypeError, ParameterError

_METHODS = {"coefficients": "degrees", "defaults": "degrees, K", "constant": "matrix, coefficients"}
LOSSES: dict[str, type[Loss]] = {"rg2": RG2, "rgx": RGX, "wrmf": WRMF, "ials": IALS}

__all__ = ["AUTO", "IALS", "LOSSES", "RG2", "RGX", "WRMF", "Coefficients", "Degrees", "Loss", "Side"]
__all__ += ["get_loss", "rule", "spectral_edge"]


def rule(loss: str | Loss | type[Loss], X: Any, K: int = 64) -> dict[str, float]:
    """The values that a fit takes for ``"auto"``: those of the loss's parameters, and ``reg``.

    ``reg`` is that of ``reg_exponent=1``.

    Parameters
    ----------
    loss : str, Loss or class of one
    X : sparse matrix, CSR or Degrees
        Training interactions, or their margins.
    K : int, default=64
        Number of factors of the fit.

    Returns
    -------
    dict of str to float
        See `Loss.defaults`.

    Examples
    --------
    >>> from rgals import RG2
    >>> from rgals.datasets import make_implicit
    >>> found = rule(RG2, make_implicit(200, 100, random_state=0).matrix, K=32)
    >>> sorted(found)
    ['alpha', 'item_exponent', 'reg']
    """
    made: Any = loss() if isinstance(loss, type) else loss
    found = get_loss(made)
    degrees = X if isinstance(X, Degrees) else Degrees.of(as_csr(X, dislikes=found.dislikes))
    return dict(found.defaults_for(degrees, check_int("K", K, 1)))


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
            advice = f"choose one of {', '.join(map(repr, LOSSES))} or an object"
            raise ParameterError("loss", loss, advice)
        loss = LOSSES[loss.lower()]()
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise InputTypeError(f"loss must be an instance: write {loss.__name__}() with brackets")
    if not isinstance(loss, Loss):
        raise InputTypeError(f"loss must be a name or a Loss object, not {type(loss).__name__}")
    check_methods(loss, loss.name, _METHODS)
    loss.validate()
    return loss
