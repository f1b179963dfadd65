"""What fits and judging them cost, in multiplications of a factorisation: budgets count these, no clock."""

import numpy as np

from rgals.matrix.csr import CSR
from rgals.solvers.hard_negatives import Blocks, HardNegatives
from rgals.training.fit import DRAWS

# Beside a multiplication of a factorisation: gathering a factor of a positive, a product that all rows share,
# scoring an item for a user and keeping the best. Measured on four sets, two cores, K from 32 to 256.
GATHER, SHARED, SCORE, SCORE_FACTOR = 40.0, 3.0, 40.0, 1.6
DRAWN_FACTOR = 3.0  # scoring an item and comparing it with the best of its group, a factor
# Of conjugate gradients with both triangles: what a long row costs at most, a positive and factor.
STEPS = 60.0
FIT, JUDGED = 1e9, 2e8  # what the smallest fit takes, and judging it
AROUND = 2.0  # iterations' worth of transposing, checks and the last half-step
#: A default fit counts as at least this, some 2.5 seconds of two cores: small data are searched longer.
LEAST = 2e11


def fit_cost(matrix: CSR, K: int, n_iter: int, weight: float = 0.0) -> float:
    """Of a fit, with hard negatives of that ``weight`` where it is not 0."""
    around = _iteration(matrix.row_counts, matrix.col_counts, K)
    if not weight:
        return FIT + around * (n_iter + AROUND)
    hard, n_items = HardNegatives(weight), matrix.n_cols
    active, blocks = matrix.row_counts > 0, Blocks(hard, matrix.row_counts, n_items)
    drawn = _with_pairs(matrix, blocks.n * active, K) + float(active.sum()) * blocks.size * DRAWN_FACTOR * K
    # The last users: all of the catalogue is ranked, and rows have T pairs more.
    n_top = hard.n_top(n_items)
    end = judge_cost(matrix.n_rows, n_items, K) + _with_pairs(matrix, n_top * active, K)
    draws = min(DRAWS, n_iter // 2)
    return FIT + around * (n_iter - draws + AROUND) + drawn * draws + end


def _iteration(row_counts: np.ndarray, col_counts: np.ndarray, K: int) -> float:
    """Rows by the cheapest of dual, primal and conjugate gradients, and what all rows share."""
    total = 0.0
    for counts in (row_counts, col_counts):
        n = counts.astype(np.float64)
        factorised = np.minimum(n * n * K + n**3 / 3, n * K * K + K**3 / 3)
        total += np.minimum(factorised, STEPS * n * K).sum() + GATHER * K * n.sum() + SHARED * len(n) * K * K
    return float(total)


def _with_pairs(matrix: CSR, more: np.ndarray, K: int) -> float:
    """An iteration in which rows have so many pairs more, spread evenly over the columns."""
    return _iteration(matrix.row_counts + more, matrix.col_counts + more.sum() / matrix.n_cols, K)


def judge_cost(n_users: int, n_items: int, K: int) -> float:
    """Of ranking all items for so many users."""
    return JUDGED + n_users * n_items * (SCORE + SCORE_FACTOR * K)
