"""Ranking losses in score space, one small class a formula, and the table that names them.

A name stands for a loss with its default parameters; an object may have others.

Examples
--------
>>> from rgals.sgd import losses as of
>>> full = of.FullBSL(), of.Talos(k=10), of.AATP(), of.SoftmaxAtK(), of.FullLambdaRank(), of.FullLambdaLoss()
>>> sampled = of.SampledCCE(), of.SL(with_positive=True), of.BSL(negative_temperature=0.1), of.UIB(), of.SML()
>>> sampled += of.PSL(activation="relu"), of.LLPAUC(ascend=False), of.AdvInfoNCE(weight=32), of.RSAtK(k=10)
>>> sampled += of.SampledTalos(), of.SampledAATP(), of.SampledSoftmaxAtK(), of.SmoothIAtK()
>>> sampled += (of.SampledSoftmax(),)
>>> lists = of.LambdaRank(metric="ap"), of.LambdaLoss(k=10), of.ListNRBP()
>>> {loss.kind for loss in full}, {loss.kind for loss in sampled}, {loss.kind for loss in lists}
({'full'}, {'sampled'}, {'list'})
"""

import re
from functools import partial
from typing import Any

from rgals.losses.base import check_methods
from rgals.runtime.checks import RANGES, check_choice
from rgals.runtime.errors import InputTypeError
from rgals.sgd.losses import catalogue, metric, sampled, topk
from rgals.sgd.losses._base import TAKES, Adversary, Full, List, Rows, Sampled, State
from rgals.sgd.losses.catalogue import *  # noqa: F403
from rgals.sgd.losses.metric import *  # noqa: F403
from rgals.sgd.losses.sampled import *  # noqa: F403
from rgals.sgd.losses.topk import *  # noqa: F403

_WORD = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ALL = [name for module in (catalogue, sampled, topk, metric) for name in module.__all__]
_OPTIONAL = {"refresh": "epoch", "estimate": "scores", "penalties": "X"}
#: Checks of what a class says beside its methods.
_DECLARED = {"n_negatives": RANGES["int > 0"], "lr": RANGES["float > 0"], "warmth": RANGES["float > 0"]}
_DECLARED["score"] = partial(check_choice, choices=("cosine", "dot"))
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
    if isinstance(loss, type) or getattr(loss, "kind", None) not in TAKES:
        raise InputTypeError(f"loss must be a name, or an object of kind {', '.join(TAKES)}; not {loss!r}")
    if isinstance(loss, Full | Sampled | List):  # one from outside needs no base class
        loss.validate()
    own, kept, second = type(loss).__name__, getattr(loss, "state", ()), getattr(loss, "adversary", None)
    if not (isinstance(kept, tuple | list) and all(isinstance(one, State) for one in kept)):
        raise InputTypeError(f"{own}.state is {kept!r:.60}; give a tuple of State objects")
    if not isinstance(second, Adversary | None):
        raise InputTypeError(f"{own}.adversary is {second!r:.60}; give an Adversary, or None")
    for name, kind in (("penalties", "full"), ("state", "sampled"), ("adversary", "sampled")):
        if loss.kind != kind and getattr(loss, name, None):  # it would be left out, or of another scale
            raise InputTypeError(f"{own}.{name} is for losses of kind {kind!r}, not {loss.kind!r}")
    sees_rows = loss.kind == "sampled" and (kept or second or getattr(loss, "takes_rows", False))
    methods = {"value_and_grad": TAKES[loss.kind] + (", rows" if sees_rows else "")}
    check_methods(loss, own, methods | {k: takes for k, takes in _OPTIONAL.items() if hasattr(loss, k)})
    for name, check in _DECLARED.items():
        if (value := getattr(loss, name, None)) is not None:
            check(f"{own}.{name}", value)
    return loss


__all__ = ["LOSSES", "get_loss", "Adversary", "Rows", "State", "Full", "Sampled", "List", *_ALL]
