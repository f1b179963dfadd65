"""The global optimum of RG2 and RGx without extra weight on the positives, by one truncated SVD."""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import LinearOperator, svds

from rgals._csr import CSR
from rgals._errors import ParameterError
from rgals.losses import Loss


def check_closed_form(loss: Loss, reg_exponent: float) -> None:
    """Raise `ParameterError` unless the loss has a closed-form optimum."""
    wrong = loss.lacks_closed_form()
    if wrong is None and reg_exponent != 1:
        wrong = "it needs reg_exponent=1"
    if wrong:
        raise ParameterError("solver", "svd", f"the closed form is that of RG2 or RGX with alpha=0: {wrong}")


def item_factors(
    users: CSR, n_factors: int, reg: float, rng: np.random.Generator, dtype: np.dtype
) -> np.ndarray:
    """Item factors at the global optimum.

    With ``A = diag(c)^1/2 S``, ``S = v N / c - 1`` and ``P' = diag(c)^1/2 P`` the objective of Eq. 16, times
    2N, is ``|A - P' Q^T|^2 + reg N |P'|^2 + reg D |Q|^2``, up to a constant, whose minimum is the truncated
    SVD of A with singular values shrunk by ``reg sqrt(N D)`` and the factors balanced: ``P' = U s^1/2
    (D/N)^1/4``, ``Q = V s^1/2 (N/D)^1/4``. A is sparse plus rank one. The rows of A sum to zero, so that the
    interaction of RGx vanishes at this optimum: it is the optimum of both.

    Parameters
    ----------
    users : CSR
    n_factors : int
    reg : float
    rng : Generator
        For the start vector of the Lanczos iteration.
    dtype : dtype
        Of the result.

    Returns
    -------
    ndarray, shape (n_items, n_factors)
    """
    c = users.row_sums
    n_items = users.n_cols
    root = np.sqrt(c)
    inverse = np.divide(n_items, root, out=np.zeros_like(root), where=root > 0)
    V = users.to_scipy(np.float64)
    VT = V.T.tocsr()

    def matvec(x: np.ndarray) -> np.ndarray:
        return inverse * (V @ x.ravel()) - root * x.sum()

    def rmatvec(y: np.ndarray) -> np.ndarray:
        return VT @ (inverse * y.ravel()) - np.full(n_items, root @ y.ravel())

    rank = min(n_factors, min(users.shape))
    if rank < min(users.shape):
        operator = LinearOperator(users.shape, matvec=matvec, rmatvec=rmatvec, dtype=np.float64)
        start = rng.standard_normal(min(users.shape))
        _, s, Vt = svds(operator, k=rank, v0=start, tol=1e-12)
    else:
        _, s, Vt = np.linalg.svd(inverse[:, None] * V.toarray() - root[:, None], full_matrices=False)
    total = c.sum()
    shrunk = np.maximum(s - reg * np.sqrt(n_items * total), 0.0)
    order = np.argsort(-shrunk, kind="stable")
    balance = (n_items / total) ** 0.25 if total > 0 else 0.0
    out = np.zeros((n_items, n_factors), dtype)
    out[:, :rank] = (Vt[order] * (np.sqrt(shrunk[order]) * balance)[:, None]).T
    return out
