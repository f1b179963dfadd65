"""The plan of a side: every row has one way, found from the row alone; what it says of itself."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import LOSSES, factors, rows_of_lengths
from numba import njit

from rgals.kernels.row import DIAGONAL, DUAL, EMPTY, FACTORED, PRIMAL, make_scratch
from rgals.kernels.ways.cg import CG
from rgals.losses import IALS, Coefficients, Degrees, Loss
from rgals.matrix.validate import as_csr
from rgals.solvers import plan
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.footprint import Footprint
from rgals.solvers.plan import Plan

FLOAT32 = np.dtype(np.float32)


def kinds(rows, K=64, dtype=FLOAT32, of=None):
    """Kinds of rows that are given as (n, zero weights, negative ones, heaviest weight, linear, scale)."""
    n, n_zero, n_negative, heaviest, linear, scale = map(np.array, zip(*rows, strict=True))
    side = SimpleNamespace(linear=linear, scale=scale, paired=False)
    found = plan.classify((n, n_zero, n_negative, heaviest), side, K, dtype, of or plan.CPU[dtype])
    return found.tolist()


def test_the_kinds_of_rows():
    one = (1.0, 0.5, 1.0)  # heaviest weight, linear, scale: a condition of 2
    assert kinds([(0, 0, 0, 0.0, 0.0, 1.0)]) == [EMPTY]
    assert kinds([(0, 0, 0, *one), (9, 9, 0, 0.0, 0.0, 1.0)]) == [DIAGONAL, DIAGONAL]
    assert kinds([(1, 0, 0, *one), (31, 5, 0, *one)]) == [DUAL, DUAL]
    assert kinds([(32, 0, 0, *one), (48, 0, 0, *one), (49, 0, 0, *one)]) == [
        CG | DUAL,
        CG | DUAL,
        CG | PRIMAL,
    ]
    assert kinds([(5, 0, 1, *one), (40, 0, 1, *one)]) == [PRIMAL, PRIMAL], "a negative weight has no dual"
    hard = (1e6, 0.5, 1.0)
    assert kinds([(40, 0, 0, *hard), (500, 0, 0, *hard)]) == [DUAL, PRIMAL], "too many steps"
    assert kinds([(500, 0, 0, 1.0, 0.5, 0.0)]) == [PRIMAL], "no weight on all pairs"
    assert kinds([(40, 0, 0, *one)], K=48) == [PRIMAL]


def test_wide_rows_that_leave_the_cache_are_iterated_only_with_many_factors():
    most = plan.packed_max_length(64, 4)
    easy = (1.0, 0.5, 1.0)
    assert kinds([(most, 0, 0, *easy), (most + 1, 0, 0, *easy)]) == [CG | PRIMAL, PRIMAL]
    most = plan.packed_max_length(256, 4)
    assert kinds([(most + 1, 0, 0, *easy)], K=256) == [CG | PRIMAL]


def test_a_device_has_its_own_kinds():
    easy = (1.0, 0.5, 1.0)
    rows = [
        (0, 0, 0, 0.0, 0.0, 1.0),
        (60, 60, 0, *easy),
        (60, 0, 0, *easy),
        (61, 0, 0, *easy),
        (3, 0, 3, *easy),
    ]
    assert kinds(rows, K=60, of=plan.GPU) == [EMPTY, DIAGONAL, DUAL, PRIMAL, PRIMAL]


class SomeWeights(Loss):
    """Every third row has no weights of its own, the last column none at all."""

    name = "SomeWeights"

    def coefficients(self, degrees):
        users, items = len(degrees.user_sum), len(degrees.item_sum)
        user = np.tile([0.7, 0.1, 0.9, 0.1], (users, 1))
        user[::3, :2] = 0.0
        item = np.ones((items, 4))
        item[-1, :2] = 0.0
        return Coefficients(
            g=np.full(users, 0.3), h=np.ones(items), t=np.full(users, -0.2), user_terms=user, item_terms=item
        )


LENGTHS = [0, 1, 5, 31, 32, 33, 40, 45, 48, 49, 64, 65, 130, 300, 0, 7]
ALL = {**LOSSES, "some-weights": SomeWeights()}


def side_of(name, valued=True, K=64, dtype=np.float32, which="user"):
    matrix = as_csr(rows_of_lengths(LENGTHS, 400, valued), dtype=dtype)
    coefficients = ALL[name].coefficients(Degrees.of(matrix))
    if which == "user":
        return matrix, coefficients.user_side(matrix, 0.03, 0.9)
    matrix = matrix.transpose()
    return matrix, coefficients.item_side(matrix, 0.03, 0.9)


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("which", ["user", "item"])
@pytest.mark.parametrize("name", ALL)
def test_every_row_is_solved_once(name, which, steps):
    matrix, side = side_of(name, which=which)
    made = Plan(matrix, side, FLOAT32, 64, steps)
    parts = [made.empty, made.diagonal, made.exact, made.iterated]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(matrix.n_rows))
    (block,), ((*_, coupled),) = made.blocks(), made.coupled_blocks()
    works = {"diagonal": block.diagonal, "exact": block.exact, "iterated": block.iterated, "coupled": coupled}
    for which, work in works.items():
        np.testing.assert_array_equal(np.sort(work.order), np.sort(getattr(made, which)))
        assert work.bounds[0] == 0 and work.bounds[-1] == len(work.order)
        assert (np.diff(work.bounds) >= 0).all()
    for order in (made.exact, made.iterated):
        assert (np.diff(matrix.row_counts[order]) <= 0).all(), "the most expensive first"
    assert (made.kind[made.exact] & FACTORED >= DUAL).all()
    numbers = re.findall(r"(?:^|, )([\d,]+) (?:rows )?(?:by|dual|primal|diagonal|empty)", str(made))
    assert sum(int(number.replace(",", "")) for number in numbers) == matrix.n_rows


def test_what_a_plan_says_of_itself():
    matrix = as_csr(rows_of_lengths([40] * 12 + [3, 5, 0], 400), dtype=np.float32)
    side = IALS(4.0).coefficients(Degrees.of(matrix)).user_side(matrix, 0.03, 0.9)
    # The condition is at most 1 + 1 / 4: 1.5 + 4.3 log10(1.25) = 1.9 steps.
    assert str(Plan(matrix, side, FLOAT32, 64)) == "12 rows by CG (2 steps), 2 dual, 1 empty"
    assert str(Plan(matrix, side, FLOAT32, 64, 2)) == "14 rows by 2 CG steps, 1 empty"


@pytest.mark.parametrize("name", ["rg2", "ials", "rg2-signed", "wrmf-exponents", "some-weights"])
def test_a_row_alone_has_the_kind_and_the_bits_that_it_has_among_others(name):
    matrix, side = side_of(name)
    fixed = factors(matrix.n_cols, 64, np.float32)
    whole = CPUBackend(1).half_step(matrix, fixed, side).factors
    made = Plan(matrix, side, FLOAT32, 64)
    for row in range(matrix.n_rows):
        alone = matrix.take_rows(np.array([row]))
        rows = {
            name: getattr(side, name)[row : row + 1] for name in ("scale", "linear", "ridge", "row_terms")
        }
        own = type(side)(**{**vars(side), **rows})
        assert Plan(alone, own, FLOAT32, 64).kind[0] == made.kind[row]
        np.testing.assert_array_equal(CPUBackend(1).half_step(alone, fixed, own).factors[0], whole[row])


def test_long_work_is_cut_into_launches(monkeypatch):
    matrix, side = side_of("ials")
    made = Plan(matrix, side, FLOAT32, 64)
    (block,) = made.blocks()
    assert [len(work.order) for work in made.launches(block, block.exact)] == [len(made.exact)]
    monkeypatch.setattr(plan, "LAUNCH_COST", 1 << 18)
    cut = made.launches(block, block.exact)
    assert len(cut) > 2
    np.testing.assert_array_equal(np.concatenate([work.order for work in cut]), made.exact)


scratch_of = njit(lambda *args: make_scratch(*args))


@pytest.mark.parametrize(("K", "longest"), [(16, 50), (64, 3000), (256, 100_000), (1000, 400)])
def test_the_memory_of_a_thread_is_what_is_predicted(K, longest):
    kp = plan.padded(K, 16)
    scratch = scratch_of(kp, plan.room_of(kp, 4, longest), True, np.empty(kp, np.float32))
    one, two = (Footprint((9000, 9000), 1000, K, 4, threads=n, longest=longest).peak() for n in (1, 2))
    assert sum(array.nbytes for array in scratch) < two - one + (1 << 16)
