"""Graphs of tasks: submitted, waited for without ever hanging, cancelled; errors that name a block."""

import asyncio
import concurrent.futures
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from rgals.runtime.errors import ParameterError, RgalsError
from rgals.runtime.lazy import optional

NEEDED = 'fits on a cluster need dask.distributed: pip install "rgals[cluster]"'
ALONE = 60.0  # seconds without any worker after which a fit ends; dask's setting rgals.no-workers-timeout
_LOOK = 1.0  # seconds between two looks at workers and scheduler
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


def client_of(given: Any) -> Any:
    """The client of a fit: what was given, or the one that was made last."""
    distributed = optional("distributed", NEEDED)
    line = "make one first: dask.distributed.Client(address), or Client() for a cluster on this machine"
    if given is None:
        try:
            given = distributed.get_client()
        except ValueError:
            raise ParameterError("client", None, f"there is none; {line}") from None
    if not isinstance(given, distributed.Client) or given.asynchronous:
        raise ParameterError("client", given, f"give a dask.distributed.Client that waits; {line}")
    if given.status != "running":
        raise ParameterError("client", given, f"it is {given.status}; {line}")
    return given


class Graphs:
    """The graphs of one fit. Keys are ``rgals-WHAT-NUMBER-...-FIT``: dashboards group them by words."""

    def __init__(self, client: Any) -> None:
        self.client, self.fit, self._calls = client, uuid.uuid4().hex[:8], 0
        self._futures: WeakSet[Any] = WeakSet()

    def key(self, what: str, *numbers: int, call: int | str = "") -> str:
        """The name of a task. The same name is the same task to dask: ``call`` tells others apart."""
        return "-".join(["rgals", what, *map(str, numbers), f"{self.fit}{call}"])

    def call(self) -> int:
        """A number for the keys of a call."""
        self._calls += 1
        return self._calls

    def submit(self, graph: Mapping[str, tuple], keys: Sequence[str] | None = None) -> list[Any]:
        """Futures of ``keys``, by default of all tasks; arguments may be futures and keys of the graph."""
        dask = optional("dask", NEEDED)
        keys = list(graph if keys is None else keys)
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"}):
            futures = self.client.get(dict(graph), keys, sync=False)
        self._futures.update(futures)
        return futures

    def one(self, function: Any, *args: Any, what: str, number: int = 0) -> Any:
        """Future of a single task."""
        return self.submit({self.key(what, number, call=self.call()): (function, *args)})[0]

    def each(self, what: str, function: Any, *columns: Sequence[Any], always: tuple = ()) -> list[Any]:
        """Futures of a function of every element of some columns, and of what is ``always`` the same."""
        rows, call = enumerate(zip(*columns, strict=True)), self.call()
        return self.submit({self.key(what, i, call=call): (function, *row, *always) for i, row in rows})

    def track(self, futures: list[Any]) -> list[Any]:
        """Futures that dask made of the caller's collections: cancelled with the fit."""
        self._futures.update(futures)
        return futures

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """What futures found, in their order. One error names what was lost; no call waits for nobody."""
        futures = list(futures)
        try:
            self._wait(futures)
            return self.client.gather(futures)
        except RgalsError:
            raise
        except (Exception, *_CANCELLED) as error:  # whatever a task raised; what was cancelled is none
            raise self._explained(error, futures) from error

    def _wait(self, futures: list[Any]) -> None:
        distributed, dask = optional("distributed", NEEDED), optional("dask", NEEDED)
        alone, limit = time.monotonic(), dask.config.get("rgals.no-workers-timeout", ALONE)
        limit = float(dask.utils.parse_timedelta(limit))
        while True:
            try:
                distributed.wait(futures, timeout=_LOOK)
                return
            except TimeoutError:
                pass
            if self.client.status != "running":
                raise RgalsError(
                    f"the fit was lost: the scheduler is gone (the client is {self.client.status})"
                )
            if self.client.scheduler_info(n_workers=1)["workers"]:
                alone = time.monotonic()
            elif time.monotonic() - alone > limit:
                raise RgalsError(
                    f"the cluster has had no worker for {limit:.0f} s; start some and fit again (with "
                    "checkpoint=, it goes on), or dask.config.set({'rgals.no-workers-timeout': '1h'})"
                )

    def _explained(self, error: BaseException, futures: list[Any]) -> BaseException:
        distributed = optional("distributed", NEEDED)
        if isinstance(error, distributed.KilledWorker):
            worker = getattr(error.last_worker, "address", error.last_worker)
            return RgalsError(
                f"{self.block(error.task)} was lost {error.allowed_failures + 1} times with the workers that "
                f"had it, the last one {worker}: see that worker's log, most often it is memory"
            )
        if isinstance(error, _CANCELLED) or self.client.status != "running":
            lost = next((f.key for f in futures if f.status in ("cancelled", "lost")), "")
            where = f" {self.block(lost)} was lost" if lost else ""
            return RgalsError(
                f"the fit was cancelled, or its scheduler is gone:{where or ' nothing is left'}"
            )
        return error

    def block(self, key: Any) -> str:
        """A task in words."""
        _, *words, _ = str(key).split("-")
        names = [word for word in words if not word.isdigit()]
        numbers = [word for word in words if word.isdigit()]
        text = " ".join(names) + (f", block {numbers[-1]}" if numbers else "")
        return text + (f", iteration {numbers[0]}" if len(numbers) > 1 else "")

    def cancel(self) -> None:
        """Leave nothing running or waiting; a task that has begun ends with its block."""
        # Not by `Client.cancel`: it fails where a graph has tasks of which nobody has a future.
        for future in list(self._futures):
            with suppress(Exception):
                future.release()

    def forget(self) -> None:
        """Give back what workers have put together, without waiting for them."""
        from rgals.cluster.tasks import forget

        with suppress(Exception):
            if self.client.status == "running":
                self.client.run(forget, wait=False)
