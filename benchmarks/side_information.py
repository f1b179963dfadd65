"""What is known beside the matrix, in figures: `python benchmarks/side_information.py cold age next`.

``cold``: five random fifths of the items have no interactions in the fit (RG2, K=64, 8 iterations, ratings
of 3 and more); recall@20 among them, over min(20, number of truths), for users with other interactions;
``warm``, beside it: a fifth of each user's interactions is hidden, with features and without. ``reg``: both
by ``feature_reg``, on two fifths. ``noise``: recall@20 with features that say nothing. ``peers``: other
packages on the first fifth, whichever can be imported; needs no rgals. ``cost``: CPU seconds of an
iteration in one thread with 1,000 features a side beside one without, in turns. ``memory``: what a fit with
100,000 features took beside what was predicted. ``dislikes``: MovieLens 1M, by their weight in one model,
and by two models (`examples/dislikes.py`). ``age``: half-lives that
`RGALSCV` finds, on generated logs whose truth is known and on two with clocks, and NDCG@10 of the tenth
that came next. ``next``: histories that have an order but no clock; NDCG@10 of each user's last
interaction, with ages counted in interactions.

Lines go to ``side_information_results.jsonl`` beside this file and are not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

RESULTS = Path(__file__).with_name("side_information_results.jsonl")
COLD_SETS = ("ml-100k", "ml-latest-small", "citeulike-t")
REGS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
K, TOP, FOLDS, TRUE_LIFE = 64, 20, 5, 30.0
WEIGHTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of dislikes
SHARES = (0.2, 0.3, 0.4, 0.5)  # of a second model, of taste, beside the first
ORDERED_SETS = ("amazon-toys-5core", "amazon-beauty-5core", "amazon-videogames-sasrec")
LIVES = (None, 16, 4, 1)  # half-lives, in interactions


def load(folder: Path, name: str) -> tuple[sp.csr_array, sp.csr_array]:
    """Interactions, and features of the items."""
    z, f = np.load(folder / f"{name}.npz"), np.load(folder / "features" / f"{name}.npz")
    kept = (z["rating"] >= 3) | (z["rating"].max() == 1)
    shape = int(z["user"].max()) + 1, int(z["item"].max()) + 1
    X = sp.csr_array((np.ones(kept.sum()), (z["user"][kept], z["item"][kept])), shape=shape)
    parts = tuple(f[f"item_{part}"] for part in ("data", "indices", "indptr"))
    return X, sp.csr_array(parts, shape=tuple(f["item_shape"]), dtype=np.float64)


def without(X: sp.csr_array, columns: np.ndarray) -> sp.csr_array:
    """The matrix with some columns empty."""
    out = sp.csr_array(X @ sp.diags_array((~columns).astype(float)))
    out.eliminate_zeros()
    return out


def recall(users: np.ndarray, items: np.ndarray, seen: Any, truth: sp.csr_array, only: Any = None) -> float:
    """Recall@20 over min(20, number of truths), of users with truths and a history."""
    found = []
    rows = np.flatnonzero((np.diff(truth.indptr) > 0) & (np.diff(seen.indptr) > 0))
    for start in range(0, len(rows), 512):
        at = rows[start : start + 512]
        scores = users[at] @ items.T
        scores[seen[at].toarray() > 0] = -np.inf
        if only is not None:
            scores[:, ~only] = -np.inf
        best = np.argpartition(-scores, TOP, axis=1)[:, :TOP]
        wanted = truth[at].toarray() > 0
        hits = np.take_along_axis(wanted, best, axis=1).sum(axis=1)
        found.append(hits / np.minimum(wanted.sum(axis=1), TOP))
    return float(np.concatenate(found).mean())


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


def cold_fifth(X: sp.csr_array, fold: int) -> np.ndarray:
    """The items of a fold."""
    return np.random.default_rng(0).permutation(X.shape[1]) % FOLDS == fold


def halves(X: sp.csr_array, seed: int) -> tuple[sp.csr_array, sp.csr_array]:
    """Four fifths of the interactions, and the rest."""
    hidden = np.random.default_rng(seed).random(X.nnz) < 0.2
    parts = []
    for mask in (~hidden, hidden):
        part = X.copy()
        part.data = mask.astype(float)
        part.eliminate_zeros()
        parts.append(part)
    return parts[0], parts[1]


def model(**more: Any) -> Any:
    """RG2 as all lines have it."""
    from rgals import RGALS

    return RGALS(K, n_iter=8, random_state=0, n_jobs=1, **more)


def cold(record: Any, folder: Path, regs: tuple[Any, ...] = ("auto",), folds: int = FOLDS) -> None:
    """Lines ``cold NAME FOLD REG`` and ``warm NAME FOLD REG``; REG is "none" without features."""
    for name in COLD_SETS:
        X, F = load(folder, name)
        for fold in range(folds):
            new = cold_fifth(X, fold)
            for reg in regs:
                key = f"cold {name} {fold} {reg}"
                if record.get(key) is None:
                    known = without(X, new)
                    fitted, seconds = cpu(lambda: model(feature_reg=reg).fit(known, item_features=F))  # noqa: B023
                    figure = recall(*fitted.factors_, known, without(X, ~new), new)
                    record.add(key, {"recall": figure, "cpu_seconds": seconds})
                    print(key, record.get(key), flush=True)
            train, hidden = halves(X, fold)
            for reg in (*regs, "none"):
                key = f"warm {name} {fold} {reg}"
                if record.get(key) is None:
                    given = {} if reg == "none" else {"item_features": F}
                    made = model() if reg == "none" else model(feature_reg=reg)
                    fitted, seconds = cpu(lambda: made.fit(train, **given))  # noqa: B023
                    figure = recall(*fitted.factors_, train, hidden)
                    record.add(key, {"recall": figure, "cpu_seconds": seconds})
                    print(key, record.get(key), flush=True)


def noise(record: Any, folder: Path) -> None:
    """Lines ``noise NAME``: recall@20 on the first hidden fifth, with features of chance and without."""
    for name in COLD_SETS:
        key = f"noise {name}"
        if record.get(key) is not None:
            continue
        X, F = load(folder, name)
        rng, n = np.random.default_rng(0), X.shape[1]
        groups = sp.csr_array((np.ones(n), (np.arange(n), rng.integers(50, size=n))))
        told = {"numbers": rng.standard_normal((n, 100)), "groups": groups, "shuffled": F[rng.permutation(n)]}
        train, hidden = halves(X, 0)
        row = {"none": recall(*model().fit(train).factors_, train, hidden)}
        for kind, table in told.items():
            for reg in ("auto", 1.0):
                fitted = model(feature_reg=reg).fit(train, item_features=table)
                row[f"{kind} {reg}"] = recall(*fitted.factors_, train, hidden)
        record.add(key, row)
        print(key, row, flush=True)


def peers(path: Path, folder: Path) -> None:
    """Lines ``peer PACKAGE NAME 0``: K, one thread and 8 iterations, else the package's own settings.

    LightFM has 30 epochs of WARP; irspack has no usable defaults: alpha0=0.1, reg=0.01.
    """

    def cmfrec(known: sp.csr_array, F: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
        from cmfrec import CMF_implicit

        made = CMF_implicit(k=K, niter=8, nthreads=1, random_state=0)
        made.fit(sp.coo_matrix(known), I=sp.coo_matrix(F) if F.shape[1] > 1000 else F.toarray())
        return made.A_, made.B_

    def lightfm(known: sp.csr_array, F: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
        from lightfm import LightFM

        made = LightFM(K, loss="warp", random_state=0)
        given = sp.csr_matrix(sp.hstack([sp.eye_array(F.shape[0]), F]), dtype=np.float32)
        made.fit(sp.coo_matrix(known, dtype=np.float32), item_features=given, epochs=30, num_threads=1)
        bias, items = made.get_item_representations(given)
        users = made.get_user_representations()[1]
        return np.c_[users, np.ones(len(users))], np.c_[items, bias]

    def irspack(known: sp.csr_array, F: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
        from irspack import IALSRecommender

        given = {"n_components": K, "n_threads": 1, "train_epochs": 8, "solver_type": "CHOLESKY"}
        made = IALSRecommender(
            sp.csr_matrix(known),
            **given,
            alpha0=0.1,
            reg=0.01,
            item_features=sp.csr_matrix(F),
            lambda_item_feature=1.0,
        ).learn()
        items, new = made.get_item_embedding().copy(), np.diff(sp.csc_array(known).indptr) == 0
        items[new] = made.compute_item_embedding_from_features(sp.csr_matrix(F[new]))
        return made.get_user_embedding(), items

    lines = path.read_text().splitlines() if path.exists() else []
    done = {json.loads(line)["key"] for line in lines}
    for fit in (cmfrec, lightfm, irspack):
        for name in COLD_SETS:
            key = f"peer {fit.__name__} {name} 0"
            if key in done:
                continue
            X, F = load(folder, name)
            new = cold_fifth(X, 0)
            known = without(X, new)
            try:
                (users, items), seconds = cpu(lambda: fit(known, F))  # noqa: B023
            except ImportError as error:
                print(f"{fit.__name__}: {error}")
                break
            row = {"key": key, "recall": recall(users, items, known, without(X, ~new), new)}
            row["cpu_seconds"] = seconds
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


def cost(record: Any, folder: Path) -> None:
    """Line ``cost``: the least CPU seconds of an iteration, with 1,000 features of items and without."""
    if record.get("cost") is not None:
        return
    z = np.load(folder / "amazon-book-kgat.npz")
    train = z["split"] == 0
    shape = int(z["user"].max()) + 1, int(z["item"].max()) + 1
    X = sp.csr_array((np.ones(train.sum()), (z["user"][train], z["item"][train])), shape=shape)
    F = sp.random_array((shape[1], 1000), density=0.01, rng=np.random.default_rng(0), format="csr")
    G = sp.random_array((shape[0], 1000), density=0.01, rng=np.random.default_rng(1), format="csr")
    kinds = {"none": {}, "items": {"item_features": F}, "both": {"item_features": F, "user_features": G}}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(3):
        for kind, given in kinds.items():
            marks: list[float] = []
            made = model().set_params(n_iter=4, init="random")
            made.fit(X, callbacks=lambda _: marks.append(time.process_time()), **given)  # noqa: B023
            seconds[kind] += np.diff(marks).tolist()
    record.add("cost", {kind: min(values) for kind, values in seconds.items()})
    print(record.get("cost"), flush=True)


def memory(record: Any) -> None:
    """Line ``memory``: most bytes of a fit with 100,000 features, and of one without, beside predictions."""
    if record.get("memory") is not None:
        return
    found = {}
    for kind in ("none", "features"):
        command = [sys.executable, __file__, "one-fit", kind]
        found |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    record.add("memory", found)
    print(record.get("memory"), flush=True)


def one_fit(kind: str) -> None:
    """Print what a fit took beyond what was there, and what was predicted, in MB."""
    import rgals.runtime.memory as memory
    from rgals import RGALS

    rng = np.random.default_rng(0)
    X = sp.random_array((60_000, 40_000), density=5e-4, rng=rng, format="csr").sign()
    F = sp.random_array((40_000, 100_000), density=5e-4, rng=rng, format="csr")
    asked, admit = [], memory.admit
    memory.admit = lambda needed, *rest: (asked.append(needed), admit(needed, *rest))[1]
    small = X[:500, :400]
    RGALS(16, n_iter=2).fit(small, item_features=F[:400])  # what stays loaded
    asked.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    given = {"item_features": F} if kind == "features" else {}
    RGALS(32, n_iter=2, random_state=0, n_jobs=1).fit(X, **given)
    took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({kind: {"took": took / 1024, "predicted": asked[-1] / 2**20}}))


def dislikes(record: Any, folder: Path) -> None:
    """Lines ``dislikes LOSS WEIGHT``, and ``taste LOSS SHARE`` of two models."""
    from rgals import IALS, RG2, RGALS, WRMF
    from rgals.datasets import read_interactions
    from rgals.model_selection import split_interactions

    for kind, stars in ((IALS, False), (WRMF, False), (IALS, True), (WRMF, True)):
        data = read_interactions(folder / "ml-1m.npz", min_value=3, dislike_below=3, binarize=not stars)
        train, validation, test = split_interactions(data, (0.7, 0.1, 0.2), random_state=0)
        for weight in ("none", *WEIGHTS):
            key = f"dislikes {kind.name}{' stars' if stars else ''} {weight}"
            if record.get(key) is not None:
                continue
            loss, X = kind(), sp.csr_array(train.matrix.multiply(train.matrix > 0))
            if weight != "none":
                loss, X = kind(dislikes=True, dislike_weight=weight), train.matrix
            fitted = RGALS(K, loss, values="raw", random_state=0, n_jobs=1).fit(X)
            record.add(key, disliked(fitted.factors_, train, validation, test))
            print(key, record.get(key), flush=True)
    sys.path.insert(0, str(RESULTS.parent.parent / "examples"))
    from dislikes import taste, together

    rated = read_interactions(folder / "ml-1m.npz", split=None).matrix
    tastes = None
    for stars, kind in itertools.product((False, True), (RG2, IALS, WRMF)):
        data = read_interactions(folder / "ml-1m.npz", min_value=3, dislike_below=3, binarize=not stars)
        assert rated.shape == data.matrix.shape and rated.nnz == data.nnz
        train, validation, test = split_interactions(data, (0.7, 0.1, 0.2), random_state=0)
        tastes = tastes or taste(sp.csr_array(rated.multiply(train.matrix != 0)))
        likes = sp.csr_array(train.matrix.multiply(train.matrix > 0))
        fitted = RGALS(K, kind(), values="raw", random_state=0, n_jobs=1).fit(likes)
        for share in (0.0, *SHARES):
            key = f"taste {kind.name}{' stars' if stars else ''} {share}"
            record.add(key, disliked(together(fitted.factors_, tastes, share), train, validation, test))
            print(key, record.get(key), flush=True)


def disliked(factors: Any, train: Any, validation: Any, test: Any) -> dict[str, dict[str, float]]:
    """NDCG@10 of likes and the share of dislikes, on the validation and on the test part."""
    from rgals.metrics import evaluate

    metrics, row = ("ndcg@10", "dislike_rate@10"), {}
    for name, part, seen in (
        ("validation", validation, train.matrix),
        ("test", test, train.matrix + validation.matrix),
    ):
        figures = evaluate(factors, sp.csr_array(seen), part.matrix, metrics, n_jobs=1)
        row[name] = {metric: float(figures[metric]) for metric in metrics}
    return row


def forgetting(seed: int, life: float = TRUE_LIFE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, items and days: users draw new tastes at random times, 0.5^(1 / life) of them none in a day.

    What an event says of the present taste halves in ``life`` days. A fifth of all events is by chance.
    """
    rng = np.random.default_rng(seed)
    n_users, n_items, groups, days, each = 1000, 600, 12, 400, 250
    changes = (rng.random((days, n_users)) < 1 - 0.5 ** (1 / life)).cumsum(axis=0)
    user, day = rng.integers(n_users, size=days * each), np.repeat(np.arange(days), each)
    tastes = rng.integers(groups, size=(n_users, changes.max() + 1))
    chance = rng.integers(groups, size=len(user))
    liked = np.where(rng.random(len(user)) < 0.8, tastes[user, changes[day, user]], chance)
    return user, rng.integers(n_items // groups, size=len(user)) * groups + liked, day


def age(record: Any, folder: Path) -> None:
    """Lines ``age NAME SEED``: the half-life that was found, NDCG@10 of what came next with and without."""
    from rgals import RGALS, RGALSCV
    from rgals.datasets import read_interactions
    from rgals.metrics import evaluate
    from rgals.model_selection import temporal_split

    logs = [("generated", seed) for seed in range(5)] + [("ml-100k", 0), ("ml-latest-small", 0)]
    for name, seed in logs:
        key = f"age {name} {seed}"
        if record.get(key) is not None:
            continue
        if name == "generated":
            user, item, day = forgetting(seed)
            data, unit = read_interactions((user, item, None, day)), 1.0
        else:
            data, unit = read_interactions(folder / f"{name}.npz", min_value=3), 86_400.0
        past, coming = temporal_split(data, float(np.quantile(data.timestamp, 0.9)))
        found = RGALSCV(16, values="binary", n_iter=8, budget=5, random_state=0, n_jobs=1).fit(past)
        same = {k: v for k, v in found.best_params_.items() if k != "half_life"}
        ageless = RGALS(**{**same, "n_jobs": 1, "random_state": 0}).fit(past)
        figures = [evaluate(each, past, coming, "ndcg@10", n_jobs=1)["ndcg@10"] for each in (found, ageless)]
        life = found.best_params_.get("half_life")
        row = {"half_life_days": None if life is None else life / unit, "with": float(figures[0])}
        record.add(key, {**row, "without": float(figures[1])})
        print(key, record.get(key), flush=True)


def following(record: Any, folder: Path) -> None:
    """Lines ``next NAME LOSS HALF_LIFE``: NDCG@10 of the last interaction of every user; of a search, too."""
    from rgals import RGALS, RGALSCV
    from rgals.datasets import Interactions, read_interactions
    from rgals.metrics import evaluate
    from rgals.model_selection import leave_last_out

    for name in ORDERED_SETS:
        data = read_interactions(folder / f"{name}.npz", split=None)
        users, _ = data.matrix.nonzero()
        later = np.empty(data.nnz, np.int64)  # interactions of the user that came later
        later[np.lexsort((data.timestamp, users))] = data.matrix.indptr[1:][users] - 1 - np.arange(data.nnz)
        dated = Interactions(data.matrix, data.user_ids, data.item_ids, timestamp=-later)
        past, coming = leave_last_out(dated)
        for loss, life in itertools.product(("rg2", "ials"), LIVES):
            key = f"next {name} {loss} {life}"
            if record.get(key) is None:
                model = RGALS(K, loss, half_life=life, random_state=0, n_jobs=1).fit(past)
                record.add(key, {"ndcg@10": evaluate(model, past, coming, "ndcg@10", n_jobs=1)["ndcg@10"]})
                print(key, record.get(key), flush=True)
        for loss in ("rg2", "ials"):
            key = f"next {name} {loss} searched"
            if record.get(key) is None:
                model = RGALSCV(K, loss, budget=12, random_state=0, n_jobs=1).fit(past)
                figure = evaluate(model, past, coming, "ndcg@10", n_jobs=1)["ndcg@10"]
                record.add(key, {"ndcg@10": figure, "half_life": model.best_params_.get("half_life")})
                print(key, record.get(key), flush=True)


def tables(record: Any) -> dict[str, str]:
    """The tables of the page: of cold and warm items, of ages, of dislikes; what is recorded of them."""

    def mean(kind: str, name: str, reg: str) -> tuple[float | None, float]:
        rows = [record.get(f"{kind} {name} {fold} {reg}") for fold in range(FOLDS)]
        if None in rows:
            return None, 0.0
        return (float(np.mean([row[value] for row in rows])) for value in ("recall", "cpu_seconds"))  # type: ignore

    cold_rows, peer_names = [], ("cmfrec", "lightfm", "irspack")
    for name in COLD_SETS:
        (figure, seconds), (warm, _), (plain, _) = (
            mean(*what) for what in (("cold", name, "auto"), ("warm", name, "auto"), ("warm", name, "none"))
        )
        if figure is None or warm is None or plain is None:
            continue
        rows = {one: record.get(f"peer {one} {name} 0") for one in peer_names}
        first = record.get(f"cold {name} 0 auto")["recall"]
        beside = [
            f"{one} {row['recall']:.3f} ({row['cpu_seconds']:.1f} s)" for one, row in rows.items() if row
        ]
        text = f"{first:.3f}" + "".join(f", {words}" for words in beside)
        cold_rows.append(f"| {name} | {figure:.3f} | {seconds:.1f} | {warm:.3f} | {plain:.3f} | {text} |")
    head = (
        "| set | cold recall@20 | CPU s | warm recall@20 | without features | first fifth, and others on it |"
    )
    out = {"beside cold": "\n".join([head, "|" + "---|" * 6, *cold_rows])}
    kinds = ("numbers", "groups", "shuffled")
    lines = ["| set | without | 100 random numbers | one of 50 random groups | those of another item |"]
    lines.append("|" + "---|" * 5)
    for name in COLD_SETS:
        if (row := record.get(f"noise {name}")) is not None:
            cells = (f"{row[f'{kind} auto']:.3f} ({row[f'{kind} 1.0']:.3f})" for kind in kinds)
            lines.append(f"| {name} | {row['none']:.3f} | {' | '.join(cells)} |")
    out["beside noise"] = "\n".join(lines)
    rows = {key: row for key, row in record.items() if key.startswith("age ")}
    lines = ["| log | half-life found, days | NDCG@10 of what came next | without |", "|---|---|---|---|"]
    for key, row in rows.items():
        life = "none" if row["half_life_days"] is None else f"{row['half_life_days']:.0f}"
        lines.append(f"| {key[4:]} | {life} | {row['with']:.4f} | {row['without']:.4f} |")
    out["beside age"] = "\n".join(lines)
    lines = ["| set | loss | without | 16 | 4 | 1 | `RGALSCV`: half-life found |", "|" + "---|" * 7]
    for name, loss in itertools.product(ORDERED_SETS, ("rg2", "ials")):
        rows = [record.get(f"next {name} {loss} {life}") for life in LIVES]
        if None not in rows:
            figures = " | ".join(f"{row['ndcg@10']:.4f}" for row in rows)
            searched = ""
            if (found := record.get(f"next {name} {loss} searched")) is not None:
                life = "none" if found["half_life"] is None else f"{found['half_life']:.2g}"
                searched = f"{found['ndcg@10']:.4f}: {life}"
            lines.append(f"| {name} | {loss} | {figures} | {searched} |")
    out["beside next"] = "\n".join(lines)
    head = "| loss | weight of a like | weight of dislikes | NDCG@10 of likes | dislike_rate@10 |"
    lines = [head, "|" + "---|" * 5]
    for key, row in record.items():
        if key.startswith(("dislikes ", "taste ")):
            what, loss, *stars, weight = key.split(" ")
            like, test = "its stars" if stars else "1", row["test"]
            if what == "taste" and weight == "0.0" and loss != "RG2":  # as without dislikes, above
                continue
            if what == "taste":
                weight = "none" if weight == "0.0" else f"second model, share {weight}"
            figures = f"{test['ndcg@10']:.4f} | {test['dislike_rate@10']:.4f}"
            lines.append(f"| {loss} | {like} | {weight} | {figures} |")
    out["beside dislikes"] = "\n".join(lines)
    return out


def main() -> None:
    """Measure what is missing."""
    from quality import DATA

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record = Journal(RESULTS, SETTING)
    work = {
        "cold": lambda: cold(record, DATA),
        "reg": lambda: cold(record, DATA, REGS, 2),
        "noise": lambda: noise(record, DATA),
        "cost": lambda: cost(record, DATA),
        "memory": lambda: memory(record),
        "dislikes": lambda: dislikes(record, DATA),
        "age": lambda: age(record, DATA),
        "next": lambda: following(record, DATA),
    }
    parser.add_argument("parts", nargs="+", choices=tuple(work))
    args = parser.parse_args()
    for part in args.parts:
        work[part]()


SETTING = {"benchmark": "side information", "K": K, "n_iter": 8}
if __name__ == "__main__":
    if sys.argv[1:2] == ["peers"]:  # peers FOLDER-OF-DATA: in an environment without rgals
        peers(RESULTS, Path(sys.argv[2]))
    elif sys.argv[1:2] == ["one-fit"]:
        one_fit(sys.argv[2])
    else:
        from rgals.files.journal import Journal

        main()
