"""Attributes and files of a fitted factor model, and `info`."""

import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Self

import numba
import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import _check_feature_names

from rgals.losses.base import AUTO
from rgals.matrix.csr import TimedMatrix
from rgals.model.state import FittedState, Snapshot
from rgals.runtime.errors import InputError, InputTypeError, ParameterError
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
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {value}" for name, value in self.items())


def told(path: str, doc: str) -> Any:
    """A fitted attribute, read at a dotted path of the state."""
    find, outlined = attrgetter(path), not path.startswith(("user", "item"))
    return property(lambda model: find(model._outline() if outlined else model._state()), doc=doc)


@contextmanager
def as_own_errors(prefix: str = "", kind: type[InputError] = InputError) -> Iterator[None]:
    """Raise errors of scikit-learn's checks as those of rgals: a ValueError as ``kind``."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise (InputTypeError if isinstance(error, TypeError) else kind)(f"{prefix}{error}") from error


class Fitted:
    """Attributes of a fit, read from ``self._snapshot``, which is set in one step."""

    _snapshot: Snapshot
    _file: ClassVar[Any]  # a `ModelFormat`, or what has its `save` and `load`

    user_factors_: np.ndarray = told("user_factors", "Fitted factors of the users, shape (M, K).")
    item_factors_: np.ndarray = told("item_factors", "Fitted factors of the items, shape (N, K).")
    user_ids_: np.ndarray | None = told("user_ids", "Ids of the users, shape (M,); None if there are none.")
    item_ids_: np.ndarray | None = told("item_ids", "Ids of the items, shape (N,); None if there are none.")
    n_iter_: int = told("record.n_iter", "Iterations that ran.")
    history_: list[dict[str, Any]] = told("record.history", "What each iteration recorded.")

    def _state(self) -> Any:
        snapshot = getattr(self, "_snapshot", None)
        if snapshot is None:
            what = f"This {type(self).__name__} instance is not fitted yet"
            raise NotFittedError(f"{what}. Call 'fit' with a users x items matrix first.")
        return snapshot

    def _outline(self) -> Any:
        """The state; of a fit on a cluster without factors, interactions and ids, which stay there."""
        return self._state()

    def _check_names(self, found: Any, name: str) -> None:
        """Refuse a frame without ids whose columns, by names and order, are not those of the fit."""
        if not found.labelled:
            with as_own_errors(f"{name}: "):
                _check_feature_names(self, found.matrix if found.frame is None else found.frame, reset=False)

    def __getstate__(self) -> dict[str, Any]:
        # A copy in one step: another thread may publish a fit while a pickle walks through the dict.
        return self.__dict__.copy()

    def __dir__(self) -> list[str]:
        """Public names alone."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_snapshot", None) is not None

    @property
    def n_features_in_(self) -> int:
        """Number of items."""
        return len(self._state().item_factors)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the columns, where the model was fitted to a frame."""
        names = self._state().record.feature_names
        if names is None:
            raise AttributeError(f"this {type(self).__name__} was fitted to a matrix without column names")
        return names

    def info(self) -> Info:
        """What the fitted model is: data, parameters, time, how rows were solved, memory, versions, digest.

        Returns
        -------
        Info
            A dict of str to str that prints as a table.

        Examples
        --------
        >>> from rgals import RGALS
        >>> from rgals.datasets import make_implicit
        >>> model = RGALS(K=16, random_state=0).fit(make_implicit(200, 100, random_state=0))
        >>> model.info()["users"]
        '49 rows dual, 151 primal'
        """
        state: Snapshot = self._state()
        seen, record, users, items = state.seen, state.record, state.user_factors, state.item_factors
        found = Info(model=type(self).__name__, data=f"{len(users):,} users x {len(items):,} items")
        if seen is not None:
            found["data"] += f", {seen.nnz:,} interactions" + ("" if seen.is_binary else " with values")
            ids = [f"{what}s" for what in ("user", "item") if getattr(state, f"{what}_ids") is not None]
            found["data"] += f", ids of {' and '.join(ids)}" if ids else ""
        told = _parameters(type(self), state).items()
        texts = {k: f"{v:.4g}" if isinstance(v, float) else " ".join(repr(v).split()) for k, v in told}
        shown = ", ".join(f"{name}={text}" for name, text in texts.items())
        # Of a loss, too, four digits of what a rule took: 21.000000000000004.
        found["parameters"] = re.sub(r"\d+\.\d{5,}(e-?\d+)?", lambda at: f"{float(at[0]):.4g}", shown)
        if isinstance(users, np.ndarray) and isinstance(items, np.ndarray):
            found["factors"] = f"K={users.shape[1]}, {users.dtype}, {readable(users.nbytes + items.nbytes)}"
        if record.history:
            last = record.history[-1]
            found["fit"] = f"{record.n_iter} iterations in {last['seconds']:.3g} s"
            found["fit"] += f", objective {last['objective']:.6g}"
        if record.merged and seen is not None:
            share = record.merged / max(seen.nnz, 1)
            found["updates"] = f"{record.merged:,} interactions since the fit ({100 * share:.2g} % of all)"
        if isinstance(state, FittedState) and seen is not None:
            found["solver"] = record.solver
            given, described = state.weighting.rows(seen), list[str]()
            for side, (name, rows) in enumerate({"users": given, "items": given.transpose()}.items()):
                prior = state.priors[side]
                _, half = state.half(rows, prior, side)
                found[name] = str(Plan(rows, half, users.dtype, users.shape[1]))
                if prior is not None and not prior.mean:
                    # Its unit is the mean ridge of the fit, which is that of the data until these grow.
                    reg = prior.reg / replace(prior, ridge=half.ridge).mean_ridge
                    shown = "" if record.merged else f", feature_reg={reg:.4g}"
                    described.append(f"{prior.features.shape[1]:,} of {name}{shown}")
            if described:
                found["features"] = "; ".join(described)
        found["memory"] = readable(_bytes(state))
        found["versions"] = f"rgals {__version__}, numba {numba.__version__}, numpy {np.__version__}"
        found["fingerprint"] = state.fingerprint
        return found

    @property
    def factors_(self) -> tuple[np.ndarray, np.ndarray]:
        """``(user_factors_, item_factors_)`` of one fit, even while another thread refits."""
        snapshot = self._state()
        return snapshot.user_factors, snapshot.item_factors

    def fingerprint(self) -> str:
        """Digest of everything that the answers depend on: equal for equal fits, here and elsewhere.

        Returns
        -------
        str
            32 hexadecimal digits.
        """
        return self._state().fingerprint

    @property
    def seen_(self) -> sp.csr_array | None:
        """The interactions that the model was fitted to, shape (M, N); None where they were not kept."""
        seen = self._state().seen
        if seen is None or seen.times is None:
            return None if seen is None else seen.to_scipy()
        return TimedMatrix.of(seen.to_scipy(), seen.times)

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to one file (npz without pickle), atomically.

        The file holds one fit and the parameters that it was fitted with, even while another thread refits.

        Parameters
        ----------
        path : str or path
            Used exactly as given.

        Raises
        ------
        InputTypeError
            The loss, optimiser or schedule is an object of the caller's that a file cannot hold.
        """
        self._file.save(self._state(), path)

    @classmethod
    def load(cls, path: str | os.PathLike, *, loss: Any = None) -> Self:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : str or path
        loss : class, optional
            That of the loss, where it is none of rgals': loading imports nothing that a file names.

        Returns
        -------
        Self

        Raises
        ------
        ModelFileError
            The file is damaged, of a newer version or not a model of this kind.
        ParameterError
            ``loss`` is not a class of a loss.
        """
        computes = hasattr(loss, "coefficients") or hasattr(loss, "value_and_grad")
        if loss is not None and not (isinstance(loss, type) and computes):
            raise ParameterError("loss", loss, "give the class of a loss of yours; rgals' own need none")
        return (cls._file if loss is None else replace(cls._file, own=loss)).load(cls, path)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


def _parameters(kind: type, state: Snapshot) -> dict[str, Any]:
    """Parameters that are not the default, with the values that replaced "auto"."""
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
        plain = getattr(kind, name, default.get(name))  # `RGALSCV` inherits defaults of others as attributes
        if name not in elsewhere and (name in own or repr(now) != repr(plain)):
            params[name] = now
    return params


def _bytes(value: Any) -> int:
    """Bytes of all arrays in a dataclass; of arrays of objects, those of the references alone."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(_bytes(getattr(value, part.name)) for part in fields(value)) if is_dataclass(value) else 0
