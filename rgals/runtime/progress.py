"""The progress bar of a fit, with the figures of the last iteration; reports of what numba compiles."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from numba.core.event import Event, Listener, install_listener, register, unregister

_COMPILE = "numba:compile"
LOG = logging.getLogger("rgals")  # logs at the level INFO what ``verbose`` shows
FIRST_FIT = 10  # seconds of compilation in a first fit: benchmarks/startup.py


class ProgressBar(Listener):
    """A bar with the objective and the metrics of the last iteration; without ``shown`` it only logs."""

    # Before the first iteration, once in a process, the label says if numba compiles instead of loading from
    # its cache.

    told = False

    def __init__(self, total: int, label: str, unit: str, *, shown: bool = True) -> None:
        self.label, self.total, self.listens, self.bar = label, total, False, None
        if shown:
            from rgals.runtime import bars

            self.bar = bars.Bar(total=total, desc=label, unit=unit)

    def begin(self, done: int = 0) -> None:
        """Count ``done`` iterations of an earlier run, and listen to numba until `advance` or `close`."""
        if self.bar is not None:
            self.bar.update(done)
        self.listens = not ProgressBar.told and (self.bar is not None or LOG.isEnabledFor(logging.INFO))
        if self.listens:
            register(_COMPILE, self)

    def advance(self, record: Mapping[str, Any]) -> None:
        """Advance by an iteration with these figures."""
        self._stop_listening()
        reals = {key: value for key, value in record.items() if isinstance(value, float)}
        figures = {key: f"{value:.5g}" for key, value in reals.items() if "seconds" not in key}
        shown = ", ".join(f"{key}={value}" for key, value in figures.items())
        done = record["iteration"], self.total, record["seconds"]
        LOG.info("%s %d/%d, %.3g s: %s", self.label, *done, shown)
        if self.bar is not None:
            self.bar.set_postfix(figures, refresh=False)
            self.bar.update()

    def close(self) -> None:
        """Finish the bar."""
        self._stop_listening()
        if self.bar is not None:
            self.bar.close()

    def on_start(self, event: Event) -> None:
        """Numba begins to compile a function."""
        if not ProgressBar.told:
            ProgressBar.told = True
            text = f"{self.label}, compiling (about {FIRST_FIT} s, once on this machine)"
            LOG.info(text)
            if self.bar is not None:
                self.bar.set_description(text)

    def on_end(self, event: Event) -> None:
        """Numba has compiled a function; others will follow."""

    def _stop_listening(self) -> None:
        if self.listens:
            unregister(_COMPILE, self)
            if self.bar is not None:
                self.bar.set_description(self.label, refresh=False)
        self.listens = False


class _Compilations(Listener):
    def __init__(self, report: Callable[[str, float], object]) -> None:
        self.report, self.started, self.apart = report, list[float](), 0.0

    def on_start(self, event: Event) -> None:
        self.started.append(time.perf_counter())

    def on_end(self, event: Event) -> None:
        seconds = time.perf_counter() - self.started.pop()
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}"
        if event.data.get("apart", False):  # compiled on the way to an entry, and not as a part of it
            self.report(name, seconds)
            self.apart += seconds if self.started else 0.0
        elif not self.started:
            self.report(name, seconds - self.apart)
            self.apart = 0.0


def compilations(report: Callable[[str, float], object]) -> AbstractContextManager:
    """Report every function that is compiled for Python inside: its name, and the seconds with its parts."""
    return install_listener(_COMPILE, _Compilations(report))
