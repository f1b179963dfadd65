"""The rule for "auto" parameters: what it loses on families of data that it was not fitted on.

    python benchmarks/rule.py --grid --losses rg2,ials --exponents=-0.3,0     # blocks of the grid, resumable
    python benchmarks/rule.py --popularity --K 64                             # plain defaults on all sets
    python benchmarks/rule.py --popularity --items 100                        # on their most popular items
    python benchmarks/rule.py --popularity --users 500                        # on some of their users
    python benchmarks/rule.py --popularity --rows 3                           # on a little of every user
    python benchmarks/rule.py --popularity --rows 3 --losses "rg2 to zero"    # without a mean of all users
    python benchmarks/rule.py --powers .6,.18,.2,.06 --K 512                  # plain fits by powers of K
    python benchmarks/rule.py                                                 # measures the rule; the tables

The grid. Of each set of ``quality.SETS``, without its test part, four fifths of every user's interactions
train a model and two tenths are hidden; up to 3,000 users are judged by NDCG@10. Settings of all losses are
written as ``alpha``, ``reg`` and ``item_exponent`` of RG2; iALS takes the coefficients that equal those at
the mean user. They lie on a lattice, ``alpha = 0.05 (3000 / N)^0.75 2.5^i`` and ``reg = s 1.8^j`` with s of
`rgals.losses.spectral_edge`. A line of ``rule_results.jsonl`` is a block of it: NDCG@10 in units of 1e-5 on
either hidden part.

The rule (`rgals.losses.fitted`). Its numbers are fitted anew without each family (sets of one source), by
what it loses to the best of the grid, between whose points figures are interpolated. With the numbers so
found the family's sets are fitted. The best of the grid is chosen on the first hidden part, and both are
read on the second.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from quality import DATA, SETS, load
from scipy.optimize import minimize

from rgals import IALS, RG2, RGALS
from rgals.baselines import EASE
from rgals.datasets import read_interactions
from rgals.datasets.given import given
from rgals.datasets.splits import split_interactions
from rgals.losses import Degrees, fitted, spectral_edge
from rgals.matrix.csr import CSR
from rgals.matrix.entries import kept_columns
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.metrics._served import sample_users
from rgals.model_selection.tuning.prepared import Fold

OUT = Path(__file__).with_name("rule_results.jsonl")
STEPS = np.log(2.5), np.log(1.8)
JUDGED = 3000
METRIC = "ndcg@10"
PARTS = {"items", "users", "rows"}
#: What lines of defaults are measured with.
DEFAULT = {"default": True, "n_iter": RGALS().n_iter, "values": RGALS().values}
VALUED = ("lastfm-hetrec2011", "steam-200k-hours")  # judged as counts and as "had it or not"


def lines(path: Path) -> list[dict[str, Any]]:
    """What is recorded."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record(path: Path, row: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def family(name: str) -> str:
    """The source of a set."""
    return "movielens" if name.startswith("ml-") else name.split("-")[0]


# ---------------------------------------------------------------- fits


def hidden_parts(name: str, seed: int) -> list[Fold]:
    """A training matrix with two hidden parts."""
    final = load(name, 0)[1].final
    parts = split_interactions(final, (0.8, 0.1, 0.1), random_state=seed)
    train, *hidden = (as_csr(part, dtype=np.float32) for part in parts)
    return [Fold(train, train, part, sample_users(part, JUDGED, seed), False) for part in hidden]


def figures(parts: list[Fold], loss: str, setting: fitted.Setting, **model: Any) -> list[int]:
    """NDCG@10 on the hidden parts, in units of 1e-5."""
    alpha, reg, train = setting.alpha, setting.reg, parts[0].train
    chosen: RG2 | IALS = RG2(alpha, item_exponent=setting.item_exponent)
    if loss == "ials":
        alpha0 = train.nnz / (2 * np.count_nonzero(train.row_counts) * train.n_cols * alpha)
        chosen, reg = IALS(alpha0, item_exponent=setting.item_exponent), reg * 2 * alpha / (1 + 2 * alpha)
    fit = RGALS(loss=chosen, reg=reg, n_jobs=1, **model).fit(train)
    return [round(1e5 * judge(fit, part)) for part in parts]


def judge(model: RGALS, split: Fold) -> float:
    """Quality of a fitted model on the judged users of a split."""
    users = model.transform(split.told) if split.fold_in else model.user_factors_
    factors = users, model.item_factors_
    return evaluate(factors, split.told, split.hidden, METRIC, users=split.users, n_jobs=model.n_jobs)[METRIC]


def origin(n_users: int, n_items: int, nnz: int) -> tuple[float, float]:
    """``alpha`` and ``reg`` at (0, 0) of the lattice."""
    return 0.05 * (3000 / n_items) ** 0.75, spectral_edge(n_users, n_items, nnz)


def spans(row: dict[str, Any]) -> tuple[range, range]:
    """The i and j of a block."""
    found = [range(low, high + 1, step) for (low, high), step in zip((row["i"], row["j"]), row["step"])]
    return found[0], found[1]


def measure_grid(args: argparse.Namespace) -> None:
    """The blocks that are asked for and not recorded."""
    for seed, name in ((seed, name) for seed in args.seeds for name in args.sets):
        parts: list[Fold] = []
        for exponent, loss in ((e, loss) for e in args.exponents for loss in args.losses):
            row: dict[str, Any] = {"set": name, "loss": loss, "K": args.K, "iterations": args.iterations}
            row |= {"seed": seed, "item_exponent": exponent}
            row |= {"i": args.i[:2], "j": args.j[:2], "step": [args.i[2], args.j[2]]}
            if any(row.items() <= done.items() for done in lines(args.out)):
                continue
            started = time.perf_counter()
            parts = parts or hidden_parts(name, seed)
            zero = origin(*parts[0].train.shape, parts[0].train.nnz)
            found = []
            for i, j in ((i, j) for i in spans(row)[0] for j in spans(row)[1]):
                setting = fitted.Setting(
                    zero[0] * np.exp(i * STEPS[0]), zero[1] * np.exp(j * STEPS[1]), exponent
                )
                model = {"K": args.K, "n_iter": args.iterations, "random_state": seed}
                found.append(figures(parts, loss, setting, **model))
            first, second = map(list, zip(*found, strict=True))
            record(args.out, {**row, "first": first, "second": second})
            print(
                f"{name} {loss} {exponent}: {max(first)}, {time.perf_counter() - started:.0f} s", flush=True
            )


def part_of(matrix: CSR, n_items: int | None, n_users: int | None, n_each: int | None) -> CSR:
    """The most popular items and the users who have three of them, some users, or a few items of each."""
    if n_items:
        kept = np.zeros(matrix.n_cols, bool)
        kept[np.argsort(-matrix.col_counts, kind="stable")[:n_items]] = True
        matrix = kept_columns(matrix, kept)
        matrix = matrix.take_rows(np.flatnonzero(matrix.row_counts >= 3))
    if n_users and n_users < matrix.n_rows:
        matrix = matrix.take_rows(sample_users(matrix, n_users))
    if n_each:
        place = np.lexsort((np.random.default_rng(0).random(matrix.nnz), matrix.rows))
        order = np.empty(matrix.nnz, np.int64)
        order[place] = np.arange(matrix.nnz) - matrix.indptr[matrix.rows[place]]
        matrix = matrix.where(order < n_each)
    return matrix


def measure_popularity(args: argparse.Namespace) -> None:
    """Plain defaults against popularity on a hidden fifth of every set."""
    sets = sorted(DATA.glob("*.npz"), key=lambda path: path.stat().st_size)
    for path, binary in ((p, b) for p in sets for b in ([False, True] if p.stem in VALUED else [False])):
        if args.sets != list(SETS) and path.stem not in args.sets:
            continue
        matrix, popular = None, 0.0
        for loss in args.losses:
            row = {"set": path.stem, "binary": binary, "loss": loss, "K": args.K, **DEFAULT}
            row |= {kind: n for kind in PARTS if (n := getattr(args, kind))}
            if any(row.items() <= done.items() for done in lines(args.out)):
                continue
            if matrix is None:
                matrix = given(read_interactions(path, binarize=binary)).csr()
                matrix = part_of(as_csr(matrix), args.items, args.users, args.rows)
                if matrix.n_rows < 80:
                    break
                train, hidden = (
                    as_csr(p, dtype=np.float32)
                    for p in split_interactions(matrix, (0.8, 0.2), random_state=0)
                )
                fold = Fold(train, train, hidden, sample_users(hidden, JUDGED, 0), False)
                ones = np.ones((train.n_rows, 1)), train.col_counts[:, None].astype(float)
                popular = evaluate(ones, train, hidden, (METRIC,), users=fold.users)[METRIC]
                if PARTS & row.keys() and popular < 0.01:  # a few hits: chance decides
                    break
            if loss == "ease":
                told = evaluate(EASE(n_jobs=1).fit(train), train, hidden, METRIC, users=fold.users)[METRIC]
            else:
                name, _, pull = loss.partition(" ")
                made = RGALS(args.K, name, user_mean=False if pull else "auto", random_state=0, n_jobs=1)
                told = judge(made.fit(train), fold)
            row |= {"ndcg": round(told, 5), "popularity": round(popular, 5)}
            record(args.out, row)
            print(f"{path.stem} {loss} {args.K}: {row['ndcg'] / popular:.2f} times popularity", flush=True)


def measure_powers(args: argparse.Namespace) -> None:
    """Plain fits of RG2 with other powers of K in the rule, on both hidden parts together."""
    for name in args.sets:
        parts = hidden_parts(name, args.seeds[0])
        degrees = Degrees.of(parts[0].train)
        for alpha, reg in zip(args.powers[::2], args.powers[1::2], strict=True):
            row = {"set": name, "loss": "rg2", "K": args.K, "seed": args.seeds[0], "powers": [alpha, reg]}
            known = [done for done in lines(args.out) if row.items() <= done.items()]
            if not known:
                numbers = fitted.NUMBERS._replace(alpha_factors=alpha, reg_factors=reg)
                setting = fitted.setting(degrees, args.K, numbers)
                both = figures(parts, "rg2", setting, K=args.K, random_state=args.seeds[0])
                known = [{**row, "parts": both}]
                record(args.out, known[0])
            print(
                f"{name} K={args.K} powers {alpha}, {reg}: {np.mean(known[0]['parts']) / 1e5:.4f}", flush=True
            )


# ---------------------------------------------------------------- the fit of the rule


class Surface:
    """What the grid says of a set, loss and K: mean of both parts and all seeds, interpolated."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        # Of each exponent the largest block, on all seeds that have it; what the grid was widened by beside
        # it, where the best was at an edge, is for the best value only.
        self.layers: dict[float, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for exponent in sorted({row["item_exponent"] for row in rows}):
            of_it = [row for row in rows if row["item_exponent"] == exponent]
            largest = max(of_it, key=lambda row: len(row["first"]))
            same = [row for row in of_it if all(row[k] == largest[k] for k in ("i", "j", "step"))]
            i, j = map(np.array, spans(largest))
            both = np.array([[row["first"], row["second"]] for row in same])
            self.layers[exponent] = i, j, both.mean(axis=(0, 1)).reshape(len(i), len(j))
        self.best = max(values.max() for *_, values in self.layers.values())

    def at(self, i: float, j: float, exponent: float) -> float:
        """Linear in i, j and the exponent; beyond the grid, as at its edge."""
        known = np.array(list(self.layers))
        along = [_bilinear(*layer, i, j) for layer in self.layers.values()]
        return float(np.interp(exponent, known, along))


def _bilinear(rows: np.ndarray, cols: np.ndarray, values: np.ndarray, i: float, j: float) -> float:
    at_rows = [np.interp(j, cols, line) for line in values]
    return float(np.interp(i, rows, at_rows))


def margins_of(name: str, known: dict[str, Any]) -> Degrees:
    """Degrees of the training part of seed 0."""
    if name not in known:
        known[name] = Degrees.of(hidden_parts(name, 0)[0].train)
    return known[name]


def asked(degrees: Degrees) -> Any:
    """What the rule asks of margins: three numbers, as lengths that are typical of themselves.

    The bound on reg, which asks for the matrix, is above what any rule tried here would take.
    """
    lengths = [np.array([fitted.typical(counts)]) for counts in (degrees.user_count, degrees.item_count)]
    shown = {"cohesion": degrees.cohesion, "user_count": lengths[0], "item_count": lengths[1]}
    zero = origin(*degrees.shape, degrees.nnz)
    shown |= {"filled": degrees.filled, "nnz": degrees.nnz}
    return SimpleNamespace(**shown, matrix=None, origin=zero)


Case = tuple[str, str, int, Any, Surface]


def lost(found: np.ndarray, cases: list[Case]) -> np.ndarray:
    """What a rule with these numbers loses to the best of the grid, by interpolation."""
    out = []
    for _, _, K, margins, surface in cases:
        setting = fitted.setting(margins, K, fitted.Numbers(*found))
        i = np.log(setting.alpha / margins.origin[0]) / STEPS[0]
        j = np.log(setting.reg / margins.origin[1]) / STEPS[1]
        out.append(1 - surface.at(i, j, setting.item_exponent) / surface.best)
    return np.array(out)


def fit_numbers(cases: list[Case]) -> np.ndarray:
    """The numbers that lose least; a family weighs as the root of its size."""
    size = {f: sum(family(case[0]) == f for case in cases) for f in {family(case[0]) for case in cases}}
    weights = np.array([size[family(case[0])] ** -0.5 for case in cases])
    start = np.array([0.03, 0.5, 2.0, 0.5, 0.2, 0.1, 0.2])
    scale = np.array([0.01, 0.2, 0.5, 0.2, 0.1, 0.1, 0.1])

    def cost(x: np.ndarray) -> float:
        loss = lost(np.abs(start + scale * x), cases)
        return float(weights @ (loss + 6 * loss**2) / weights.sum())

    corners = np.vstack([np.zeros(len(start)), np.eye(len(start))])
    options = {"initial_simplex": corners, "maxiter": 400, "xatol": 0.05, "fatol": 1e-4}
    return np.abs(start + scale * minimize(cost, corners[0], method="Nelder-Mead", options=options).x)


def best_of_grid(rows: list[dict[str, Any]], n_seeds: int) -> float:
    """Second part of the setting that is best on the first; both are means over the seeds."""
    found: dict[tuple[float, int, int], dict[int, tuple[int, int]]] = {}
    for row in rows:
        places = [(row["item_exponent"], i, j) for i in spans(row)[0] for j in spans(row)[1]]
        for place, a, b in zip(places, row["first"], row["second"], strict=True):
            found.setdefault(place, {})[row["seed"]] = a, b
    means = [np.mean(list(pairs.values()), axis=0) for pairs in found.values() if len(pairs) == n_seeds]
    return float(max(means, key=lambda pair: pair[0])[1])


def print_tables(args: argparse.Namespace) -> None:
    """The grid that was run, the numbers of the rule, and what it loses."""
    rows = [
        row for row in lines(args.out) if "first" in row and "rule" not in row and row["K"] <= args.largest
    ]
    keys = sorted({(row["set"], row["loss"], row["K"]) for row in rows})
    margins: dict[str, Degrees] = {}
    blocks = {key: [r for r in rows if (r["set"], r["loss"], r["K"]) == key] for key in keys}
    cases = [(*key, asked(margins_of(key[0], margins)), Surface(blocks[key])) for key in keys]
    print("| set | loss | K | seeds | item exponents | i | j | best | at |\n|" + "---|" * 9)
    for key in keys:
        found = blocks[key]
        best = max(((max(r["first"]), r) for r in found), key=lambda pair: pair[0])[1]
        places = [(i, j) for i in spans(best)[0] for j in spans(best)[1]]
        i, j = places[int(np.argmax(best["first"]))]
        ends = [(min(r[axis][0] for r in found), max(r[axis][1] for r in found)) for axis in "ij"]
        exponents = sorted({r["item_exponent"] for r in found})
        edge = i in ends[0] or j in ends[1]
        edge |= len(exponents) > 1 and best["item_exponent"] in (exponents[0], exponents[-1])
        seeds = ",".join(str(s) for s in sorted({r["seed"] for r in found}))
        print(
            f"| {key[0]} | {key[1]} | {key[2]} | {seeds} | {' '.join(map(str, exponents))} "
            f"| {ends[0][0]} to {ends[0][1]} | {ends[1][0]} to {ends[1][1]} | {max(best['first']) / 1e5:.4f} "
            f"| {i}, {j}, {best['item_exponent']}{' (edge)' if edge else ''} |"
        )
    everything = fit_numbers(cases)
    print("\nfitted to all:", fitted.Numbers(*(round(float(number), 3) for number in everything)))
    print("the package:  ", fitted.NUMBERS)
    summary: dict[tuple[str, int], list[float]] = {}
    print("\n| set | loss | K | seeds | best of the grid | rule, family left out | lost | package | lost |")
    print("|" + "---|" * 9)
    package = np.array(fitted.NUMBERS)
    for left_out in sorted({family(key[0]) for key in keys}):
        found = fit_numbers([case for case in cases if family(case[0]) != left_out])
        for name, loss, K in (key for key in keys if family(key[0]) == left_out):
            seeds, iterations = sorted({r["seed"] for r in blocks[name, loss, K]}), 8
            best = best_of_grid(blocks[name, loss, K], len(seeds))
            figure: dict[str, list[float]] = {"best": [best], "left out": [], "package": []}
            for seed in seeds:
                for kind, of in (("left out", found), ("package", package)):
                    setting = fitted.setting(margins[name], K, fitted.Numbers(*of))
                    row = {"rule": [round(v, 5) for v in setting], "set": name, "loss": loss}
                    row |= {"K": K, "seed": seed, "iterations": iterations}
                    known = [done for done in lines(args.out) if row.items() <= done.items()]
                    if not known:
                        parts = hidden_parts(name, seed)
                        model = {"K": K, "n_iter": iterations, "random_state": seed}
                        both = figures(parts, loss, setting, **model)
                        known = [{**row, "first": both[:1], "second": both[1:]}]
                        record(args.out, known[0])
                    figure[kind].append(known[0]["second"][0])
            mean = {kind: np.mean(values) / 1e5 for kind, values in figure.items()}
            share = {kind: 1 - mean[kind] / mean["best"] for kind in ("left out", "package")}
            for kind, value in share.items():
                summary.setdefault((kind, K), []).append(value)
            print(
                f"| {name} | {loss} | {K} | {len(seeds)} | {mean['best']:.4f} "
                f"| {mean['left out']:.4f} | {100 * share['left out']:.1f} % "
                f"| {mean['package']:.4f} | {100 * share['package']:.1f} % |",
                flush=True,
            )
    for (kind, K), values in summary.items():
        print(
            f"{kind}, K={K}: {len(values)} cases, median {100 * np.median(values):.1f} %, "
            f"worst {100 * max(values):.1f} %"
        )


def defaults_table(path: Path = OUT) -> str:
    """NDCG@10 of plain defaults in units of that of popularity, by set: the least of any K and form."""
    rows = [row for row in lines(path) if DEFAULT.items() <= row.items() and not PARTS & row.keys()]
    losses, ladder = (sorted({row[what] for row in rows}) for what in ("loss", "K"))
    told = [f"| set | {' | '.join(losses)} |", "|---|" + "---|" * len(losses)]
    times = {
        (row["set"], row["binary"], row["loss"], row["K"]): row["ndcg"] / row["popularity"] for row in rows
    }
    for name in sorted({row["set"] for row in rows}):
        least = [min(v for (s, _, x, _), v in times.items() if (s, x) == (name, loss)) for loss in losses]
        told.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in least)} |")
    below, lowest = sum(value < 1 for value in times.values()), min(times, key=times.__getitem__)
    told.append(
        f"\n{len(rows)} fits, K={' and '.join(map(str, ladder))}: below popularity {below or 'none'}; lowest "
        f"{times[lowest]:.2f} times ({lowest[0]}, {lowest[2]}, K={lowest[3]})."
    )
    return "\n".join(told)


def parts_table(path: Path = OUT) -> str:
    """The same of small parts of every set, beside EASE: median and least."""
    found: dict[tuple[int, int, int, int], dict[str, dict[str, float]]] = {}
    for row in lines(path):
        if PARTS & row.keys() and not row["binary"]:
            key = row.get("items", 0), row.get("users", 0), row.get("rows", 0), row["K"]
            times = found.setdefault(key, {}).setdefault(row["loss"], {})
            times[row["set"]] = row["ndcg"] / row["popularity"]
    methods = sorted({loss for group in found.values() for loss in group})
    told = [f"| items | users | of each | K | sets | {' | '.join(methods)} | below popularity |"]
    told.append("|" + "---|" * (6 + len(methods)))
    for (n, users, each, K), group in sorted(found.items()):
        values = [list(group.get(loss, {}).values()) for loss in methods]
        cells = [f"{np.median(of_it):.2f}, {min(of_it):.2f}" if of_it else "" for of_it in values]
        plain = {name: times for name, times in group.items() if " " not in name}
        names = sorted({name for times in plain.values() for name, value in times.items() if value < 1})
        low = [f"{x} ({', '.join(m for m, t in plain.items() if t.get(x, 1) < 1)})" for x in names]
        counts = f"| {n or 'all'} | {users or 'all'} | {each or 'all'} | {K} | {max(map(len, values))} "
        told.append(f"{counts}| {' | '.join(cells)} | {', '.join(low) or 'none'} |")
    what = [
        "Where there is little: of every set the most popular items alone, and the users who have three",
        "of them (`--items`), some users (`--users`), or at most so many items of each (`--rows`): median",
        'and least of the same. "To zero" is `user_mean=False`.',
    ]
    return "\n".join([*what, "", *told])


# ---------------------------------------------------------------- the command


def numbers(text: str) -> list[float]:
    """Numbers separated by commas."""
    return [float(part) for part in text.split(",")]


def whole(text: str) -> list[int]:
    """Integers separated by commas."""
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--grid", action="store_true")
    made.add_argument("--popularity", action="store_true")
    made.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    made.add_argument("--losses", type=lambda text: text.split(","), default=["rg2", "ials"])
    made.add_argument("--seeds", type=whole, default=[0])
    made.add_argument("--exponents", type=numbers, default=[-0.3, 0.0])
    made.add_argument("--K", type=int, default=64)
    made.add_argument("--items", type=int, help="of every set, the most popular alone")
    made.add_argument("--users", type=int, help="of every set, so many, at random")
    made.add_argument("--rows", type=int, help="of every set, so many interactions of a user at most")
    made.add_argument("--powers", type=numbers, help="of K in alpha and reg, in pairs: plain fits of each")
    made.add_argument("--largest", type=int, default=1024, help="K of the tables")
    made.add_argument("--iterations", type=int, default=8)
    made.add_argument("--i", type=whole, default=[-3, 3, 1], help="first, last, step")
    made.add_argument("--j", type=whole, default=[-3, 3, 1])
    made.add_argument("--out", type=Path, default=OUT)
    return made


if __name__ == "__main__":
    args = parser().parse_args()
    if args.popularity:
        measure_popularity(args)
        print(parts_table(args.out) if args.items or args.users or args.rows else defaults_table(args.out))
    elif args.powers:
        measure_powers(args)
    elif args.grid:
        measure_grid(args)
    else:
        print_tables(args)
