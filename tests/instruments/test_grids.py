"""What `make test` leaves out of a grid: nothing that meets in no other test."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace

import pytest
from instruments.grids import all_pairs, left_out


@pytest.mark.parametrize("sizes", [(4, 3, 2), (16, 2, 2, 4), (5, 5), (3, 3, 3, 3, 3)])
def test_every_two_values_meet(sizes):
    names = "abcde"[: len(sizes)]
    rows = [dict(zip(names, map(str, row), strict=True)) for row in product(*map(range, sizes))]
    chosen = [rows[k] for k in all_pairs(rows)]
    for (one, n), (other, m) in combinations(zip(names, sizes, strict=True), 2):
        assert {(row[one], row[other]) for row in chosen} == {
            (str(i), str(j)) for i, j in product(range(n), range(m))
        }
    largest = sorted(sizes)[-2:]
    assert len(chosen) <= 2 * largest[0] * largest[1]
    assert len(chosen) < len(rows) or len(sizes) == 2


def test_rows_of_a_list_are_all_kept():
    rows = [{"a,b,c": str(k), "dtype": kind} for k, kind in product(range(9), ("f4", "f8"))]
    assert all_pairs(rows) == list(range(18))


def item(marks, few=None, **params):
    """What pytest collects, as far as it is looked at."""
    name = "tests/test_x.py::test_y[" + "-".join(map(str, params.values())) + "]"
    found = {"parametrize": [SimpleNamespace(args=(names,)) for names in marks]}
    found["few"] = [] if few is None else [SimpleNamespace(args=(few,))]
    spec = SimpleNamespace(params=params)
    return SimpleNamespace(nodeid=name, callspec=spec, iter_markers=found.get)


def test_products_are_thinned_out_and_lists_are_not():
    product_ = [item(["a", "b", "c"], a=a, b=b, c=c) for a, b, c in product(range(4), range(3), range(2))]
    gone = left_out(product_)
    assert 0 < len(gone) <= 12 and all(one in product_ for one in gone)
    assert left_out([item(["a,b,c"], a=k % 2, b=k % 3, c=k % 5) for k in range(30)]) == []
    assert left_out([item(["a"], a=k) for k in range(30)]) == []
    assert left_out(product_[:6]) == []


@pytest.mark.parametrize(
    ("n", "kept"), [(0, []), (1, [0]), (2, [0, 29]), (4, [0, 9, 19, 29]), (40, range(30))]
)
def test_of_some_only_a_few_are_run(n, kept):
    grid = [item(["a"], few=n, a=k) for k in range(30)]
    gone = left_out(grid)
    assert [k for k, one in enumerate(grid) if one not in gone] == list(kept)
