"""Files that are no tables, given to the command line: one line says what is wrong, the old output stays."""

from __future__ import annotations

import gzip
import os
import re
import time

import numpy as np
import pytest
from instruments.harness import LINUX, PATIENCE

from rgals.cli import main

GOOD = "user,item,rating\n" + "".join(f"u{k % 40},i{k % 31},{k % 5 + 1}\n" for k in range(600))


def endless(path, megabytes=4):
    """A single line."""
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(b"12345,6789," * 90_000 + b"0" * 10_000)


FILES = {
    "absent.csv": (None, "No such file"),
    "empty.csv": (b"", "empty"),
    "blank.csv": (b"\n\n  \n", "empty|blank|delimiter|no rows|header"),
    "header only.csv": (b"user,item,rating\n", "no rows|holds no|no interactions|empty"),
    "binary.csv": (np.random.default_rng(1).bytes(100_000), "binary|utf-8|UTF-8"),
    "zeros.csv": (bytes(50_000), "binary|NUL"),
    "long line.csv": (endless, "longer than"),
    "long quoted.csv": (b'user,item\n"' + b"x" * 2_000_000, "longer than|quote|line"),
    "latin.csv": ("user,item\nJosé,1\nAna,2\n".encode("latin-1"), "line 2.*encoding"),
    "late latin.csv": (GOOD.encode() + b"a,b,1\n" * 200_000 + "José,1,1\n".encode("latin-1"), "encoding"),
    "utf-16.csv": (GOOD.encode("utf-16"), "binary|utf-16|UTF-16|encoding"),
    "twice.csv": (b"user,item,user\na,b,c\n", "user"),
    "all alike.csv": (b"user,user\na,b\n", "user|item"),
    "one row of three.csv": (b"a;b\nc;d;e\n", "line 2|fields"),
    "short row.csv": (b"user,item,rating\na,b,1\nc,d\n", "line 3"),
    "long row.csv": (b"user,item,rating\na,b,1\nc,d,1,9\n", "line 3"),
    "word.csv": (b"user,item,rating\na,b,1\nc,d,many\n", "line 3.*'many'"),
    "nan.csv": (b"user,item,rating\na,b,1\nc,d,nan\n", "line 3|nan|NaN"),
    "negative.csv": (b"user,item,rating\na,b,1\nc,d,-1\n", "line 3|negative|Negative"),
    "half.csv.gz": (gzip.compress(GOOD.encode())[:-200], "cut off|damaged"),
    "wrong magic.csv.gz": (b"\x1f\x8bgarbage", "damaged|cut off"),
    "half.npz": ("npz", "damaged|no readable|zip|npz|delimiter|binary"),
    "pickle.npz": (b"\x80\x04\x95garbage.", "npz|zip|binary"),
    "text.npz": (GOOD.encode(), "npz|zip"),
    "half.parquet": (b"PAR1" + bytes(100), "parquet|Parquet"),
    "one column.csv": (b"user\na\nb\n", "delimiter|column"),
    "unclosed.csv": (b'user,item,rating\na,b,1\n"c,d,1\n', "line|quote|fields"),
}


def make(folder, name, content):
    path = folder / name
    if callable(content):
        content(path)
    elif content == "npz":
        np.savez(path, user=np.arange(9), item=np.arange(9))
        path.write_bytes(path.read_bytes()[:-40])
    elif content is not None:
        path.write_bytes(content)
    return path


def test_bad_files(tally, tmp_path, capsys, amount):
    count = tally("bad files for the command line", len(FILES), len(FILES))
    for name, (content, words) in FILES.items():
        (tmp_path / "out").write_bytes(b"old")
        path = make(tmp_path, name, content)
        started = time.perf_counter()
        with count.case(name):
            code = main(["fit", str(path), "-o", str(tmp_path / "out"), "-K", "2", "--n-iter", "1"])
            lines = capsys.readouterr().err.strip().splitlines()
            errors = [line for line in lines if line.startswith("rgals: error:")]
            assert code == 1, f"exit code {code}: {lines}"
            assert len(errors) == 1, lines
            assert lines[-1] == errors[0]
            assert name in errors[0], errors[0]
            assert re.search(words, errors[0]), errors[0]
            assert len(errors[0]) < 600, "a line of a terminal or a few"
            assert time.perf_counter() - started < PATIENCE
            assert (tmp_path / "out").read_bytes() == b"old"
        if path.exists():
            path.unlink()
    assert os.listdir(tmp_path) == ["out"]
    count.check()


@pytest.mark.few(0)
@LINUX
def test_a_line_of_100_mb_needs_little_memory(zygote, tmp_path):
    endless(tmp_path / "long.csv", 100)
    command = ["fit", str(tmp_path / "long.csv"), "-o", str(tmp_path / "out")]
    code, _, grown = zygote.run("instruments.commands:measured", command).value
    assert code == 1
    assert grown < 60_000, "KiB"


@LINUX
@pytest.mark.parametrize("command", ["fit", "recommend"])
def test_a_full_disk_leaves_the_old_output(zygote, tmp_path, command):
    """The device that is always full, and a limit of the size of files."""
    (tmp_path / "good.csv").write_text(GOOD)
    fit = ["fit", str(tmp_path / "good.csv"), "-o", str(tmp_path / "m.npz"), "--K", "16", "--n-iter", "1"]
    assert main([*fit, "-q"]) == 0
    source, out = {"fit": ("good.csv", "m2.npz"), "recommend": ("m.npz", "r.csv")}[command]
    (tmp_path / out).write_text("old")
    words = [command, str(tmp_path / source), "-o", str(tmp_path / out)]
    code, said, _ = zygote.run("instruments.commands:measured", words, 1000).value
    assert code == 1, said
    assert "rgals: error:" in said.splitlines()[-1]
    assert (tmp_path / out).read_text() == "old"
    left = set(os.listdir(tmp_path)) - {"good.csv", "m.npz", out}
    assert left <= {f"{out}.partial"}, "what the same command would go on from, and nothing else"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
@pytest.mark.parametrize("role", ["data", "source", "users"])
def test_a_pipe_is_refused_at_once_and_called_so(tmp_path, capsys, role):
    """It was "cut off or damaged", or waited for ever for somebody who writes it a second time."""
    pipe, good, model = tmp_path / "pipe", tmp_path / "good.csv", tmp_path / "m.npz"
    good.write_text(GOOD)
    fit = ["fit", str(good), "-o", str(model), "-K", "2", "--n-iter", "1", "-q"]
    assert main(fit) == 0
    os.mkfifo(pipe)
    command = {
        "data": ["fit", str(pipe), *fit[2:]],
        "source": ["convert", str(pipe), "-o", str(tmp_path / "store")],
        "users": ["recommend", str(model), "--users-from", str(pipe)],
    }[role]
    capsys.readouterr()
    held = os.open(pipe, os.O_RDWR)  # somebody who writes, so that the open of a reader returns
    try:
        os.write(held, b"user,item\na,b\n")
        assert main(command) == 1
    finally:
        os.close(held)
    assert "pipe is a pipe, which can be read only once; write a file first" in capsys.readouterr().err
