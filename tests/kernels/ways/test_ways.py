"""The ways to solve a row are found, and told apart by their kinds."""

from rgals.kernels.row import DUAL, FACTORED, PRIMAL
from rgals.kernels.ways import WAYS
from rgals.kernels.ways.cg import CG


def test_every_way_has_a_kind_of_its_own():
    kinds = [way.kind for way in WAYS]
    assert kinds[:3] == [DUAL, PRIMAL, CG]
    flags = [kind for kind in kinds if kind > FACTORED]
    assert sum(flags) == sum(set(flags))
    assert all(kind & (kind - 1) == 0 and kind < 128 for kind in flags), "a bit each, of int8"
    assert len({way.name for way in WAYS}) == len(WAYS)
