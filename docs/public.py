"""The public names: what the reference lists and what its test walks."""

from __future__ import annotations

import inspect
from types import ModuleType

#: Public modules, in the order of the reference.
MODULES = (
    "rgals",
    "rgals.datasets",
    "rgals.matrix",
    "rgals.losses",
    "rgals.metrics",
    "rgals.model_selection",
    "rgals.scoring",
    "rgals.model.export",
    "rgals.compare",
    "rgals.plots",
    "rgals.cluster",
    "rgals.baselines",
    "rgals.sgd",
    "rgals.sgd.losses",
)


def kind_of(found: object) -> str | None:
    """Class, function or error; None for what is neither."""
    if inspect.isclass(found):
        return "error" if issubclass(found, BaseException) else "class"
    return "function" if inspect.isroutine(found) else None


def names_of(module: ModuleType, kind: str | None = None) -> list[str]:
    """Names of ``__all__`` of one kind, or of all, sorted; what a module above has is that module's."""
    listed = getattr(module, "__all__", None)
    if listed is None:  # a module of functions: those that it defines
        listed = [
            name
            for name, found in vars(module).items()
            if not name.startswith("_") and getattr(found, "__module__", None) == module.__name__
        ]
    names = [name for name in listed if kind_of(getattr(module, name)) is not None]
    if module.__name__ != "rgals":
        import rgals

        names = [name for name in names if getattr(rgals, name, None) is not getattr(module, name)]
    return sorted(name for name in names if kind in (None, kind_of(getattr(module, name))))
