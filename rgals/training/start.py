"""Where an ALS fit starts and how many iterations it takes: what "auto" stands for."""

from typing import Any

import numpy as np

from rgals.losses import AUTO, get_loss
from rgals.matrix.csr import CSR
from rgals.runtime.threads import n_threads
from rgals.solvers import closed_form, spectral
from rgals.solvers.als import Problem
from rgals.solvers.base import Backend
from rgals.solvers.hard_negatives import HardNegatives, read_hard_negatives
from rgals.training.checkpoint import Store
from rgals.training.data import start_factors, warm_factors
from rgals.training.run import Settled

RANDOM, SPECTRAL, CLOSED_FORM, WARM = "random", "spectral", "closed form", "warm"
INITS = (AUTO, RANDOM, SPECTRAL)
# Interactions times factors below which a fit takes no longer than to compile what a spectral start needs.
SMALL = 1 << 24
MOST, MOST_WATCHED = 16, 32  # iterations
# An objective has settled that falls by less than this share of its whole fall. Medians over sets and losses
# in CPU seconds of 16 iterations from random: .48 at K=64, .44 at K=256, with 100.7 and 99.8 % of the NDCG@10
# (least 95.9 %, food-10core; benchmarks/start.py); .56 and .49 with .002.
SHARE = 3e-3
# Iterations with hard negatives, whose objective does not tell when to end: the last ones.
DRAWS = 6


def choose_init(model: Any, matrix: CSR, store: Store | None = None) -> str:
    """What a fit starts from: one of the names above.

    A fit that goes on from a checkpoint goes on from what that started from, where ``init`` is "auto".
    """
    if warm_factors(model, matrix.shape) is not None:
        return WARM
    init = model.init
    if init == AUTO:
        init = RANDOM if matrix.nnz * model.K < SMALL or model.init_scale is not None else SPECTRAL
        if store is not None and store.start in (RANDOM, SPECTRAL, CLOSED_FORM):
            return store.start
    closed = model.reg_exponent == 1 and get_loss(model.loss).lacks_closed_form() is None
    return CLOSED_FORM if init == SPECTRAL and closed else init


def first_users(
    model: Any, init: str, problem: Problem, backend: Backend, rng: np.random.Generator, dtype: np.dtype
) -> np.ndarray:
    """The user factors that a fit starts from."""
    users, items, K = problem.users, problem.items, model.K
    if init == SPECTRAL:
        return spectral.user_factors(users.likes, items.likes, K, rng, dtype, n_threads(model.n_jobs))
    if init == CLOSED_FORM:
        found = closed_form.item_factors(users, K, problem.reg, rng, dtype)
        side = problem.coefficients.user_side(users, problem.reg, problem.reg_exponent)
        return backend.half_step(users, found, side).factors
    scale = K**-0.5 if model.init_scale is None else model.init_scale
    return start_factors(model, users.shape, 1, rng, dtype, scale)[0]


def most_iterations(model: Any, hard: HardNegatives | None) -> int:
    """Iterations after which a fit ends at the latest."""
    if model.n_iter != AUTO:
        return int(model.n_iter)
    if model.early_stopping:
        return MOST_WATCHED
    return MOST if hard is None else max(hard.warmup + DRAWS, MOST)


def plain_iterations(model: Any, hard: HardNegatives) -> int:
    """Iterations before those with draws: ``warmup``, or all but the last few where ``n_iter`` is "auto".

    They cost little, and data that need many lose more by an early end than by few draws.
    """
    if model.n_iter != AUTO or model.early_stopping:
        return hard.warmup
    return most_iterations(model, hard) - DRAWS


def when_settled(model: Any, problem: Problem) -> Settled | None:
    """When a fit ends before; None where that is not for the objective to say."""
    fixed = model.n_iter != AUTO or model.early_stopping
    return None if fixed or read_hard_negatives(model.hard_negatives) else Settled(problem.constant, SHARE)
