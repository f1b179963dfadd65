"""Small generated matrices that the tests share."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from rgals import losses
from rgals.losses import IALS, RG2, RGX, WRMF, Degrees
from rgals.matrix.validate import as_csr
from rgals.solvers import plan
from rgals.solvers.als import ALS
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.dense import DenseBackend
from rgals.training.run import Watch, run

#: Every loss with every option that changes its coefficients, by name.
LOSSES = {
    "rg2": RG2(alpha=0.05),
    "rg2-row-only": RG2(alpha=0.0),
    "rg2-sampled": RG2(alpha=0.1, n_negatives=7),
    "rg2-proposal": RG2(alpha=0.1, n_negatives=3, proposal_exponent=0.5),
    "rg2-exponents": RG2(alpha=0.2, user_exponent=-0.4, item_exponent=-0.3),
    "rg2-signed": RG2(alpha=0.01, n_negatives=120),
    "rgx": RGX(alpha=0.05, beta=1.0),
    "rgx-half": RGX(alpha=0.3, beta=0.5, item_exponent=-0.3),
    "rgx-row-only": RGX(alpha=0.0, beta=1.0),
    "rgx-proposal": RGX(alpha=0.05, beta=0.9, proposal_exponent=0.7),
    "rgx-sampled": RGX(alpha=0.05, beta=1.0, n_negatives=5),
    "rgx-gramian": RGX(alpha=0.05, beta=0.6, form="gramian"),
    "wrmf": WRMF(alpha=4.0),
    "wrmf-exponents": WRMF(alpha=4.0, user_exponent=0.2, item_exponent=-0.4),
    "ials": IALS(alpha0=0.2),
    "ials-proposal": IALS(alpha0=0.2, proposal_exponent=0.5, user_exponent=-0.4),
}
# A loss of the package that has no line here is tested as its rule has it.
_listed = {type(loss) for loss in LOSSES.values()}
LOSSES |= {
    n: kind().resolve(losses.Degrees.even(60, 45, 900), 8)
    for n, kind in losses.LOSSES.items()
    if kind not in _listed
}


def interactions(
    n_users: int = 60, n_items: int = 45, *, valued: bool = False, seed: int = 0
) -> sp.csr_array:
    """A matrix whose row lengths run from 0 to nearly all items, with an empty row and an empty column."""
    rng = np.random.default_rng(seed)
    activity = rng.uniform(0.02, 0.95, n_users) ** 2
    appeal = rng.uniform(0.3, 1.0, n_items)
    dense = (rng.random((n_users, n_items)) < activity[:, None] * appeal).astype(np.float64)
    if valued:
        dense *= rng.integers(1, 6, dense.shape)
    dense[3] = 0.0
    dense[:, 5] = 0.0
    lengths = np.unique((dense != 0).sum(axis=1))
    assert len(lengths) > 8, "the generated rows must differ in length"
    return sp.csr_array(dense)


def factors(n: int, K: int, dtype: type = np.float64, seed: int = 0) -> np.ndarray:
    """Random factors."""
    return np.random.default_rng(seed).standard_normal((n, K)).astype(dtype)


def rows_of_lengths(lengths: list[int], n_cols: int, valued: bool = False) -> sp.csr_array:
    """A matrix with so many positives in its rows, anywhere."""
    rng = np.random.default_rng(2)
    X = np.zeros((len(lengths), n_cols))
    for row, n in enumerate(lengths):
        X[row, rng.choice(n_cols, n, replace=False)] = rng.integers(1, 4, n) if valued else 1
    return sp.csr_array(X)


def half_steps(X, loss, side, K, monkeypatch, *, dtype=np.float32, reg=0.03, nu=0.9):
    """The factors of one half-step: by factorisations alone, as planned, and the oracle's."""
    matrix = as_csr(X, dtype=dtype)
    coefficients = loss.coefficients(Degrees.of(matrix))
    make = coefficients.user_side if side == "user" else coefficients.item_side
    matrix = matrix if side == "user" else matrix.transpose()
    problem = make(matrix, reg, nu)
    fixed = factors(matrix.n_cols, K, dtype, seed=4)
    planned = CPUBackend().half_step(matrix, fixed, problem).factors
    with monkeypatch.context() as patch:
        kinds = {t: dataclasses.replace(k, flags=False) for t, k in plan.CPU.items()}
        patch.setattr(plan, "CPU", kinds)
        factorised = CPUBackend().half_step(matrix, fixed, problem).factors
    oracle = DenseBackend().half_step(matrix, fixed.astype(np.float64), problem).factors
    return factorised, planned, oracle


def als(problem, start, backend, *, n_iter, tol=0.0, callbacks=()):
    """Item factors and history of so many iterations from user factors, which are overwritten."""
    found, history = run(ALS(problem, backend, start), n_iter, tol=tol, watch=Watch(callbacks))
    return found["item_factors"], history


SIDES = ("user", "item")


def half_step_of(X, loss, side, K, dtype=np.float64, *, reg=0.03, nu=0.9):
    """Rows, fixed factors and the side's coefficients of one half-step."""
    users = as_csr(X, dtype=dtype)
    coefficients = loss.coefficients(Degrees.of(users))
    if side == "user":
        return users, factors(users.n_cols, K, dtype, seed=4), coefficients.user_side(users, reg, nu)
    items = users.transpose()
    return items, factors(users.n_rows, K, dtype, seed=4), coefficients.item_side(items, reg, nu)
