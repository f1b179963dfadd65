"""What a search prepares once: training parts, the interactions that judge them, the data of the last fit."""

# And what fits and evaluations cost, in multiplications of a factorisation: budgets count these, not seconds.

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import Given, given, known_part
from rgals.datasets.ids import IdMap
from rgals.datasets.splits import split_interactions
from rgals.estimator import RGALS
from rgals.matrix.csr import CSR, TimedMatrix
from rgals.matrix.digest import short_digest
from rgals.matrix.entries import merged, times_of
from rgals.matrix.validate import as_csr
from rgals.metrics._served import sample_users
from rgals.metrics.evaluation import without_known
from rgals.model_selection.protocol import Parts, Protocol, named_protocol
from rgals.runtime.errors import InputError, ParameterError
from rgals.runtime.lazy import cached_property
from rgals.solvers.hard_negatives import Blocks, HardNegatives
from rgals.training.data import names_of, refuse_other_columns, with_features
from rgals.training.fit import DRAWS

_LARGE = 1_000_000  # interactions beyond which cheap fits use a sample of the users
_JUDGES = 3_000  # most users that judge cheap fits
_DEFAULT = (0.9, 0.1)  # shares of training and validation of every user, without a protocol
# Costs in multiplications of a factorisation, measured on four data sets, two cores, K from 32 to 256.
GATHER, SHARED = 40.0, 3.0  # per factor of a positive; per row and squared factor, for what all rows share
SCORE, SCORE_FACTOR = 40.0, 1.6  # scoring an item for a user and keeping the best: once, and per factor
DRAWN_FACTOR = 3.0  # scoring an item and comparing it with the best of its group, per factor
STEPS = 60.0  # conjugate gradients with both triangles: most that a long row costs, per positive and factor
FIT, JUDGED = 1e9, 2e8  # the smallest fit, and the smallest evaluation
AROUND = 2.0  # transposing, checks and the last half-step of a fit, in iterations
#: Least that a default fit counts as, about 2.5 seconds of two cores: small data get more trials.
LEAST = 2e11


@dataclass(frozen=True)
class Fold:
    """A training part and what a model of it is judged by."""

    train: CSR
    told: CSR  # known interactions of the judged users, left out of their rankings
    hidden: CSR  # interactions to be found, in the rows of `told`
    users: np.ndarray  # the judged rows: all with hidden interactions, or a sample of them
    fold_in: bool  # True if the judged users are not those of `train`
    features: dict[str, sp.csr_array] = field(default_factory=dict)  # of the users and items of `train`


@dataclass(frozen=True)
class Prepared:
    """Everything that is made of the data once."""

    splits: list[Fold]
    final: sp.csr_array  # training data of the last fit
    parts: Parts | None  # of the protocol, with the test part
    user_ids: np.ndarray | None  # labels of the rows of `final`
    item_ids: np.ndarray | None  # labels of its columns
    # for half-lives, one split by time if times are known, else none
    later: list[Fold] = field(default_factory=list)

    @cached_property
    def cheap(self) -> list[Fold]:
        """The splits of cheap fits: a sample of the judged users, and on large data of the others."""
        return [_sampled(split) for split in self.searched]

    @property
    def searched(self) -> list[Fold]:
        """The splits that judge all settings: the first half, at least one."""
        return self.splits[: max(1, len(self.splits) // 2)]

    @property
    def others(self) -> list[Fold]:
        """The other splits, which confirm the best settings."""
        return self.splits[len(self.searched) :]

    @cached_property
    def whole(self) -> CSR:
        """``final`` as a fit takes it."""
        return as_csr(self.final, dtype=np.float32, dislikes=True)

    def default_cost(self, K: int, n_iter: int) -> float:
        """Cost of a default fit of all data, at least `LEAST`."""
        return max(fit_cost(self.whole, K, n_iter), LEAST)

    def fingerprint(self) -> str:
        """Digest of all matrices and users that a figure depends on."""
        folds = self.splits + self.later
        arrays = [x for s in folds for x in (s.train, s.told, s.hidden, s.users)]
        for name, F in self.splits[0].features.items():
            arrays += [np.frombuffer(name.encode(), np.uint8), F.indptr, F.indices, F.data]
        return short_digest(*arrays)


def split_for_tuning(
    X: Any,
    protocol: Protocol | str | None,
    validation: Any,
    repeats: int,
    max_users: int | None,
    seed: int,
    features: Mapping[str, Any] | None = None,
) -> Prepared:
    """Split the data as documented in `tune`."""
    if protocol is not None and validation is not None:
        raise InputError("give a protocol or validation interactions, not both")
    protocol = named_protocol(protocol)
    X, parts, of_rows = given(X), None, dict[str, sp.csr_array]()
    tables = {name: (features or {}).get(name) for name in ("user_features", "item_features")}
    if any(table is not None for table in tables.values()):
        if protocol is not None:
            raise InputError("a protocol leaves out users and items: give features or a protocol, not both")
        matrix = X.csr()
        known = as_csr(matrix, dtype=matrix.dtype, dislikes=True), (X.user_ids, X.item_ids)
        matrix, labels, priors, _ = with_features(RGALS(), *known, tables)
        X = Given(matrix.to_scipy(), *labels, X.timestamp, frame=X.frame)
        of_rows = {name: p.features for name, p in zip(tables, priors, strict=True) if p is not None}
    user_ids, item_ids = X.user_ids, X.item_ids
    if protocol is not None:
        parts = protocol.apply(X)
        if parts.validation.nnz == 0:
            raise InputError(f"the protocol makes no validation part: {protocol}")
        users = parts.users if parts.train_users is None else parts.users[parts.train_users]
        user_ids = None if user_ids is None else user_ids[users]
        item_ids = None if item_ids is None else item_ids[parts.items]
        if parts.validation_fold_in is not None:
            if repeats > 1:
                raise ParameterError("repeats", repeats, "give 1 where users are held out")
            split = _fold(parts.validation_fold_in, parts.validation, max_users, seed, parts.train)
            return Prepared([split], parts.train, parts, user_ids, item_ids)
        train, held_out = parts.train, parts.validation
    elif validation is not None:
        refuse_other_columns(names_of(X.frame), given(validation))
        train = X.csr()
        (n_rows, n_cols), sides = train.shape, zip((user_ids, item_ids), ("user", "item"), strict=True)
        rows, cols = (None if ids is None else IdMap(ids, what) for ids, what in sides)
        known = known_part(validation, rows, cols, "validation", "the training interactions do not have")
        judges = as_csr(known, name="validation", n_rows=n_rows, n_cols=n_cols, dislikes=True)
        if not without_known(judges.likes, as_csr(train, dislikes=True))[0].nnz:
            raise InputError("validation holds no interaction that is not in X too; leave some out of X")
        held_out = judges.to_scipy()
    else:
        train, held_out = split_interactions(X.csr(), _DEFAULT, random_state=seed)
        if held_out.nnz == 0:
            raise InputError("no user has two interactions: nothing can be held out to tune on")
    final, later = sp.csr_array(train + held_out), list[Fold]()
    if protocol is None and X.timestamp is not None:
        told = hidden = as_csr(X.timed, dtype=train.dtype, dislikes=True)
        if validation is not None:
            hidden = judges
        elif hidden.times is not None:
            last = hidden.times >= np.quantile(hidden.times, _DEFAULT[0])
            told, hidden = hidden.where(~last), hidden.where(last)
        if hidden.times is not None and told.nnz:
            whole, _, _ = merged(told, hidden, "add")
            final = TimedMatrix.of(whole.to_scipy(), times_of(whole))
            later.append(_fold(told, hidden, max_users, seed))
    share, seeds = held_out.nnz / max(final.nnz, 1), ((seed + k) % 2**32 for k in range(1, repeats))
    # Further splits are drawn from training and validation together: the test part stays untouched.
    more = (split_interactions(final, (1 - share, share), random_state=one) for one in seeds)
    pairs = [(train, held_out), *more]
    splits = [_fold(told, hidden, max_users, seed) for told, hidden in pairs]
    splits, later = ([replace(fold, features=of_rows) for fold in folds] for folds in (splits, later))
    return Prepared(splits, final, parts, user_ids, item_ids, later)


def _fold(told: Any, hidden: Any, max_users: int | None, seed: int, others: Any = None) -> Fold:
    """A split; ``told`` is the training part too, unless ``others``, the training users, are given."""
    known, found = (as_csr(X, dtype=np.float32, dislikes=True) for X in (told, hidden))
    train = known if others is None else as_csr(others, dtype=np.float32, dislikes=True)
    return Fold(train, known, found.likes, sample_users(found.likes, max_users, seed), others is not None)


def _sampled(split: Fold) -> Fold:
    """A split for cheap fits: at most `_JUDGES` users judge, beyond `_LARGE` other users are sampled."""
    users = split.users
    if len(users) > _JUDGES:
        users = np.sort(np.random.default_rng(0).choice(users, _JUDGES, replace=False))
    share = _LARGE / max(split.train.nnz, 1)
    if share >= 1 or split.fold_in:
        return replace(split, users=users)
    others = np.setdiff1d(np.arange(split.train.n_rows), users)
    n_others = min(max(round(share * split.train.n_rows) - len(users), 0), len(others))
    rows = np.sort(np.r_[users, np.random.default_rng(0).choice(others, n_others, replace=False)])
    train, hidden = split.train.take_rows(rows), split.hidden.take_rows(rows)
    features = {name: F[rows] if name == "user_features" else F for name, F in split.features.items()}
    return Fold(train, train, hidden, np.searchsorted(rows, users), False, features)


def fit_cost(matrix: CSR, K: int, n_iter: int, weight: float = 0.0) -> float:
    """Cost of a fit, with hard negatives of that ``weight`` if it is not 0."""
    around = _iteration(matrix, K)
    if not weight:
        return FIT + around * (n_iter + AROUND)
    hard, n_items = HardNegatives(weight), matrix.n_cols
    active, blocks = matrix.row_counts > 0, Blocks(hard, matrix.row_counts, n_items)
    drawn = _iteration(matrix, K, blocks.n * active) + float(active.sum()) * blocks.size * DRAWN_FACTOR * K
    # The last half-step ranks the whole catalogue for every user and has T more pairs a row.
    end = judge_cost(matrix.n_rows, n_items, K) + _iteration(matrix, K, hard.n_top(n_items) * active)
    draws = min(DRAWS, n_iter // 2)
    return FIT + around * (n_iter - draws + AROUND) + drawn * draws + end


def _iteration(matrix: CSR, K: int, more: Any = 0) -> float:
    """Cost of an iteration: each row by the cheapest of dual, primal and conjugate gradients."""
    # `more`: pairs of each row beside its own, spread evenly over the columns.
    total = 0.0
    for counts in (matrix.row_counts + more, matrix.col_counts + np.sum(more) / matrix.n_cols):
        n = counts.astype(np.float64)
        factorised = np.minimum(n * n * K + n**3 / 3, n * K * K + K**3 / 3)
        total += np.minimum(factorised, STEPS * n * K).sum() + GATHER * K * n.sum() + SHARED * len(n) * K * K
    return float(total)


def judge_cost(n_users: int, n_items: int, K: int) -> float:
    """Cost of ranking all items for ``n_users`` users."""
    return JUDGED + n_users * n_items * (SCORE + SCORE_FACTOR * K)
