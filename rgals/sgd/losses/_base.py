"""Base classes and building blocks of the SGD losses: functions of scores, which see no factors."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rgals.kernels.smooth import step
from rgals.losses.base import as_array
from rgals.matrix.csr import CSR
from rgals.runtime.checks import Declared, check_choice, check_int, check_real, parameter
from rgals.runtime.errors import InputError, InputTypeError, NumericalError, ShapeError
from rgals.runtime.sklearn import BaseEstimator


@dataclass(frozen=True)
class State:
    """A number for every user, or for the whole model, that a loss of kind "sampled" keeps.

    The trainer owns it: it steps it with the optimiser of the fit along the gradient that the loss returns,
    clips it to ``[low, high]``, and stores it in checkpoints. It starts afresh with every fit.

    Attributes
    ----------
    name : str
    scope : {"user", "model"}, default "user"
    start, low, high : float, default 0, -inf, inf
    ascend : bool, default False
        Step upwards.
    lr : float or None, default None
        None: that of the factors; 0: never stepped, only refreshed.
    rate : float, default 1
        Factor of the learning rate.
    drift : float, default 0
        Weight of its mean over all users in the loss, or of it: acts on everybody at every step.
    weighted : bool, default True
        Whether the weight of a positive multiplies the gradient of its row, as it does those of the scores.
    """

    name: str
    scope: str = "user"
    start: float = 0.0
    low: float = -np.inf
    high: float = np.inf
    ascend: bool = False
    lr: float | None = None
    rate: float = 1.0
    drift: float = 0.0
    weighted: bool = True

    def __post_init__(self) -> None:
        check_choice("scope", self.scope, ("user", "model"))


@dataclass(frozen=True)
class Adversary:
    """A second pair of factors, which scores the rows of a loss of kind "sampled".

    In every ``every``-th epoch the trainer steps that pair alone, upwards along the gradient that the loss
    returns for its scores; in the others the model alone.

    Attributes
    ----------
    every : int
    lr : float
    score : {"cosine", "dot"}, default "cosine"
    epochs : int or None, default None
        At most so many epochs of the adversary; None: no limit.
    """

    every: int
    lr: float
    score: str = "cosine"
    epochs: int | None = None

    def __post_init__(self) -> None:
        check_int("every", self.every, 1)
        check_choice("score", self.score, ("cosine", "dot"))
        check_real("lr", self.lr, 0.0)

    def turn(self, epoch: int) -> bool:
        """Whether it steps in this epoch, counted from 0."""
        done = (epoch + 1) // self.every
        return (epoch + 1) % self.every == 0 and (self.epochs is None or done <= self.epochs)


@dataclass
class Rows:
    """What a loss may know of B rows besides their scores.

    Attributes
    ----------
    count : ndarray of int, shape (B,)
        Positives of the row's user.
    n_items : int
    state : ndarray, shape (B, s)
        What the loss keeps, in the order of its ``state``.
    adversary : ndarray, shape (B, n), or None
        Scores of the negatives by the second pair of factors.
    """

    count: np.ndarray
    n_items: int
    state: np.ndarray
    adversary: np.ndarray | None = None

    def __getitem__(self, rows: slice) -> "Rows":
        scores = None if self.adversary is None else self.adversary[rows]
        return Rows(self.count[rows], self.n_items, self.state[rows], scores)


class _Loss(Declared, BaseEstimator, ABC):
    #: How `SGDRanker` scores with ``score="auto"``.
    score: ClassVar[str] = "cosine"
    #: Whether the loss has temperatures or margins of its own and takes no ``temperature`` but 1.
    raw_scores: ClassVar[bool] = False
    #: Whether scores are log odds of a positive against n negatives: ``offset="auto"`` may then be log n.
    contrasts_noise: ClassVar[bool] = False
    #: ``temperature="auto"`` over the root of the mean number of a user's positives; None: as for softmax.
    warmth: ClassVar[float | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Attributes of the bases may stand beside them: ``class Own(Sampled, score="dot")``."""
        for name in [name for name in options if hasattr(cls, name)]:
            setattr(cls, name, options.pop(name))
        super().__init_subclass__(**options)

    @abstractmethod
    def value_and_grad(self, *scores: Any, **named: Any) -> tuple[np.ndarray, ...]:
        """Values, float64, and gradients; the base class of each kind has the arguments and shapes."""


class Full(_Loss):
    """Base of the losses over the whole catalogue.

    ``value_and_grad(scores, positives)`` takes the scores of B users for all N items and their positives
    (CSR, B x N) and returns the values, float64 of shape (B,), and their gradient with respect to the
    scores, (B, N). It may overwrite ``scores``. A value is a *sum* over the user's positives; the trainer
    divides by their number.
    """

    kind: ClassVar[str] = "full"

    def penalties(self, X: CSR) -> tuple[np.ndarray, np.ndarray] | None:
        """Weights of the squared norms of user and item factors that belong to the loss, or None."""
        return None


class FullThresholds(Full):
    """Base of the full losses that compare scores with the user's K-th largest, exact at every step."""

    k: int = parameter(20, "int > 0")

    def thresholds(self, scores: np.ndarray) -> np.ndarray:
        """The K-th largest score of each row (the smallest, where there are fewer items), (B,)."""
        return kth_largest(scores, self.k)


class Sampled(_Loss):
    """Base of the losses of one positive against sampled negatives.

    ``value_and_grad(pos, neg)`` takes scores of shape (B,) and (B, n) and returns the values, float64 of
    shape (B,), and the gradients, (B,) and (B, n). A negative of score -inf is absent: it adds nothing and
    its gradient is zero.

    With ``takes_rows``, a ``state`` or an ``adversary`` it is called with `Rows` as third argument; a loss
    with state returns their gradients (B, s) besides, then one with an adversary that of its scores, (B, n).
    """

    kind: ClassVar[str] = "sampled"
    #: Whether log(N q) is subtracted from the scores of the negatives (Pu et al., Eq. 9).
    corrects_proposal: ClassVar[bool] = False
    takes_rows: ClassVar[bool] = False
    #: What "auto" stands for in an `SGDRanker`; the learning rate is that of cosines.
    n_negatives: ClassVar[int] = 25
    lr: ClassVar[float] = 0.05
    #: The `State` objects of the loss: a class attribute, or a property where parameters decide.
    state: ClassVar[Any] = ()
    #: An `Adversary`, or None.
    adversary: ClassVar[Any] = None

    def refresh(self, epoch: int) -> str | None:
        """Scores that `estimate` sees before this epoch: "exact" (all items), "sampled" or None (no call)."""
        return None

    def estimate(self, scores: np.ndarray) -> np.ndarray:
        """The state (B, s) from scores (B, W) of all items, or of positives and a sample; -inf is absent."""
        raise NotImplementedError(f"{type(self).__name__}.refresh asks for estimates: write `estimate` too")


class List(_Loss):
    """Base of the losses of one user's positives and sampled negatives together.

    ``value_and_grad(scores, indptr, n_positives, weights)`` takes B lists one after the other: scores (T,),
    ``indptr`` (B + 1,), of each list the first ``n_positives`` (B,) being positives. It returns the values,
    float64 of shape (B,), and the gradient (T,). ``weights`` are those of the positives, or None where all
    are 1. The trainer divides by the number of lists.
    """

    kind: ClassVar[str] = "list"


#: What `value_and_grad` takes, by kind; beside these "rows", where a sampled loss asks for them.
TAKES = {"full": "scores, positives", "sampled": "pos, neg", "list": "scores, indptr, n_positives, weights"}
_LARGEST_EXPONENT = 800.0  # exp(-800) is 0 in double precision


def checked(loss: Any, answer: Any, *like: Any, first: Any = None, of: str = "value_and_grad") -> tuple:
    """The answer of a loss: arrays of shape ``first`` (default: one value a row) and of those in ``like``."""
    # Without the check numpy would broadcast an answer of another shape over the rows, and drop imaginary
    # parts.
    shapes = [(len(like[0]),) if first is None else first, *(part.shape for part in like)]
    what, several = f"{type(loss).__name__}.{of} returned", isinstance(answer, tuple | list)
    arrays = tuple(map(as_array, answer if several else ()))
    if bad := [array.dtype for array in arrays if array.dtype.kind not in "biuf"]:
        raise InputTypeError(f"{what} an array of {bad[0]}; real numbers are needed")
    if (found := [array.shape for array in arrays]) != shapes:
        shown = f"arrays of the shapes {found}" if several else f"no tuple but a {type(answer).__name__}"
        raise ShapeError(f"{what} {shown}; {shapes} are needed")
    if of != "value_and_grad":
        if not all((array >= (0 if of == "penalties" else -np.inf)).all() for array in arrays):
            raise InputError(f"{what} numbers that are NaN{' or below 0' if of == 'penalties' else ''}")
    elif np.isfinite(arrays[0]).all() and not all(np.isfinite(array).all() for array in arrays[1:]):
        raise NumericalError(f"{what} a gradient that is not finite")  # of values the trainer names the user
    return arrays


def hinge(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[x]_+`` and its derivative, 0 at 0; -inf is absent."""
    inside = x > 0
    return np.where(inside, x, x.dtype.type(0)), inside.astype(x.dtype)


def softplus(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``log(1 + exp(x))`` and its derivative, for any x including -inf."""
    return _step(x, True)


def logistic(x: np.ndarray, temperature: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """``1 / (1 + exp(-x))`` and its derivative, without cancellation, for any x including -inf and inf."""
    if temperature is not None:  # of x / temperature, clipped so that the division cannot overflow
        bound = _LARGEST_EXPONENT * temperature
        x = np.clip(x, -bound, bound) / x.dtype.type(temperature)
    return _step(x, False)


def _step(x: np.ndarray, plus: bool) -> tuple[np.ndarray, np.ndarray]:
    value, slope = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    step(x.ravel(), value.ravel(), slope.ravel(), x.size, plus)  # the outputs are contiguous: ravel is a view
    return value, slope


def row_softmax(
    x: np.ndarray, temperature: float = 1.0, beside: np.ndarray | float = -np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """``log sum_j exp(x_j / temperature)``, float64 (B,), and the softmax weights, which overwrite ``x``."""
    # ``beside`` (B,) is one more term of each row, whose weight is not returned. -inf is an absent term; the
    # logarithm of a row without terms is taken as 0.
    top = np.maximum(x.max(axis=1, initial=-np.inf), beside)
    top[top == -np.inf] = 0
    x -= top[:, None]
    rest = beside - top
    if temperature != 1:
        for part in (x, rest):
            np.maximum(part, -_LARGEST_EXPONENT * temperature, out=part)
            part /= x.dtype.type(temperature)
    np.exp(x, out=x)
    total = x.sum(axis=1) + np.exp(rest)
    total[total == 0] = 1
    x /= total[:, None]
    return top.astype(np.float64) / temperature + np.log(total.astype(np.float64)), x


def kth_largest(scores: np.ndarray, k: int) -> np.ndarray:
    """K-th largest score of each row, (B,); of rows with fewer scores the smallest. -inf is absent."""
    k = min(k, scores.shape[1])
    found = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k]
    short = found == -np.inf
    found[short] = np.where(scores[short] > -np.inf, scores[short], np.inf).min(axis=1)
    return np.where(np.isinf(found), found.dtype.type(0), found)


def weights_of(positives: CSR) -> np.ndarray | float:
    """Weights of the positives; 1.0 for a binary matrix."""
    return 1.0 if positives.is_binary else positives.values


def row_sums(values: np.ndarray, positives: CSR) -> np.ndarray:
    """Sum over the positives of each row, float64 (B,); 0 for a row without any."""
    return np.bincount(positives.rows, values, minlength=positives.n_rows)
