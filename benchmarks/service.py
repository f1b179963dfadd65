"""Load on the HTTP example, over loopback: `python benchmarks/service.py [--seconds 30] [--clients 200]`.

Starts examples/service.py on a generated model and keeps the given number of requests in flight (each client
sends its next one when it has the answer) from a process of their own, a third of them recommend, similar and
explain each, and `--bad` of all nonsense. Meanwhile the model file is replaced again and again by one of two
models. Every answer is compared with what the library says for the model that the answer names. Prints
percentiles in milliseconds, and the memory of the service after every fifth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rgals import IALS, RG2, RGALS, Positions
from rgals.datasets import make_implicit

SERVICE = Path(__file__).resolve().parent.parent / "examples" / "service.py"


#: Requests that must be answered by a reason.
NONSENSE: tuple[tuple[str, Any, bytes | None], ...] = (
    ("/recommend", None, b'{"user": '),
    ("/recommend", {"history": "tea"}, None),
    ("/recommend", {"user": "nobody at all"}, None),
    ("/similar", {"item": 10**30}, None),
    ("/explain", None, b"\xff\xfe"),
    ("/nowhere", {}, None),
)


class Client:
    """One connection that is kept open."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any, raw: bytes | None = None) -> tuple[int, Any]:
        """Status and decoded JSON of the answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        assert self.reader is not None
        data = json.dumps(body).encode() if raw is None else raw
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        answer = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), json.loads(answer)

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            await self.writer.wait_closed()


class Truth:
    """What the library answers, for each of the models that may be served."""

    def __init__(self, models: list[RGALS], n: int = 10) -> None:
        self.n, self.answers = n, {}
        users, items = (np.arange(len(factors)) for factors in models[0].factors_)
        for model in models:
            self.answers[model.fingerprint()] = (
                model,
                model.recommend(Positions(users), n),
                model.similar_items(Positions(items), n),
            )
        self.users, self.items = models[0].user_ids_, models[0].item_ids_

    def question(self, rng: random.Random) -> tuple[str, dict[str, Any], tuple[int, int]]:
        user, item = rng.randrange(len(self.users)), rng.randrange(len(self.items))
        labels = self.users[user].item(), self.items[item].item()
        return rng.choice(
            [
                ("/recommend", {"user": labels[0], "n": self.n}, (user, item)),
                ("/similar", {"item": labels[1], "n": self.n}, (user, item)),
                ("/explain", {"user": labels[0], "item": labels[1]}, (user, item)),
            ]
        )

    def check(self, path: str, pair: tuple[int, int], answer: dict[str, Any]) -> bool:
        """Whether the answer is that of the model which it names."""
        model, recommended, similar = self.answers[answer["model"]]
        user, item = pair
        if path == "/explain":
            total = answer["rest"] + answer["all_pairs"] + sum(p["contribution"] for p in answer["because"])
            return bool(np.isclose(total, model.predict(Positions(user), Positions(item))[0], atol=1e-4))
        ids, scores = (
            x[user if path == "/recommend" else item]
            for x in (recommended if path == "/recommend" else similar)
        )
        got = [part["score"] for part in answer["items"]]
        if not np.allclose(got, scores[ids >= 0], rtol=1e-4, atol=1e-5):
            return False
        # Rounding may exchange neighbours of equal score; anything else is wrong.
        labels = [part["item"] for part in answer["items"]]
        return len(set(labels) ^ set(self.items[ids[ids >= 0]].tolist())) <= 2


async def load(
    host: str, port: int, truth: Truth, clients: int, seconds: float, bad: float
) -> tuple[list[float], Counter, Counter]:
    """Latencies in seconds, statuses (or errors, or ``"wrong"`` for wrong answers), answers by model.

    Of ``bad`` of the requests the status is ``"refused"`` if it is of the 400s.
    """
    end = time.perf_counter() + seconds
    latencies: list[float] = []
    statuses: Counter = Counter()
    models: Counter = Counter()

    async def client(seed: int) -> None:
        rng, connection = random.Random(seed), Client(host, port)
        while time.perf_counter() < end:
            if rng.random() < bad:
                status, answer = await connection.post(*rng.choice(NONSENSE))
                statuses["refused" if 400 <= status < 500 and answer["detail"] else status] += 1
                continue
            path, body, pair = truth.question(rng)
            started = time.perf_counter()
            try:
                status, answer = await connection.post(path, body)
            except (OSError, asyncio.IncompleteReadError) as error:
                statuses[type(error).__name__] += 1
                return
            latencies.append(time.perf_counter() - started)
            models[answer.get("model")] += 1
            statuses[status if status != 200 or truth.check(path, pair, answer) else "wrong"] += 1
        await connection.close()

    await asyncio.gather(*(client(seed) for seed in range(clients)))
    return latencies, statuses, models


def make_models(n_users: int, n_items: int, K: int) -> list[RGALS]:
    data = make_implicit(n_users, n_items, mean_interactions=20, random_state=0)
    return [
        RGALS(K=K, loss=loss, n_iter=3, random_state=seed).fit(data)
        for seed, loss in enumerate([RG2(), IALS()])
    ]


def start(path: Path, *options: str) -> tuple[subprocess.Popen, int]:
    """The service in a process, and its port."""
    command = [sys.executable, str(SERVICE), str(path), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if "serves" not in line:
        process.kill()
        raise RuntimeError(f"the service did not start: {line!r}")
    return process, int(line.split()[0].rpartition(":")[2])


async def under_load(
    path: Path,
    port: int,
    models: list[RGALS],
    clients: int,
    seconds: float,
    swap_every: float,
    bad: float = 0.0,
) -> tuple[list[float], Counter, Counter, int]:
    """`load` while the file changes hands; also the number of exchanges."""
    truth = await asyncio.to_thread(Truth, models)
    work = asyncio.create_task(load("127.0.0.1", port, truth, clients, seconds, bad))
    swaps = 0
    while not (await asyncio.wait([work], timeout=swap_every))[0]:
        swaps += 1
        await asyncio.to_thread(models[swaps % len(models)].save, path)
    return *work.result(), swaps


def memory(process: int) -> float:
    """Bytes that a process has in memory, on Linux."""
    return float(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--swap-every", type=float, default=3.0)
    parser.add_argument("--bad", type=float, default=0.05, help="share of requests that are nonsense")
    args = parser.parse_args()
    models = make_models(args.users, args.items, args.K)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        models[0].save(path)
        process, port = start(path)
        sizes: list[float] = []

        def watch() -> None:
            while len(sizes) < 5:
                time.sleep(args.seconds / 5)
                sizes.append(memory(process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        try:
            watcher.start()
            latencies, statuses, served, swaps = asyncio.run(
                under_load(path, port, models, args.clients, args.seconds, args.swap_every, args.bad)
            )
        finally:
            process.terminate()
            process.wait(30)
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99]) * 1e3
    print(
        f"{args.users} users, {args.items} items, K={args.K}; {args.clients} requests in flight, "
        f"{args.seconds:g} s"
    )
    print(f"{len(latencies)} answers, {len(latencies) / args.seconds:.0f} a second; status {dict(statuses)}")
    print(
        f"p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f} ms; {swaps} new files, answers by model "
        f"{sorted(served.values())}"
    )
    print("memory of the service, MB: " + ", ".join(f"{size / 1e6:.0f}" for size in sizes))
    if not set(statuses) <= {200, "refused"}:
        sys.exit("some requests failed")


if __name__ == "__main__":
    main()
