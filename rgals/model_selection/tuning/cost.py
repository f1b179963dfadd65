"""What fits and judging them cost, in multiplications of a factorisation: budgets count these, no clock."""

from __future__ import annotations

import numpy as np

from rgals.matrix.csr import CSR

# Beside a multiplication of a factorisation: gathering a factor of a positive, a product that all rows share,
# scoring an item for a user and keeping the best. Measured on four sets, two cores, K from 32 to 256.
GATHER, SHARED, SCORE, SCORE_FACTOR = 40.0, 3.0, 40.0, 1.6
STEPS = (
    60.0  # of conjugate gradients with both triangles: what a long row costs at most, a positive and factor
)
FIT, JUDGED = 1e9, 2e8  # what the smallest fit takes, and judging it
AROUND = 2.0  # iterations' worth of transposing, checks and the last half-step
#: A default fit counts as at least this, some 2.5 seconds of two cores: small data are searched longer.
LEAST = 2e11


def fit_cost(matrix: CSR, K: int, n_iter: float) -> float:
    """Of a fit: rows by the cheapest of dual, primal and conjugate gradients, and what all rows share."""
    total = 0.0
    for counts in (matrix.row_counts, matrix.col_counts):
        n = counts.astype(np.float64)
        factorised = np.minimum(n * n * K + n**3 / 3, n * K * K + K**3 / 3)
        total += np.minimum(factorised, STEPS * n * K).sum() + GATHER * K * n.sum() + SHARED * len(n) * K * K
    return FIT + float(total) * (n_iter + AROUND)


def judge_cost(n_users: int, n_items: int, K: int) -> float:
    """Of ranking all items for so many users."""
    return JUDGED + n_users * n_items * (SCORE + SCORE_FACTOR * K)
