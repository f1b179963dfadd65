"""The oracle: half-steps in float64 numpy, written from the formulas, a K x K system per row."""

from typing import Any

import numpy as np

from rgals.losses.base import Side, positive_coefficients
from rgals.matrix.csr import CSR
from rgals.solvers.base import Backend, HalfStep, raise_for_rows

_AT_ONCE = 1 << 14  # rows turned to float64


def shared(
    fixed: np.ndarray, gram_weight: np.ndarray, linear_weight: np.ndarray, interaction: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Gramian and sums that rows share (see `Side`), in float64; what interaction took from the Gramian."""
    k = fixed.shape[1]
    G, u, s = np.zeros((k, k)), np.zeros(k), np.zeros(k)
    for start in range(0, len(fixed), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        part = fixed[here].astype(np.float64)
        weighted = part * gram_weight[here, None]
        G += part.T @ weighted
        u += weighted.sum(axis=0)
        s += (part * linear_weight[here, None]).sum(axis=0)
    return G - interaction * np.outer(u, u), s, interaction * float(u @ u)


def system(
    rows: CSR, r: int, fixed: np.ndarray, side: Side, G: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``A_r`` and ``b_r`` (see `Side`) in float64, of the Gramian and the sums that rows share."""
    here = rows.indptr[r], rows.indptr[r + 1]
    _, m, linear = positive_coefficients(rows, side.row_terms, side.col_terms, *here)
    f = fixed[rows.indices[slice(*here)]].astype(np.float64)
    A = side.scale[r] * G + (f * m[:, None]).T @ f
    A[np.diag_indices_from(A)] += side.ridge[r]
    b = linear @ f + side.linear[r] * s
    return A, b if side.prior is None else b + side.ridge[r] * side.prior.predict(len(b), [r])[0]


class DenseBackend(Backend):
    """Reference backend that every other one is tested against. Forms every system; slow and plain."""

    def half_step(self, rows: CSR, fixed: np.ndarray, side: Side, **unused: Any) -> HalfStep:
        """See `Backend.half_step`: what ``rotate``, ``out`` and ``warm`` permit is not done."""
        F = fixed.astype(np.float64)
        K = F.shape[1]
        alone, among = (0.0, side.interaction) if side.coupled else (side.interaction, 0.0)  # of rows
        G, s, _ = shared(F, side.gram_weight, side.linear_weight, alone)
        systems = np.empty((rows.n_rows, K, K))
        rhs = np.empty((rows.n_rows, K))
        info = np.zeros(rows.n_rows, np.int32)
        for r in range(rows.n_rows):
            systems[r], rhs[r] = system(rows, r, F, side, G, s)
            if not rhs[r].any() and not (among and side.scale[r]):
                systems[r] = np.eye(K)  # nothing pulls: the answer is zero whatever the curvature
            elif not np.linalg.eigvalsh(systems[r])[0] > 0:
                info[r] = -1
        raise_for_rows(info, np.dtype(np.float64))
        solution = np.linalg.solve(systems, rhs[:, :, None])[:, :, 0]
        if among:
            # Stationarity: A_y q_y - h_y H v = b_y with v = sum_y h_y q_y, hence one K x K system for v.
            H = among * G
            h = side.scale
            B = np.einsum("r,rij->ij", h**2, np.linalg.inv(systems))
            v = np.linalg.solve(np.eye(K) - B @ H, h @ solution)
            pulled = rhs + h[:, None] * (H @ v)
            solution = np.linalg.solve(systems, pulled[:, :, None])[:, :, 0]
            # The decrease is b . q without the coupling's share (see mathematics in `rgals.losses.base`).
        value = float((rhs * solution).sum())
        if side.prior is not None:
            predicted = side.prior.predict(K)
            offset = side.prior.reg * float(np.square(side.prior.weights_of(K)).sum())
            value -= offset + float(side.ridge @ np.square(predicted).sum(axis=1))
            empty = (rows.row_counts == 0) & (side.linear == 0)
            solution[empty] = predicted[empty]
        return HalfStep(solution.astype(fixed.dtype), value)
