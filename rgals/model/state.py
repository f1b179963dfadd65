"""The fitted state of a factor model: one object that never changes, and what follows from it."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from rgals.datasets.features import read_features
from rgals.datasets.ids import IdMap, Positions, narrowest
from rgals.losses import Coefficients, Degrees, Loss
from rgals.losses.base import Priors, Side, with_priors
from rgals.matrix.csr import CSR
from rgals.matrix.digest import update
from rgals.matrix.entries import grown
from rgals.matrix.validate import check_ids
from rgals.matrix.weighting import Weighting
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError, UnknownIdError
from rgals.runtime.lazy import cached_property
from rgals.solvers.dense import shared
from rgals.solvers.hard_negatives import HardNegatives
from rgals.solvers.prior import Prior
from rgals.solvers.readout import readout_scale, without_scale


def check_labels(
    user_ids: Any, item_ids: Any, shape: tuple[int, int]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """External ids as read-only copies, checked: one distinct label for each row and column."""
    return _labels("user", user_ids, shape[0]), _labels("item", item_ids, shape[1])


def _labels(what: str, labels: Any, n: int) -> np.ndarray | None:
    name = f"{what}_ids"
    if labels is None:
        return None
    shape = np.shape(np.array(labels, object) if isinstance(labels, list | tuple) else labels)
    if shape != (n,):
        raise InputError(f"{name} has shape {shape}; one label for each of {n} is needed")
    try:
        # `IdMap` keeps integers and text apart, of which numpy would make text.
        kept = IdMap(labels, what).labels
        # Labels of a store (`rgals.matrix.mapped.Ids`) stay on its disk.
        kept = kept if getattr(kept, "ordered", False) else narrowest(kept)
    except (InputError, InputTypeError) as error:
        raise type(error)(f"{name}: {error}") from None
    kept.flags.writeable = False
    return kept


def _inverse_norms(factors: np.ndarray) -> np.ndarray:
    """One over the Euclidean norm of each row; NaN where that overflows, which removes the row from lists."""
    norms = np.sqrt(np.einsum("ij,ij->i", factors, factors, dtype=np.float64))
    long = norms > np.finfo(factors.dtype).tiny
    return np.divide(1.0, norms, out=np.full(len(norms), np.nan), where=long).astype(factors.dtype)


def _id_map(labels: np.ndarray | None, factors: np.ndarray, what: str) -> IdMap:
    """The labels of rows with their numbers; without labels, numbers are their own labels."""
    return IdMap(np.arange(len(factors)) if labels is None else labels, what)


def parameters_of(model: Any) -> dict[str, Any]:
    """The parameters of an estimator; losses are copied, as the caller may change them later."""
    return {
        name: clone(value, safe=False) if hasattr(value, "get_params") else value
        for name, value in model.get_params(deep=False).items()
    }


@dataclass(frozen=True)
class FitRecord:
    """How a fit went; the answers of the model do not depend on it."""

    params: dict[str, Any] = field(default_factory=dict)  # the estimator's, at the time of this fit
    history: list[dict[str, Any]] = field(default_factory=list)
    n_iter: int = 0
    solver: str = ""  # the one that ran
    feature_names: np.ndarray | None = None  # column names if the matrix was a frame
    merged: int = 0  # interactions that updates have added, changed or removed since the fit


@dataclass(frozen=True)
class Snapshot:
    """The fitted state of a factor model, published as one object that never changes."""

    user_factors: np.ndarray
    item_factors: np.ndarray
    # The training interactions with the values that were given, for filters and updates.
    seen: CSR | None = None
    # External labels, by which methods take and return users and items.
    user_ids: np.ndarray | None = None
    item_ids: np.ndarray | None = None
    record: FitRecord = field(default_factory=FitRecord, compare=False)
    # How values become weights, of training interactions and of new ones.
    weighting: Weighting = field(default_factory=Weighting, compare=False)
    # Factor of the read-out for every item, shape (n_items,); None without a read-out.
    item_scale: np.ndarray | None = field(default=None, compare=False)
    priors: Priors = field(default=(None, None), compare=False)  # features of users and items
    # How frames of features became columns, for users and items.
    encodings: tuple[Any, Any] = field(default=(None, None), compare=False)

    # Item factors without the read-out, as half-steps give and take them; ``item_factors`` score.
    solved_items = cached_property(lambda state: without_scale(state.item_factors, state.item_scale))
    user_inverse_norms = cached_property(lambda state: _inverse_norms(state.user_factors))
    item_inverse_norms = cached_property(lambda state: _inverse_norms(state.item_factors))
    users = cached_property(lambda state: _id_map(state.user_ids, state.user_factors, "user"))
    items = cached_property(lambda state: _id_map(state.item_ids, state.item_factors, "item"))

    def __getstate__(self) -> dict[str, Any]:
        # A copy in one step: another thread may cache a property while a pickle walks through the dict.
        return self.__dict__.copy()

    @property
    def labelled_items(self) -> IdMap | None:
        """`items`, or None if they have no labels."""
        return None if self.item_ids is None else self.items

    def rows_of(self, what: str, ids: Any, name: str) -> np.ndarray:
        """Rows of users or columns of items, from their ids; from numbers if the model has no ids."""
        if isinstance(ids, Positions) or getattr(self, f"{what}_ids") is None:
            numbers = ids.numbers if isinstance(ids, Positions) else ids
            return check_ids(name, numbers, len(getattr(self, f"{what}_factors")), what)
        known: IdMap = getattr(self, f"{what}s")
        try:
            return known.index(ids)
        except (UnknownIdError, InputTypeError) as error:
            text = f"{name}: {error}"
            if isinstance(error, UnknownIdError) and np.asarray(ids).dtype.kind in "iu":
                text += f"; rgals.Positions({np.ravel(ids)[:3].tolist()}) if these are row numbers"
            raise type(error)(text) from None

    def named(self, what: str, numbers: np.ndarray, asked: Any = None) -> np.ndarray:
        """Ids of users or items by their numbers, None for -1; the numbers if ``asked`` are `Positions`."""
        labels = getattr(self, f"{what}_ids")
        if labels is None or isinstance(asked, Positions):
            return numbers
        names = np.full(numbers.shape, None, object)
        names[numbers >= 0] = labels[numbers[numbers >= 0]].astype(object)
        return names

    def described(
        self, rows: CSR | None, features: Any, ids: Any = None, side: int = 0
    ) -> tuple[CSR, Prior | None, Any]:
        """Histories, followed by empty rows of those with features alone; the prior and labels of all."""
        name = ("user_features", "item_features")[side]
        if features is None:
            if rows is None:
                raise InputError(f"there are neither interactions nor {name}; give one of them")
            return rows, None, ids
        prior, ids, _ = self.prior_of(features, None if rows is None else rows.n_rows, ids, side)
        rows = rows or CSR.empty(0, len(self.user_factors if side else self.item_factors))
        return grown(rows, prior.features.shape[0], rows.n_cols), prior, ids

    def prior_of(
        self, features: Any, n: int | None, ids: Any, side: int
    ) -> tuple[Prior, np.ndarray | None, np.ndarray]:
        """The prior of new features, in the form of the fit's; labels; a mask of the rows that were given."""
        name, encoding = ("user_features", "item_features")[side], self.encodings[side]
        known = self.priors[side]
        if known is None or known.mean:
            raise ParameterError(name, "given", "the fit had none")
        found, ids, used, told = read_features(features, n, ids, name, encoding)
        kinds = ["a matrix" if one is None else "a frame" for one in (used, encoding)]
        if kinds[0] != kinds[1]:  # numbers of a frame are standardised, those of a matrix not
            raise InputTypeError(f"{name} is {kinds[0]}, and the fit had {kinds[1]}; give {kinds[1]} again")
        width = known.features.shape[1]
        if found.shape[1] != width:
            raise ShapeError(f"{name} has {found.shape[1]} columns; those of the fit had {width}")
        return Prior(found, known.reg, None, known.weights), ids, told

    def of_users(self, rows: np.ndarray) -> tuple[np.ndarray, tuple[str, CSR | None]]:
        """Factors of some users; the name by which ``exclude`` asks for their interactions, and these."""
        return self.user_factors[rows], ("train", None if self.seen is None else self.seen.take_rows(rows))

    def interactions(self, why: str = "which an update changes") -> CSR:
        """The training interactions; without any, an `InputError` says ``why`` they are needed."""
        if self.seen is None:
            raise InputError(f"this model carries no training interactions, {why}")
        return self.seen

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all fields but the record, 32 hexadecimal digits."""
        digest, weights = hashlib.blake2b(digest_size=16), self.weighting
        found: list[Any] = [self, *([] if weights.kind == "raw" else [weights])]
        found += [] if self.item_scale is None else [self.item_scale]
        if weights.half_life is not None and self.seen is not None:
            found += [weights.half_life, weights.newest, weights.left, self.seen.times]
        hard = getattr(self, "hard_negatives", None)  # of a `FittedState`
        found += [] if hard is None else [repr(hard.get_params())]
        found += [encoding for encoding in self.encodings if encoding is not None]
        for prior in self.priors:
            if prior is not None:
                places = np.stack(prior.features.nonzero()).astype(np.int64)
                found += [places, prior.features.data, prior.weights]
        for part in found:
            update(digest, part)
        return digest.hexdigest()

    @cached_property
    def popularity(self) -> np.ndarray:
        """Training interactions of each item, with a half-life their weights, as factors of shape (N, 1)."""
        likes = self.interactions("by which items are popular").likes
        counts = likes.col_counts if self.weighting.half_life is None else self.weighting.rows(likes).col_sums
        return counts.astype(self.item_factors.dtype)[:, None]


@dataclass(frozen=True)
class FittedState(Snapshot):
    """The state of a model fitted by half-steps."""

    loss: Loss = None  # type: ignore[assignment]  # a copy, with numbers for "auto"
    reg: float = 0.0
    reg_exponent: float = 1.0
    readout_exponent: float = field(default=0.0, compare=False)
    degrees: Degrees = None  # type: ignore[assignment]  # margins of the training matrix
    hard_negatives: HardNegatives | None = field(default=None, compare=False)

    def histories(self, users: np.ndarray, *why: str) -> tuple[CSR, Prior | None]:
        """Training histories of some users, with weights for values, and the prior of their features."""
        rows, prior = self.interactions(*why).take_rows(users), self.priors[0]
        return self.weighting.rows(rows), prior and prior.take_rows(users)

    def half(self, rows: CSR, prior: Prior | None = None, side: int = 0) -> tuple[Coefficients, Side]:
        """Coefficients and systems of a half-step, for weighted histories of any users (side 0) or items."""
        degrees = self.degrees.with_items(rows) if side else self.degrees.with_users(rows)
        if prior is None and not side and self.priors[0] is not None and self.priors[0].mean:
            prior = self.priors[0].grown(rows.row_counts)
        priors = (self.priors[0], prior) if side else (prior, self.priors[1])
        found = with_priors(self.loss.coefficients_for(degrees), degrees, priors)
        made = found.item_side if side else found.user_side
        return found, replace(made(rows, self.reg, self.reg_exponent), prior=prior)

    @cached_property
    def own_coefficients(self) -> Coefficients:
        """The coefficients of the loss on the training interactions."""
        return with_priors(self.loss.coefficients_for(self.degrees), self.degrees, self.priors)

    def scale_of(self, columns: CSR) -> np.ndarray | None:
        """The read-out's factors for other items, in the scale of the fit's; None without a read-out."""
        if self.item_scale is None:
            return None
        margins, like = self.degrees.with_items(columns), (self.degrees, self.item_scale)
        return readout_scale(margins, self.readout_exponent, self.item_scale.dtype, like)

    @cached_property
    def user_system(self) -> tuple[np.ndarray, np.ndarray]:
        """The part that all users' systems share: ``Q^T diag(h) Q - i u u^T``, ``u = Q^T h``, in float64."""
        h = self.own_coefficients.h
        return shared(self.solved_items, h, h, self.own_coefficients.interaction)[:2]
