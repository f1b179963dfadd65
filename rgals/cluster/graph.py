"""Graphs of dask tasks: submit, wait without hanging, release after an error; errors name the lost block."""

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

#: Seconds without any worker after which a fit ends; dask's setting rgals.no-workers-timeout overrides it.
NO_WORKERS_TIMEOUT = 60.0
_POLL = 1.0  # seconds between two checks that the scheduler and a worker are still there
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


def client_of(given: Any) -> Any:
    """The client of a fit: what was given, or the client that was created last."""
    needed = 'fits on a cluster need dask.distributed: pip install "rgals[cluster]"'
    distributed = optional("distributed", needed)
    line = "make one first: dask.distributed.Client(address), or Client() for a cluster on this machine"
    if given is None:
        try:
            given = distributed.get_client()
        except ValueError:
            raise ParameterError("client", None, f"there is none; {line}") from None
    if not isinstance(given, distributed.Client) or given.asynchronous:
        raise ParameterError("client", given, f"give a synchronous dask.distributed.Client; {line}")
    if given.status != "running":
        raise ParameterError("client", given, f"it is {given.status}; {line}")
    return given


class Graphs(AbstractContextManager):
    """The graphs of one fit: tasks are added, then submitted together, and released if the fit fails."""

    # ``iteration`` becomes a part of the keys, from which errors name it.

    def __init__(self, client: Any) -> None:
        self.client, self.iteration = client, None
        # The name of the next graph ends all of its keys: dask takes two tasks of one key for one task.
        self.name, self._tasks = uuid.uuid4().hex[:12], dict[str, tuple]()
        self._futures = WeakSet[Any]()
        self._waited = False  # whether a wait took longer than a poll

    def __exit__(self, kind: Any, *raised: Any) -> None:
        """Free what the workers hold for this fit; after an error, cancel its tasks that have not begun."""
        # `Client.cancel` fails if a graph has tasks without a future: release the futures instead.
        for future in [] if kind is None else list(self._futures):
            with suppress(Exception):
                future.release()
        # Timeouts and errors leave futures in reference cycles with frames; workers keep their data until
        # these are collected.
        if self._waited or kind is not None:
            gc.collect()
        with suppress(Exception):
            if self.client.status == "running":
                self.client.run(forget, wait=False)

    def one(self, what: str, function: Any, *args: Any) -> str:
        """Add a task and return its key. In the arguments, a key or a future stands for its result."""
        now = "" if self.iteration is None else f"iteration-{self.iteration}-"
        key = f"rgals-{what}-{now}{self.name}"  # dask's dashboard groups tasks by the words of their keys
        self._tasks[key] = (function, *args)
        return key

    def each(self, what: str, function: Any, *columns: Iterable[Any], always: tuple = ()) -> list[str]:
        """Add a task for each row of some columns of arguments; the arguments ``always`` follow for all."""
        rows = enumerate(zip(*columns, strict=True))
        return [self.one(f"{what}-{i}", function, *row, *always) for i, row in rows]

    def submit(self, wanted: Any) -> Any:
        """Submit all tasks that were added; futures of a key, of a list of keys, or of several lists."""
        import dask

        tasks, self._tasks, self.name = self._tasks, {}, uuid.uuid4().hex[:12]
        try:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"}):
                return self.track(self.client.get(tasks, wanted, sync=False))
        except Exception as error:  # dask raises various types if the client is closed
            raise self._explained(error, []) from error

    def track(self, found: Any) -> Any:
        """Futures, to be released if the fit fails."""
        self._futures.update(self.client.futures_of(found))
        return found

    def results(self, wanted: Sequence[Any]) -> list[Any]:
        """The results of some keys or futures; all else as it is. If they are lost, an error says so."""
        futures = self.submit(list(wanted)) if self._tasks else list(wanted)
        try:
            self._wait(futures)
            return self.client.gather(futures)
        except RgalsError:
            raise
        except (Exception, *_CANCELLED) as error:  # asyncio's CancelledError is no Exception
            raise self._explained(error, futures) from error

    def _wait(self, futures: list[Any]) -> None:
        import dask
        import distributed

        limit = dask.config.get("rgals.no-workers-timeout", NO_WORKERS_TIMEOUT)
        limit = float(dask.utils.parse_timedelta(limit))
        last_worker_seen = time.monotonic()
        while True:
            with suppress(TimeoutError):
                distributed.wait(futures, timeout=_POLL)
                return
            self._waited = True
            if (status := self.client.status) != "running":
                raise RgalsError(f"the fit was lost: the scheduler is gone (the client is {status})")
            if self.client.scheduler_info(n_workers=1)["workers"]:
                last_worker_seen = time.monotonic()
            elif time.monotonic() - last_worker_seen > limit:
                raise RgalsError(
                    f"the cluster has had no worker for {limit:.0f} s; start some and fit again (a fit with "
                    "checkpoint= resumes), or dask.config.set({'rgals.no-workers-timeout': '1h'})"
                )

    def _explained(self, error: BaseException, futures: list[Any]) -> BaseException:
        """An error of rgals in place of dask's, if that says that something was lost."""
        import distributed

        if isinstance(error, distributed.KilledWorker):
            worker = getattr(error.last_worker, "address", error.last_worker)
            return RgalsError(
                f"{_in_words(error.task)} was lost {error.allowed_failures + 1} times with the workers that "
                f"had it, the last one {worker}: see that worker's log, most often it is memory"
            )
        if isinstance(error, _CANCELLED) or self.client.status != "running":
            lost = next((f.key for f in futures if f.status in ("cancelled", "lost")), "")
            where = f"{_in_words(lost)} was lost" if lost else "its results are lost"
            line = "to_local() and save() keep a model, if called before its client is closed"
            return RgalsError(f"the fit was cancelled, or its client or scheduler is gone: {where}; {line}")
        return error


def _in_words(key: Any) -> str:
    """What the key of a task says: ``users, block 17, iteration 3``."""
    what = re.sub("^rgals-|-[^-]*$", "", str(key))
    what = re.sub(r"-iteration-(\d+)$", r", iteration \1", what)
    return re.sub(r"-(\d+)", r", block \1", what).replace("-", " ")
