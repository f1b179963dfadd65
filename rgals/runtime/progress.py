"""The progress bar of a fit: the figures of the last iteration, and what the first one waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numba.core.event import Event, Listener, register, unregister
from tqdm import tqdm

_COMPILE = "numba:compile"
_NOT_SHOWN = ("iteration", "seconds", "evaluation_seconds")


class ProgressBar(Listener):
    """A tqdm bar with the objective and the metrics of the last iteration.

    Before the first one it says so when numba compiles instead of loading what it has compiled before.
    """

    def __init__(self, total: int, label: str, unit: str, *, shown: bool = True) -> None:
        self.bar = tqdm(total=total, desc=label, unit=unit, disable=not shown)
        self.label, self.unit = label, unit
        self.compiling = False
        self.shown = shown
        self.listens = False

    def begin(self, done: int = 0) -> None:
        """Count ``done`` iterations of an earlier run, and listen to numba until `advance` or `close`."""
        self.bar.update(done)
        self.listens = self.shown
        if self.listens:
            register(_COMPILE, self)

    def advance(self, record: Mapping[str, Any]) -> None:
        """Advance by an iteration with these figures."""
        self._stop_listening()
        figures = {
            key: f"{value:.5g}"
            for key, value in record.items()
            if key not in _NOT_SHOWN and isinstance(value, float)
        }
        self.bar.set_postfix(figures, refresh=False)
        self.bar.update()

    def close(self) -> None:
        """Finish the bar."""
        self._stop_listening()
        self.bar.close()

    def on_start(self, event: Event) -> None:
        """Numba begins to compile a function."""
        if not self.compiling:
            self.compiling = True
            self.bar.set_description(f"{self.label}, compiling (the first time on this machine)")

    def on_end(self, event: Event) -> None:
        """Numba has compiled a function; others will follow."""

    def _stop_listening(self) -> None:
        if self.listens:
            unregister(_COMPILE, self)
        self.listens = False
        if self.compiling:
            self.bar.set_description(self.label, refresh=False)
        self.compiling = False
