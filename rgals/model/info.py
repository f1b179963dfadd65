"""What a fitted model is, in lines for people."""

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import numba
import numpy as np

from rgals.losses.base import AUTO
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


def describe(kind: type, state: Snapshot) -> Info:
    """What a fit found: data, parameters, how it went, how the rows of ALS were solved, and what it takes."""
    seen, record = state.seen, state.record
    n_users, n_items = len(state.user_factors), len(state.item_factors)
    found = Info(model=kind.__name__, data=f"{n_users:,} users x {n_items:,} items")
    if seen is not None:
        found["data"] += f", {seen.nnz:,} interactions" + ("" if seen.is_binary else " with values")
        ids = [what for what in ("user", "item") if getattr(state, f"{what}_ids") is not None]
        found["data"] += f", ids of {' and '.join(f'{what}s' for what in ids)}" if ids else ""
    params = _parameters(kind, state)
    found["parameters"] = ", ".join(f"{name}={_shown(value)}" for name, value in params.items())
    arrays = [state.user_factors, state.item_factors]
    if all(isinstance(factors, np.ndarray) for factors in arrays):
        size = sum(factors.nbytes for factors in arrays)
        found["factors"] = f"K={state.user_factors.shape[1]}, {state.user_factors.dtype}, {readable(size)}"
    if record.history:
        last = record.history[-1]
        found["fit"] = f"{record.n_iter} iterations in {last['seconds']:.3g} s"
        found["fit"] += f", objective {last['objective']:.6g}"
    if record.merged and seen is not None:
        share = record.merged / max(seen.nnz, 1)
        found["updates"] = f"{record.merged:,} interactions since the fit ({100 * share:.2g} % of all)"
    if isinstance(state, FittedState) and seen is not None:
        found["solver"] = record.solver
        found |= _plans(state, seen)
    found["memory"] = readable(_bytes(state))
    found["versions"] = f"rgals {__version__}, numba {numba.__version__}, numpy {np.__version__}"
    found["fingerprint"] = state.fingerprint
    return found


def _parameters(kind: type, state: Snapshot) -> dict[str, Any]:
    """The parameters that were set, and what was taken in place of "auto"."""
    record = state.record
    taken = record.history[0] if record.history else {}
    own: dict[str, Any] = {"values": state.weighting.kind}
    if isinstance(state, FittedState):
        own |= {"loss": state.loss, "reg": state.reg}
    default = {name: one.default for name, one in inspect.signature(kind).parameters.items()}
    elsewhere = {"K", "dtype", "n_iter", "n_jobs", "verbose", "random_state"}
    params = {}
    for name, value in record.params.items():
        now = own.get(name, taken.get(name, value) if value == AUTO else value)
        if name not in elsewhere and (name in own or repr(now) != repr(default.get(name))):
            params[name] = now
    return params


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else " ".join(repr(value).split())


def _bytes(value: Any) -> int:
    """Memory of the arrays that something holds; of labels that are objects, their table alone."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if not is_dataclass(value):
        return 0
    return sum(_bytes(getattr(value, part.name)) for part in fields(value))


def _plans(state: FittedState, seen: CSR) -> dict[str, Any]:
    """How the rows of both sides are solved exactly."""
    seen = state.weighting.rows(seen)
    coefficients, items = state.loss.coefficients_for(state.degrees), seen.transpose()
    dtype, K = state.user_factors.dtype, state.user_factors.shape[1]
    users_side = coefficients.user_side(seen, state.reg, state.reg_exponent)
    items_side = coefficients.item_side(items, state.reg, state.reg_exponent)
    return {"users": str(Plan(seen, users_side, dtype, K)), "items": str(Plan(items, items_side, dtype, K))}
