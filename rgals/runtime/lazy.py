"""Names of a package that are imported when they are asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def later(package: str, modules: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package, given its names by the modules that have them."""
    names = {name: f"{package}.{module}" for module, listed in modules.items() for name in listed.split()}
    here = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        here[name] = found = getattr(importlib.import_module(names[name]), name)
        return found

    return find, lambda: sorted({*here, *names})
