"""The choice of the solver and of the device."""

from typing import Any

from rgals.solvers.base import Backend
from rgals.solvers.cpu import CPUBackend
from rgals.solvers.cuda import is_cuda
from rgals.solvers.dense import DenseBackend


def exact_backend(model: Any, steps: int | None = None) -> Backend:
    """The backend of the model's device; it solves rows exactly, or by ``steps`` CG steps."""
    if not is_cuda(model.device):
        return CPUBackend(model.n_jobs, steps)
    from rgals.solvers.cuda.backend import CuPyBackend

    return CuPyBackend(model.device)


def choose_solver(model: Any, coefficients: Any) -> tuple[Backend, str]:
    """The backend of a fit and the name of its solver."""
    if model.solver == "dense":
        return DenseBackend(), "dense"
    # "shared": without weights on positives all rows share one matrix, up to their scale and ridge.
    weighted = coefficients.user_terms[:, :2].any() and coefficients.item_terms[:, :2].any()
    name = model.solver if model.solver in ("pcg", "svd") else "exact" if weighted else "shared"
    return exact_backend(model, model.pcg_steps if name == "pcg" else None), name
