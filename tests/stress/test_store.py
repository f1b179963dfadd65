"""Stores in full: real sets have the bits of memory, killed fits go on, a full disk leaves nothing."""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest
from helpers import interactions

from rgals import RGALS, Checkpoint
from rgals.datasets import read_interactions
from rgals.matrix import convert, mapped, open_matrix

pq = pytest.importorskip("pyarrow.parquet")

SETS = {"ml-100k": True, "steam-200k-hours": True, "lastfm-hetrec2011": True, "citeulike-a": False}


def to_parquet(data, path, valued: bool) -> None:
    """Events in no order, ids as texts."""
    import pyarrow as pa

    matrix = data.matrix.tocoo()
    order = np.random.default_rng(0).permutation(matrix.nnz)
    columns = {"user": matrix.row, "item": matrix.col}
    table = {name: [f"{name[0]}{code}" for code in codes[order]] for name, codes in columns.items()}
    if valued:
        table["value"] = matrix.data[order]
    pq.write_table(pa.table(table), path, row_group_size=20_000)


@pytest.mark.parametrize("name", SETS)
def test_fits_of_real_sets_have_the_bits_of_memory(name, data_file, tmp_path, tally, monkeypatch):
    count = tally(f"fits of {name} from disk", 1, 96)
    valued, path = SETS[name], tmp_path / "events.parquet"
    to_parquet(read_interactions(data_file(name)), path, valued)
    data, store = read_interactions(path), convert(path, tmp_path / "x.rgals")
    assert np.ptp(data.matrix.data) > 0 or not valued
    for loss, dtype in itertools.product(("rg2", "rgx", "wrmf", "ials"), ("float32", "float64")):
        options = {"K": 32, "loss": loss, "dtype": dtype, "n_iter": 2, "random_state": 0}
        expected = RGALS(**options).fit(data)
        for block, n_jobs in itertools.product((20_000, 300_000, 1 << 20, 1 << 26), (1, 2, 4)):
            if count.cases == count.figure:
                break
            monkeypatch.setattr(mapped, "BLOCK", block)
            with count.case(f"{loss} {dtype}, blocks of {block}, {n_jobs} threads"):
                found = RGALS(n_jobs=n_jobs, **options).fit(store)
                np.testing.assert_array_equal(found.user_factors_, expected.user_factors_, strict=True)
                np.testing.assert_array_equal(found.item_factors_, expected.item_factors_, strict=True)
    count.check()


# ---------------------------------------------------------------------------------------------- kills


def fit(store: str, folder: str | None) -> tuple[bytes, bytes]:
    """A fit from disk, read in small blocks."""
    mapped.BLOCK = 3000
    model = RGALS(24, n_iter=12, init="random", values="raw", random_state=0)
    model.fit(open_matrix(store), checkpoint=folder)
    return model.user_factors_.tobytes(), model.item_factors_.tobytes()


def test_a_killed_fit_from_disk_goes_on_to_the_same_bits(zygote, tmp_path, tally):
    count = tally("kill -9 while fitting from disk", 4, 50)
    X, store = interactions(700, 200, valued=True).tocoo(), str(tmp_path / "x.rgals")
    lines = (f"u{u},i{i},{v:g}\n" for u, i, v in zip(X.row, X.col, X.data, strict=True))
    (tmp_path / "events.csv").write_text("user,item,value\n" + "".join(lines))
    convert(tmp_path / "events.csv", store)
    zygote.run("stress.test_store:fit", store, None)  # compiles, and the page cache is warm
    wanted = zygote.run("stress.test_store:fit", store, None)
    assert wanted.returned, wanted
    rng, run, resumed = np.random.default_rng(3), 0, 0
    while count.cases < count.figure:
        run += 1
        folder = str(tmp_path / f"fit{run}")
        for attempt in range(4):  # killed up to three times, then left alone
            after = None if attempt == 3 else (signal.SIGKILL, float(rng.uniform(0.05, 1.0) * wanted.seconds))
            outcome = zygote.run("stress.test_store:fit", store, folder, signal_after=after)
            if outcome.signal != signal.SIGKILL:
                break
            count.add(outcome.seconds)
            resumed += os.path.exists(os.path.join(folder, Checkpoint.name))
        if not outcome.returned or outcome.value != wanted.value:
            count.failures.append(f"fit {run}: {'other bytes' if outcome.returned else outcome}")
        assert run < 10 * count.figure
    assert resumed > count.cases / 4, "kills must fall behind the first checkpoint"
    open_matrix(store, verify=True)
    count.check()


# ---------------------------------------------------------------------------------------------- full disk


def convert_within(source: str, store: str, most: int) -> str:
    """In a process whose files may have so many bytes: what is said."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        convert(source, store)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "written"


def test_a_full_disk_ends_a_conversion_and_leaves_what_was_there(zygote, tmp_path, tally):
    count = tally("disk full while converting", 12, 12)
    X = interactions(900, 300).tocoo()
    source, store = tmp_path / "events.csv", tmp_path / "x.rgals"
    source.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in zip(X.row, X.col, strict=True)))
    convert(source, tmp_path / "whole.rgals")
    largest = max(path.stat().st_size for path in (tmp_path / "whole.rgals").iterdir())
    open_matrix(tmp_path / "whole.rgals", verify=True)
    for most in np.geomspace(64, largest - 1, count.figure).astype(int).tolist():
        outcome = zygote.run("stress.test_store:convert_within", str(source), str(store), most)
        left = sorted(set(os.listdir(tmp_path)) - {"events.csv", "whole.rgals"})
        said = "Error" in str(outcome.value) and ("large" in outcome.value or "space" in outcome.value)
        wrong = None if outcome.returned and said and not left else f"{outcome}, left {left}"
        count.add(outcome.seconds, wrong and f"{most} bytes: {wrong}")
    count.check()
    convert(source, store)
    open_matrix(store, verify=True)
