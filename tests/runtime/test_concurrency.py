"""Threads and forks: identical bytes, one snapshot an answer, no hang, no growth."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from instruments.harness import LINUX, PATIENCE, POSIX, python

from rgals.runtime.errors import hear, warn

SCRIPT = str(Path(__file__).parents[1] / "instruments" / "concurrency.py")


def script(name: str, *arguments, **changes):
    """The answer of a script, or what it died of; and how long it took."""
    started = time.monotonic()
    run = python(SCRIPT, name, json.dumps(arguments), **changes)
    seconds = time.monotonic() - started
    if run.returncode != 0:
        return f"exit {run.returncode}: {run.stderr[-300:]}", seconds
    return json.loads(run.stdout.strip().splitlines()[-1]), seconds


def forked(zygote, name: str, *arguments):
    """The same of a forked process, where neither the environment nor what came before counts."""
    outcome = zygote.run(f"instruments.concurrency:{name}", *arguments)
    return outcome.value if outcome.returned else repr(outcome), outcome.seconds


def test_determinism(tally, amount):
    threads, seeds = amount(([1, 4], [1]), ([1, 2, 4], [1, 2, 3, 4, 5]))
    settings = amount([2], [1, 2])
    count = tally("determinism", 2, 2 * 15)
    wanted = None
    for blas in settings:
        answer, seconds = script("determinism", threads, seeds, OPENBLAS_NUM_THREADS=blas)
        if isinstance(answer, str):
            count.add(seconds, f"{blas} BLAS threads: {answer}")
            continue
        wanted = wanted or {seed: answer[f"threads 1, seed {seed}"] for seed in seeds}
        for key, found in answer.items():
            same = found == wanted[int(key.rpartition(" ")[2])]
            count.add(seconds / len(answer), None if same else f"{blas} BLAS threads, {key}: other bytes")
    assert len(set(wanted.values())) == len(seeds), "seeds must differ"
    count.check()


@pytest.mark.few(0)
def test_every_thread_computes_the_same_whatever_the_threads_of_blas(tally):
    settings = [None, 1, 2, 4]
    count = tally("main thread and others x BLAS threads", 12, 12)
    wanted = None
    for blas in settings:
        answer, seconds = script("places", OPENBLAS_NUM_THREADS="" if blas is None else blas)
        if isinstance(answer, str):
            count.add(seconds, f"{blas} BLAS threads: {answer}")
            continue
        wanted = wanted or answer["main thread"]
        for place, found in answer.items():
            other = [name for name in wanted if found[name] != wanted[name]]
            fault = other and f"{blas} BLAS threads, {place}: other bytes of {', '.join(other)}"
            count.add(seconds / len(answer), fault or None)
    count.check()


@POSIX
def test_forks_while_two_threads_fit(tally, amount):
    count = tally("forks while two threads fit", 5, 200)
    answer, seconds = script("forks", count.figure, OPENBLAS_NUM_THREADS=2)
    if isinstance(answer, str):
        count.add(seconds, answer)
    else:
        count.add(answer["slowest"], None, answer["cases"])
        count.failures += answer["faults"]
        assert answer["during"] == [1], "threads of BLAS during the fits"
        assert answer["left"], "the limits were not restored"
    count.check()


def test_every_answer_comes_from_one_snapshot(zygote, tally, amount):
    count = tally("16 threads during refits", 100, 1000)
    answer, seconds = forked(zygote, "concurrency", amount(1.0, 60.0), amount(5, 50), False)
    if isinstance(answer, str):
        count.add(seconds, answer)
    else:
        count.add(answer["slowest"], None, answer["answers"])
        for name in ("unknown", "faults", "idle"):
            if answer[name]:
                count.failures.append(f"{name}: {answer[name]}")
        assert answer["refits"] >= amount(5, 50)
        assert answer["different"] > 3, "fits must differ"
    count.check()


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["als", "sgd"])
def test_every_file_saved_during_refits_is_one_of_the_fits(zygote, tally, what):
    count = tally(f"saves during refits ({what})", 80, 5000)
    answer, seconds = forked(zygote, "saves", what, count.figure)
    if isinstance(answer, str):
        count.add(seconds, answer)
    else:
        count.add(answer["slowest"], None, answer["saves"])
        for name in ("broken", "mixed"):
            if answer[name]:
                count.failures.append(f"{answer[name]} of {answer['saves']} {name}: {answer['faults']}")
        assert answer["different"] > 3, "the files must be of several fits"
    count.check()


@pytest.mark.parametrize("what", ["als", "sgd"])
def test_a_fit_published_in_two_steps_is_caught(zygote, what):
    answer, _ = forked(zygote, "saves", f"torn {what}", 60)
    assert answer["mixed"] + answer["broken"] > 0, answer


def test_a_torn_snapshot_is_caught(zygote):
    answer, _ = forked(zygote, "concurrency", 1.0, 5, True)
    assert answer["unknown"], answer


@POSIX
def test_forks(zygote, tally, amount):
    cases = amount(
        [("fork", "during", "als"), ("fork", "during", "sgd"), ("fork", "after", "sgd")],
        [
            (method, when, what)
            for method in ("fork", "forkserver", "spawn")
            for when in ("before", "after", "during")
            for what in ("als", "sgd")
            if when != "during" or method == "fork"  # the others share nothing with the parent's threads
        ],
    )
    count = tally("fork, forkserver, spawn", len(cases), len(cases))
    for method, when, what in cases:
        if method == "fork" and when != "before":
            answer, seconds = forked(zygote, "fork", method, when, what)
        else:
            answer, seconds = script("fork", method, when, what)
        name, fault = f"{what}, {method}, {when} the first fit", None
        if isinstance(answer, str):
            fault = answer
        elif answer["parent"] != answer["expected"]:
            fault = "the parent's results changed"
        elif answer["answer"] != answer["expected"]:
            fault = f"{answer['answer']} (exit code {answer['exit']})"
        count.add(seconds, fault and f"{name}: {fault}")
    count.check()
    assert count.worst < PATIENCE


@pytest.mark.few(0)
@LINUX
def test_soak(zygote, tally):
    count = tally("soak: fits without growth", 100, 1000)
    answer, seconds = forked(zygote, "soak", count.figure)
    if isinstance(answer, str):
        count.add(seconds, answer)
    else:
        count.add(answer["slowest"], None, count.figure)
        marks = answer["marks"]
        growth = (marks[-1] - marks[0]) / (len(marks) - 1) * 2  # of a hundred fits
        if growth >= 1 << 20:
            count.failures.append(f"{growth / 1024:.0f} KiB in 100 fits: {marks}")
    count.check()


def test_what_one_thread_hears_another_still_warns_of():
    """`warnings.catch_warnings` in a worker's thread took the warnings of the whole process."""
    inside, done = threading.Event(), threading.Event()

    def listen():
        with hear() as said:
            inside.set()
            done.wait(60)
            warn("of the worker")
        return said

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(listen)
        inside.wait(60)
        with pytest.warns(UserWarning, match="of the caller"):
            warn("of the caller")
        done.set()
        assert heard.result() == ["of the worker"]
