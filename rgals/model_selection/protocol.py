"""k-cores, and named, seeded ways from interactions to training, validation and test parts."""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from rgals.datasets.given import given
from rgals.datasets.interactions import TEST, TRAIN, VALIDATION
from rgals.datasets.splits import check_ratios, leave_last_out, split_interactions
from rgals.matrix.entries import core_members, entries, entry_rows, part_sizes
from rgals.runtime.checks import check_choice, check_int, check_random_state, check_real, check_share
from rgals.runtime.errors import InputError, ParameterError, warn

SPLITS = ("user", "global", "leave_last", "temporal", "held_out_users", "given")


class Core(NamedTuple):
    """What `k_core` returns.

    Attributes
    ----------
    matrix : csr_array or Interactions, shape (n_kept_users, n_kept_items)
        Interactions where ``X`` has ids.
    users : ndarray of int64, shape (n_kept_users,)
        Row numbers kept, increasing.
    items : ndarray of int64, shape (n_kept_items,)
        Column numbers kept, increasing.
    """

    matrix: Any  # csr_array or Interactions
    users: np.ndarray
    items: np.ndarray


def check_core(k: Any, name: str = "k") -> tuple[int, int]:
    """The two minimum degrees, of users and of items."""
    both = k if isinstance(k, tuple | list) else (k, k)
    if len(both) != 2:
        raise ParameterError(name, k, "give one integer, or two: for users and for items")
    return check_int(name, both[0], 0), check_int(name, both[1], 0)


def k_core(X: Any, k: int | tuple[int, int], *, columns: Any = None) -> Core:
    """Drop users and items with too few interactions until none is left that has too few.

    Parameters
    ----------
    X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
        Interactions are counted, whatever their values.
    k : int or (int, int)
        Minimum number of interactions of a user and of an item that stays; two numbers where they differ.
        0 keeps even empty rows or columns.
    columns : dict or "matrix", optional
        Where ``X`` is a frame: as in `rgals.RGALS.fit`.

    Returns
    -------
    Core
        ``(matrix, users, items)``: the largest part in which every user and item has enough, and which rows
        and columns of ``X`` it consists of. It may be empty. It does not depend on the order of removal.

    Raises
    ------
    ParameterError
        ``k`` is not one or two integers >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.model_selection import k_core
    >>> core = k_core(np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1]]), 2)
    >>> core.users, core.items
    (array([0, 1]), array([0, 1]))
    """
    k_user, k_item = check_core(k)
    found = given(X, columns)
    matrix = found.csr()
    users, items = core_members(matrix, k_user, k_item)
    if matrix.nnz and not (len(users) and len(items)):
        what = f"k={k}: no users and items have so many interactions with each other"
        warn(f"{what}, and the core is empty; give less")
    return Core(found.take(matrix, users, items), users, items)


@dataclass(frozen=True, eq=False)
class Parts:
    """What `Protocol.apply` makes.

    Attributes
    ----------
    train, validation, test : csr_array, shape (n_users, n_items)
        With ``split="held_out_users"`` the rows are those of ``train_users``, ``validation_users`` and
        ``test_users``, and ``validation`` and ``test`` hold the interactions to be found again.
    users, items : ndarray of int64
        Row and column numbers of the original matrix that were kept, increasing.
    validation_fold_in, test_fold_in : csr_array or None
        Interactions of held-out users that the model is told; None for other splits.
    train_users, validation_users, test_users : ndarray of int64 or None
        Positions in ``users``; None for other splits.
    """

    train: sp.csr_array
    validation: sp.csr_array
    test: sp.csr_array
    users: np.ndarray = field(repr=False)
    items: np.ndarray = field(repr=False)
    validation_fold_in: sp.csr_array | None = None
    test_fold_in: sp.csr_array | None = None
    train_users: np.ndarray | None = field(default=None, repr=False)
    validation_users: np.ndarray | None = field(default=None, repr=False)
    test_users: np.ndarray | None = field(default=None, repr=False)

    @property
    def train_and_validation(self) -> sp.csr_array:
        """Training and validation part together, for the last fit before the test."""
        if self.validation_fold_in is not None:
            raise InputError("the validation part holds other users; refit on the training users")
        return self.train + self.validation

    def fingerprint(self) -> str:
        """SHA-256 of all parts: two runs with the same fingerprint used the same data."""
        digest = hashlib.sha256()
        for part in dataclasses.fields(self):
            value = getattr(self, part.name)
            arrays = [] if value is None else [value]
            if sp.issparse(value):
                arrays = [np.array(value.shape), value.indptr, value.indices, value.data]
            digest.update(part.name.encode())
            for array in arrays:
                kind = np.int64 if array.dtype.kind in "iu" else np.float64
                digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Protocol:
    """How interactions become training, validation and test parts.

    Parameters
    ----------
    split : {"user", "global", "leave_last", "temporal", "held_out_users", "given"}, default "user"
        "user" and "global": `split_interactions` by ``ratios``. "leave_last": `leave_last_out`, one for test
        and the one before for validation. "temporal": `temporal_split` at the quantiles of the timestamps
        that ``ratios`` give. "held_out_users": users are divided by ``ratios``, and the interactions of
        validation and test users by ``fold_in``. "given": the test part is that of the data; validation is
        theirs, or drawn from each user's training part with the share ``validation``.
    ratios : (float, float, float), default (0.8, 0.1, 0.1)
    min_value : float or None, default None
        Keep interactions whose value is at least this and set them to 1.
    core : int, (int, int) or None, default None
        Then keep the k-core, see `k_core`.
    fold_in : float in (0, 1), default 0.8
        Share of a held-out user's interactions that is folded in.
    validation : float, default 0.1
        Share of each user's training part, for ``split="given"``.
    seed : int, default 0

    Examples
    --------
    >>> from rgals.datasets import make_implicit
    >>> from rgals.model_selection import PROTOCOLS, Protocol
    >>> data = make_implicit(100, 80, mean_interactions=15, random_state=0)
    >>> protocol = Protocol(core=5, seed=7)
    >>> parts = protocol.apply(data)
    >>> parts.train.shape == parts.test.shape
    True
    >>> parts.fingerprint() == Protocol.from_dict(protocol.to_dict()).apply(data).fingerprint()
    True
    >>> print(PROTOCOLS["stars>=3 5-core user 80/10/10"])
    value >= 3, 5-core, per user 80/10/10, seed 0
    """

    split: str = "user"
    ratios: tuple[float, ...] = (0.8, 0.1, 0.1)
    min_value: float | None = None
    core: int | tuple[int, int] | None = None
    fold_in: float = 0.8
    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("split", self.split, SPLITS)
        if len(check_ratios(self.ratios)) != 3:
            raise ParameterError("ratios", self.ratios, "give the shares of training, validation and test")
        object.__setattr__(self, "ratios", tuple(float(ratio) for ratio in self.ratios))
        if self.min_value is not None:
            object.__setattr__(self, "min_value", check_real("min_value", self.min_value))
        if self.core is not None:
            both = check_core(self.core, "core")
            object.__setattr__(self, "core", both if isinstance(self.core, list | tuple) else both[0])
        object.__setattr__(self, "fold_in", check_share("fold_in", self.fold_in))
        object.__setattr__(self, "validation", check_real("validation", self.validation, 0.0, 0.9))
        object.__setattr__(self, "seed", check_int("seed", self.seed, 0, 2**32 - 1))

    def __str__(self) -> str:
        shares = "/".join(f"{100 * ratio:g}" for ratio in self.ratios)
        words = [] if self.min_value is None else [f"value >= {self.min_value:g}"]
        if self.core is not None:
            words.append(f"{self.core}-core")
        how = {
            "user": f"per user {shares}",
            "global": f"over all interactions {shares}",
            "leave_last": "the last one for test, the one before for validation",
            "temporal": f"by time {shares}",
            "held_out_users": f"users {shares} with {100 * self.fold_in:g} % folded in",
            "given": f"the test part given, {100 * self.validation:g} % of training for validation",
        }
        return ", ".join([*words, how[self.split], f"seed {self.seed}"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Protocol":
        """The protocol that `to_dict` described, also after a way through JSON."""
        known = {part.name for part in dataclasses.fields(cls)}
        unknown = set(values) - known
        if unknown:
            raise ParameterError("values", sorted(unknown), f"a protocol has only {sorted(known)}")
        return cls(**values)

    def with_seed(self, seed: int) -> "Protocol":
        """The same protocol with another seed."""
        return dataclasses.replace(self, seed=seed)

    def apply(self, data: Any) -> Parts:
        """Prepare and split.

        Parameters
        ----------
        data : Interactions, frame or sparse matrix, shape (n_users, n_items)
            "leave_last" and "temporal" need Interactions with timestamps, "given" Interactions with a split.

        Returns
        -------
        Parts

        Raises
        ------
        InputError
            Timestamps or the given split are missing, or nothing is left after the preparation.
        """
        told = given(data, name="data")
        matrix = told.csr()
        needed = {"leave_last": "timestamp", "temporal": "timestamp", "given": "split"}.get(self.split)
        marks: Any = None if needed is None else getattr(told, needed)  # of every entry
        if needed is not None and marks is None:
            raise InputError(f"split={self.split!r} needs Interactions with a {needed}")
        if self.split != "given" and told.n_marked:
            advice = "data.replace(split=None) has no marks"
            warn(f"{told.n_marked:,} interactions marked as test or validation are divided anew; {advice}")
        if self.min_value is not None:
            kept = matrix.data >= matrix.data.dtype.type(self.min_value)
            matrix = entries(matrix, kept)
            matrix.data = np.ones_like(matrix.data)
            marks = None if marks is None else marks[kept]
        users, items = np.arange(matrix.shape[0]), np.arange(matrix.shape[1])
        core: Any = self.core if self.core is not None else ((1, 1) if self.min_value is not None else None)
        if core is not None:
            users, items = core_members(matrix, *check_core(core))
            inside = np.isin(entry_rows(matrix), users) & np.isin(matrix.indices, items)
            marks = None if marks is None else marks[inside]
            matrix = matrix[users][:, items]
        if matrix.nnz == 0:
            raise InputError(f"nothing is left under the protocol: {self}")
        rng = check_random_state(self.seed)
        if self.split == "held_out_users":
            return self._held_out_users(matrix, users, items, rng)
        if self.split == "given":
            train, validation, test = (entries(matrix, marks == k) for k in (TRAIN, VALIDATION, TEST))
            if not validation.nnz and self.validation:
                shares = 1 - self.validation, self.validation
                train, validation = split_interactions(train, shares, random_state=rng)
        elif self.split == "leave_last":
            train, validation, test = leave_last_out(matrix, marks, n=(1, 1))
        elif self.split == "temporal":
            shares = np.minimum(np.cumsum(self.ratios[:2]), 1.0)
            cuts = np.quantile(np.asarray(marks), shares.tolist(), method="higher")
            later = np.searchsorted(cuts, marks, side="right")  # the last entry is after all cuts
            later = np.minimum(later, np.flatnonzero(self.ratios)[-1])
            if later.all() or (all(self.ratios[1:]) and not cuts[0] < cuts[1]):
                raise InputError("too many interactions share one timestamp for a split by time")
            train, validation, test = (entries(matrix, later == k) for k in range(3))
        else:
            train, validation, test = split_interactions(matrix, self.ratios, by=self.split, random_state=rng)
        return Parts(train, validation, test, users, items)

    def _held_out_users(self, matrix: sp.csr_array, users: np.ndarray, items: np.ndarray, rng: Any) -> Parts:
        sizes = part_sizes(np.array([matrix.shape[0]]), np.array(self.ratios))[0]
        parts = np.split(rng.permutation(matrix.shape[0]), np.cumsum(sizes)[:-1])
        train, validation, test = map(np.sort, parts)
        shares = (self.fold_in, 1 - self.fold_in)
        validation_in, validation_out = split_interactions(matrix[validation], shares, random_state=rng)
        test_in, test_out = split_interactions(matrix[test], shares, random_state=rng)
        matrices = matrix[train], validation_out, test_out
        return Parts(*matrices, users, items, validation_in, test_in, train, validation, test)


# Benchmarks cite one by its name, and the seed.
PROTOCOLS: dict[str, Protocol] = {
    "user 80/10/10": Protocol(),
    "stars>=3 5-core user 80/10/10": Protocol(min_value=3.0, core=5),
    "5-core user 80/10/10": Protocol(core=5),
    "20-core user 80/10/10": Protocol(core=20),
    "given split": Protocol(split="given"),
    "given split, full training": Protocol(split="given", validation=0.0),
    "leave last": Protocol(split="leave_last"),
    "temporal 80/10/10": Protocol(split="temporal"),
    "held-out users 80/10/10": Protocol(split="held_out_users"),
}


def named_protocol(given: Any) -> Protocol | None:
    """The protocol of a name in `PROTOCOLS`; a protocol or None as it is."""
    known = given is None or isinstance(given, Protocol)
    return given if known else PROTOCOLS[check_choice("protocol", given, tuple(PROTOCOLS))]
