"""EASE: an item-item model in closed form."""

import time
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, NoReturn

import numpy as np
import scipy.linalg
from sklearn.utils import gen_batches

from rgals.baselines.base import Baseline
from rgals.files.archive import FileSpec
from rgals.matrix.csr import CSR
from rgals.matrix.weighting import AUTO, VALUES
from rgals.model.file import ModelFormat, model_spec
from rgals.model.state import Snapshot
from rgals.runtime import memory
from rgals.runtime.checks import check_choice, check_int, check_real, or_auto
from rgals.runtime.errors import InsufficientMemoryError, NumericalError
from rgals.runtime.threads import workers
from rgals.scoring import require_lists, topk_dense
from rgals.training.data import dtype_name, weigh

_BLOCK_BYTES = 1 << 26  # of the Gramian, or of scores, that are computed at once
_TILE = 128  # rows that are mirrored at once
# reg="auto", in units of the mean over users of the sum of squared weights. The best of a grid lies at 2.5
# (anime) to 6 (MovieLens 1M), over six sets of 700 to 7,400 items; half or twice the best loses 1 to 3 %.
_RIDGE_PER_USER = 4.0


@dataclass(frozen=True)
class Histories:
    """Interactions in place of user factors: rows of a matrix, which are selected by number."""

    matrix: CSR

    def __len__(self) -> int:
        return self.matrix.n_rows

    def __getitem__(self, rows: np.ndarray) -> "Histories":
        return Histories(self.matrix.take_rows(rows))

    @property
    def dtype(self) -> np.dtype:
        """Type of the weights of the interactions."""
        return self.matrix.values.dtype


_PARTS = model_spec("rgals-ease", 1)
_SPEC = FileSpec(_PARTS.format, 1, {k: v for k, v in _PARTS.arrays.items() if k != "user_factors"})


class _Format(ModelFormat):
    """The file of an `EASE`: it stores no user factors, which follow from the interactions."""

    def make(self, fields: dict, arrays: dict[str, np.ndarray], meta: dict) -> Snapshot:
        weights, seen = fields["item_factors"], fields["seen"]
        if weights.shape[1] != len(weights):
            raise ValueError(f"the weights are {weights.shape[0]} x {weights.shape[1]}")
        return Snapshot(**{**fields, "user_factors": Histories(fields["weighting"].rows(seen))})


@dataclass(eq=False, repr=False)
class EASE(Baseline):
    """The linear item-item model with zero diagonal that fits the interactions best, in closed form.

    Minimises ``|X - X B|^2 + reg |B|^2`` with ``diag(B) = 0``. With ``P = (X^T X + reg I)^-1``,
    ``B_ij = -P_ij / P_jj``. Scores of a user are ``x B``. Cost is cubic in the number of items, memory
    quadratic: 31,000 items take about 4 GB in float32.

    Parameters
    ----------
    reg : float or "auto", default="auto"
        Strength of the ridge, > 0; it matters on a logarithmic scale. "auto" is four times the mean over
        users of the sum of squared weights, which is the mean length of a history where all weigh 1.
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default="auto"
        How values weigh interactions, as in `rgals.RGALS`.
    dtype : {"float32", "float64"}, default="float32"
        Type of weights and scores.
    max_memory : float or None, default=None
        Most bytes that a fit may take; None for all available memory. A fit that needs more is refused.
    n_jobs : int or None, default=None
        Threads of LAPACK and of rankings; None for all. Last bits of results depend on it.

    Attributes
    ----------
    weights_ : ndarray, shape (n_items, n_items)
        B.
    reg_ : float
        The strength of the ridge that was used.
    history_ : list of one dict
        ``seconds`` of the fit and its ``objective``.

    References
    ----------
    Steck, "Embarrassingly shallow autoencoders for sparse data", WWW 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from rgals.baselines import EASE
    >>> X = np.kron(np.eye(2), np.ones((6, 5)))
    >>> X[0, 4] = 0
    >>> EASE(reg=1.0).fit(X).recommend([0], n=1)[0]
    array([[4]], dtype=int32)
    """

    reg: float | str = AUTO
    _: KW_ONLY
    values: str = AUTO
    dtype: Any = "float32"
    max_memory: float | None = None
    n_jobs: int | None = None

    _file: ClassVar[ModelFormat] = _Format("EASE", _SPEC)
    _pairs_at_once: ClassVar[int] = 1 << 12  # of `predict`, which copies the history of each

    def _fitted(self, X: Any, user_ids: Any, item_ids: Any) -> Snapshot:
        dtype = np.dtype(check_choice("dtype", dtype_name(self.dtype), ("float32", "float64")))
        check_choice("values", self.values, VALUES)
        or_auto(check_real, "reg", self.reg, 0.0, open_min=True)
        if self.max_memory is not None:
            check_real("max_memory", self.max_memory, 0.0)
        matrix, fields = self._read(X, dtype, user_ids, item_ids)
        weighting = weigh(self.values, matrix)
        _admit(matrix, weighting.bytes(matrix), dtype, self.max_memory)
        weighted = weighting.rows(matrix)
        started = time.perf_counter()
        with workers(self.n_jobs, of_blas=True):
            weights, reg, objective = _weights(weighted, self.reg, dtype)
        seconds = time.perf_counter() - started
        history = [{"iteration": 1, "seconds": seconds, "objective": objective, "reg": reg}]
        fields["record"] = replace(fields["record"], history=history, n_iter=1)
        return Snapshot(Histories(weighted), weights, weighting=weighting, **fields)  # type: ignore[arg-type]

    @property
    def weights_(self) -> np.ndarray:
        """B: an interaction with item i (row) adds ``weights_[i, j]`` to the score of item j (column)."""
        return self._state().item_factors

    @property
    def reg_(self) -> float:
        """The strength of the ridge that was used."""
        return self.history_[0]["reg"]

    def _none(self) -> NoReturn:
        raise AttributeError("EASE has no factors: its model is weights_, items x items")

    user_factors_ = item_factors_ = factors_ = property(_none)  # type: ignore[assignment]

    def _fold_in(self, snapshot: Snapshot, rows: CSR, prior: Any = None) -> Any:
        return Histories(snapshot.weighting.rows(rows))

    def _dense(self, items: np.ndarray, queries: Any) -> np.ndarray:
        return np.ascontiguousarray(queries.matrix.to_scipy(items.dtype) @ items)

    def _scores_of(self, snapshot: Snapshot, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        histories: Any = snapshot.user_factors
        past = histories[rows].matrix
        added = snapshot.item_factors[past.indices, cols[past.rows]]
        return np.bincount(past.rows, added if past.is_binary else added * past.values, minlength=past.n_rows)

    def _topk(self, queries: Any, items: np.ndarray, n: int, **filters: Any) -> tuple:
        if not isinstance(queries, Histories):  # popularity, for users without interactions
            return super()._topk(queries, items, n, **filters)
        n_items, dtype, n = items.shape[0], items.dtype, check_int("n", n, 1)
        require_lists(len(queries), n, 4 + dtype.itemsize)
        ids, scores = np.empty((len(queries), n), np.int32), np.empty((len(queries), n), dtype)
        exclude, candidates, blocked = (filters[k] for k in ("exclude", "candidates", "exclude_items"))
        by_query = isinstance(candidates, CSR)  # a row of candidates for each query
        closed = np.full(n_items, candidates is not None and not by_query)
        if closed.any():
            closed[candidates] = False
        if blocked is not None:
            closed[blocked] = True
        step = max(1, _BLOCK_BYTES // (n_items * dtype.itemsize))
        for start in range(0, len(queries), step):
            rows = start, min(start + step, len(queries))
            dense = self._dense(items, Histories(queries.matrix.slice_rows(*rows)))
            dense[:, closed] = -np.inf
            if by_query:
                dense[~candidates.slice_rows(*rows).to_scipy(bool).toarray()] = -np.inf
            hidden = None if exclude is None else exclude.slice_rows(*rows)
            ids[slice(*rows)], scores[slice(*rows)] = topk_dense(dense, n, exclude=hidden, n_jobs=self.n_jobs)
        return ids, scores


def _admit(matrix: CSR, weighted_bytes: int, dtype: np.dtype, max_memory: float | None) -> None:
    """Raise `InsufficientMemoryError` if the fit needs more than ``max_memory`` or than is available."""
    n, square = matrix.n_cols, matrix.n_cols**2 * dtype.itemsize
    needed = square + weighted_bytes + matrix.nnz * (20 + 3 * dtype.itemsize) + 16 * sum(matrix.shape)
    needed += 2 * min(_BLOCK_BYTES, square)
    what = f"EASE of {n:,} items in {dtype.name}"
    advice = "fit fewer items" + (", or dtype='float32'" if dtype.itemsize == 8 else "")
    if max_memory is not None and needed > max_memory:
        what += f" needs about {memory.readable(needed)} of memory"
        allowed = f"but max_memory allows {memory.readable(int(max_memory))}"
        raise InsufficientMemoryError(f"{what}, {allowed}; {advice}, or raise max_memory")
    memory.admit(needed, what, advice)


def _gramian(X: CSR, dtype: np.dtype) -> np.ndarray:
    """``X^T X``, dense, some rows at a time: the sparse product can take three times its memory."""
    n = X.n_cols
    users, items = X.to_scipy(dtype), X.transpose().to_scipy(dtype)
    out, step = np.zeros((n, n), dtype), max(1, _BLOCK_BYTES // (n * 24))
    for part in gen_batches(n, step):
        (items[part] @ users).toarray(out=out[part])
    return out


def ridge_of(X: CSR) -> float:
    """The ridge of reg="auto"."""
    squares = X.nnz if X.is_binary else float(np.square(X.values, dtype=np.float64).sum())
    return _RIDGE_PER_USER * squares / X.n_rows


def _weights(X: CSR, reg: float | str, dtype: np.dtype) -> tuple[np.ndarray, float, float]:
    """B, the ridge and the objective, computed in the memory of one N x N matrix."""
    A = _gramian(X, dtype)
    n, diagonal = len(A), A.reshape(-1)[:: len(A) + 1]
    reg = ridge_of(X) if isinstance(reg, str) else reg
    diagonal += dtype.type(reg)
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (A,))
    # LAPACK works in place on the transpose, which is in Fortran order: its lower triangle is our upper.
    factor, info = potrf(A.T, lower=1, overwrite_a=1, clean=0)
    if info == 0:
        factor, info = potri(factor, lower=1, overwrite_c=1)
    if info != 0 or not np.isfinite(diagonal).all() or not (diagonal > 0).all():
        advice = "raise reg" + (" or use dtype='float64'" if dtype.itemsize == 4 else "")
        what = f"X^T X + {reg:g} I of {n:,} items is not positive definite in {dtype.name}"
        raise NumericalError(f"{what}: {advice}")
    A = factor.T
    scale = -1.0 / A.diagonal()
    for part in gen_batches(n, _TILE):
        square = A[part, part]
        square[...] = np.triu(square) + np.triu(square, 1).T
        A[part.stop :, part] = A[part, part.stop :].T
    A *= scale
    np.fill_diagonal(A, 0.0)
    # Column j of B is a ridge regression of column j on the others; by the Schur complement, its objective
    # is 1 / P_jj - reg.
    return A, reg, float(-scale.sum(dtype=np.float64) - n * reg)
