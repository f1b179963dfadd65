"""The reference: half-steps in float64 numpy, written from the formulas, with a K x K system per row."""

from typing import Any

import numpy as np

from rgals.losses.base import Side, positive_coefficients
from rgals.matrix.csr import CSR
from rgals.solvers.base import Backend, HalfStep, raise_for_rows

_ROWS_AT_ONCE = 1 << 14  # rows converted to float64 at once


def shared(
    fixed: np.ndarray, gram_weight: np.ndarray, linear_weight: np.ndarray, interaction: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The Gramian and the sum that rows share (see `Side`) in float64; the trace that interaction removes."""
    k = fixed.shape[1]
    G, u, s = np.zeros((k, k)), np.zeros(k), np.zeros(k)
    for start in range(0, len(fixed), _ROWS_AT_ONCE):
        here = slice(start, start + _ROWS_AT_ONCE)
        part = fixed[here].astype(np.float64)
        weighted = part * gram_weight[here, None]
        G += part.T @ weighted
        u += weighted.sum(axis=0)
        s += (part * linear_weight[here, None]).sum(axis=0)
    return G - interaction * np.outer(u, u), s, interaction * float(u @ u)


def system(
    rows: CSR, r: int, fixed: np.ndarray, side: Side, G: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``A_r`` and ``b_r`` (see `Side`) in float64, given the Gramian and the sum that rows share."""
    here = rows.indptr[r], rows.indptr[r + 1]
    _, m, linear = positive_coefficients(rows, side.row_terms, side.col_terms, *here)
    f = fixed[rows.indices[slice(*here)]].astype(np.float64)
    A = side.scale[r] * G + (f * m[:, None]).T @ f
    A[np.diag_indices_from(A)] += side.ridge[r]
    b = linear @ f + side.linear[r] * s
    return A, b if side.prior is None else b + side.ridge[r] * side.prior.predict(len(b), [r])[0]


class DenseBackend(Backend):
    """The backend that all others are tested against: plain and slow, it forms every system."""

    def half_step(self, rows: CSR, fixed: np.ndarray, side: Side, **unused: Any) -> HalfStep:
        """See `Backend.half_step`; ``rotate``, ``out`` and ``warm`` are ignored."""
        F = fixed.astype(np.float64)
        K = F.shape[1]
        # The interaction is a term of each row alone, or it couples the rows.
        alone, coupling = (0.0, side.interaction) if side.coupled else (side.interaction, 0.0)
        G, s, _ = shared(F, side.gram_weight, side.linear_weight, alone)
        systems = np.empty((rows.n_rows, K, K))
        rhs = np.empty((rows.n_rows, K))
        info = np.zeros(rows.n_rows, np.int32)
        for r in range(rows.n_rows):
            systems[r], rhs[r] = system(rows, r, F, side, G, s)
            if not rhs[r].any() and not (coupling and side.scale[r]):
                systems[r] = np.eye(K)  # b = 0: the solution is zero, even if the system is singular
            elif not np.linalg.eigvalsh(systems[r])[0] > 0:
                info[r] = -1
        raise_for_rows(info, np.dtype(np.float64))
        solution = np.linalg.solve(systems, rhs[:, :, None])[:, :, 0]
        if coupling:
            # Stationarity: A_y q_y - h_y H v = b_y with v = sum_y h_y q_y, hence one K x K system for v.
            H = coupling * G
            h = side.scale
            B = np.einsum("r,rij->ij", h**2, np.linalg.inv(systems))
            v = np.linalg.solve(np.eye(K) - B @ H, h @ solution)
            pulled = rhs + h[:, None] * (H @ v)
            solution = np.linalg.solve(systems, pulled[:, :, None])[:, :, 0]
            # The decrease below is b . q, without the coupling (see the formulas in `rgals.losses.base`).
        value = float((rhs * solution).sum())
        if side.prior is not None:
            predicted = side.prior.predict(K)
            offset = side.prior.reg * float(np.square(side.prior.weights_of(K)).sum())
            value -= offset + float(side.ridge @ np.square(predicted).sum(axis=1))
            empty = (rows.row_counts == 0) & (side.linear == 0)
            solution[empty] = predicted[empty]
        return HalfStep(solution.astype(fixed.dtype), value)
