"""What workers do: functions of blocks. They are imported there by name; nothing compiled travels."""

import copy
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from rgals.estimator import RGALS
from rgals.kernels import gram, rows, sums
from rgals.losses import Coefficients, Degrees, Loss
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.model.state import FittedState
from rgals.runtime.aligned import empty
from rgals.runtime.errors import NumericalError, PrecisionWarning
from rgals.runtime.threads import workers
from rgals.scoring import recommend_all
from rgals.solvers.als import weight_logs
from rgals.solvers.base import squared_lengths
from rgals.solvers.basis import Change, Factors, metric
from rgals.solvers.cpu import CPUBackend, FixedSide, Solve, coupling_shift, find_change, fixed_side
from rgals.solvers.plan import Plan, padded
from rgals.solvers.precision import check_underflow, warn_of_rounding
from rgals.solvers.readout import with_scale

_PATIENCE = 20.0  # seconds for another process to compile a function: none takes as long
_Task = TypeVar("_Task", bound=Callable[..., Any])


_lock = threading.Lock()
_ready = False


def _get_ready() -> None:
    """Of the processes of a machine one compiles, the others wait and find it in the cache."""
    global _ready
    with _lock:  # a second time would wait for the first
        if not _ready:
            from rgals.warm import compile_once

            folder = rows._run._cache.cache_path
            if folder is not None and os.access(folder, os.W_OK):
                compile_once(Path(folder) / "locks", _PATIENCE)
            _ready = True


def task(function: _Task) -> _Task:
    """Decorate what runs on a worker: one thread, in BLAS too; other threads have other blocks."""

    @wraps(function)
    def alone(*args: Any) -> Any:
        _get_ready()
        with workers(1):
            return function(*args)

    return cast(_Task, alone)


# ---------------------------------------------------------------- what a fit knows of a block


class Weights(NamedTuple):
    """A block of the fixed side in the systems of the other: see `rgals.losses.base.Side`."""

    gram: np.ndarray
    linear: np.ndarray
    terms: np.ndarray  # (n, 4), or (0, 4) where all of the side are alike


@dataclass
class Block:
    """The rows of a block, planned; what they need of the fixed side comes with its factors."""

    plan: Plan
    first: int  # number of its first row

    def __sizeof__(self) -> int:
        """Bytes, by which the scheduler decides what moves where."""
        matrix = self.plan.matrix
        held = matrix.indptr.nbytes + matrix.indices.nbytes + matrix.values.nbytes
        return held + 128 * matrix.n_rows


class Facts(NamedTuple):
    """What the client asks of a block."""

    ratio: float | None  # `Plan.ratio`
    n_solved: int
    has_weights: bool
    interaction: float  # of the side


def _sliced(which: str, coefficients: Coefficients, at: slice) -> Coefficients:
    c = coefficients
    if which == "users":
        return replace(c, g=c.g[at], t=c.t[at], user_terms=c.user_terms[at])
    return replace(c, h=c.h[at], item_terms=c.item_terms[at])


def _side(which: str, matrix: CSR, first: int, coefficients: Coefficients, reg: float, nu: float) -> Side:
    own = _sliced(which, coefficients, slice(first, first + matrix.n_rows))
    return own.user_side(matrix, reg, nu) if which == "users" else own.item_side(matrix, reg, nu)


@task
def degrees(users: list[Any], items: list[Any]) -> Degrees:
    """The margins of the whole matrix, from those of its blocks."""
    (user_sum, user_count), (item_sum, item_count) = (
        map(np.concatenate, zip(*side)) for side in (users, items)
    )
    return Degrees(user_sum, item_sum, user_count, item_count)


@task
def coefficients(loss: Loss, found: Degrees) -> Coefficients:
    """The coefficients of the whole matrix."""
    return loss.coefficients_for(found)


@task
def logs(which: str, matrix: CSR, first: int, found: Coefficients) -> tuple[float, int]:
    """`weight_logs` of a block."""
    return weight_logs(matrix, _side(which, matrix, first, found, 1.0, 1.0))


@task
def constant(matrix: CSR, first: int, loss: Loss, found: Coefficients) -> float:
    """What the users of a block add to the constant of the objective."""
    return loss.constant(matrix, _sliced("users", found, slice(first, first + matrix.n_rows)))


@dataclass(frozen=True)
class Setting:
    """What defines the systems beside data and loss."""

    reg: float
    reg_exponent: float
    K: int
    dtype: np.dtype


@task
def prepare(which: str, matrix: CSR, first: int, found: Coefficients, setting: Setting) -> Block:
    """Plan the rows of a block."""
    side = _side(which, matrix, first, found, setting.reg, setting.reg_exponent)
    plan = Plan(matrix, side, setting.dtype, setting.K)
    plan.forget_columns()
    return Block(plan, first)


@task
def facts(block: Block) -> Facts:
    """What the client asks of a block."""
    plan, side = block.plan, block.plan.side
    solved = int(((plan.matrix.row_counts > 0) | (side.linear != 0)).sum())
    return Facts(plan.ratio, solved, bool(side.row_terms[:, :2].any()), side.interaction)


@task
def weights(which: str, first: int, stop: int, found: Coefficients, dtype: np.dtype) -> Weights:
    """A block of one side as the half-step of the other sees it."""
    other = "items" if which == "users" else "users"
    n_fixed = len(found.g) if which == "users" else len(found.h)
    side = _side(other, CSR.empty(0, n_fixed), 0, found, 1.0, 1.0)
    terms, at = side.col_terms, slice(first, stop)
    alike = bool((terms == terms[0]).all())  # then the rows have them: `rgals.solvers.plan.fold_terms`
    return Weights(
        side.gram_weight[at], side.linear_weight[at], terms[: 0 if alike else None][at].astype(dtype)
    )


# ---------------------------------------------------------------- where a fit begins


@task
def skip(rng: np.random.Generator, n: int, dtype: np.dtype) -> np.random.Generator:
    """A generator that has drawn so many numbers."""
    rng, buffer = copy.deepcopy(rng), np.empty(1 << 20, dtype)
    for start in range(0, n, len(buffer)):
        rng.standard_normal(dtype=dtype, out=buffer[: n - start])
    return rng


class Table(NamedTuple):
    """Factors of a block, and what its rows took from the objective."""

    table: np.ndarray  # (n, K)
    value: float = 0.0


@task
def draw(rng: np.random.Generator, n: int, K: int, scale: float, dtype: np.dtype) -> Table:
    """Random factors of a block."""
    out = empty((n, K), dtype)
    copy.deepcopy(rng).standard_normal(dtype=dtype, out=out)
    out *= scale
    return Table(out)


@task
def given(table: np.ndarray) -> Table:
    """Factors that the client has."""
    return Table(table)


# ---------------------------------------------------------------- a half-step


class Sums(NamedTuple):
    """What the blocks of the side that is fixed next are added up by."""

    gramian: np.ndarray
    u: np.ndarray
    penalty: float
    value: float


@task
def add_up(factors: Table, own: Weights, block: Block, last: Change | None) -> Sums:
    """The sums of a block after its half-step, ``last``."""
    table, ridge = factors.table, block.plan.side.ridge
    u = sums.column_sums(table, own.gram, own.linear, 1)[1]
    if last is None or last.solved_basis is None:
        penalty = squared_lengths(table, ridge)
    else:
        penalty = float(np.sum(gram.gram(table, ridge, 1) * metric(last.solved_basis, 1)))
    return Sums(gram.gram(table, own.gram, 1), u, penalty, factors.value)


@task
def total(parts: list[Sums]) -> tuple[float, float]:
    """Penalty and value of a side, in the order of its blocks."""
    return sum(part.penalty for part in parts), sum(part.value for part in parts)


@dataclass(frozen=True)
class Kind:
    """What the half-steps of one side have in common."""

    ratio: float | None
    interaction: float
    coupled: bool
    rotate: bool
    dtype: np.dtype


@task
def change(parts: list[Sums], kind: Kind, last: Change | None) -> Change:
    """The basis of a half-step, given that of the last one, which solved what is fixed now."""
    G, u = np.zeros_like(parts[0].gramian), np.zeros_like(parts[0].u)
    for part in parts:
        G += part.gramian
        u += part.u
    if not np.isfinite(G).all():
        raise NumericalError("the Gramian of the fixed side is not finite")
    bases = (None, None) if last is None else (last.solved_basis, last.fixed_basis)
    alone = None if kind.coupled or not kind.interaction else u
    ratio = kind.ratio if kind.rotate else None
    return find_change(G, alone, kind.interaction, ratio, bases, kind.dtype, 1)


class Turned(NamedTuple):
    """A block of the fixed side in the basis of a half-step."""

    table: np.ndarray
    sums: np.ndarray  # (3, K): `column_sums`
    terms: np.ndarray


@task
def turn(factors: Table, to: Change, own: Weights) -> Turned:
    """Turn a block; workers take it from each other."""
    out = empty(factors.table.shape, factors.table.dtype)
    found = gram.multiply(factors.table, to.forth.astype(out.dtype), out, 1, own.gram, own.linear)
    return Turned(out, np.stack(found), own.terms)


_last: tuple[str, Any] = ("", None)  # the fixed side that this process has put together last


def _whole(
    name: str, parts: list[Turned], kp: int, interaction: float | None
) -> tuple[FixedSide, np.ndarray]:
    """The fixed side in one piece, once a process for all blocks of a half-step."""
    global _last
    with _lock:
        if _last[0] != name:
            _last = ("", None)
            n, k = sum(len(part.table) for part in parts), parts[0].table.shape[1]
            table, found, at = empty((n, kp), parts[0].table.dtype), np.zeros((3, k)), 0
            for part in parts:
                table[at : at + len(part.table), :k] = part.table
                at += len(part.table)
                found += part.sums
            table[:, k:] = 0.0
            terms = np.concatenate([part.terms for part in parts])
            _last = name, (fixed_side(table, tuple(found), interaction, kp), terms)
        return _last[1]


async def forget() -> None:
    """Give back what this process has put together. Asynchronous: dask waits for others."""
    global _last
    with _lock:
        _last = ("", None)


def _solve(name: str, block: Block, parts: list[Turned], to: Change, kind: Kind) -> Solve:
    plan, K = block.plan, parts[0].table.shape[1]
    interaction = None if to.whitens else 0.0 if kind.coupled else kind.interaction
    fixed, terms = _whole(name, parts, plan.kp, interaction)
    out: Any = empty((plan.matrix.n_rows, K), kind.dtype)
    step = Solve(plan, cast(Any, None), Factors(out), 1, block.first)
    step.col_terms = terms
    step.take(fixed)
    return step


class Coupling(NamedTuple):
    """A block's part of what couples the items of RGx."""

    B: np.ndarray
    solutions: np.ndarray
    d: np.ndarray


@task
def couple(name: str, block: Block, parts: list[Turned], to: Change, kind: Kind) -> Coupling:
    """The sums that couple the rows of a block with all others."""
    step = _solve(name, block, parts, to, kind)
    return Coupling(*step.coupling_sums(), step.d)


@task
def shift(parts: list[Coupling], kind: Kind) -> np.ndarray:
    """What the coupling adds to the right-hand side of every row."""
    B, solutions = np.zeros_like(parts[0].B), np.zeros_like(parts[0].solutions)
    for part in parts:
        B += part.B
        solutions += part.solutions
    return coupling_shift(B, solutions, kind.interaction, parts[0].d)


@task
def solve(
    name: str, block: Block, parts: list[Turned], to: Change, kind: Kind, added: np.ndarray | None
) -> Table:
    """The factors of a block."""
    step = _solve(name, block, parts, to, kind)
    found, value = step.solve(added)
    if not kind.rotate:
        gram.multiply(found, to.forth.T.astype(found.dtype), found, 1)
    return Table(found, value)


@task
def download(factors: Table, last: Change | None, solved: bool) -> Table:
    """Factors in a basis where lengths are right: those of the side that ``last`` solved, or kept fixed."""
    basis = None if last is None else last.solved_basis if solved else last.fixed_basis
    if basis is None:
        return Table(factors.table)
    out = empty(factors.table.shape, factors.table.dtype)
    gram.multiply(factors.table, basis.T.astype(out.dtype), out, 1)
    return Table(out)


@task
def judge(
    which: str, block: Block, found: Coefficients, setting: Setting, solved: Table, fixed: list[Table]
) -> list[str]:
    """Warnings of a block's factors: see `rgals.solvers.precision`."""
    matrix, table = block.plan.matrix, np.concatenate([part.table for part in fixed])
    side = _side(which, matrix, block.first, found, setting.reg, setting.reg_exponent)
    given = matrix, solved.table if which == "users" else None, table, side, CPUBackend(1), which[:-1]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_underflow(matrix, solved.table, side, which[:-1], block.first)
        warn_of_rounding(*given, np.arange(block.first, block.first + matrix.n_rows))
    return [str(warning.message) for warning in said if warning.category is PrecisionWarning]


# ---------------------------------------------------------------- lists


@task
def item_table(parts: list[Table], scale: np.ndarray | None) -> np.ndarray:
    """The factors of all items, as they score."""
    return with_scale(np.concatenate([part.table for part in parts]), scale)


@task
def user_names(labels: np.ndarray | None, first: int, stop: int) -> np.ndarray:
    """What the users of a block are called."""
    return np.arange(first, stop) if labels is None else labels[first:stop]


@task
def write_lists(
    path: str,
    users: Table,
    seen: CSR,
    names: np.ndarray,
    items: np.ndarray,
    labels: Any,
    n: int,
    filters: dict,
) -> tuple[int, int, int]:
    """Write the lists of a block's users: users, users served, rows."""
    model = RGALS(n_jobs=1)
    model._snapshot = FittedState(users.table, items, seen, names, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # users without lists are counted
        written = recommend_all(model, path, n, resume=False, **filters)
    return written.users, written.served, written.rows


def fixed_bytes(n: int, K: int, itemsize: int) -> int:
    """What a worker holds of a fixed side: its blocks, and all of them in one piece."""
    return n * (K + padded(K, 64 // itemsize)) * itemsize


@task
def same(what: Any) -> Any:
    """What the client has."""
    return what
