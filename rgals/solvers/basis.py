"""Changes of basis: what makes the part that the systems of all rows share diagonal.

Scores stay as they are when one side's factors ``F`` become ``F T`` and the other's ``P`` become ``P T^-T``.
A fit therefore never turns factors back: each half-step goes on in the basis that the last one left. Where
that basis is not orthogonal it is written down (`Factors.basis`), because ridges speak of lengths.
"""

from dataclasses import dataclass, field

import numpy as np
import scipy.linalg

from rgals.kernels import gram

_ALONE = 256  # up to so many factors BLAS on one thread multiplies square matrices as fast as several do


@dataclass
class Factors:
    """Factors of one side, in the basis where a fit has them."""

    array: np.ndarray  # (n, K)
    # (K, K) in float64: the factors that are meant are ``array @ basis.T``; None: any orthogonal matrix,
    # lengths are right
    basis: np.ndarray | None = None
    _kept: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    def gramian(self, weight: np.ndarray, n_threads: int) -> np.ndarray:
        """``F^T diag(weight) F`` of the array, in float64; kept for weights that are a multiple of these."""
        if self._kept is not None and weight[0] > 0 and self._kept[0][0] > 0:
            ratio = weight[0] / self._kept[0][0]
            if (weight == ratio * self._kept[0]).all():
                return ratio * self._kept[1]
        G = gram.gram(self.array, weight, n_threads)
        self._kept = weight, G
        return G.copy()

    def changed(self, basis: np.ndarray | None) -> None:
        """The array is in another basis now."""
        self.basis, self._kept = basis, None


@dataclass(frozen=True)
class Change:
    """A change of basis: ``F <- F forth`` on the fixed side, ``P <- P back`` on the side that is solved."""

    forth: np.ndarray  # ``T``, (K, K) in float64
    back: np.ndarray  # ``T^-T``
    fixed_basis: np.ndarray | None  # `Factors.basis` of either side afterwards
    solved_basis: np.ndarray | None
    # the shared part, in units of a row's ridge, is the identity; otherwise the Gramian is diagonal and
    # lengths are right
    whitens: bool


def eigenbasis(G: np.ndarray, fixed: np.ndarray | None, solved: np.ndarray | None, n_threads: int) -> Change:
    """Where the Gramian is diagonal and lengths are right: good for any scale and ridge of a row.

    ``G`` is the Gramian of the fixed side's array in float64; it is overwritten. ``fixed`` and ``solved`` are
    `Factors.basis` of the two sides: one is the transposed inverse of the other.
    """
    if fixed is not None and solved is not None:
        G = _product(_product(fixed, G, n_threads), np.ascontiguousarray(fixed.T), n_threads)
    V = scipy.linalg.eigh(G, driver="evd", overwrite_a=True, check_finite=False)[1]
    if fixed is None or solved is None:
        return Change(V, V, None, None, whitens=False)
    forth, back = (_product(np.ascontiguousarray(basis.T), V, n_threads) for basis in (fixed, solved))
    return Change(forth, back, None, None, whitens=False)


def whitening(
    G: np.ndarray,
    ratio: float,
    fixed: np.ndarray | None,
    solved: np.ndarray | None,
    n_threads: int,
    least: float,
) -> Change | None:
    """Where ``ratio G + M`` is the identity, M being the metric of the side that is solved.

    For rows whose scale is ``ratio`` times their ridge: they all share that matrix. Against `eigenbasis`
    this takes a Cholesky factor ``R^T R`` instead of eigenvectors, and ``T = R^-1`` is triangular, which
    halves the products with the factors. None where the matrix is too ill-conditioned for that: ``least`` is
    the smallest square of the ratio of two pivots, an estimate of the reciprocal condition.
    """
    A = ratio * G
    if solved is None:
        A[np.diag_indices_from(A)] += 1.0
    else:
        A += metric(solved, n_threads)
    R, info = scipy.linalg.lapack.dpotrf(A.T, lower=False, clean=True, overwrite_a=True)
    pivots = np.diagonal(R)
    if info or not (pivots.min() / pivots.max()) ** 2 > least:
        return None
    forth = np.ascontiguousarray(scipy.linalg.lapack.dtrtri(R, lower=False)[0])
    back = np.ascontiguousarray(R.T)
    if fixed is None or solved is None:
        return Change(forth, back, back, forth, whitens=True)
    bases = _product(fixed, back, n_threads), _product(solved, forth, n_threads)
    return Change(forth, back, *bases, whitens=True)


def _product(left: np.ndarray, right: np.ndarray, n_threads: int) -> np.ndarray:
    if len(left) <= _ALONE:
        return left @ right
    out = np.empty_like(left)
    gram.multiply(left, right, out, n_threads)
    return out


def metric(basis: np.ndarray, n_threads: int) -> np.ndarray:
    """``M = B^T B``: factors ``p`` in basis B have the squared length ``p M p``."""
    return basis.T @ basis if len(basis) <= _ALONE else gram.gram(basis, np.ones(len(basis)), n_threads)
