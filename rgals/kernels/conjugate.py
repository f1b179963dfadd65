"""The steps of conjugate gradients between two products: a pass over whole vectors each."""

from __future__ import annotations

from rgals.kernels.compile import inner
from rgals.kernels.emitter import kernel, over_blocks


@kernel("ppppi")
def _start(e, x, copy, row, inv_root, n_blocks):
    def step(here):
        value = e.builder.fdiv(e.load(here(row)), e.load(here(inv_root)))
        e.store(value, here(x))
        e.store(value, here(copy))

    over_blocks(e, n_blocks, step)


@inner
def start(x, copy, row, at, inv_root, n_blocks):
    """``x = copy = row / inv_root``: the current factors in the scaled system."""
    _start(x, 0, copy, 0, row, at, inv_root, 0, n_blocks)


@kernel("pppppi")
def _residual(e, out, r, p, b, ap, n_blocks):
    squares, right = e.variables(2)

    def step(here):
        value = e.load(here(b))
        rest = e.builder.fsub(value, e.load(here(ap)))
        e.store(rest, here(r))
        e.store(e.zero(), here(p))
        for slot, vector in ((squares, rest), (right, value)):
            e.builder.store(e.fma(vector, vector, e.builder.load(slot)), slot)

    over_blocks(e, n_blocks, step)
    for i, slot in enumerate((squares, right)):
        e.builder.store(e.total(e.builder.load(slot)), e.at(out, i), align=e.align)


@inner
def residual(out, r, p, b, ap, n_blocks):
    """``r = b - ap``, ``p = 0``, ``out = (r . r, b . b)``."""
    _residual(out, 0, r, 0, p, 0, b, 0, ap, 0, n_blocks)


@kernel("pppri")
def _turn(e, p, copy, r, beta, n_blocks):
    def step(here):
        direction = e.fma(e.spread(beta), e.load(here(p)), e.load(here(r)))
        e.store(direction, here(p))
        e.store(direction, here(copy))

    over_blocks(e, n_blocks, step)


@inner
def turn(p, copy, r, beta, n_blocks):
    """``p = copy = r + beta p``: the next direction."""
    _turn(p, 0, copy, 0, r, 0, beta, n_blocks)


@kernel("pppppri")
def _move(e, out, x, r, p, ap, alpha, n_blocks):
    (acc,) = e.variables(1)

    def step(here):
        e.store(e.fma(e.spread(alpha), e.load(here(p)), e.load(here(x))), here(x))
        rest = e.fma(e.neg(e.spread(alpha)), e.load(here(ap)), e.load(here(r)))
        e.store(rest, here(r))
        e.builder.store(e.fma(rest, rest, e.builder.load(acc)), acc)

    over_blocks(e, n_blocks, step)
    e.builder.store(e.total(e.builder.load(acc)), out, align=e.align)


@inner
def move(out, x, r, p, ap, alpha, n_blocks):
    """``x += alpha p``, ``r -= alpha ap``, ``out = r . r``."""
    _move(out, 0, x, 0, r, 0, p, 0, ap, 0, alpha, n_blocks)


@kernel("ppppppi")
def _finish(e, out, row, x, b, r, inv_root, n_blocks):
    (acc,) = e.variables(1)

    def step(here):
        solution = e.load(here(x))
        e.store(e.builder.fmul(solution, e.load(here(inv_root))), here(row))
        both = e.builder.fadd(e.load(here(b)), e.load(here(r)))
        e.builder.store(e.fma(solution, both, e.builder.load(acc)), acc)

    over_blocks(e, n_blocks, step)
    e.builder.store(e.total(e.builder.load(acc)), out, align=e.align)


@inner
def finish(out, row, at, x, b, r, inv_root, n_blocks):
    """``row = x inv_root``, ``out = (b + r) . x``."""
    _finish(out, 0, row, at, x, 0, b, 0, r, 0, inv_root, 0, n_blocks)
