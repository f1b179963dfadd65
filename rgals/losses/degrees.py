"""The margins of a matrix, all that losses know of it beside its cohesion, and weights made of them."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime.aligned import read_only

# The `proposal` exponent by which items without interactions drop out of a loss, and their weight then: they
# keep factors, and low scores.
SEEN_ALONE = 1e-9
_FEW_EMPTY = 0.25  # share of users or items without interactions up to which rules count them


@dataclass(frozen=True)
class Degrees:
    """The margins of an interaction matrix and its cohesion: all that a loss knows of the matrix.

    Attributes
    ----------
    user_sum, item_sum : ndarray of float64
        ``c_x`` and ``c_y``: sums of the values of each row and column.
    user_count, item_count : ndarray of int64
        Interactions of each row and column.
    user_pairs, item_pairs : ndarray of int64 or None
        Interactions and dislikes of each row and column; None if the matrix has no dislikes.
    reference : Degrees or None
        The margins of the training matrix if these are margins of other rows (fold-in): means over
        interactions are taken from there.
    matrix : CSR or None
        The matrix that `cohesion` is measured on.
    aged : bool
        Whether values fade with age. Powers of ``c_x`` and ``c_y`` then take no sum for less than the mean
        value of an interaction.
    """

    user_sum: np.ndarray
    item_sum: np.ndarray
    user_count: np.ndarray
    item_count: np.ndarray
    user_pairs: np.ndarray | None = None
    item_pairs: np.ndarray | None = None
    reference: "Degrees | None" = None
    matrix: CSR | None = field(default=None, repr=False, compare=False)
    aged: bool = False

    @classmethod
    def of(cls, matrix: Any, aged: bool = False) -> "Degrees":
        """Margins of a matrix, without its dislikes."""
        matrix = matrix if isinstance(matrix, CSR) else as_csr(matrix, dislikes=True)
        likes = matrix.likes
        users, items = (None, None) if likes is matrix else (matrix.row_counts, matrix.col_counts)
        sums = read_only(likes.row_sums), read_only(likes.col_sums)  # a loss cannot change them in place
        counts = read_only(likes.row_counts), read_only(likes.col_counts)
        return cls(*sums, *counts, users, items, matrix=likes, aged=aged)

    @classmethod
    def even(cls, n_users: int, n_items: int, nnz: int) -> "Degrees":
        """Margins of ``nnz`` interactions that are spread evenly over all users and over all items."""
        users, items = max(n_users, 1), max(n_items, 1)
        rows, columns = (nnz + np.arange(users)) // users, (nnz + np.arange(items)) // items
        return cls(rows.astype(np.float64), columns.astype(np.float64), rows, columns)

    def with_users(self, rows: CSR) -> "Degrees":
        """Margins for other users (the rows of ``rows``) beside the items of this matrix."""
        return self._with("user", rows)

    def with_items(self, columns: CSR) -> "Degrees":
        """Margins for other items (the rows of ``columns``, items x users) beside this matrix's users."""
        return self._with("item", columns)

    def _with(self, side: str, rows: CSR) -> "Degrees":
        likes = rows.likes
        margins = {"sum": likes.row_sums, "count": likes.row_counts, "pairs": rows.row_counts}
        own: dict[str, Any] = {f"{side}_{name}": array for name, array in margins.items()}
        return replace(self, **own, reference=self.reference or self)

    def alone(self) -> "Degrees":
        """The same without the matrix, for objects that outlive a fit."""
        return replace(self, matrix=None)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of users and items described."""
        return len(self.user_sum), len(self.item_sum)

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of interactions and dislikes of the users, and of the items."""
        users, items = self.user_pairs, self.item_pairs
        return self.user_count if users is None else users, self.item_count if items is None else items

    @property
    def nnz(self) -> int:
        """Number of interactions described."""
        return int(self.user_count.sum())

    @property
    def filled(self) -> tuple[int, int]:
        """Numbers of users and items that have interactions."""
        return int(np.count_nonzero(self.user_count)), int(np.count_nonzero(self.item_count))

    @property
    def counted(self) -> tuple[int, int]:
        """Numbers of users and items that rules reckon with: where over a quarter are empty, the others."""
        # Ids taken for positions leave most of a matrix empty. With ten empty columns for each item RG2 lost
        # 8 % NDCG@10 and RGX 12, with ten empty rows for each user iALS 27 (medians of four sets).
        users, items = (
            n if n - have <= _FEW_EMPTY * n else have for have, n in zip(self.filled, self.shape, strict=True)
        )
        return users, items

    @property
    def cohesion(self) -> float:
        """How many times as often as by chance users who share an item share another; NaN if unknown."""
        return float("nan") if self.matrix is None else self.matrix.cohesion

    @property
    def n_items(self) -> int:
        """N of the formulas: the number of items of the training matrix."""
        return len((self.reference or self).item_sum)

    @property
    def least(self) -> float:
        """What powers take smaller sums for: the mean value of an interaction if values fade, else 0."""
        # The interactions of an item may all be many half-lives old. A negative power of what is left of them
        # would be a million times that of other items, and the fit would follow them alone.
        known = self.reference or self
        return float(known.item_sum.sum() / max(known.item_count.sum(), 1)) if self.aged else 0.0

    def user_factor(self, exponent: float) -> np.ndarray:
        """``c_x^exponent``, scaled so that its mean over the training interactions is 1."""
        reference = self.reference or self
        return _scaled(self.user_sum, exponent, reference.user_sum, reference.user_count, self.least)

    def item_factor(self, exponent: float) -> np.ndarray:
        """``c_y^exponent``, scaled so that its mean over the training interactions is 1."""
        reference = self.reference or self
        return _scaled(self.item_sum, exponent, reference.item_sum, reference.item_count, self.least)

    def proposal(self, exponent: float) -> np.ndarray:
        """``h_y``, proportional to ``c_y^exponent`` with mean 1 over the training items."""
        items = (self.reference or self).item_sum
        found = _scaled(self.item_sum, exponent, items, np.ones(len(items)))
        return np.where(self.item_sum > 0, found, SEEN_ALONE) if exponent == SEEN_ALONE else found


def power(counts: np.ndarray, exponent: float, least: float = 0.0) -> np.ndarray:
    """``max(counts, least)^exponent``, 0 where the count is 0 (such rows have no interactions to weight)."""
    out = np.zeros(len(counts))
    np.power(np.maximum(counts, least), exponent, out=out, where=counts > 0)
    return out


def _scaled(
    sums: np.ndarray, exponent: float, reference: np.ndarray, weights: np.ndarray, least: float = 0.0
) -> np.ndarray:
    """``sums^exponent`` over the weighted mean of ``reference^exponent``; ones where that is 0."""
    total = (power(reference, exponent, least) * weights).sum()
    if exponent == 0 or total == 0:
        return np.ones(len(sums))
    return power(sums, exponent, least) * (weights.sum() / total)
