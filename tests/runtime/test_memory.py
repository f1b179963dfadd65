"""Memory: what a fit takes is what was predicted, and what does not fit is refused by a typed error."""

from __future__ import annotations

import builtins
import ctypes
import importlib
import json
import math
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import interactions
from instruments.harness import LINUX, python
from instruments.memory import matrix

from rgals import RGALS, RGX, InsufficientMemoryError, PrecisionWarning
from rgals.baselines import Popularity
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime import cgroups
from rgals.runtime import memory as _memory
from rgals.scoring import topk, topk_dense
from rgals.sgd import SGDRanker
from rgals.solvers import closed_form
from rgals.solvers import precision as _precision
from rgals.solvers.footprint import Footprint
from rgals.training import base, fit

# ------------------------------------------------------------------ what a fit takes

# kind, users, items, interactions a user, whether valued, parameters
QUICK = [
    ("als", 60_000, 1_000, 10, False, {"K": 64}),
    ("als", 60_000, 1_000, 10, False, {"K": 64, "user_mean": True}),
    ("als", 60_000, 2_000, 10, False, {"K": 64, "hard_negatives": 1.0, "n_iter": 5}),
    ("sgd", 30_000, 4_000, 10, False, {"K": 64, "loss": "bpr", "n_negatives": 4}),
]
BOUNDED = [
    ("als", 400_000, 2_000, 20, False, {"K": 128}),
    ("als", 200_000, 5_000, 20, False, {"K": 512}),
    ("als", 100_000, 100_000, 20, False, {"K": 64}),
]
OTHERS = [
    ("als", 30_000, 8_000, 40, False, {"K": 100, "loss": "ials", "dtype": "float64"}),
    ("als", 60_000, 20_000, 40, False, {"K": 128, "loss": "rgx"}),
    ("als", 60_000, 20_000, 40, False, {"K": 128, "loss": "rgx", "user_mean": True}),
    ("als", 400_000, 2_000, 20, False, {"K": 128, "dtype": "float64"}),
    ("als", 400_000, 2_000, 20, True, {"K": 100, "loss": "rgx"}),
    ("als", 400_000, 2_000, 20, False, {"K": 8}),
    ("als", 100_000, 20_000, 20, False, {"K": 64, "early_stopping": True, "n_iter": 3}),
    ("als", 100_000, 20_000, 20, False, {"K": 64, "hard_negatives": 1.0, "n_iter": 5}),
    ("als", 300_000, 2_000, 20, False, {"K": 128, "user_mean": True, "early_stopping": True, "n_iter": 3}),
    (
        "als",
        100_000,
        20_000,
        20,
        False,
        {"K": 64, "hard_negatives": 1.0, "early_stopping": True, "n_iter": 6},
    ),
    ("als", 30_000, 30_000, 20, True, {"K": 128, "hard_negatives": 1.0, "n_iter": 5, "dtype": "float64"}),
    ("svd", 400_000, 2_000, 20, False, {"K": 128}),
    ("svd", 20_000, 60_000, 20, False, {"K": 64}),
    ("sgd", 100_000, 20_000, 20, False, {"K": 64, "loss": "softmax"}),
    ("sgd", 100_000, 20_000, 20, False, {"K": 64, "loss": "bpr", "n_negatives": 10}),
    ("sgd", 100_000, 20_000, 20, False, {"K": 64, "loss": "softmax", "encoder": "lightgcn"}),
    ("sgd", 100_000, 10_000, 2, False, {"K": 64, "loss": "sl", "encoder": "xsimgcl", "batch_size": 8192}),
    ("sgd", 100_000, 3_000, 20, False, {"K": 64, "loss": "rg2", "dtype": "float64", "score": "dot"}),
    ("sgd", 200, 200_000, 10, False, {"K": 4, "loss": "full_lambda_rank", "n_epochs": 1}),
    ("sgd", 30_000, 4_000, 10, False, {"K": 64, "loss": "lambda_rank"}),
]


@LINUX
def test_peak_memory_is_as_predicted(zygote, tally, amount):
    sizes = amount(QUICK, BOUNDED + OTHERS)
    count = tally("peak memory over prediction, .75 to 1.25", len(QUICK), len(BOUNDED + OTHERS))
    for size in sizes:
        started = time.monotonic()
        outcome, fault = zygote.run("instruments.memory:peak", *size), None
        answer = outcome.value
        if not outcome.returned:
            fault = repr(outcome)
        else:
            ratio = answer["peak"] / answer["predicted"]
            # Far below would be a guard that refuses what would fit.
            if not 0.75 <= ratio <= 1.25:
                fault = f"{ratio:.2f} of the prediction, {answer}"
            elif size in (*QUICK[:1], *BOUNDED) and answer["peak"] + answer["csr"] > 1.1 * answer["bound"]:
                fault = f"more than 2 CSR + 2 (M + N) K b + threads K^2 b, {answer}"
        count.add(time.monotonic() - started, fault and f"{size}: {fault}")
    count.check()


def peak_of(call) -> int:
    """Bytes that numpy allocated at the peak of a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(60_000, 100), (100, 60_000)], ids=["tall", "wide"])
def test_the_closed_form_takes_what_is_predicted(shape):
    X = matrix(min(shape) * 600, 100, 5)
    users = as_csr(X if shape[0] > shape[1] else X.T, dtype=np.float32)
    rng, dtype = np.random.default_rng(0), np.dtype(np.float32)
    peak = peak_of(lambda: closed_form.item_factors(users, 32, 0.01, rng, dtype))
    assert 0.75 <= peak / closed_form.scratch_bytes(shape, users.nnz, 32, 4, False) <= 1.25


class StoppedError(Exception):
    """Before anything is fitted."""


def test_what_is_predicted_has_a_place_for_every_table_of_an_option(monkeypatch):
    """Too small a figure lets a fit begin that the system ends without a word."""

    def stop(needed, *_):
        raise StoppedError(needed)

    monkeypatch.setattr(_memory, "admit", stop)
    wide, dense = (
        as_csr(np.random.default_rng(0).random(size) < p)
        for size, p in (((400, 900), 0.01), ((300, 300), 0.5))
    )

    def predicted(X=wide, validation=None, **options):
        with pytest.raises(StoppedError) as caught:
            RGALS(**{"K": 64, "n_iter": 9, "user_mean": False, **options}).fit(X, validation=validation)
        return caught.value.args[0]

    plain, users, items = predicted(), 400 * 64 * 4, 900 * 64 * 4
    assert predicted(readout_exponent=0.1) >= plain + items
    assert predicted(loss="rgx") >= plain + 16 * 64 * 64 * 4  # sums of inverses
    # The best iterate, and the interactions of both parts.
    watched = predicted(early_stopping=True)
    assert watched >= plain + items + 4 * wide.nnz
    both = predicted(early_stopping=True, user_mean=True)  # whose best iterate has user factors too
    assert both - predicted(user_mean=True) >= watched - plain + users
    assert predicted(dense, K=1, early_stopping=True) >= 60 * dense.nnz
    hard = predicted(hard_negatives=1.0)
    assert predicted(wide, wide, hard_negatives=1.0) >= hard + users
    one, four = (Footprint(wide.shape, wide.nnz, 64, 4, threads=n).peak() for n in (1, 4))
    assert four >= one + 3 * 2 * 64 * 64 * 4


def test_an_update_with_hard_negatives_asks_for_their_pairs(monkeypatch):
    X, needed = interactions(60, 30), []

    def stop(bytes_, *_):
        needed.append(bytes_)
        raise StoppedError

    models = [RGALS(K=2, n_iter=5, hard_negatives=h, random_state=0).fit(X) for h in (None, 1.0)]
    monkeypatch.setattr(_memory, "admit", stop)
    for model in models:
        with pytest.raises(StoppedError):
            model.partial_fit(X)
    pairs, lists = 24 * 60 * 30, 60 * (30 + 30) * 12  # a user's items, and scores of these and of all changed
    assert needed[1] - needed[0] > pairs + lists


def test_margins_of_the_items_take_no_copy_of_the_interactions():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 50, 3 << 20).astype(np.int32)
    values = rng.random(len(indices)).astype(np.float32)
    matrix = CSR(np.array([0, len(indices)]), indices, values, 50)
    assert peak_of(lambda: matrix.col_sums) < 8 * len(indices)
    assert peak_of(lambda: matrix.col_counts) < 4 * len(indices)
    assert (matrix.col_sums == np.bincount(indices, values)).all()
    assert (matrix.col_counts == np.bincount(indices)).all()


def test_margins_of_the_users_take_no_copy_of_the_interactions_and_are_those_of_all_at_once():
    rng = np.random.default_rng(0)
    counts = rng.poisson(3, 1 << 20)
    counts[[0, 5, -1]], counts[7] = 0, 3 << 20  # longer than what is converted at once
    values = rng.random(counts.sum()).astype(np.float32)
    indptr = np.append(0, np.cumsum(counts))
    matrix = CSR(indptr, np.zeros(len(values), np.int32), values, 5)
    assert peak_of(lambda: matrix.row_sums) < 8 * len(values)
    filled = np.flatnonzero(counts)
    whole = np.add.reduceat(values, indptr[filled], dtype=np.float64)
    assert (matrix.row_sums[filled] == whole).all()
    assert not matrix.row_sums[counts == 0].any()
    assert CSR(indptr[:2], values[:0].astype(np.int32), values[:0], 5).row_sums.tolist() == [0.0]


# ------------------------------------------------------------------ what there is


def group(folder: Path, limit: str, used: int, cache: int = 0, v1: bool = False) -> None:
    """Write the files of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    names = _memory._V1 if v1 else _memory._V2
    texts = limit, str(used), f"anon 1\ninactive_file {cache}\n"
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 10,000 KiB of free memory, no control group and no limit."""
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(_memory, "resource", None)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1 kB\nMemAvailable: 10000 kB\n")
    return tmp_path


def test_limits_of_the_control_group_count(machine):
    assert _memory.available_bytes() == 10_000 * 1024
    group(machine / "cgroup", "1000", 900, cache=300)  # a container sees its own group as the root
    assert _memory.available_bytes() == 400
    group(machine / "cgroup", "max", 900)
    assert _memory.available_bytes() == 10_000 * 1024
    group(machine / "cgroup", "1000", 2000)
    assert _memory.available_bytes() == 0


@pytest.mark.parametrize("v1", [False, True], ids=["v2", "v1"])
def test_limits_of_the_own_group_and_of_those_above_it_count(machine, v1):
    root = machine / "cgroup" / ("memory" if v1 else "")
    line = "5:cpu,memory:/outer/inner" if v1 else "0::/outer/inner"
    (machine / "proc" / "self" / "cgroup").write_text(line + "\n")
    group(root / "outer" / "inner", "5000", 1000, v1=v1)
    assert _memory.available_bytes() == 4000
    group(root / "outer", "6000", 4500, v1=v1)
    assert _memory.available_bytes() == 1500
    group(root / "other", "10", 5, v1=v1)  # somebody else's
    assert _memory.available_bytes() == 1500


def test_caches_count_once_with_those_of_the_groups_below(machine):
    folder = machine / "cgroup" / "memory"
    group(folder, "1000", 900, v1=True)
    (folder / "memory.stat").write_text("inactive_file 100\nrss 7\ntotal_inactive_file 300\ntotal_rss 9\n")
    assert _memory.available_bytes() == 400
    group(folder, "1000", 200, cache=250, v1=True)  # the files are read one after the other
    assert _memory.available_bytes() == 1000


def test_what_a_limit_of_addresses_leaves_is_counted_in_addresses(machine, monkeypatch):
    (machine / "proc" / "self" / "statm").write_text("3000 500 20 1 0 60 0\n")
    page = _memory.os.sysconf("SC_PAGE_SIZE")
    limits = SimpleNamespace(
        RLIMIT_AS="as", RLIM_INFINITY=-1, getrlimit=lambda which: {"as": (limit, -1)}[which]
    )
    monkeypatch.setattr(_memory, "resource", limits)
    limit = 3100 * page
    assert _memory.available_bytes() == 100 * page
    limit = -1
    assert _memory.available_bytes() == 10_000 * 1024


def test_a_system_that_says_nothing_refuses_nothing(machine):
    (machine / "proc" / "meminfo").unlink()
    assert _memory.available_bytes() == math.inf
    _memory.require(1 << 60, "a fit", "lower K")


def test_a_system_without_resource_and_sysconf_is_imported(monkeypatch):
    original = builtins.__import__

    def absent(name, *arguments, **more):
        if name == "resource":
            raise ModuleNotFoundError(name)
        return original(name, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", absent)
        patch.delattr(_memory.os, "sysconf")
        assert importlib.reload(_memory)._own_limit() == math.inf
        assert _memory.resource is None
    importlib.reload(_memory)
    assert _memory.resource is not None


# ------------------------------------------------------------------ refusals


def test_a_fit_that_does_not_fit_is_refused_before_it_allocates(monkeypatch):
    X = interactions(60, 30)
    model = RGALS(K=8, random_state=0).fit(X)
    before = model.item_factors_.copy()
    monkeypatch.setattr(_memory, "available_bytes", lambda: 1000)
    words = "K=512 of 60 users, 30 items and .* in float64 needs about .*MiB.*1000 bytes are available"
    with pytest.raises(InsufficientMemoryError, match=words) as caught:
        model.set_params(K=512, dtype="float64").fit(X)
    assert isinstance(caught.value, MemoryError)
    assert "float32" in str(caught.value)
    assert (model.item_factors_ == before).all()


def test_an_sgd_fit_that_does_not_fit_is_refused_before_it_allocates(monkeypatch):
    X = interactions(60, 30)
    model = SGDRanker(K=8, n_epochs=1, random_state=0).fit(X)
    before = model.item_factors_.copy()
    monkeypatch.setattr(_memory, "available_bytes", lambda: 1000)
    words = "K=512 and batch_size=32 of 60 users, .* in float32 needs about .*MiB.*1000 bytes are available"
    with pytest.raises(InsufficientMemoryError, match=words):
        model.set_params(K=512).fit(X)
    assert (model.item_factors_ == before).all()


@pytest.mark.few(0)
@LINUX
def test_a_limit_of_the_address_space_gives_a_typed_error():
    # Not by the zygote: the stacks of its threads are address space that its children fill.
    run = python("-m", "instruments.memory")
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == 2
    for answer in answers:
        refused, ran_out = answer["refused"], answer["ran out"]
        assert refused["type"] == ran_out["type"] == "InsufficientMemoryError"
        assert refused["predicted"] in refused["words"]
        assert "are available" in refused["words"]
        assert refused["grown"] < 0.3, "refused before anything is allocated"
        # The same fit under a guard that knows of no limit: numpy's own error has a type, too.
        assert "memory ran out during a fit with K=" in ran_out["words"]
        assert ran_out["predicted"] in ran_out["words"]
        assert "are available" in ran_out["words"]
        assert answer["fits afterwards"]


def test_the_first_fit_needs_addresses_for_libraries_and_threads(monkeypatch):
    # OpenBLAS, which gets none for its buffers, waits for ever, and LLVM ends the process.
    X, model = interactions(60, 30), RGALS(K=4, n_iter=1, n_jobs=1)
    monkeypatch.setattr(_memory, "available_bytes", lambda: 100 << 20)
    monkeypatch.setattr(_memory, "_own_limit", lambda: 100 << 20)
    monkeypatch.setattr(_memory, "_have_fitted", False)
    words = "240.0 MiB of addresses for libraries and 1 threads, but its limit leaves 100.0 MiB; raise ulimit"
    with pytest.raises(InsufficientMemoryError, match=words):
        model.fit(X)
    with monkeypatch.context() as patch:
        patch.setattr(_memory, "_own_limit", lambda: math.inf)
        model.fit(X)
    model.fit(X)  # what it needs besides is there now


def test_every_thread_of_the_first_fit_needs_addresses_until_one_has_computed(monkeypatch):
    monkeypatch.setattr(_memory, "available_bytes", lambda: math.inf)
    monkeypatch.setattr(_memory, "_own_limit", lambda: 300 << 20)
    monkeypatch.setattr(_memory, "_have_fitted", False)
    Popularity().fit(interactions(60, 30))  # by neither compiled code nor BLAS
    _memory.admit(1, "a fit", "lower K", threads=1)
    with pytest.raises(InsufficientMemoryError, match="400.0 MiB of addresses for libraries and 3 threads"):
        _memory.admit(1, "a fit", "lower K", threads=3)


def test_a_memory_error_anywhere_in_a_fit_is_typed(monkeypatch):
    X = interactions(60, 30)

    def fail(*arguments, **more):
        raise MemoryError("Unable to allocate 9 GiB")

    for name in ("choose_reg", "check_underflow"):
        with monkeypatch.context() as patch:
            patch.setattr(fit, name, fail)
            with pytest.raises(InsufficientMemoryError, match=r"during a fit with K=4.*Unable to.*available"):
                RGALS(K=4).fit(X)
    with monkeypatch.context() as patch:
        patch.setattr(base, "read", fail)
        with pytest.raises(InsufficientMemoryError, match="while the input of the fit was checked"):
            RGALS(K=4).fit(X)
    for kind in (RGALS, SGDRanker):
        with pytest.raises(InsufficientMemoryError, match="during a fit with K=4 .*Unable to.*available"):
            kind(K=4).fit(X, callbacks=fail)


def test_lists_that_do_not_fit_are_refused_before_they_are_allocated(monkeypatch):
    monkeypatch.setattr(_memory, "available_bytes", lambda: 1 << 30)
    model = RGALS(K=4, n_iter=1, random_state=0).fit(interactions(60, 30))
    users, items = model.factors_
    lists = np.ones((60, 30), np.float32)
    for call in (
        lambda n: model.recommend([0, 1, 2], n=n),
        lambda n: model.recommend([0, 1, 2], n=n, candidates=interactions(60, 30)[:3]),
        lambda n: model.recommend_ids([0, 1, 2], n=n),
        lambda n: model.recommend_ids([-1], n=n, unknown="empty"),
        lambda n: model.recommend_new(interactions(60, 30)[:3], n=n),
        lambda n: topk(users, items, n),
        lambda n: topk_dense(lists, n),
    ):
        words = "lists with n=10,000,000,000 needs about .* 1.0 GiB are available"
        with pytest.raises(InsufficientMemoryError, match=words):
            call(10**10)
    ids, _ = model.recommend([0], n=1000)
    assert ids.shape == (1, 1000)
    assert ids[0, -1] == -1


def test_the_closed_form_of_every_shape_is_that_of_a_dense_decomposition():
    for shape in ((70, 40), (40, 70), (50, 50)):
        for K in (6, 60):
            users = as_csr(interactions(*shape, valued=True, seed=5), dtype=np.float64)
            Q = closed_form.item_factors(users, K, 0.002, np.random.default_rng(0), np.dtype(np.float64))
            V, n, total = users.to_scipy(np.float64).toarray(), shape[1], users.row_sums.sum()
            c = users.row_sums[:, None]
            A = np.divide(V * n, np.sqrt(c), out=np.zeros_like(V), where=c > 0) - np.sqrt(c)
            _, s, Vt = np.linalg.svd(A, full_matrices=False)
            rank = min(K, len(s))
            shrunk = np.maximum(s[:rank] - 0.002 * np.sqrt(n * total), 0)
            wanted = (Vt[:rank].T * shrunk) @ Vt[:rank] * np.sqrt(n / total)
            np.testing.assert_allclose(Q @ Q.T, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(90, 20), (20, 90)], ids=["tall", "wide"])
def test_the_closed_form_is_the_same_by_blocks_of_rows(shape, rng, monkeypatch):
    users, found = as_csr((rng.random(shape) < 0.3).astype(float)), []
    for rows in (1000, 32):
        monkeypatch.setattr(closed_form, "_ROWS_AT_ONCE", rows)
        items = closed_form.item_factors(users, 6, 0.001, np.random.default_rng(0), np.dtype("float64"))
        found.append(items @ items.T)
    np.testing.assert_allclose(*found, atol=1e-9)
    assert np.linalg.matrix_rank(found[0]) == 6


def test_the_closed_form_at_full_rank_without_regularisation():
    loss = RGX(alpha=0.0)
    model = RGALS(K=30, loss=loss, solver="svd", reg=0.01, dtype="float64").fit(interactions(40, 20))
    assert model.item_factors_.shape == (20, 30)
    assert not model.item_factors_[:, 20:].any()


def test_a_warning_of_a_fit_points_at_the_line_that_called_it(monkeypatch):
    monkeypatch.setattr(_precision, "rows_at_risk", lambda *arguments: np.array([4]))
    monkeypatch.setattr(_precision, "LIMIT", -1.0)
    with pytest.warns(PrecisionWarning, match="user 4") as caught:
        RGALS(K=4, n_iter=1).fit(interactions(60, 30))
    assert caught[0].filename == __file__


class Kernel32:
    """Of 16 GiB, 5 are free; with page files the system promises another 3."""

    def GlobalMemoryStatusEx(self, status):
        assert status[0] == 64 == ctypes.sizeof(status)
        status[0] |= 70 << 32
        status[1:] = [16 << 30, 5 << 30, 20 << 30, 3 << 30, 1 << 47, 1 << 46, 0]
        return 1


class LibSystem:
    """16 GiB, 40 % of them free; one number has 64 bits, the other 32."""

    numbers = {
        b"hw.memsize": (16 << 30).to_bytes(8, "little"),
        b"kern.memorystatus_level": bytes([40, 0, 0, 0]),
    }

    def sysctlbyname(self, name, value, size, new, new_size):
        number = self.numbers.get(name)
        if number is None:
            return -1
        assert (size._obj.value, new, new_size.value) == (8, None, 0)
        ctypes.memmove(value, number, len(number))
        size._obj.value = len(number)
        return 0


@pytest.mark.parametrize(
    ("platform", "name", "library", "expected"),
    [("win32", "kernel32", Kernel32, 3 << 30), ("darwin", None, LibSystem, (16 << 30) * 40 // 100)],
)
def test_windows_and_macos_are_asked_in_their_ways(machine, monkeypatch, platform, name, library, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda asked: {name: library()}[asked])
    assert _memory.available_bytes() == expected
    monkeypatch.setattr(library, "numbers", {}, raising=False)
    monkeypatch.setattr(library, "GlobalMemoryStatusEx", lambda *_: 0, raising=False)
    assert _memory.available_bytes() == math.inf


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_a_system_that_cannot_be_asked_refuses_nothing(machine, monkeypatch, platform):
    def CDLL(name):
        raise OSError(name)

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", CDLL)
    assert _memory.available_bytes() == math.inf
