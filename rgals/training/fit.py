"""The fit of an `RGALS`: checks of parameters and memory, start, iterations, last half-step, checkpoints."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rgals.files.archive import ArraySpec
from rgals.losses import AUTO, Degrees, Loss, get_loss
from rgals.losses.base import Priors, with_priors
from rgals.losses.fitted import wants_mean
from rgals.matrix.csr import CSR
from rgals.matrix.mapped import BLOCK, StoredCSR
from rgals.matrix.weighting import VALUES
from rgals.model.state import FittedState
from rgals.runtime.checks import RANGES, check_choice, check_int, check_real, or_auto
from rgals.runtime.errors import ParameterError
from rgals.runtime.threads import n_threads, workers
from rgals.solvers import closed_form, spectral
from rgals.solvers.als import ALS, Problem, choose_reg, regress, sides_of
from rgals.solvers.base import Backend
from rgals.solvers.choose import choose_solver, exact_backend
from rgals.solvers.cuda import MOST_FACTORS, is_cuda
from rgals.solvers.dense import DenseBackend
from rgals.solvers.footprint import Footprint
from rgals.solvers.hard_negatives import HardNegatives, Sampler, fold_in, read_hard_negatives, scratch_bytes
from rgals.solvers.precision import check_underflow, hard_rows_at_risk, warn_of_rounding
from rgals.solvers.readout import readout_scale, with_scale, without_scale
from rgals.training.base import Task
from rgals.training.checkpoint import Store, checkpoint_spec, describe, plain
from rgals.training.data import admit, dtype_name, start_factors, warm_factors
from rgals.training.run import Iteration, has_settled, run

RANDOM, SPECTRAL, CLOSED_FORM, WARM = "random", "spectral", "closed form", "warm"
# Interactions times factors below which init="auto" is random: compiling the spectral start's kernels would
# take longer than such a fit.
SMALL = 1 << 24
# Upper bounds of n_iter="auto": without and with early stopping.
MAX_ITER, MAX_ITER_WATCHED = 16, 32
# n_iter="auto" ends when an iteration lowers the objective by less than this share of its fall from factors
# of 0. Median CPU time over data sets and losses, in units of 16 iterations from a random start: .48 at K=64,
# .44 at K=256, with 100.7 and 99.8 % of the NDCG@10 (at least 95.9 %, food-10core; benchmarks/start.py). A
# share of .002 takes .56 and .49.
SHARE = 3e-3
# Iterations with hard negatives when n_iter is "auto", without early stopping: the last ones of a fixed
# number, as the objective of drawn pairs does not tell when to end.
DRAWS = 6
# Parameters that must be the same when a checkpoint is resumed.
_DECISIVE = ("K", "values", "reg", "reg_exponent", "init_scale", "tol")
_BASIS = ArraySpec(("f8",), ("K", "K"), required=False)  # in checkpoints of release 0.2 and before
_PRIOR = ArraySpec(("f8",), ("n_features", "K"), required=False)
_EXTRA = {"user_basis": _BASIS, "item_basis": _BASIS, "item_weights": _PRIOR, "item_moments": _PRIOR}
_EXTRA |= {f"{side}_feature_reg": ArraySpec(("f8",), ("one",), required=False) for side in ("user", "item")}
# The best iterate has user factors only if users have a prior: its weights are regressed on them.
CHECKPOINT = checkpoint_spec("rgals-checkpoint", ("item_factors", "user_factors"), _EXTRA)


def train(model: Any, task: Task) -> tuple[FittedState, list[dict[str, Any]], str]:
    """Fit an `RGALS`; returns its state, the history and the name of the solver that ran."""
    # BLAS threads spin for a tenth of a second after their work and slow ours down. Only the closed form,
    # which consists of BLAS calls, may have them.
    with nullcontext() if model.solver == "svd" else workers(model.n_jobs):
        degrees = Degrees.of(task.train, task.aged)
        loss = get_loss(model.loss).resolve(degrees, model.K)
        coefficients = with_priors(loss.coefficients_for(degrees), degrees, task.priors)
        problem = Problem.of(task.train, loss, coefficients, 0.0, float(model.reg_exponent))
        problem = replace(problem, reg=choose_reg(model, loss, degrees, problem.logs), priors=task.priors)
        hard = read_hard_negatives(model.hard_negatives)
        backend, solver = choose_solver(model, coefficients)
        solver = "exact" if hard is not None and solver == "shared" else solver
        item_scale = readout_scale(degrees, float(model.readout_exponent), task.dtype)
        init = choose_init(model, task.train, task.store)
        chosen = taken(model, problem, init)
        history: list[dict[str, Any]] = []
        if solver == "svd":
            rng = np.random.default_rng(task.seed)
            found = closed_form.item_factors(task.train, model.K, problem.reg, rng, task.dtype)
            factors = {"item_factors": with_scale(found, item_scale)}
        else:
            if task.store is not None:
                data = task.matrix, task.held_out, task.priors
                task.store.description = describe_fit(model, loss, solver, init, *data)
            factors, history = _iterate(model, task, problem, backend, init, item_scale)
        items = without_scale(factors["item_factors"], item_scale)  # the bits of `Snapshot.solved_items`
        # The last user half-step runs exactly as a fold-in, so that `transform` gives the same bits.
        if model.solver == "pcg" or (hard is not None and model.solver != "dense"):
            backend = exact_backend(model)  # a new one, without the iterations' plans and rows
        user_side, item_side = sides_of(problem)
        if item_side.prior is not None:
            regress(problem, 1, item_side.prior, items, len(history))
            item_side.prior.fill(items, problem.items.row_counts)
            factors["item_factors"] = with_scale(items, item_scale)
        if user_side.prior is not None:
            # Popped, so that they are freed before the half-step allocates new ones.
            regress(problem, 0, user_side.prior, factors.pop("user_factors"), len(history))
        rows, side, numbers = problem.users, user_side, None
        if hard is None:
            step = backend.half_step(rows, items, side)
            users = step.factors
        else:
            given = (rows, coefficients, side, backend), items, hard, model.n_jobs
            users = fold_in(*given)
            rows, side, numbers = hard_rows_at_risk(*given)
        check_underflow(problem.users, users, user_side, "user")
        check_underflow(problem.items, items, item_side, "item")
        if not is_cuda(model.device):
            warn_of_rounding(rows, users if hard is None else None, items, side, backend, "user", numbers)
            warn_of_rounding(problem.items, None, users, item_side, backend, "item")
    if not history:  # the closed form: one entry, which states the objective as after any fit
        ridge = item_side.ridge @ np.einsum("ij,ij->i", items, items, dtype=np.float64)
        objective = problem.constant + float(ridge) - step.decrease
        history.append({"iteration": 1, "seconds": 0.0, "objective": objective})
    priors = zip(("user", "item"), problem.priors, strict=True)
    chosen |= {f"{side}_feature_reg": one.reg for side, one in priors if one and not one.mean}
    for row in history:
        row.update(chosen)
    of_users, of_items = user_side.prior, item_side.prior
    state = FittedState(
        user_factors=users,
        item_factors=factors["item_factors"],
        item_scale=item_scale,
        readout_exponent=float(model.readout_exponent),
        loss=problem.loss,
        reg=problem.reg,
        reg_exponent=problem.reg_exponent,
        degrees=degrees.alone(),
        hard_negatives=hard,
        priors=(
            of_users and of_users.grown(problem.users.row_counts),
            of_items and of_items.grown(problem.items.row_counts),
        ),
    )
    return state, history, solver


def _iterate(
    model: Any, task: Task, problem: Problem, backend: Backend, init: str, scale: np.ndarray | None
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Run the iterations; returns the factors as they score, and the history."""
    # A function of its own, so that its return frees what only iterations need: start factors, drawn pairs.
    hard, sampler = read_hard_negatives(model.hard_negatives), None
    plain, n_iter = stages(model, hard)
    if hard is not None:
        sampler = Sampler(hard, task.train, problem.coefficients, plain, task.seed, model.n_jobs)
        # Validation sees users as a fit would publish them: solved with their best unobserved items, not with
        # drawn ones.
        task.watch.plain = plain
        task.watch.serve = partial(served, model, problem, hard, scale)
    began, rng = time.perf_counter(), np.random.default_rng(task.seed)
    return run(
        # No variable keeps the start: with device="cuda" it would occupy host memory throughout.
        ALS(problem, backend, first_users(model, init, problem, backend, rng, task.dtype), scale, sampler),
        n_iter,
        tol=model.tol if hard is None else None,
        settled=when_settled(model, problem),
        began=began,
        watch=task.watch,
        store=task.store,
        verbose=bool(model.verbose),
    )


def choose_init(model: Any, matrix: CSR, store: Store | None = None) -> str:
    """What a fit starts from: RANDOM, SPECTRAL, CLOSED_FORM or WARM."""
    if warm_factors(model, matrix.shape) is not None:
        return WARM
    init = model.init
    if init == AUTO:
        init = RANDOM if matrix.nnz * model.K < SMALL or model.init_scale is not None else SPECTRAL
        if store is not None and store.start in (RANDOM, SPECTRAL, CLOSED_FORM):
            return store.start  # a resumed fit keeps the start that it was begun with
    if init != SPECTRAL or model.reg_exponent != 1 or get_loss(model.loss).lacks_closed_form() is not None:
        return init
    # A store has no closed form: asked for, the spectral start is refused.
    return RANDOM if model.init == AUTO and isinstance(matrix, StoredCSR) else CLOSED_FORM


def first_users(
    model: Any, init: str, problem: Problem, backend: Backend, rng: np.random.Generator, dtype: np.dtype
) -> np.ndarray:
    """The user factors that a fit starts from."""
    users, items, K = problem.users, problem.items, model.K
    if init == SPECTRAL:
        return spectral.user_factors(users.likes, items.likes, K, rng, dtype, n_threads(model.n_jobs))
    if init == CLOSED_FORM:
        found = closed_form.item_factors(users, K, problem.reg, rng, dtype)
        return backend.half_step(users, found, problem.plain_sides[0]).factors
    scale = K**-0.5 if model.init_scale is None else model.init_scale
    return start_factors(model, users.shape, 1, rng, dtype, scale)[0]


def stages(model: Any, hard: HardNegatives | None) -> tuple[int, int]:
    """Number of iterations without hard negatives, and of all iterations at most."""
    # n_iter="auto" draws in the last iterations alone: those without draws are cheap, and data that need many
    # iterations lose more by ending early than by few draws.
    plain = 0 if hard is None else hard.warmup
    if model.n_iter != AUTO or model.early_stopping:
        return plain, MAX_ITER_WATCHED if model.n_iter == AUTO else int(model.n_iter)
    n_iter = max(plain + DRAWS, MAX_ITER)
    return n_iter - DRAWS, n_iter


def served(
    model: Any, problem: Problem, hard: HardNegatives, item_scale: np.ndarray | None, now: Iteration
) -> np.ndarray:
    """User factors as a fit with hard negatives would publish them if it ended with this iteration."""
    side, items = sides_of(problem)[0], without_scale(now.item_factors, item_scale)
    if side.prior is not None:
        regress(problem, 0, side.prior, now.user_factors, now.iteration)
    backend = DenseBackend() if model.solver == "dense" else exact_backend(model)
    half = problem.users, problem.coefficients, side, backend
    return fold_in(half, items, hard, model.n_jobs)


def when_settled(model: Any, problem: Problem) -> Callable[..., bool] | None:
    """The test by which n_iter="auto" ends a fit early; None if the objective does not decide that."""
    if model.n_iter != AUTO or model.early_stopping or read_hard_negatives(model.hard_negatives):
        return None
    return partial(has_settled, problem.constant, SHARE)


def check_parameters(model: Any, asked: Mapping[str, Any]) -> np.dtype:
    """Check every parameter of an `RGALS`, and the arguments ``asked`` of `fit`; returns the dtype."""
    check_choice("values", model.values, VALUES)
    if isinstance(model.K, str):
        raise ParameterError("K", model.K, "give an integer >= 1, or let RGALSCV(K='auto') search for it")
    check_int("K", model.K, 1, 1 << 15)
    check_real("reg_exponent", model.reg_exponent, -4.0, 4.0)
    check_real("readout_exponent", model.readout_exponent, -1.0, 1.0)
    or_auto(check_real, "reg", model.reg, 0.0)
    check_choice("solver", model.solver, ("auto", "exact", "pcg", "svd", "dense"))
    check_choice("dtype", dtype_name(model.dtype), ("float32", "float64"))
    if not is_cuda(model.device):
        check_choice("device", model.device, ("cpu", "cuda", "cuda:N"))
    check_real("tol", model.tol, 0.0)
    for name in ("patience", "pcg_steps"):
        check_int(name, getattr(model, name), 1)
    for name in ("early_stopping", "warm_start"):
        RANGES["bool"](name, getattr(model, name))
    or_auto(check_int, "n_iter", model.n_iter, 1)
    check_choice("init", model.init, (AUTO, RANDOM, SPECTRAL))
    RANGES["int > 0, optional"]("validation_users", model.validation_users)
    if model.init_scale is not None:
        check_real("init_scale", model.init_scale, 0.0, open_min=True)
    or_auto(check_real, "feature_reg", model.feature_reg, 0.0, open_min=True)
    check_choice("user_mean", model.user_mean, (AUTO, True, False))
    _refuse(model, _conflicts(model, asked))
    return np.dtype(dtype_name(model.dtype))


_Conflicts = Iterator[tuple[str, Any, str]]  # name of a parameter, whether to refuse it, and why


def _refuse(model: Any, conflicts: _Conflicts) -> None:
    for name, wrong, why in conflicts:
        if wrong:
            raise ParameterError(name, getattr(model, name, "given"), why)


def _conflicts(model: Any, asked: Mapping[str, Any]) -> _Conflicts:
    """Combinations of parameters and arguments that do not work together."""
    cuda, svd, dislikes = is_cuda(model.device), model.solver == "svd", get_loss(model.loss).dislikes
    stored = asked.get("checkpoint") is not None
    watched = model.early_stopping or asked.get("callbacks") or asked.get("validation") is not None
    yield "device", not cuda and model.device != "cpu", "N stands for a device's number, as in 'cuda:0'"
    yield "device", cuda and dislikes, "dislikes are solved on device='cpu' only"
    yield "solver", cuda and model.solver == "dense", "the float64 reference runs on device='cpu' only"
    why = "rows are solved exactly on a GPU, which takes less time there; leave it 'auto'"
    yield "solver", cuda and model.solver == "pcg", why
    yield "K", cuda and model.K > MOST_FACTORS, f"device='cuda' takes at most {MOST_FACTORS} factors"
    yield "init_scale", model.init_scale and model.init == SPECTRAL, "it scales init='random'; leave it None"
    hard = read_hard_negatives(model.hard_negatives)
    if hard is not None:
        few = f"n_iter={model.n_iter} leaves no iteration after the {hard.warmup} of warmup"
        anew = "their objective may rise when they are drawn anew, so that"
        for wrong, why in (
            (svd, "solver='svd' has no iterations to draw them in"),
            (dislikes, "they go with no dislikes"),
            (cuda, "they are drawn on device='cpu' only"),
            (model.tol > 0, f"{anew} tol={model.tol:g} says nothing"),
            (model.n_iter != AUTO and model.n_iter <= hard.warmup, few),
        ):
            yield "hard_negatives", wrong, f"{why}; leave them None"
    lacks = get_loss(model.loss).lacks_closed_form()
    lacks = "it needs reg_exponent=1" if lacks is None and model.reg_exponent != 1 else lacks
    yield "solver", svd and lacks, f"the closed form is that of RG2 or RGX with alpha=0: {lacks}"
    yield "init", svd and model.init != AUTO, "solver='svd' starts from nothing; leave it 'auto'"
    yield "checkpoint", svd and stored, "solver='svd' has no iterations to write down"
    why = "it has no iterations for validation, callbacks or early_stopping to watch: leave them out"
    yield "solver", svd and watched, why
    mean = model.user_mean not in (AUTO, False)
    why = "a column of ones in user_features is such a mean; leave it 'auto'"
    yield "user_mean", mean and asked.get("user_features") is not None, why
    yield "user_mean", mean and svd, "solver='svd' pulls users to zero; leave it 'auto'"
    yield "user_mean", mean and cuda, "device='cuda' pulls users to zero; leave it 'auto'"
    for name in ("user_features", "item_features"):
        if asked.get(name) is not None:
            yield name, svd, "solver='svd' knows no features; leave them out"
            yield name, cuda, "features are taken on device='cpu' only"
            yield name, model.reg == 0, "features act by the regularisation; set reg > 0"


def _of_stores(model: Any, init: str) -> _Conflicts:
    """Parameters that need all interactions in memory, for a matrix that stays on disk."""
    why = "it needs all interactions in memory, and X is a store; {}, or fit X.sample(X.shape[0])"
    yield "solver", model.solver == "svd", why.format("set solver='auto'")
    yield "hard_negatives", model.hard_negatives is not None, why.format("leave them None")
    yield "device", is_cuda(model.device), why.format("set device='cpu'")
    yield "init", init == CLOSED_FORM and model.solver != "svd", why.format("set init='random'")


def choose_mean(model: Any, matrix: CSR, priors: Priors) -> dict[str, Any]:
    """The value of ``user_mean="auto"`` for a matrix."""
    if model.user_mean != AUTO:
        return {}
    # A caller who sets reg states an objective, which "auto" does not change.
    able = model.reg == AUTO and priors[0] is None and model.solver != "svd" and not is_cuda(model.device)
    return {"user_mean": able and wants_mean(Degrees.of(matrix))}


def check_memory(
    model: Any, matrix: CSR, dtype: np.dtype, *, weights: int, split: bool, judged: bool
) -> None:
    """Raise `InsufficientMemoryError` where a fit needs more memory than there is: see `Trained`."""
    stored, init, closed = isinstance(matrix, StoredCSR), choose_init(model, matrix), 0
    if stored:
        _refuse(model, _of_stores(model, init))
    hard, threads = read_hard_negatives(model.hard_negatives), n_threads(model.n_jobs)
    itemsize, valued, size = dtype.itemsize, not matrix.is_binary, (matrix.shape, matrix.nnz)
    if model.solver == "svd" or init == CLOSED_FORM:
        closed = closed_form.scratch_bytes(*size, model.K, itemsize, valued)
    drawn = (0, 0) if hard is None else scratch_bytes(hard, *size, model.K, itemsize, threads)
    if hard is not None and judged:  # user factors of `served`, in every iteration
        drawn = drawn[0] + drawn[1] + matrix.n_rows * model.K * itemsize, drawn[1]
    needed = Footprint(
        *size,
        model.K,
        itemsize,
        valued=valued,
        coupled=get_loss(model.loss).couples_items(),
        best=model.early_stopping,
        threads=threads,
        longest=int(max(matrix.row_counts.max(), matrix.col_counts.max())),
        closed_form=closed,
        iterates=model.solver != "svd",
        start=spectral.n_columns(model.K, itemsize) if init == SPECTRAL else 0,
        hard=drawn,
        blocks=None if split or not stored else 3 * BLOCK,
    ).peak()
    if model.readout_exponent:  # scaled item factors beside the solved ones
        needed += matrix.n_cols * model.K * itemsize
    admit(needed + weights, model, matrix, dtype, split)


def taken(model: Any, problem: Problem, init: str) -> dict[str, Any]:
    """Values that replaced "auto", by name of the parameter."""
    auto = [k for k, v in get_loss(model.loss).get_params().items() if isinstance(v, str) and v == AUTO]
    chosen: dict[str, Any] = {name: getattr(problem.loss, name) for name in auto}
    if model.reg == AUTO:
        chosen["reg"] = problem.reg
    if model.init == AUTO and init != WARM and model.solver != "svd":
        chosen["init"] = RANDOM if init == RANDOM else SPECTRAL
    return chosen


def describe_fit(
    model: Any, loss: Loss, solver: str, init: str, matrix: CSR, held_out: CSR | None, priors: Priors
) -> dict[str, Any]:
    """Everything that the bits of a fit depend on, for its checkpoint."""
    given = zip(("user_features", "item_features"), priors, strict=True)
    hard = read_hard_negatives(model.hard_negatives)
    begins = stages(model, hard)[0]
    return {
        **describe(model, loss, _DECISIVE, 1, matrix, held_out),
        **({} if init == WARM else {"start": init}),
        **({} if model.user_mean in (AUTO, False) else {"user_mean": True}),
        **{name: prior.digest() for name, prior in given if prior is not None and not prior.mean},
        **({"feature_reg": plain(model.feature_reg)} if any(priors) else {}),
        "solver": solver,
        **({"readout_exponent": plain(model.readout_exponent)} if model.readout_exponent else {}),
        # The number of iterations without them depends on whether n_iter is "auto".
        **({} if hard is None else {"hard_negatives": plain(hard.get_params() | {"warmup": begins})}),
        "pcg_steps": plain(model.pcg_steps) if solver == "pcg" else None,
        "validation_users": plain(model.validation_users) if held_out is not None else None,
    }
