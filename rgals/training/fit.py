"""The parts of an ALS fit: its parameters checked, its memory, what a checkpoint keeps of it."""

from typing import Any

import numpy as np

from rgals.files.archive import ArraySpec
from rgals.losses import AUTO, Loss, get_loss
from rgals.losses.base import Priors
from rgals.matrix.csr import CSR
from rgals.matrix.mapped import BLOCK, StoredCSR
from rgals.model.state import check_readout
from rgals.runtime import memory as _memory
from rgals.runtime.checks import check_choice, check_int, check_real, or_auto
from rgals.runtime.errors import ParameterError
from rgals.runtime.threads import n_threads
from rgals.solvers import closed_form, spectral
from rgals.solvers.als import ALS, Problem
from rgals.solvers.cuda import check_factors, is_cuda
from rgals.solvers.hard_negatives import read_hard_negatives, scratch_bytes
from rgals.solvers.prior import Prior
from rgals.training.checkpoint import checkpoint_spec, describe, plain
from rgals.training.data import admit, dtype_name
from rgals.training.start import CLOSED_FORM, INITS, RANDOM, SPECTRAL, WARM, choose_init

# What takes the place of a parameter that a matrix on its disk does not go with.
_INSTEAD = {"solver": "set solver='auto'", "device": "set device='cpu'", "init": "set init='random'"}
_INSTEAD |= {"hard_negatives": "leave them None"}
SOLVERS = ("auto", "exact", "pcg", "svd", "dense")
# Parameters that a checkpoint must share with the fit that goes on from it.
_DECISIVE = ("K", "values", "reg", "reg_exponent", "init_scale", "tol")
_BASIS = ArraySpec(("f8",), ("K", "K"), required=False)
CHECKPOINT = checkpoint_spec("rgals-checkpoint", ALS.outcome, {"user_basis": _BASIS, "item_basis": _BASIS})


def check_parameters(model: Any, checkpoint: Any) -> np.dtype:
    """Check every parameter of an `RGALS`; its dtype."""
    check_int("K", model.K, 1, 1 << 15)
    check_real("reg_exponent", model.reg_exponent, -4.0, 4.0)
    check_readout(model.readout_exponent)
    or_auto(check_real, "reg", model.reg, 0.0)
    check_choice("solver", model.solver, SOLVERS)
    check_choice("dtype", dtype_name(model.dtype), ("float32", "float64"))
    check_device(model)
    check_real("tol", model.tol, 0.0)
    for name in ("patience", "pcg_steps"):
        check_int(name, getattr(model, name), 1)
    or_auto(check_int, "n_iter", model.n_iter, 1)
    check_choice("init", model.init, INITS)
    if model.validation_users is not None:
        check_int("validation_users", model.validation_users, 1)
    if model.init_scale is not None:
        check_real("init_scale", model.init_scale, 0.0, open_min=True)
        if model.init == "spectral":
            raise ParameterError("init_scale", model.init_scale, "it scales init='random'; leave it None")
    check_hard_negatives(model)
    or_auto(check_real, "feature_reg", model.feature_reg, 0.0, open_min=True)
    loss = get_loss(model.loss)
    if model.solver == "svd":
        closed_form.check_closed_form(loss, model.reg_exponent)
        if model.init != AUTO:
            raise ParameterError("init", model.init, "solver='svd' starts from nothing; leave it 'auto'")
        if checkpoint is not None:
            raise ParameterError("checkpoint", checkpoint, "solver='svd' has no iterations to write down")
    return np.dtype(dtype_name(model.dtype))


def check_hard_negatives(model: Any) -> None:
    """Check ``hard_negatives``, and that the other parameters go with them."""
    hard = read_hard_negatives(model.hard_negatives)
    if hard is None:
        return
    if model.solver == "svd":
        why = "solver='svd' has no iterations to draw them in"
    elif get_loss(model.loss).dislikes:
        why = "they go with no dislikes"
    elif is_cuda(model.device):
        why = "they are drawn on device='cpu' only"
    elif model.tol > 0:
        why = f"their objective may rise when they are drawn anew, so that tol={model.tol:g} says nothing"
    elif model.n_iter != AUTO and model.n_iter <= hard.warmup:
        why = f"n_iter={model.n_iter} leaves no iteration after the {hard.warmup} of warmup"
    else:
        return
    raise ParameterError("hard_negatives", model.hard_negatives, f"{why}; leave them None")


def check_device(model: Any) -> None:
    """Check ``device``, and that it takes the other parameters."""
    if not is_cuda(model.device):
        check_choice("device", model.device, ("cpu", "cuda", "cuda:N"))
        if model.device != "cpu":
            raise ParameterError("device", model.device, "N stands for a device's number, as in 'cuda:0'")
        return
    check_factors(model.K)
    if get_loss(model.loss).dislikes:
        raise ParameterError("device", model.device, "dislikes are solved on device='cpu' only")
    if model.solver == "dense":
        raise ParameterError("solver", model.solver, "the float64 reference runs on device='cpu' only")


def check_memory(
    model: Any, matrix: CSR, dtype: np.dtype, *, weights: int, split: bool, watched: bool
) -> None:
    """Raise `InsufficientMemoryError` where a fit needs more memory than there is: see `Trained`."""
    stored = isinstance(matrix, StoredCSR)
    if stored:
        check_streams(model, matrix)
    hard, threads = read_hard_negatives(model.hard_negatives), n_threads(model.n_jobs)
    itemsize, valued, size = dtype.itemsize, not matrix.is_binary, (matrix.shape, matrix.nnz)
    init, closed = choose_init(model, matrix), 0
    if model.solver == "svd" or init == CLOSED_FORM:
        closed = closed_form.scratch_bytes(*size, model.K, itemsize, valued)
    needed = _memory.fit_bytes(
        *size,
        model.K,
        itemsize,
        valued=valued,
        coupled=get_loss(model.loss).couples_items(),
        best=model.early_stopping,
        watched=watched,
        threads=threads,
        longest=int(max(matrix.row_counts.max(), matrix.col_counts.max())),
        closed_form=closed,
        iterates=model.solver != "svd",
        start=spectral.n_columns(model.K, itemsize) if init == SPECTRAL else 0,
        hard=(0, 0) if hard is None else scratch_bytes(hard, *size, model.K, itemsize, threads),
        blocks=None if split or not stored else 3 * BLOCK,
    )
    if model.readout_exponent:  # what scores, beside what was solved
        needed += matrix.n_cols * model.K * itemsize
    admit(needed + weights, model, matrix, dtype, split)


def check_streams(model: Any, matrix: CSR) -> None:
    """Refuse by name what needs all interactions of a store at once."""
    closed = choose_init(model, matrix) == CLOSED_FORM
    for name, wrong in (
        ("solver", model.solver == "svd"),
        ("hard_negatives", read_hard_negatives(model.hard_negatives) is not None),
        ("device", is_cuda(model.device)),
        ("init", closed and model.solver != "svd"),
    ):
        if wrong:
            lines = f"it needs all interactions in memory, and X is a store; {_INSTEAD[name]}"
            raise ParameterError(name, getattr(model, name), f"{lines}, or fit X.matrix.load()")


#: ``feature_reg="auto"``
FEATURE_REG = 1.0


def priors_of(model: Any, task: Any) -> Priors:
    """What features make of a fit, checked: the priors of users and items."""
    given = dict(zip(("user_features", "item_features"), task.features, strict=True))
    for name, features in given.items():
        if features is None:
            continue
        if model.solver == "svd":
            raise ParameterError(name, "given", "solver='svd' knows no features; leave them out")
        if is_cuda(model.device):
            raise ParameterError(name, "given", "features are taken on device='cpu' only")
        if model.reg == 0:
            raise ParameterError(name, "given", "features act by the regularisation; set reg > 0")
        if task.store is not None:
            raise ParameterError(
                "checkpoint", "given", f"fits with {name} write no checkpoints; leave it None"
            )
    reg = FEATURE_REG if model.feature_reg == AUTO else float(model.feature_reg)
    users, items = (None if f is None else Prior(f, reg) for f in task.features)
    return users, items


def taken(model: Any, problem: Problem, init: str) -> dict[str, Any]:
    """What took the place of "auto", by name."""
    given = get_loss(model.loss).get_params()
    chosen: dict[str, Any] = {k: v for k, v in problem.loss.get_params().items() if given[k] == AUTO}
    if model.reg == AUTO:
        chosen["reg"] = problem.reg
    if model.init == AUTO and init != WARM and model.solver != "svd":
        chosen["init"] = RANDOM if init == RANDOM else SPECTRAL
    return chosen


def describe_fit(
    model: Any, loss: Loss, solver: str, init: str, matrix: CSR, held_out: CSR | None
) -> dict[str, Any]:
    """Everything that decides the bytes of a fit, as a checkpoint keeps it."""
    hard = read_hard_negatives(model.hard_negatives)
    return {
        **describe(model, loss, _DECISIVE, 1, matrix, held_out),
        **({} if init == WARM else {"start": init}),
        "solver": solver,
        **({"readout_exponent": plain(model.readout_exponent)} if model.readout_exponent else {}),
        **({} if hard is None else {"hard_negatives": plain(hard.get_params())}),
        "pcg_steps": plain(model.pcg_steps) if solver == "pcg" else None,
        "validation_users": plain(model.validation_users) if held_out is not None else None,
    }
