"""Checkpoints: interrupted fits resume and end with the bytes of an uninterrupted one."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rgals.files.archive import ArraySpec, FileSpec, load_npz, save_npz
from rgals.matrix.csr import CSR
from rgals.matrix.digest import fingerprint
from rgals.model.file import FACTORS
from rgals.runtime.checks import check_int, plain_number
from rgals.runtime.errors import CheckpointError, InputTypeError, ModelFileError, ParameterError
from rgals.training.data import draw_seed, is_seed, warm_factors

_Arrays = dict[str, np.ndarray]
Best = tuple[float, int, _Arrays]  # metric, iteration and factors of the best iterate
_History = list[dict[str, Any]]
_LATER = {"dislikes": False, "dislike_weight": 0.3}  # loss parameters that older checkpoints lack


def checkpoint_spec(name: str, outcome: Iterable[str], more: Mapping[str, ArraySpec]) -> FileSpec:
    """The file format of a checkpoint: factors, ``more`` arrays, ``outcome`` factors of the best iterate."""
    best = {f"best_{factors}": replace(FACTORS[factors], required=False) for factors in outcome}
    return FileSpec(name, 1, {**FACTORS, **more, **best})


class Checkpoint:
    """Where and how often a fit writes checkpoints; for ``fit(X, checkpoint=...)``.

    The folder holds one file, replaced atomically: a fit that is killed at any moment leaves the complete
    file of an earlier iteration. The same call of `fit` then resumes there, and the result has the same bytes
    as that of a fit that was never interrupted.

    Parameters
    ----------
    folder : str or path
        Made if it does not exist. One folder for one fit.
    every : int, default 1
        Iterations between two checkpoints; the last iteration is always written.

    Raises
    ------
    ParameterError
        ``every`` is not an integer >= 1, or ``folder`` is missing or is a file.

    Notes
    -----
    The file holds the factors, the iteration, the history, the seed that the random state gave, loss and
    parameters, and fingerprints (SHA-256) of the matrix, features and validation. Resuming with anything
    else is refused with `CheckpointError`; only ``n_iter``, which may grow, ``n_jobs`` and ``verbose``, which
    change no bit, are free. What a callback remembers is not stored. A fit that one ended does not resume.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from rgals import RGALS, Checkpoint
    >>> X = np.eye(6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     half = RGALS(K=2, n_iter=2, random_state=0).fit(X, checkpoint=folder)
    ...     whole = RGALS(K=2, n_iter=4, random_state=0).fit(X, checkpoint=Checkpoint(folder, every=2))
    >>> straight = RGALS(K=2, n_iter=4, random_state=0).fit(X)
    >>> bool((whole.item_factors_ == straight.item_factors_).all())
    True
    """

    name = "checkpoint.npz"

    def __init__(self, folder: str | os.PathLike | None = None, every: int = 1) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder) or os.path.isfile(folder):
            why = f"checkpoints every {every} iterations need a folder; give its path"
            raise ParameterError("folder", folder, why)
        self.folder = os.fspath(folder)
        self.every = check_int("every", every, 1)

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder!r}, every={self.every})"

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.folder, self.name)


def read_checkpoint(given: Any) -> Checkpoint | None:
    """The argument of `fit`, which is refused before the matrix is read."""
    if given is not None and not isinstance(given, str | os.PathLike | Checkpoint):
        raise ParameterError("checkpoint", given, "give a folder or Checkpoint(folder, every=...)")
    return Checkpoint(given) if isinstance(given, str | os.PathLike) else given


def open_store(checkpoint: Any, spec: FileSpec, random_state: Any) -> "tuple[int, Store | None]":
    """The seed of a fit, and its checkpoint file if ``checkpoint`` asks for one."""
    if checkpoint is None:
        return draw_seed(random_state), None
    store = Store(checkpoint, spec, random_state)
    return store.seed, store


class Store:
    """The checkpoint file of one fit. A resumed fit takes the seed of the file."""

    def __init__(self, checkpoint: Checkpoint, spec: FileSpec, random_state: Any) -> None:
        self.checkpoint, self.spec, self.seed = checkpoint, spec, draw_seed(random_state)
        self.description: dict[str, Any] = {}
        os.makedirs(checkpoint.folder, exist_ok=True)
        self._arrays: _Arrays = {}
        self._meta: dict[str, Any] | None = None
        if os.path.exists(checkpoint.path):
            self._arrays, self._meta = load_npz(checkpoint.path, expected=spec)
            try:
                stored = int(self._meta["seed"])
            except (KeyError, TypeError, ValueError) as error:
                raise ModelFileError(f"{checkpoint.path}: the stored seed is damaged: {error}") from error
            if is_seed(random_state) and stored != self.seed:
                raise CheckpointError(
                    f"{checkpoint.path} belongs to a fit with another random_state; give that one, or "
                    "another folder"
                )
            self.seed = stored

    @property
    def start(self) -> str | None:
        """The start of the fit in the file, as `describe` names it; None if there is no file."""
        fit = (self._meta or {}).get("fit")
        return fit.get("start") if isinstance(fit, dict) else None

    def resume(self, n_iter: int) -> tuple[_Arrays, _History, bool, Best | None] | None:
        """State, history, whether the fit was stopped, and the best iterate; None if there is no file."""
        # Raises `CheckpointError` if the fit in the file is not that of ``description``.
        if self._meta is None:
            return None
        path, meta = self.checkpoint.path, self._meta
        description = json.loads(json.dumps(self.description))  # the same types as those of the file
        try:
            # Checkpoints from before ``values`` was a parameter: values were the weights.
            stored, history, stopped = {"values": "raw", **meta["fit"]}, meta["history"], meta["stopped"]
            kind, parameters = stored["loss"]
            later = {name: value for name, value in _LATER.items() if name in description["loss"][1]}
            stored["loss"] = [kind, {**later, **parameters}]
            best, iteration, arrays = meta["best"], int(meta["iteration"]), self._arrays
            state = {name: array for name, array in arrays.items() if not name.startswith("best_")}
            factors = {name.removeprefix("best_"): arrays[name] for name in arrays if name not in state}
            whole = iteration == len(history) >= 1 and isinstance(stopped, bool)
            whole = whole and all(isinstance(record["objective"], float) for record in history)
            if not whole or (best is None) != (not factors):
                raise ValueError("its parts do not belong together")
            kept = None if best is None else (float(best[0]), int(best[1]), factors)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ModelFileError(f"{path}: the description of the fit is damaged: {error!r}") from error
        for key in {**description, **stored}:
            if stored.get(key, ...) != description.get(key, ...):
                texts = (repr(each.get(key)) for each in (description, stored))
                # With dots, as a number that is cut in two reads as another one.
                here, there = (text if len(text) <= 60 else f"{text[:57]}..." for text in texts)
                problem = f"{key} is {here} here and {there} there; continue that fit, or give another folder"
                raise CheckpointError(f"{path} belongs to another fit: {problem}")
        if iteration > n_iter:
            what = f"beyond the {n_iter} that are asked for; ask for more, or give another folder"
            raise CheckpointError(f"{path} is at iteration {iteration}, {what}")
        for name, n in zip(FACTORS, description["shape"], strict=True):
            if state[name].dtype != description["dtype"] or state[name].shape != (n, description["K"]):
                raise ModelFileError(f"{path}: factors of another shape or type than its description")
        self._arrays, self._meta = {}, None
        return state, history, stopped, kept

    def write(self, state: _Arrays, history: _History, stopped: bool, best: Best | None) -> None:
        """Replace the file; if that fails, the file of an earlier iteration stays."""
        kept = {} if best is None else {f"best_{name}": array for name, array in best[2].items()}
        meta = {
            "fit": self.description,
            "seed": self.seed,
            "iteration": len(history),
            "stopped": stopped,
            "history": history,
            "best": best and best[:2],
        }
        try:
            save_npz(self.checkpoint.path, state | kept, meta, spec=self.spec)
        except InputTypeError as error:
            raise InputTypeError(f"no checkpoint can be written: {error}") from error


def describe(
    model: Any, loss: Any, decisive: Iterable[str], sides: int, matrix: CSR, held_out: CSR | None
) -> dict[str, Any]:
    """All that the bits of a fit depend on, as JSON, for any estimator; each adds what is its own."""
    # ``decisive`` names parameters that must be the same in a resumed fit. ``sides``: how many tables of
    # factors a warm start takes from the last fit, 1 or 2.
    kind, last = type(loss), warm_factors(model, matrix.shape)
    starts = [hashlib.sha256(np.ascontiguousarray(start).data).hexdigest() for start in (last or ())[:sides]]
    params = loss.get_params() if hasattr(loss, "get_params") else vars(loss)
    return {  # causes before effects: an error names the first entry that differs
        "early_stopping": plain(model.early_stopping),
        "patience": plain(model.patience) if model.early_stopping else None,
        "dtype": np.dtype(model.dtype).name,
        **{name: plain(getattr(model, name)) for name in decisive},
        "shape": list(matrix.shape),
        "X": fingerprint(matrix) if isinstance(matrix, CSR) else matrix.fingerprint,
        "loss": [f"{kind.__module__}.{kind.__qualname__}", plain(params)],
        "metric": str(model.metric) if held_out is not None else None,
        "random_state": plain(model.random_state) if is_seed(model.random_state) else None,
        "start": " ".join(starts) or "random",
        "validation": None if held_out is None else fingerprint(held_out),
    }


def plain(value: Any) -> Any:
    """A parameter as a JSON value."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):  # its `repr` is shortened and rounded
        return f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()}"
    if isinstance(value, np.generic):
        value = plain_number(value.item())
    return value if value is None or isinstance(value, str | int | float) else repr(value)
