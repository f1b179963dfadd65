"""Stochastic gradient descent, epoch by epoch, from the parameters of an `SGDRanker`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from rgals.files.archive import ArraySpec
from rgals.matrix.csr import CSR
from rgals.runtime.errors import ModelFileError, NumericalError
from rgals.runtime.threads import workers
from rgals.sgd.graph import LightGCN
from rgals.sgd.losses import get_loss
from rgals.sgd.optimizers import get_optimizer
from rgals.sgd.samplers import Sampler
from rgals.sgd.schedules import get_schedule
from rgals.sgd.sides import SideState
from rgals.sgd.trainer import Settings, Trainer
from rgals.training.checkpoint import checkpoint_spec

#: Default batch size by the kind of a loss: users, or interactions.
BATCH = {"full": 256, "sampled": 4096, "list": 64}


class Epochs:
    """Epochs over a matrix: the `rgals.training.run.Steps` of SGD."""

    label: ClassVar[str] = "SGD"
    unit: ClassVar[str] = "epoch"
    outcome: tuple[str, ...] = ("user_factors", "item_factors")

    def __init__(self, model: Any, X: CSR, start: Sequence[np.ndarray], seed: int) -> None:
        # The factors of ``start`` are overwritten; ``seed`` decides the order of interactions and the
        # negatives of every epoch.
        self.model = model
        loss, sampler = get_loss(model.loss), None
        if loss.kind != "full":
            how = {name: getattr(model, name) for name in ("gamma", "exclude_positives", "replacement")}
            how["lists"] = loss.kind == "list"
            sampler = Sampler(X, model.sampler, model.n_negatives, shared=model.shared_negatives, **how)
        schedule, size = get_schedule(model.schedule, model.warmup), model.batch_size or BATCH[loss.kind]
        decay: dict[str, Any] = {"coupled": 0.0, "decoupled": 0.0, model.decay: model.weight_decay}
        settings = Settings(
            loss, model.temperature, model.lr, schedule, size, model.n_epochs, seed=seed, **decay
        )
        optimizer = get_optimizer(model.optimizer, model.momentum)
        with workers(model.n_jobs) as n_threads:
            cosine, graph = model.score == "cosine", model.encoder == "lightgcn"
            users, items = (SideState(p, cosine and not graph, optimizer, n_threads) for p in start)
            self.encoder = None
            if graph:
                self.encoder = LightGCN(X, (users, items), cosine, model.n_layers, n_threads)
            adversaries, adversary = [], getattr(loss, "adversary", None)
            if adversary is not None:  # a second pair of factors, drawn as the first was
                rng, cosine = np.random.default_rng([seed, 3]), adversary.score == "cosine"
                drawn = ((model.init_scale * rng.standard_normal(p.shape)).astype(p.dtype) for p in start)
                adversaries = [SideState(param, cosine, optimizer, n_threads) for param in drawn]
        self.sides = {"user": users, "item": items}
        self.trainer = Trainer(X, users, items, settings, sampler, n_threads, adversaries, self.encoder)
        #: What the loss keeps beside the factors; one array of each kind in a checkpoint.
        self.kept = [*self.trainer.kept.sides, *adversaries]

    def step(self, iteration: int) -> float:
        """One epoch; the mean loss of its batches. What diverges is an error that names batch or row."""
        try:
            with workers(self.model.n_jobs):
                objective = self.trainer.epoch(iteration - 1)
            for side, factors in self.sides.items():
                bad = np.flatnonzero(~np.isfinite(factors.param).all(axis=1))
                if len(bad):
                    raise NumericalError(f"the factors of {side} {bad[0]} are not finite: training diverged")
        except NumericalError as error:
            what = f"epoch {iteration}: {error} (loss={self.model.loss!r}, lr={self.model.lr:g})"
            advice = "Lower lr or raise the temperature; the model is what it was before this fit"
            raise NumericalError(f"{what}. {advice}") from None
        return objective

    def user_factors(self) -> np.ndarray:
        """The current factors of the users as they are scored."""
        return self.sides["user"].effective

    def item_factors(self) -> np.ndarray:
        """The current factors of the items as they are scored."""
        return self.sides["item"].effective

    def state(self) -> dict[str, np.ndarray]:
        """SideState before they are scaled for scoring, the optimiser's moments, what the loss keeps."""
        sides = self.sides.items()
        found = {f"{side}_{name}": array for side, of in sides for name, array in of.arrays().items()}
        for name in self.kept[0].arrays() if self.kept else ():
            found[f"kept_{name}"] = np.concatenate([side.arrays()[name].ravel() for side in self.kept])
        return found

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a `state` of the same optimiser."""
        for name, array in self.state().items():
            stored = state.get(name, np.empty(0))
            if (stored.shape, stored.dtype) != (array.shape, array.dtype):
                what = f"the checkpoint holds {name} of shape {stored.shape} and type {stored.dtype}"
                raise ModelFileError(f"{what}; this fit keeps shape {array.shape} and type {array.dtype}")
            if not name.startswith("kept_"):
                array[...] = stored
                continue
            parts = [side.arrays()[name.removeprefix("kept_")] for side in self.kept]
            ends = np.cumsum([part.size for part in parts])[:-1]
            for part, values in zip(parts, np.split(stored, ends), strict=True):
                part[...] = values.reshape(part.shape)
        with workers(self.model.n_jobs):
            for factors in (*self.sides.values(), *self.kept):
                factors.refresh()
            if self.encoder is not None:
                self.encoder.encode()


_REAL = ("f4", "f8")
_ARRAYS: dict[str, ArraySpec] = {}
for _side in ("user", "item"):
    _ARRAYS |= {f"{_side}_{name}": ArraySpec(_REAL, (f"{_side}_{name}", "K")) for name in ("first", "second")}
    _ARRAYS[f"{_side}_steps"] = ArraySpec(("i8",), (f"n_{_side}s",))
for _name, _kinds in (("factors", _REAL), ("first", _REAL), ("second", _REAL), ("steps", ("i8",))):
    _ARRAYS[f"kept_{_name}"] = ArraySpec(_kinds, (f"n_kept_{_name}",), required=False)
CHECKPOINT = checkpoint_spec("rgals-sgd-checkpoint", Epochs.outcome, _ARRAYS)
