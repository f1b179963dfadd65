"""Lists go into a real PostgreSQL server by the example's lines, whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from helpers import interactions

from rgals import RGALS
from rgals.datasets import Interactions
from rgals.scoring import recommend_all

EXAMPLE = ROOT / "examples" / "postgres.py"
LISTS = 'SELECT "user", item, rank, score FROM recommendations ORDER BY "user", rank'


def program(name: str) -> str:
    """A program of the server: in the path, or where Debian has it."""
    places = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *places]))
    if found is None:
        pytest.skip(f"no PostgreSQL server here: {name} is missing (Debian's package postgresql)")
    return found


@pytest.fixture(scope="module")
def address():
    """Of a server of this test's own, reached by a socket in its folder."""
    pytest.importorskip("adbc_driver_postgresql")
    initdb, postgres, ready = map(program, ("initdb", "postgres", "pg_isready"))
    with tempfile.TemporaryDirectory() as folder:
        # A server refuses to run as root: that of Debian has a user of its own.
        who = {}
        if os.name == "posix" and os.getuid() == 0:
            who = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(folder, "postgres", "postgres")
        data = str(Path(folder) / "data")
        quiet = {"stdout": subprocess.DEVNULL, "cwd": folder, **who}
        subprocess.run([initdb, "-D", data, "-U", "shop", "-A", "trust", "-E", "UTF8"], check=True, **quiet)
        told = [postgres, "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        server = subprocess.Popen(told, stderr=subprocess.DEVNULL, **quiet)
        try:
            for _ in range(300):
                if subprocess.run([ready, "-h", folder], stdout=subprocess.DEVNULL).returncode == 0:
                    break
                assert server.poll() is None, "the server ended"
                threading.Event().wait(0.1)
            yield f"postgresql:///postgres?host={folder}&user=shop"
        finally:
            server.terminate()
            server.wait(60)


def model(ids: str, seed: int) -> RGALS:
    X = interactions(300, 60, seed=seed)
    users, items = np.arange(X.shape[0]) + 2**40, np.arange(X.shape[1]) * 7
    if ids == "text":
        users, items = (np.array([f"o'{n} ü" for n in labels]) for labels in (users, items))
    return RGALS(K=4, n_iter=2, random_state=0).fit(Interactions(X, users, items))


def load(path: Path, address: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLE), str(path), address], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def ask(address: str, question: str) -> list[tuple]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchall()


@pytest.mark.parametrize("ids", ["text", "integers"])
def test_the_table_has_what_recommend_gives(address, tmp_path, ids):
    fitted = model(ids, 0)
    written = recommend_all(fitted, tmp_path / "lists.parquet", n=5)
    assert f"{written.rows:,} recommendations" in load(tmp_path / "lists.parquet", address)
    users = fitted.user_ids_[np.diff(fitted.seen_.indptr) > 0]
    items, scores = fitted.recommend(users, 5)
    want = {
        (user, item, rank): score
        for user, one, told in zip(users.tolist(), items, scores, strict=True)
        for rank, (item, score) in enumerate(zip(one, told.tolist(), strict=True), 1)
        if item is not None
    }
    found = {tuple(row[:3]): row[3] for row in ask(address, LISTS)}
    assert found == pytest.approx(want) and len(found) == written.rows > 1000


def test_readers_see_one_table_or_the_other_and_a_failed_load_changes_nothing(address, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    for seed in (0, 1):
        recommend_all(model("text", seed), tmp_path / f"{seed}.parquet", n=20 + seed)
    whole = {}
    for seed in (0, 1):
        load(tmp_path / f"{seed}.parquet", address)
        whole[seed] = ask(address, LISTS)
    assert whole[0] != whole[1] and len(whole[0]) > 4000
    seen, over = [], threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.append(ask(address, LISTS))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(6):
        load(tmp_path / f"{turn % 2}.parquet", address)
    over.set()
    reader.join()
    assert len(seen) > 5 and all(found in (whole[0], whole[1]) for found in seen)
    assert ask(address, LISTS) == whole[1]
    # The last row comes twice: the primary key refuses it after all rows were sent.
    table = parquet.read_table(tmp_path / "0.parquet")
    parquet.write_table(pa.concat_tables([table, table.slice(len(table) - 1)]), tmp_path / "twice.parquet")
    told = [sys.executable, str(EXAMPLE), str(tmp_path / "twice.parquet"), address]
    failed = subprocess.run(told, capture_output=True, text=True)
    assert failed.returncode and "recommendations_new_pkey" in failed.stderr
    assert ask(address, LISTS) == whole[1]
    assert ask(address, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [
        ("recommendations",)
    ]
