"""What a fitted model is, in lines for people."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from rgals.matrix.csr import CSR
from rgals.model.state import FittedState, Snapshot
from rgals.runtime.memory import readable
from rgals.runtime.version import __version__
from rgals.solvers.plan import Plan


class Info(dict):
    """Figures by name, which print as a table.

    Examples
    --------
    >>> Info(items="5", factors="2")
    items    5
    factors  2
    """

    def __repr__(self) -> str:
        """One line a figure."""
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {value}" for name, value in self.items())


def describe(name: str, state: Snapshot) -> Info:
    """What a fit found: data, factors, how it went, and how the rows of ALS were solved."""
    seen, record = state.seen, state.record
    n_users, n_items = len(state.user_factors), len(state.item_factors)
    found = Info(model=name, data=f"{n_users:,} users x {n_items:,} items")
    if seen is not None:
        found["data"] += f", {seen.nnz:,} interactions" + ("" if seen.is_binary else " with values")
    size = state.user_factors.nbytes + state.item_factors.nbytes
    found["factors"] = f"K={state.user_factors.shape[1]}, {state.user_factors.dtype}, {readable(size)}"
    if record.history:
        last = record.history[-1]
        found["fit"] = (
            f"{record.n_iter} iterations in {last['seconds']:.3g} s, objective {last['objective']:.6g}"
        )
    if isinstance(state, FittedState) and seen is not None:
        found["solver"] = record.solver
        found |= _plans(state, seen)
    found["versions"] = f"rgals {__version__}, numba {numba.__version__}, numpy {np.__version__}"
    found["fingerprint"] = state.fingerprint
    return found


def _plans(state: FittedState, seen: CSR) -> dict[str, Any]:
    """How the rows of both sides are solved exactly."""
    seen = state.weighting.rows(seen)
    coefficients, items = state.loss.coefficients_for(state.degrees), seen.transpose()
    dtype, K = state.user_factors.dtype, state.user_factors.shape[1]
    users_side = coefficients.user_side(seen, state.reg, state.reg_exponent)
    items_side = coefficients.item_side(items, state.reg, state.reg_exponent)
    return {"users": str(Plan(seen, users_side, dtype, K)), "items": str(Plan(items, items_side, dtype, K))}
