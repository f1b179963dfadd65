"""What workers do: functions of blocks. They are imported there by name; nothing compiled travels."""

import copy
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from rgals.estimator import RGALS
from rgals.kernels import gram, rows
from rgals.kernels.row import FixedSide
from rgals.losses import Coefficients, Degrees, Loss
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.model.state import FittedState
from rgals.runtime.aligned import empty
from rgals.runtime.errors import NumericalError, hear
from rgals.runtime.threads import workers
from rgals.scoring import recommend_all
from rgals.solvers.als import weight_logs
from rgals.solvers.base import squared_lengths
from rgals.solvers.cpu import CPUBackend, Solve, coupling_shift, eigenbasis, fixed_side
from rgals.solvers.plan import Plan, fold_terms
from rgals.solvers.precision import check_underflow, warn_of_rounding
from rgals.solvers.readout import with_scale

_PATIENCE = 20.0  # seconds for another process to compile a function: none takes as long
_Task = TypeVar("_Task", bound=Callable[..., Any])
_lock = threading.Lock()


@cache
def _get_ready() -> None:
    """Of the processes of a machine one compiles, the others wait and find it in the cache."""
    from rgals.warm import compile_once

    folder = rows._run._cache.cache_path
    if folder is not None and os.access(folder, os.W_OK):
        compile_once(Path(folder) / "locks", _PATIENCE)


def task(function: _Task) -> _Task:
    """Decorate what runs on a worker: one thread, in BLAS too; other threads have other blocks."""

    @wraps(function)
    def alone(*args: Any) -> Any:
        with _lock:  # a second time would wait for the first
            _get_ready()
        with workers(1):
            return function(*args)

    return cast(_Task, alone)


@dataclass
class Block:
    """The rows of a block, planned, and what they weigh in the systems of the other side.

    What they need of the fixed side comes with its factors.
    """

    plan: Plan
    first: int  # number of its first row
    gram: np.ndarray  # as in `rgals.losses.base.Side`
    linear: np.ndarray
    terms: np.ndarray  # (n, 4), or (0, 4) where all of the side are alike
    constant: float  # what its users add to that of the objective

    def __sizeof__(self) -> int:
        """Bytes, by which the scheduler decides what moves where."""
        matrix = self.plan.matrix
        held = matrix.indptr.nbytes + matrix.indices.nbytes + matrix.values.nbytes
        return held + 192 * matrix.n_rows


@dataclass(frozen=True)
class Setting:
    """What defines the systems beside the data."""

    loss: Loss
    reg: float
    reg_exponent: float
    K: int
    dtype: np.dtype


def _own(which: str, c: Coefficients, first: int, n: int) -> Coefficients:
    """The coefficients of some users or items."""
    at = slice(first, first + n)
    if which == "users":
        return replace(c, g=c.g[at], t=c.t[at], user_terms=c.user_terms[at])
    return replace(c, h=c.h[at], item_terms=c.item_terms[at])


def _side(which: str, matrix: CSR, first: int, c: Coefficients, reg: float = 1.0, nu: float = 1.0) -> Side:
    own = _own(which, c, first, matrix.n_rows)
    return own.user_side(matrix, reg, nu) if which == "users" else own.item_side(matrix, reg, nu)


@task
def margins(matrix: CSR) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of the likes of every row."""
    likes = matrix.likes
    return likes.row_sums, likes.row_counts


@task
def degrees(users: list[Any], items: list[Any]) -> Degrees:
    """The margins of the whole matrix, from those of its blocks."""
    (user_sum, user_count), (item_sum, item_count) = (map(np.concatenate, zip(*s)) for s in (users, items))
    return Degrees(user_sum, item_sum, user_count, item_count)


@task
def logs(matrix: CSR, first: int, which: str, c: Coefficients) -> tuple[float, int]:
    """`weight_logs` of a block."""
    return weight_logs(matrix, _side(which, matrix, first, c))


@task
def prepare(matrix: CSR, first: int, which: str, c: Coefficients, setting: Setting) -> Block:
    """Plan the rows of a block."""
    side = _side(which, matrix, first, c, setting.reg, setting.reg_exponent)
    plan = Plan(matrix, side, setting.dtype, setting.K)
    plan.forget_columns()
    # And as the half-step of the other side sees them.
    other, n = ("items", len(c.g)) if which == "users" else ("users", len(c.h))
    fixed, at = _side(other, CSR.empty(0, n), 0, c), slice(first, first + matrix.n_rows)
    terms = fold_terms(fixed, setting.dtype)[1][at].copy()  # which holds no others
    own = _own(which, c, first, matrix.n_rows)
    constant = setting.loss.constant(matrix, own) if which == "users" else 0.0
    return Block(plan, first, fixed.gram_weight[at], fixed.linear_weight[at], terms, constant)


@task
def facts(block: Block) -> tuple[bool, float, float]:
    """Whether rows of the block have weights of their own; interaction; constant."""
    side = block.plan.side
    return bool(side.row_terms[:, :2].any()), side.interaction, block.constant


class Table(NamedTuple):
    """Factors of a block, and what its rows took from the objective."""

    array: np.ndarray  # (n, K)
    value: float = 0.0


@task
def draw(
    rng: np.random.Generator, n: int, scale: float, setting: Setting
) -> tuple[Table, np.random.Generator]:
    """Random factors of a block, and the generator that has drawn them."""
    rng, out = copy.deepcopy(rng), empty((n, setting.K), setting.dtype)
    rng.standard_normal(dtype=setting.dtype, out=out)
    out *= scale
    return Table(out), rng


class Sums(NamedTuple):
    """What the blocks of the side that is fixed next are added up by."""

    gramian: np.ndarray
    u: np.ndarray
    penalty: float
    value: float


@task
def add_up(factors: Table, block: Block) -> Sums:
    """The sums of a block."""
    table = factors.array
    u, penalty = gram.column_sums(table, block.gram, 1), squared_lengths(table, block.plan.side.ridge)
    return Sums(gram.gram(table, block.gram, 1), u, penalty, factors.value)


@task
def total(parts: list[Sums]) -> tuple[float, float]:
    """Penalty and value of a side, in the order of its blocks."""
    return sum(part.penalty for part in parts), sum(part.value for part in parts)


@dataclass(frozen=True)
class Kind:
    """What the half-steps of one side have in common."""

    interaction: float
    coupled: bool
    dtype: np.dtype
    rotate: bool = True


@task
def change(parts: list[Sums], kind: Kind) -> np.ndarray:
    """V, the basis of a half-step."""
    G: Any = sum(part.gramian for part in parts)
    u: Any = sum(part.u for part in parts)
    if not np.isfinite(G).all():
        raise NumericalError("the Gramian of the fixed side is not finite")
    alone = None if kind.coupled or not kind.interaction else u
    return eigenbasis(G, alone, kind.interaction)


class Turned(NamedTuple):
    """A block of the fixed side in the basis of a half-step."""

    array: np.ndarray
    sums: np.ndarray  # (3, K): of `gram.multiply`
    terms: np.ndarray
    value: float = 0.0  # as of a `Table`, which it takes the place of


@task
def turn(factors: Table, block: Block, to: np.ndarray) -> Turned:
    """Turn a block; workers take it from each other."""
    out = empty(factors.array.shape, factors.array.dtype)
    found = gram.multiply(factors.array, to.astype(out.dtype), out, 1, block.gram, block.linear)
    return Turned(out, np.stack(found), block.terms)


_last: tuple[str, Any] = ("", None)  # the fixed side that this process has put together last


def _whole(name: str, parts: list[Turned], kp: int, interaction: float) -> tuple[FixedSide, np.ndarray]:
    """The fixed side in one piece, once a process for all blocks of a half-step."""
    global _last
    with _lock:
        if _last[0] != name:
            _last = ("", None)
            n, k = sum(len(part.array) for part in parts), parts[0].array.shape[1]
            table = empty((n, kp), parts[0].array.dtype)
            np.concatenate([part.array for part in parts], out=table[:, :k])
            table[:, k:] = 0.0
            found: Any = sum(part.sums for part in parts)
            terms = np.concatenate([part.terms for part in parts])
            _last = name, (fixed_side(table, tuple(found), interaction, kp), terms)
        return _last[1]


async def forget() -> None:
    """Give back what this process has put together. Asynchronous: dask waits for others."""
    global _last
    with _lock:
        _last = ("", None)


def _solve(block: Block, name: str, parts: list[Turned], kind: Kind) -> Solve:
    plan, K = block.plan, parts[0].array.shape[1]
    fixed, terms = _whole(name, parts, plan.kp, 0.0 if kind.coupled else kind.interaction)
    out: Any = empty((plan.matrix.n_rows, K), kind.dtype)
    step = Solve(plan, cast(Any, None), out, 1, block.first)
    step.col_terms = terms
    step.rotated, step.d, step.s = fixed
    return step


@task
def couple(block: Block, name: str, parts: list[Turned], to: np.ndarray, kind: Kind) -> tuple:
    """The `Solve.coupling_sums` of a block, by which its rows are coupled with all others; the spectrum."""
    step = _solve(block, name, parts, kind)
    return *step.coupling_sums(), step.d


@task
def shift(parts: list[tuple], kind: Kind) -> np.ndarray:
    """What the coupling adds to the right-hand side of every row."""
    B, solutions, (d, *_) = zip(*parts, strict=True)
    return coupling_shift(sum(B), sum(solutions), kind.interaction, d)


@task
def solve(
    block: Block, name: str, parts: list[Turned], to: np.ndarray, kind: Kind, added: np.ndarray | None
) -> Table:
    """The factors of a block."""
    step = _solve(block, name, parts, kind)
    found, value = step.solve(added)
    if not kind.rotate:
        gram.multiply(found, to.T.astype(found.dtype), found, 1)
    return Table(found, value)


@task
def judge(
    block: Block, solved: Table, which: str, c: Coefficients, setting: Setting, fixed: list[Table]
) -> list[str]:
    """Warnings of a block's factors: see `rgals.solvers.precision`."""
    matrix, array, table = block.plan.matrix, solved.array, np.concatenate([part.array for part in fixed])
    side, what = _side(which, matrix, block.first, c, setting.reg, setting.reg_exponent), which[:-1]
    numbers = np.arange(block.first, block.first + matrix.n_rows)
    with hear() as said:
        check_underflow(matrix, array, side, what, block.first)
        known = array if which == "users" else None
        warn_of_rounding(matrix, known, table, side, CPUBackend(1), what, numbers)
    return said


@task
def item_table(parts: list[Table], scale: np.ndarray | None) -> np.ndarray:
    """The factors of all items, as they score."""
    return with_scale(np.concatenate([part.array for part in parts]), scale)


@task
def write_lists(
    path: str,
    users: Table,
    seen: CSR,
    span: tuple[int, int],
    items: np.ndarray,
    user_ids: np.ndarray | None,
    item_ids: np.ndarray | None,
    filters: dict,
) -> tuple[int, int, int]:
    """Write the lists of a block's users: users, users served, rows."""
    model, names = RGALS(n_jobs=1), np.arange(*span) if user_ids is None else user_ids[slice(*span)]
    model._snapshot = FittedState(users.array, items, seen, names, item_ids)
    with hear():  # users without lists are counted
        written = recommend_all(model, path, resume=False, **filters)
    return written.users, written.served, written.rows
