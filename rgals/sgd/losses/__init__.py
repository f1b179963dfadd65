"""Ranking losses in score space, one small class a formula, and the table that names them.

A name stands for a loss with its default parameters; an object may have others.

Examples
--------
>>> from rgals.sgd import losses
>>> full = losses.FullBSL(), losses.Talos(k=10), losses.AATP(k=10), losses.SoftmaxAtK(k=10)
>>> full += losses.FullLambdaRank(), losses.FullLambdaLoss(k=10)
>>> sampled = losses.SampledCCE(), losses.SL(with_positive=True), losses.BSL(negative_temperature=0.1)
>>> sampled += losses.PSL(activation="relu"), losses.LLPAUC(ascend=False), losses.AdvInfoNCE(weight=32)
>>> sampled += losses.SampledTalos(k=10), losses.SampledAATP(k=10), losses.SampledSoftmaxAtK(k=10)
>>> sampled += losses.RSAtK(k=10), losses.SmoothIAtK(), losses.UIB(), losses.SML(), losses.SampledSoftmax()
>>> lists = losses.LambdaRank(metric="ap"), losses.LambdaLoss(k=10), losses.ListNRBP()
>>> {loss.kind for loss in full}, {loss.kind for loss in sampled}, {loss.kind for loss in lists}
({'full'}, {'sampled'}, {'list'})
"""

import re
from typing import Any

from rgals.runtime.checks import check_choice
from rgals.runtime.errors import InputTypeError
from rgals.sgd.losses import catalogue, metric, sampled, topk
from rgals.sgd.losses._base import KINDS, Adversary, Full, List, Rows, Sampled, State
from rgals.sgd.losses.catalogue import *  # noqa: F403
from rgals.sgd.losses.metric import *  # noqa: F403
from rgals.sgd.losses.sampled import *  # noqa: F403
from rgals.sgd.losses.topk import *  # noqa: F403

_WORD = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ALL = [name for module in (catalogue, sampled, topk, metric) for name in module.__all__]
#: The losses by name, which is that of the class in lower case: `SoftmaxAtK` is "softmax_at_k".
LOSSES: dict[str, type] = {_WORD.sub("_", name).lower(): globals()[name] for name in _ALL}


def get_loss(loss: Any) -> Any:
    """The loss object that a name or an object stands for.

    Parameters
    ----------
    loss : str or loss object
        A key of `LOSSES`, or an object, which is returned as it is.

    Returns
    -------
    loss object

    Raises
    ------
    InputTypeError, ParameterError
        It is neither, there is no such name, or a parameter of the object is out of its range.

    Examples
    --------
    >>> from rgals.sgd.losses import get_loss
    >>> get_loss("bpr").kind
    'sampled'
    """
    if isinstance(loss, str):
        loss = LOSSES[check_choice("loss", loss, tuple(LOSSES))]()
    is_one = getattr(loss, "kind", None) in KINDS and callable(getattr(loss, "value_and_grad", None))
    if isinstance(loss, type) or not is_one:
        raise InputTypeError(f"loss must be a name or a loss object of rgals.sgd.losses, not {loss!r}")
    if isinstance(loss, Full | Sampled | List):  # one from outside needs no base class
        loss.validate()
    return loss


__all__ = ["LOSSES", "get_loss", "Adversary", "Rows", "State", "Full", "Sampled", "List", *_ALL]
