"""What a run sees of stochastic gradient descent: epochs, their factors, and what a checkpoint holds."""

from typing import ClassVar

import numpy as np

from rgals.files.archive import ArraySpec
from rgals.runtime.errors import ModelFileError, NumericalError
from rgals.runtime.threads import workers
from rgals.sgd.optimizers import SideState
from rgals.sgd.trainer import Trainer
from rgals.training.checkpoint import checkpoint_spec


class Epochs(Trainer):
    """Epochs over a matrix: the `rgals.training.run.Steps` of SGD."""

    label: ClassVar[str] = "SGD"
    unit: ClassVar[str] = "epoch"
    outcome: tuple[str, ...] = ("user_factors", "item_factors")

    def step(self, iteration: int) -> float:
        """One epoch; the mean loss of its batches. What diverges is an error that names batch or row."""
        try:
            with workers(self.model.n_jobs):
                objective = self.epoch(iteration - 1)
            for side, factors in (("user", self.users), ("item", self.items)):
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
        return self.users.effective

    def item_factors(self) -> np.ndarray:
        """The current factors of the items as they are scored."""
        return self.items.effective

    def state(self) -> dict[str, np.ndarray]:
        """Factors before they are scaled for scoring, the optimiser's moments, what the loss keeps."""
        sides, kept = (("user", self.users), ("item", self.items)), self._kept_sides()
        found = {f"{side}_{name}": array for side, of in sides for name, array in of.arrays().items()}
        for name in kept[0].arrays() if kept else ():
            found[f"kept_{name}"] = np.concatenate([side.arrays()[name].ravel() for side in kept])
        return found

    def _kept_sides(self) -> list[SideState]:
        """What the loss keeps beside the factors; one array of each kind in a checkpoint."""
        return [*self.kept.sides, *self.adversaries]

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
            parts = [side.arrays()[name.removeprefix("kept_")] for side in self._kept_sides()]
            ends = np.cumsum([part.size for part in parts])[:-1]
            for part, values in zip(parts, np.split(stored, ends), strict=True):
                part[...] = values.reshape(part.shape)
        with workers(self.model.n_jobs):
            for factors in (self.users, self.items, *self._kept_sides()):
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
