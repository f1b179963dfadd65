"""The tasks of a fit: functions of blocks, which workers import by name, so that no code is pickled."""

import copy
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, cast

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

_PATIENCE = 20.0  # seconds to wait for another process to compile a function: none takes as long
_lock = threading.Lock()


@cache
def _get_ready() -> None:
    """Let one process of a machine compile each kernel, while the others wait and load it from the cache."""
    from rgals.warm import compile_once

    folder = rows._run._cache.cache_path
    if folder is not None and os.access(folder, os.W_OK):
        compile_once(Path(folder) / "locks", _PATIENCE)


def task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a task: one thread, BLAS included, as the other threads of a worker have other blocks."""

    @wraps(function)
    def on_one_thread(*args: Any) -> Any:
        with _lock:  # `cache` alone would let several threads get ready at once
            _get_ready()
        with workers(1):
            return function(*args)

    return on_one_thread


@dataclass
class Block:
    """The rows of a block with their plan, and their coefficients in the half-step of the other side."""

    # The coefficients of the fixed side come with its factors: see `Turned`.

    plan: Plan
    first: int  # number of the first row in the whole matrix
    gram: np.ndarray  # (n,): `rgals.losses.base.Side.gram_weight` of these rows as columns of the other side
    linear: np.ndarray  # (n,): likewise its ``linear_weight``
    terms: np.ndarray  # (n, 4): likewise its ``col_terms``; (0, 4) if they are the same for all columns
    constant: float  # share of the users of the block in the constant of the objective
    weighted: bool  # whether its interactions have weights of their own

    def __sizeof__(self) -> int:
        """Bytes, by which the scheduler weighs what to send where."""
        matrix = self.plan.matrix
        held = matrix.indptr.nbytes + matrix.indices.nbytes + matrix.values.nbytes
        return held + 192 * matrix.n_rows


@dataclass(frozen=True)
class Setting:
    """What defines the systems of a fit besides the data."""

    loss: Loss
    reg: float
    reg_exponent: float
    K: int
    dtype: np.dtype


def _own(which: str, c: Coefficients, first: int, n: int) -> Coefficients:
    """The coefficients of ``n`` users or items from ``first`` on."""
    at = slice(first, first + n)
    if which == "users":
        return replace(c, g=c.g[at], t=c.t[at], user_terms=c.user_terms[at])
    return replace(c, h=c.h[at], item_terms=c.item_terms[at])


def _side(which: str, matrix: CSR, first: int, c: Coefficients, reg: float = 1.0, nu: float = 1.0) -> Side:
    own = _own(which, c, first, matrix.n_rows)
    return own.user_side(matrix, reg, nu) if which == "users" else own.item_side(matrix, reg, nu)


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
    # In the half-step of the other side these rows are columns.
    other, n = ("items", len(c.g)) if which == "users" else ("users", len(c.h))
    fixed, at = _side(other, CSR.empty(0, n), 0, c), slice(first, first + matrix.n_rows)
    terms = fold_terms(fixed, setting.dtype)[1][at].copy()  # a view would keep the terms of all rows
    own = _own(which, c, first, matrix.n_rows)
    constant = setting.loss.constant(matrix, own) if which == "users" else 0.0
    weighted = bool(side.row_terms[:, :2].any())
    return Block(plan, first, fixed.gram_weight[at], fixed.linear_weight[at], terms, constant, weighted)


class Table(NamedTuple):
    """Factors of a block."""

    array: np.ndarray  # (n, K)
    value: float = 0.0  # decrease of the objective by its rows: `rgals.solvers.base.HalfStep.decrease`


@task
def draw(
    rng: np.random.Generator, n: int, scale: float, setting: Setting
) -> tuple[Table, np.random.Generator]:
    """Random factors of a block, and the generator as it is after them, for the next block."""
    rng, out = copy.deepcopy(rng), empty((n, setting.K), setting.dtype)
    rng.standard_normal(dtype=setting.dtype, out=out)
    out *= scale
    return Table(out), rng


class Sums(NamedTuple):
    """Sums over the rows of a block that the next half-step, in which they are fixed, takes."""

    gramian: np.ndarray  # (K, K): of the factors, weighted by `Block.gram`
    u: np.ndarray  # (K,): sum of the factors, weighted by `Block.gram`
    penalty: float  # ``sum_r ridge_r |f_r|^2``
    value: float  # as of a `Table`


@task
def add_up(factors: Table, block: Block) -> Sums:
    """The sums of a block."""
    table = factors.array
    u, penalty = gram.column_sums(table, block.gram, 1), squared_lengths(table, block.plan.side.ridge)
    return Sums(gram.gram(table, block.gram, 1), u, penalty, factors.value)


@task
def total(parts: list[Sums]) -> tuple[float, float]:
    """Penalty and value of a side, added in the order of its blocks."""
    return sum(part.penalty for part in parts), sum(part.value for part in parts)


@task
def change(parts: list[Sums], interaction: float) -> np.ndarray:
    """V (K, K), the basis of a half-step; ``interaction``: 0 if it couples the rows."""
    G: Any = sum(part.gramian for part in parts)
    u: Any = sum(part.u for part in parts)
    if not np.isfinite(G).all():
        raise NumericalError("the Gramian of the fixed side is not finite")
    return eigenbasis(G, u if interaction else None, interaction)


class Turned(NamedTuple):
    """A block of the fixed side in the basis of a half-step."""

    array: np.ndarray  # (n, K)
    sums: np.ndarray  # (3, K): of `gram.multiply`
    terms: np.ndarray  # `Block.terms`
    value: float = 0.0  # as of a `Table`: the turned factors replace the side's tables


@task
def turn(factors: Table, block: Block, to: np.ndarray) -> Turned:
    """Turn a block; workers send it to each other."""
    out = empty(factors.array.shape, factors.array.dtype)
    found = gram.multiply(factors.array, to.astype(out.dtype), out, 1, block.gram, block.linear)
    return Turned(out, np.stack(found), block.terms)


#: The fixed side that this process has concatenated last, and the name of its half-step.
_whole_side: tuple[str, Any] = ("", None)


def _whole(name: str, parts: list[Turned], kp: int, interaction: float) -> tuple[FixedSide, np.ndarray]:
    """The fixed side in one piece, concatenated once for all blocks of a half-step in this process."""
    global _whole_side
    with _lock:
        if _whole_side[0] != name:
            _whole_side = ("", None)  # frees the last one first
            n, k = sum(len(part.array) for part in parts), parts[0].array.shape[1]
            table = empty((n, kp), parts[0].array.dtype)
            np.concatenate([part.array for part in parts], out=table[:, :k])
            table[:, k:] = 0.0
            found: Any = sum(part.sums for part in parts)
            terms = np.concatenate([part.terms for part in parts])
            _whole_side = name, (fixed_side(table, tuple(found), interaction, kp), terms)
        return _whole_side[1]


async def forget() -> None:
    """Free the concatenated side. A coroutine: `Client.run` with ``wait=False`` takes no other function."""
    global _whole_side
    with _lock:
        _whole_side = ("", None)


def _solve(block: Block, name: str, parts: list[Turned]) -> Solve:
    plan, side, array = block.plan, block.plan.side, parts[0].array
    fixed, terms = _whole(name, parts, plan.kp, 0.0 if side.coupled else side.interaction)
    out = empty((plan.matrix.n_rows, array.shape[1]), array.dtype)
    step = Solve(plan, cast(Any, None), out, 1, block.first)
    step.col_terms = terms
    step.rotated, step.d, step.s = fixed
    return step


@task
def couple(block: Block, name: str, parts: list[Turned]) -> tuple:
    """The `Solve.coupling_sums` of a block, which couple its rows with all others; the spectrum of G."""
    step = _solve(block, name, parts)
    return *step.coupling_sums(), step.d


@task
def shift(parts: list[tuple], interaction: float) -> np.ndarray:
    """The vector that the coupling adds to the right-hand side of every row."""
    B, solutions, (d, *_) = zip(*parts, strict=True)
    return coupling_shift(sum(B), sum(solutions), interaction, d)


@task
def solve(
    block: Block, name: str, parts: list[Turned], added: np.ndarray | None, basis: np.ndarray, rotate: bool
) -> Table:
    """The new factors of a block, which stay in the basis of the half-step if ``rotate``."""
    found, value = _solve(block, name, parts).solve(added)
    if not rotate:
        gram.multiply(found, basis.T.astype(found.dtype), found, 1)
    return Table(found, value)


@task
def judge(
    block: Block, solved: Table, which: str, c: Coefficients, setting: Setting, fixed: list[Table]
) -> list[str]:
    """Warnings about the precision of a block's factors: see `rgals.solvers.precision`."""
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
    """The factors of all items, scaled for scoring."""
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
    """Write the lists of a block's users; the numbers of users, of users with a list, and of rows."""
    model, names = RGALS(n_jobs=1), np.arange(*span) if user_ids is None else user_ids[slice(*span)]
    model._snapshot = FittedState(users.array, items, seen, names, item_ids)
    with hear():  # users without a list are counted instead of warned of
        written = recommend_all(model, path, resume=False, **filters)
    return written.users, written.served, written.rows
