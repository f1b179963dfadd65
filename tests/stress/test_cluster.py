"""In full: workers killed at any moment of a fit, the scheduler too; nothing wrong, nothing that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rgals.cluster import DaskRGALS
from rgals.datasets import make_implicit
from rgals.runtime.errors import RgalsError

distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")

SETTING = {"K": 16, "n_iter": 4, "random_state": 0, "n_blocks": 6}
KILLS, SCHEDULERS = 50, 10
MOST = 60.0  # seconds within which any call has to end


def test_workers_that_are_killed_at_any_moment_change_no_bit():
    """One of two processes of a new cluster, 50 times."""
    X, rng = make_implicit(400, 300, mean_interactions=12, random_state=0).matrix, np.random.default_rng(0)
    whole, usual = None, 2.0  # factors, and seconds of a fit
    for _ in range(1 + KILLS):
        with (
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            began, killer = time.monotonic(), None
            if whole is not None:
                victim = int(rng.choice(list(client.run(os.getpid).values())))
                killer = threading.Timer(rng.uniform(0.0, usual), os.kill, (victim, signal.SIGKILL))
                killer.start()
            factors = DaskRGALS(client=client, **SETTING).fit(X).user_factors_
            assert time.monotonic() - began < MOST
            if killer is None:
                whole, usual = factors, time.monotonic() - began
            else:
                killer.cancel()
            assert (factors == whole).all()


SCHEDULER = """
import asyncio, sys
from distributed import Scheduler
async def run():
    async with Scheduler(host="127.0.0.1", port=0, dashboard_address=None) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(run())
"""


def test_a_scheduler_that_is_killed_ends_a_fit():
    """Ten times: one error, and a checkpoint that the next cluster goes on from."""
    X, rng = make_implicit(400, 300, mean_interactions=12, random_state=0).matrix, np.random.default_rng(0)
    for _ in range(SCHEDULERS):
        command = [sys.executable, "-c", SCHEDULER]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scheduler:
            address = scheduler.stdout.readline().strip()
            run = [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                address,
                "--nthreads",
                "1",
                "--no-dashboard",
            ]
            worker = subprocess.Popen([*run, "--no-nanny"], stderr=subprocess.DEVNULL)
            client = distributed.Client(address, timeout=MOST)
            try:
                client.wait_for_workers(1, timeout=MOST)

                def kill(now) -> None:
                    if now.iteration == 2:
                        time.sleep(rng.uniform(0.0, 0.2))
                        scheduler.kill()

                began = time.monotonic()
                with pytest.raises((RgalsError, OSError)):
                    DaskRGALS(client=client, **SETTING).fit(X, callbacks=kill)
                assert time.monotonic() - began < MOST
            finally:
                worker.kill()
                worker.wait()
                client.close(timeout=1)
