"""What a fresh process waits for: CPU seconds of the import and of first answers, and what is compiled.

    python benchmarks/startup.py               one run, printed
    python benchmarks/startup.py -n 5 --record five, added to startup_results.jsonl and docs/startup.md
    python benchmarks/startup.py --table       docs/startup.md once more, from the runs that were recorded
    python benchmarks/startup.py --of PATH     those of another checkout of rgals; recorded apart

Every run has caches of its own, in ``NUMBA_CACHE_DIR``, which are empty at its start. Figures are medians of
the runs of the machine and the versions of the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "startup_results.jsonl"
PAGE = ROOT / "docs" / "startup.md"
BEGIN, END = "<!-- made by benchmarks/startup.py -->", "<!-- end -->"

START = """
import json, sys, time
figures, compiled = {}, {}
def step(name, run):
    compiled[name] = []
    started = time.process_time()
    with compilations(lambda function, seconds: compiled[name].append([function, seconds])):
        out = run()
    figures[name] = time.process_time() - started
    return out
started = time.process_time()
import numpy, scipy.sparse, numba, sklearn.base
parts = time.process_time()
from rgals import RGALS
figures["import"] = time.process_time() - started
figures["import, above its parts"] = time.process_time() - parts
from rgals.datasets import make_implicit
try:
    from rgals.runtime.progress import compilations
except ImportError:  # a checkout that is older than these
    from contextlib import contextmanager
    from numba.core import event
    @contextmanager
    def compilations(report):
        running = []
        class Functions(event.Listener):
            def on_start(self, event):
                running.append(time.perf_counter())
            def on_end(self, event):
                seconds, function = time.perf_counter() - running.pop(), event.data["dispatcher"].py_func
                if not running:
                    report(f"{function.__module__}.{function.__qualname__}", seconds)
        with event.install_listener("numba:compile", Functions()):
            yield
X = make_implicit(*SIZE, random_state=0).matrix
"""
FIT = """
model = step("fit", lambda: RGALS(random_state=0, n_iter=2).fit(X))
step("recommend", lambda: model.recommend(range(100)))
step("recommend_new", lambda: model.recommend_new(X[:100]))
model.save(sys.argv[1])
"""
LOADED = (
    'model = RGALS.load(sys.argv[1])\nstep("recommend_new, loaded", lambda: model.recommend_new(X[:100]))\n'
)
SGD = """
from rgals.sgd import SGDRanker
step("SGDRanker.fit", lambda: SGDRanker(K=64, n_epochs=1, random_state=0).fit(X))
"""
PRINT = "print(json.dumps([figures, compiled]))\n"
LARGE, SMALL = (2000, 1000), (200, 100)
#: Script, size of the matrix, cache; one after the other. The first saves the model that the others load.
PROCESSES = (
    ("empty", FIT, LARGE, "a"),
    ("empty", LOADED, LARGE, "b"),
    ("empty", SGD, LARGE, "c"),
    ("warm", FIT, SMALL, "a"),
)


def run(root: Path = ROOT) -> dict:
    """CPU seconds by cache and step, and the compile events of each step, of the rgals in ``root``."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    line: dict = {"machine": machine(), "cpu": {}, "compiled": {}}
    if root != ROOT:
        line["of"] = line["machine"]["kernels"] = commit(root)
    with tempfile.TemporaryDirectory() as folder:
        for cache, script, size, name in PROCESSES:
            code = START.replace("SIZE", repr(size)) + script + PRINT
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code, os.path.join(folder, "model.npz")],
                cwd=root,  # from where python -c imports first
                env=environment | {"NUMBA_CACHE_DIR": os.path.join(folder, name)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            figures, compiled = json.loads(done.stdout)
            line["cpu"] |= {
                f"{cache}: {step}": x for step, x in figures.items() if script != SGD or "SGD" in step
            }
            line["compiled"] |= {f"{cache}: {step}": events for step, events in compiled.items()}
    return line


def machine() -> dict[str, str | int]:
    """What figures depend on."""
    import llvmlite
    import numba
    import numpy

    from rgals.kernels.library import SOURCES
    from rgals.runtime.caches import stamp

    versions = {module.__name__: module.__version__ for module in (numba, llvmlite, numpy)}
    processor = llvmlite.binding.get_host_cpu_name()
    named = {"processor": processor, "python": platform.python_version()}
    return {**named, **versions, "kernels": stamp(SOURCES)}


def commit(root: Path) -> str:
    """The commit that is checked out in a folder."""
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def report(lines: list[dict]) -> str:
    """Tables of the last line's machine and kernels, beside those of the last other checkout."""
    if not lines:
        return "Nothing is recorded: `python benchmarks/startup.py -n 5 --record`."
    groups = []
    for of in (False, True):
        kind = [line for line in lines if ("of" in line) == of]
        groups.append([line for line in kind if line["machine"] == kind[-1]["machine"]])
    now = groups[0]
    shown = [group for group in groups if group]
    names = ["these kernels" if group is now else f"commit {group[-1]['of']}" for group in shown]
    out = [f"Medians of {' and '.join(str(len(group)) for group in shown)} runs; {told(shown[0])}.", ""]
    heads = [f"{head}, {name}" for name in names for head in ("CPU seconds", "functions compiled")]
    out += ["| " + " | ".join(["cache", "step", *heads]) + " |", "|---" * (2 + len(heads)) + "|"]
    for name in shown[0][-1]["cpu"]:
        cells = list(name.partition(": ")[::2])
        for group in shown:
            cells.append(f"{statistics.median(line['cpu'][name] for line in group):.2f}")
            cells.append(str(len(group[-1]["compiled"].get(name, []))))
        out.append("| " + " | ".join(cells) + " |")
    for group, title in zip(shown, names, strict=True):
        out += ["", f"| for | function, {title} | seconds |", "|---|---|---|"]
        for name, events in group[-1]["compiled"].items():
            for k, (function, _) in enumerate(events):
                seconds = statistics.median(line["compiled"][name][k][1] for line in group)
                function = function.removeprefix("rgals.").removeprefix("kernels.")
                out.append(f"| {name.partition(': ')[2]} | `{function}` | {seconds:.2f} |")
    return "\n".join(out)


def told(lines: list[dict]) -> str:
    """What the figures of some lines depend on."""
    return ", ".join(f"{name} {value}" for name, value in lines[-1]["machine"].items())


def recorded() -> list[dict]:
    """The lines of earlier runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def page(text: str) -> str:
    """The page with the tables of what is recorded."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{report(recorded())}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=1, help="runs (default: 1)")
    parser.add_argument("--record", action="store_true", help="add them to the page")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--of", type=Path, default=ROOT, help="another checkout of rgals")
    args = parser.parse_args()
    lines = [] if args.table else [run(args.of) for _ in range(args.n)]
    if args.record:
        with RESULTS.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    if args.record or args.table:
        PAGE.write_text(page(PAGE.read_text()))
    print(report(lines or recorded()))


if __name__ == "__main__":
    main()
