"""Graphs of tasks: submitted, waited for without ever hanging, cancelled; errors that name a block."""

import asyncio
import concurrent.futures
import gc
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any
from weakref import WeakSet

from rgals.cluster.tasks import forget
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


class Graphs(AbstractContextManager):
    """The graphs of one fit: tasks are added, then submitted together, and cancelled if the fit fails.

    ``iteration`` is for errors that name one.
    """

    def __init__(self, client: Any) -> None:
        self.client, self.iteration = client, None
        # Of the graph that is added to: the same key would be the same task to dask.
        self.name, self._tasks = uuid.uuid4().hex[:12], dict[str, tuple]()
        self._futures, self._slow = WeakSet[Any](), False  # slow: a wait took longer than a look

    def __exit__(self, kind: Any, *raised: Any) -> None:
        """After an error, leave nothing running or waiting; a task that has begun ends with its block."""
        # Not by `Client.cancel`: it fails where a graph has tasks of which nobody has a future.
        for future in [] if kind is None else list(self._futures):
            with suppress(Exception):
                future.release()
        if self._slow or kind is not None:  # futures are in cycles with frames, and workers keep their data
            gc.collect()
        with suppress(Exception):
            if self.client.status == "running":
                self.client.run(forget, wait=False)

    def one(self, what: str, function: Any, *args: Any) -> str:
        """Add a task; its key stands for what it finds, as an argument of others; so does a future."""
        now = "" if self.iteration is None else f"iteration-{self.iteration}-"
        key = f"rgals-{what}-{now}{self.name}"  # dashboards group tasks by the words
        self._tasks[key] = (function, *args)
        return key

    def each(self, what: str, function: Any, *columns: Iterable[Any], always: tuple = ()) -> list[str]:
        """Add a task for every row of some columns, which takes what is ``always`` the same, too."""
        rows = enumerate(zip(*columns, strict=True))
        return [self.one(f"{what}-{i}", function, *row, *always) for i, row in rows]

    def submit(self, wanted: Any) -> Any:
        """Futures of a key, of a list of keys, or of lists of them."""
        dask = optional("dask", NEEDED)
        tasks, self._tasks, self.name = self._tasks, {}, uuid.uuid4().hex[:12]
        try:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"}):
                return self.track(self.client.get(tasks, wanted, sync=False))
        except Exception as error:  # whatever dask raises of a client that is gone; all is raised again
            raise self._explained(error, []) from error

    def track(self, found: Any) -> Any:
        """Futures that are cancelled with the fit."""
        self._futures.update(self.client.futures_of(found))
        return found

    def results(self, wanted: Sequence[Any]) -> list[Any]:
        """What some keys or futures found. One error names what was lost; no call waits for nobody."""
        futures = self.submit(list(wanted)) if self._tasks else list(wanted)
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
            with suppress(TimeoutError):
                distributed.wait(futures, timeout=_LOOK)
                return
            self._slow = True
            if (status := self.client.status) != "running":
                raise RgalsError(f"the fit was lost: the scheduler is gone (the client is {status})")
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
            where = f"{self.block(lost)} was lost" if lost else "nothing is left"
            line = "to_local() and save() bring a model from the cluster, before its client is closed"
            return RgalsError(f"the fit was cancelled, or its client or scheduler is gone: {where}; {line}")
        return error

    def block(self, key: Any) -> str:
        """A task in words."""
        what = re.sub("^rgals-|-[^-]*$", "", str(key))
        what = re.sub(r"-iteration-(\d+)$", r", iteration \1", what)
        return re.sub(r"-(\d+)", r", block \1", what).replace("-", " ")
