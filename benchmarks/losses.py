"""Every ranking loss under the protocols of the papers, beside published figures and exact ALS.

    python benchmarks/losses.py [SET ...] [--losses NAME ...] [--seeds 0 1 2] [--epochs 200]
    python benchmarks/losses.py --tables               # prints what is recorded
    python benchmarks/losses.py --plot                 # quality over seconds, all losses of a set

The data are the given splits of SL@K (its Electronics, Health, MovieLens, Food); a tenth of the training
part of every user is validation. Settings are the published best of each loss (K=64, dense Adam, factors
from N(0, 1), learning rate 0.1, 1024 positives a batch, negatives that leave positives out; 1000 of them,
200 on MovieLens), and ``NEIGHBOURS`` of it. The setting and the epoch (every 5th) are those of the best
validation NDCG@20 of the first seed; the figures are of the test part, with validation items among the
candidates, as published. ALS has the defaults of `RGALS` and the best of a grid around them. CPU seconds
are of training alone.

CiteULike-a has the lists of metric-optimization: users of 25 or more, K=32, a fifth of the interactions
hidden, ranked among NSR times as many random items; the epoch is chosen on the hidden part, as published.
Lines are appended to ``losses_results.jsonl``; what is recorded is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from rgals import RGALS
from rgals.datasets import read_interactions
from rgals.datasets.given import given
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import PROTOCOLS, split_interactions
from rgals.sgd import SGDRanker
from rgals.sgd.losses import (
    BSL,
    LLPAUC,
    PSL,
    AdvInfoNCE,
    FullLambdaLoss,
    LambdaLoss,
    LambdaRank,
    RSAtK,
    SampledSoftmaxAtK,
    SampledTalos,
    SmoothIAtK,
)

DATA = Path(os.environ.get("RGALS_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
OUT = Path(__file__).with_name("losses_results.jsonl")
METRICS = ("recall@20", "ndcg@20", "precision@20")
EVERY = 5
COSINE = {"score": "cosine", "init_scale": 1.0, "lr": 0.1, "optimizer": "adam", "exclude_positives": True}
DOT = {**COSINE, "score": "dot", "temperature": 1.0}
RAW = {**COSINE, "temperature": 1.0}

Rows = dict[str, dict[str, Any]]
#: Items, and users who have 1024 positives in the training part, a batch of the published fits.
CATALOGUES = {
    "amazon-health-10core": (1200, 59),
    "amazon-electronics-10core": (8360, 83),
    "ml-100k-10core": (1016, 17),
    "food-10core": (9852, 36),
}


def settings(
    name: str, n: int, tau: float, bsl: tuple[float, float], k: float, llp: tuple[float, float]
) -> Rows:
    """The losses by name, with their best settings: negatives, temperatures, shares of LLPAUC."""
    many = {"n_negatives": n}
    at_k = SampledSoftmaxAtK(20, k / tau, every=5)
    at_20, printed = FullLambdaLoss(20), FullLambdaLoss(20, published=False)
    few = {**COSINE, "temperature": tau, "n_negatives": 10, "batch_size": 128}
    # Public code draws one negative for a positive: a mean over items, where these losses are a sum.
    n_items, users = CATALOGUES[name]
    pairs = {**DOT, "lr": 1e-3, "init_scale": 0.1, "weight_decay": 1e-5 * n_items, "batch_size": users}
    graph, noisy = {"encoder": "lightgcn"}, {"encoder": "xsimgcl", "n_layers": 3}
    return {
        "SL": {**COSINE, **many, "loss": "sl", "temperature": tau},
        "BSL": {**RAW, **many, "loss": BSL(*bsl)},
        "PSL": {**RAW, **many, "loss": PSL(tau / 2)},
        "SL@20": {**COSINE, **many, "loss": at_k, "temperature": tau},
        # Public code makes Adam anew in every batch of the first epoch, and ever after with this rate.
        "SL@20, a tenth of the rate": {**COSINE, **many, "loss": at_k, "temperature": tau, "lr": 1e-2},
        "Talos": {**RAW, **many, "loss": SampledTalos(20, tau / 2)},
        "AdvInfoNCE": {**RAW, **many, "loss": AdvInfoNCE(tau)},
        "LLPAUC": {**RAW, **many, "loss": LLPAUC(*llp, ascend=False)},
        "LLPAUC, ascending": {**RAW, **many, "loss": LLPAUC(*llp)},
        "AATP": {**RAW, **many, "loss": "sampled_aatp"},
        "RS@20": {**RAW, **many, "loss": RSAtK(20, 0.01, 1.0, rescale=False)},
        "SmoothI@20": {**RAW, **many, "loss": SmoothIAtK(20, 0.2)},
        "SmoothI@20, published": {**RAW, **many, "loss": SmoothIAtK(20, 0.2, published=True)},
        "BPR": {**DOT, "n_negatives": 1, "loss": "bpr", "lr": 1e-3, "weight_decay": 1e-4},
        "BCE": {**DOT, "n_negatives": 10, "loss": "bce", "lr": 1e-2, "init_scale": 0.1},
        "full softmax": {**COSINE, "loss": "softmax", "temperature": tau},
        "full SL@20": {**COSINE, "loss": "softmax_at_k", "temperature": tau},
        "full Talos": {**RAW, "loss": "talos"},
        "LambdaLoss@20": {**DOT, "loss": printed, "lr": 1e-2, "init_scale": 0.1},
        # With the weights of the public code.
        "LambdaLoss@20, published": {**pairs, "loss": at_20},
        "LambdaLoss@20, published, cosines": {**COSINE, "loss": at_20, "temperature": tau},
        "LambdaLoss": {**pairs, "loss": "full_lambda_loss"},
        "LambdaLoss, cosines": {**COSINE, "loss": "full_lambda_loss", "temperature": tau},
        "LambdaRank, cosines": {**COSINE, "loss": "full_lambda_rank", "temperature": tau},
        # Of all positives of a user and ten times as many negatives; published are lists of one positive.
        "LambdaLoss, sampled": {**few, "loss": "lambda_loss"},
        "LambdaLoss@20, sampled": {**few, "loss": LambdaLoss(20)},
        "SL, LightGCN": {**COSINE, **many, **graph, "loss": "sl", "temperature": tau},
        "SL@20, LightGCN": {**COSINE, **many, **graph, "loss": at_k, "temperature": tau},
        "SL, XSimGCL": {**COSINE, **many, **noisy, "loss": "sl", "temperature": tau},
        "SL@20, XSimGCL": {**COSINE, **many, **noisy, "loss": at_k, "temperature": tau},
        "full softmax, LightGCN": {**COSINE, **graph, "loss": "softmax", "temperature": tau},
        "full SL@20, LightGCN": {**COSINE, **graph, "loss": "softmax_at_k", "temperature": tau},
    }


def more(counts: tuple[int, ...] = (1, 10, 100)) -> Rows:
    """The losses of Di Teodoro et al. at equal negatives, and sparsemax by the size of its scores."""
    how = {**DOT, "lr": 1e-3, "init_scale": 0.1}
    rows: Rows = {}
    for n in counts:
        for label, loss in (("BCE", "bce"), ("BPR", "bpr"), ("CCE", "sampled_cce")):
            rows[f"{label}, {n} negatives"] = {**how, "n_negatives": n, "loss": loss}
    held = {**DOT, "decay": "frequency", "weight_decay": 0.11}  # 0.6 times the ridge that RG2 takes
    for size in (0.1, 0.01):
        how = {**held, "loss": "sparsemax", "lr": 0.3 * size, "init_scale": size}
        rows[f"sparsemax, factors of {size}"] = how
    rows["sparsemax, cosines"] = {**COSINE, "loss": "sparsemax", "temperature": 100.0}
    rows["softmax, dot products"] = {**held, "loss": "softmax", "lr": 0.03, "init_scale": 0.1}
    return rows


#: Negatives, temperatures and shares that `settings` takes.
BEST: dict[str, Any] = {
    "amazon-health-10core": (1000, 0.2, (0.2, 0.2), 2.5, (0.7, 0.01)),
    "amazon-electronics-10core": (1000, 0.2, (0.5, 0.2), 2.25, (0.5, 0.01)),
    "ml-100k-10core": (200, 0.2, (0.2, 0.2), 2.25, (0.7, 0.01)),
    "food-10core": (1000, 0.2, (0.2, 0.2), 2.25, (0.7, 0.01)),
}
SETS = {name: settings(name, *best) for name, best in BEST.items()}
SETS["ml-100k-10core"] |= more()
LLPAUCS = ("LLPAUC", "LLPAUC, ascending")
PLAIN = ("LambdaLoss", "LambdaLoss, cosines")
AT_K = ("SL@20", "SL@20, a tenth of the rate")
LAMBDA = ("LambdaLoss@20", "LambdaLoss@20, published", "LambdaLoss@20, published, cosines")
#: Recall@20 and NDCG@20 of matrix factorisation: SL@K, Tables 1 and G.10.
PUBLISHED = {
    "amazon-health-10core": {
        "BPR": (0.1575, 0.1209),
        **dict.fromkeys(LLPAUCS, (0.1671, 0.1219)),
        "SL": (0.1737, 0.1264),
        "AdvInfoNCE": (0.1660, 0.1236),
        "BSL": (0.1737, 0.1264),
        **dict.fromkeys(AT_K, (0.1804, 0.1373)),
        "SL, LightGCN": (0.1691, 0.1235),
        "SL@20, LightGCN": (0.1791, 0.1369),
        "SL, XSimGCL": (0.1534, 0.1113),
        "SL@20, XSimGCL": (0.1718, 0.1322),
    },
    "amazon-electronics-10core": {
        "BPR": (0.0816, 0.0527),
        **dict.fromkeys(LLPAUCS, (0.0821, 0.0499)),
        "SL": (0.0821, 0.0529),
        "AdvInfoNCE": (0.0829, 0.0527),
        "BSL": (0.0834, 0.0530),
        **dict.fromkeys(AT_K, (0.0892, 0.0587)),
    },
    "ml-100k-10core": {
        "LambdaRank, cosines": (0.3077, 0.3043),
        **dict.fromkeys(PLAIN, (0.3425, 0.3460)),
        "LambdaLoss, sampled": (0.1497, 0.1523),
        "LambdaLoss@20, sampled": (0.1580, 0.1603),
        **dict.fromkeys(LAMBDA, (0.3418, 0.3466)),
        **dict.fromkeys(AT_K, (0.3580, 0.3677)),
    },
    "food-10core": {
        "LambdaRank, cosines": (0.0520, 0.0377),
        **dict.fromkeys(PLAIN, (0.0515, 0.0374)),
        "LambdaLoss, sampled": (0.0333, 0.0243),
        "LambdaLoss@20, sampled": (0.0335, 0.0238),
        **dict.fromkeys(LAMBDA, (0.0530, 0.0382)),
        **dict.fromkeys(AT_K, (0.0635, 0.0465)),
    },
}
#: Precision@20, where no NDCG@20 is published: Talos, appendix A.
PRECISIONS = {"ml-100k-10core": {"Talos": 0.2349}}
#: What is tried beside the published best, by validation.
NEIGHBOURS: tuple[dict[str, Any], ...] = ({}, {"lr": 0.3}, {"lr": 0.03})
#: Of the contrastive term.
CONTRASTS: tuple[dict[str, Any], ...] = ({"contrast": 0.1}, {"contrast": 0.05}, {"contrast": 0.01})
#: Of dot products, whose scores begin at 8 where factors are from N(0, 1).
SMALL: tuple[dict[str, Any], ...] = ({}, {"init_scale": 0.1}, {"init_scale": 0.1, "weight_decay": 1e-5})
LIST_METRICS = ("AP", "nDCG", "RR", "RBP.95")
#: CiteULike-a at NSR 1, RBP not normalised: settings, and the figures of the result files of Li et al.
LISTS = {
    "list RR": ({"loss": "list_rr"}, (0.592, 0.801, 0.785, 0.321)),
    # Where the scores of m positives are equal, as small factors make them, its gradient is of 2^-(m - 1).
    "list RR, factors of 0.1": (
        {"loss": "list_rr", "init_scale": 0.1, "lr": 0.1},
        (0.592, 0.801, 0.785, 0.321),
    ),
    "list AP": ({"loss": "list_ap"}, (0.856, 0.942, 0.963, 0.397)),
    "list nDCG": ({"loss": "list_ndcg"}, (0.856, 0.943, 0.967, 0.396)),
    "list nRBP": ({"loss": "list_nrbp"}, (0.914, 0.966, 0.978, 0.409)),
    "lambda RR": ({"loss": LambdaRank("rr")}, (0.582, 0.789, 0.741, 0.321)),
    "lambda AP": ({"loss": LambdaRank("ap")}, (0.836, 0.933, 0.951, 0.390)),
    "lambda nDCG": ({"loss": LambdaRank("ndcg")}, (0.855, 0.942, 0.960, 0.395)),
    "lambda nRBP .8": ({"loss": LambdaRank("nrbp", p=0.8)}, (0.839, 0.938, 0.964, 0.389)),
    "lambda nRBP .9": ({"loss": LambdaRank("nrbp", p=0.9)}, (0.881, 0.956, 0.977, 0.400)),
    "lambda nRBP .95": ({"loss": LambdaRank("nrbp", p=0.95)}, (0.903, 0.965, 0.982, 0.405)),
}


def lines(path: Path) -> list[dict[str, Any]]:
    """What is recorded."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record(path: Path, row: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")


def fit(params: dict[str, Any], parts: Any, seed: int, epochs: int, looks: int) -> tuple[float, dict]:
    """Best validation NDCG@20 of every 5th epoch, and what that epoch reaches on the test part."""
    best: dict[str, Any] = {"valid": -1.0}
    curve: list[list[float]] = []
    spent = [time.process_time(), 0.0]

    def watch(now: Any) -> bool:
        spent[1] += time.process_time() - spent[0]
        if now.iteration % EVERY == 0 or now.iteration == epochs:
            factors = now.user_factors, now.item_factors
            valid = evaluate(factors, parts.train, parts.validation, ("ndcg@20",), n_jobs=1)["ndcg@20"]
            curve.append([round(spent[1], 2), round(float(valid), 5)])
            if valid > best["valid"]:
                best.update(valid=float(valid), epoch=now.iteration)
                best["factors"] = [part.copy() for part in factors]
        spent[0] = time.process_time()
        return now.iteration - best.get("epoch", 0) >= looks * EVERY  # so many without a gain

    size = 1024 if "n_negatives" in params else 128
    common = {"K": 64, "batch_size": size, "n_jobs": 1, "values": "binary"}
    SGDRanker(n_epochs=epochs, random_state=seed, **common | params).fit(parts.train, callbacks=watch)
    found = evaluate(best.pop("factors"), parts.train, parts.test, METRICS, n_jobs=1)
    return best["valid"], {
        **{name: round(float(found[name]), 5) for name in METRICS},
        "epoch": best["epoch"],
        "valid": round(best["valid"], 5),
        "cpu": round(spent[1], 1),
        "curve": curve,
    }


def neighbours(name: str, label: str) -> tuple[dict[str, Any], ...]:
    """What is tried of a loss; rates are over a published one of 0.1."""
    if label in ("LambdaLoss", "LambdaLoss@20, published"):  # the published range of the decay
        return {}, {"weight_decay": 1e-6 * CATALOGUES[name][0]}
    return SMALL if label == "BPR" else CONTRASTS if label.endswith("XSimGCL") else NEIGHBOURS


def run_loss(name: str, label: str, args: argparse.Namespace) -> None:
    """All neighbours with the first seed; the best of them with the others."""
    params = SETS[name][label]
    key = {"set": name, "loss": label, "epochs": args.epochs}
    key |= {"looks": args.looks} if args.looks != 5 else {}
    parts: Any = None
    tried: list[tuple[float, dict[str, Any]]] = []
    for seed in args.seeds:
        first = seed == args.seeds[0]
        around = neighbours(name, label) if first else (max(tried, key=lambda pair: pair[0])[1],)
        for other in around[: args.neighbours]:
            own = {**key, "seed": seed, "neighbour": other}
            done = [row for row in lines(args.out) if own.items() <= row.items()]
            if not done:
                if parts is None:
                    parts = PROTOCOLS["given split"].apply(read_interactions(DATA / f"{name}.npz"))
                scale = {"lr": params["lr"] * other["lr"] / 0.1} if "lr" in other else other
                record(args.out, {**own, **fit({**params, **scale}, parts, seed, args.epochs, args.looks)[1]})
                done = lines(args.out)[-1:]
                print({k: v for k, v in done[0].items() if k != "curve"}, flush=True)
            if first:
                tried.append((done[0]["valid"], other))


def run_als(name: str, args: argparse.Namespace) -> None:
    """RG2, RGx and iALS by their defaults, and the best of a grid around them by validation."""
    parts: Any = None
    for K, loss in ((64, "rg2"), (64, "rgx"), (64, "ials"), (256, "rg2"), (256, "ials")):
        for tuned in (False, True):
            key = {"set": name, "loss": f"ALS {loss}" + (f", K={K}" if K != 64 else ""), "tuned": tuned}
            if any(key.items() <= row.items() for row in lines(args.out)):
                continue
            parts = parts or PROTOCOLS["given split"].apply(read_interactions(DATA / f"{name}.npz"))
            default = RGALS(K, loss=loss, random_state=0, n_jobs=1, values="binary").fit(parts.train)
            reg = float(default.params_["reg"])
            found: list[tuple[float, float, RGALS, float]] = []
            for factor in (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8) if tuned else (None,):
                started = time.process_time()
                model = RGALS(K, loss=loss, random_state=0, n_jobs=1, values="binary")
                if factor is not None:
                    model.set_params(reg=reg * factor)
                model.fit(parts.train)
                spent = time.process_time() - started
                valid = evaluate(model, parts.train, parts.validation, ("ndcg@20",), n_jobs=1)["ndcg@20"]
                found.append((float(valid), spent, model, reg * (factor or 1)))
            valid, spent, model, reg = max(found, key=lambda entry: entry[0])
            test = evaluate(model, parts.train, parts.test, METRICS, n_jobs=1)
            figures = {metric: round(float(test[metric]), 5) for metric in METRICS}
            record(args.out, {**key, **figures, "reg": reg, "valid": round(valid, 5), "cpu": round(spent, 1)})
            print(lines(args.out)[-1], flush=True)


def list_metrics(scores: np.ndarray, m: int) -> np.ndarray:
    """AP, nDCG, RR and RBP(.95) of one list whose first m items are hidden positives."""
    rank = np.empty(len(scores), int)
    rank[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    own = np.sort(rank[:m])
    ideal = (1 / np.log2(1 + np.arange(1, m + 1))).sum()
    ap = (np.arange(1, m + 1) / own).mean()
    return np.array([ap, (1 / np.log2(1 + own)).sum() / ideal, 1 / own[0], 0.05 * (0.95 ** (own - 1)).sum()])


def list_parts(seed: int) -> tuple[CSR, CSR, list[np.ndarray]]:
    """Training and hidden part of CiteULike-a, and each user's hidden items with as many random others."""
    matrix = given(read_interactions(DATA / "citeulike-a.npz")).csr()
    matrix = matrix[np.diff(matrix.indptr) >= 25]
    train, hidden = (as_csr(part) for part in split_interactions(matrix, (0.8, 0.2), random_state=seed))
    rng, known = np.random.default_rng(seed), as_csr(matrix)
    items = []
    for user in range(known.n_rows):
        own = hidden.indices[hidden.indptr[user] : hidden.indptr[user + 1]]
        taken = known.indices[known.indptr[user] : known.indptr[user + 1]]
        rest = rng.choice(np.setdiff1d(np.arange(known.n_cols), taken), len(own), replace=False)
        items.append(np.concatenate([own, rest]))
    return train, hidden, items


def run_lists(args: argparse.Namespace) -> None:
    """Listwise and lambda losses on CiteULike-a at NSR 1; the epoch is chosen by each metric on the test."""
    for label, (params, _) in LISTS.items():
        if args.losses and label not in args.losses:
            continue
        for seed in args.seeds:
            key = {"set": "citeulike-a", "loss": label, "seed": seed, "epochs": args.epochs}
            if any(key.items() <= row.items() for row in lines(args.out)):
                continue
            train, hidden, items = list_parts(seed)
            best, spent, curve = np.zeros(4), [time.process_time(), 0.0], []

            def watch(now: Any, best: Any = best, spent: Any = spent, curve: Any = curve) -> None:
                spent[1] += time.process_time() - spent[0]
                if now.iteration % EVERY == 0:
                    rows = zip(now.user_factors, items, hidden.row_counts, strict=True)  # noqa: B023
                    found = [list_metrics(now.item_factors[i] @ p, m) for p, i, m in rows if m]
                    mean = np.mean(found, axis=0)
                    np.maximum(best, mean, out=best)
                    curve.append([round(spent[1], 1), *np.round(mean, 4).tolist()])
                spent[0] = time.process_time()

            how = {"K": 32, "n_jobs": 1, "values": "binary", "n_negatives": 1, "replacement": False}
            how["score"] = "dot"
            how |= {"lr": 0.01, "init_scale": 0.01, "n_epochs": args.epochs, "random_state": seed}
            SGDRanker(**how | params).fit(train, callbacks=watch)
            row = {**key, "best": np.round(best, 4).tolist(), "cpu": round(spent[1], 1), "curve": curve}
            record(args.out, row)
            print({k: v for k, v in row.items() if k != "curve"}, flush=True)


def list_groups(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Lines of CiteULike-a by loss, with figures by the names of their metrics."""
    named = [{**row, **dict(zip(LIST_METRICS, row["best"], strict=True))} for row in rows if "best" in row]
    return {label: group for label in LISTS if (group := [row for row in named if row["loss"] == label])}


def groups(rows: list[dict[str, Any]], name: str) -> dict[str, list[dict[str, Any]]]:
    """Lines of a set by loss, at the neighbour that validation chose with the first seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    own = [row for row in rows if row["set"] == name and "neighbour" in row]
    for label in dict.fromkeys(row["loss"] for row in own):
        group = [row for row in own if row["loss"] == label]
        longest = max((row["epochs"], row.get("looks", 5)) for row in group)
        group = [row for row in group if (row["epochs"], row.get("looks", 5)) == longest]
        chosen = max((row for row in group if row["seed"] == group[0]["seed"]), key=lambda row: row["valid"])
        found[label] = [row for row in group if row["neighbour"] == chosen["neighbour"]]
    return found


def set_table(rows: list[dict[str, Any]], name: str) -> list[str]:
    """The losses of a set from the best to the worst, exact ALS among them."""
    found: list[tuple[float, str]] = []
    for label, group in groups(rows, name).items():
        recall, ndcg = (float(np.mean([row[m] for row in group])) for m in METRICS[:2])
        told, precision = PUBLISHED[name].get(label), PRECISIONS.get(name, {}).get(label)
        theirs = "| |" if told is None else f"{told[0]:.4f} / {told[1]:.4f} | {ndcg / told[1] - 1:+.1%} |"
        if precision:
            own = float(np.mean([row["precision@20"] for row in group]))
            theirs = f"P@20 {precision:.4f} | P@20 {own:.4f}, {own / precision - 1:+.1%} |"
        title = ", ".join([label, *(f"{k}={v:g}" for k, v in group[0]["neighbour"].items())])
        rest = f"{len(group)} | {group[0]['epoch']} | {np.mean([row['cpu'] for row in group]):.0f} |"
        found.append((ndcg, f"| {title} | {recall:.4f} | {ndcg:.4f} | {theirs} {rest}"))
    for row in rows:
        if row["set"] == name and "tuned" in row:
            title = f"{row['loss']}, {'tuned' if row['tuned'] else 'defaults'}"
            figures = f"{row['recall@20']:.4f} | {row['ndcg@20']:.4f}"
            found.append((row["ndcg@20"], f"| {title} | {figures} | | | 1 | | {row['cpu']} |"))
    head = ["| loss | R@20 | N@20 | published | N@20 over it | seeds | epoch | CPU s |", "|" + "---|" * 8]
    return [*head, *(line for _, line in sorted(found, key=lambda pair: -pair[0]))]


def list_table(rows: list[dict[str, Any]]) -> list[str]:
    """The losses over lists: every metric at its best epoch, beside what was published."""
    table = [f"| loss | {' / '.join(LIST_METRICS)} | published | seeds | CPU s |", "|---|---|---|---|---|"]
    for label, group in list_groups(rows).items():
        ours = np.mean([row["best"] for row in group], axis=0)
        both = (" / ".join(f"{x:.3f}" for x in figures) for figures in (ours, LISTS[label][1]))
        table.append(f"| {label} | {' | '.join(both)} | {len(group)} | {group[0]['cpu']:.0f} |")
    return table


#: What the papers say: the claim, a set, the loss that is said to be better, the other, and the metric.
_H, _M, _E = "amazon-health-10core", "ml-100k-10core", "amazon-electronics-10core"
_C = "citeulike-a"
CLAIMS = [
    ("SL@K over SL", _H, "SL@20", "SL", "ndcg@20"),
    ("SL@K over SL", _H, "full SL@20", "full softmax", "ndcg@20"),
    ("SL@K over SL", _M, "SL@20", "SL", "ndcg@20"),
    ("SL@K over SL", _M, "full SL@20", "full softmax", "ndcg@20"),
    ("SL@K over SL", _E, "SL@20", "SL", "ndcg@20"),
    ("SL@K over SL", _E, "full SL@20", "full softmax", "ndcg@20"),
    ("Talos over SL@K", _M, "Talos", "SL@20", "precision@20"),
    ("Talos over SL@K", _M, "full Talos", "full SL@20", "precision@20"),
    ("Talos over SL@K", _H, "full Talos", "full SL@20", "precision@20"),
    ("Talos over SL", _M, "Talos", "SL", "precision@20"),
    ("PSL over SL", _M, "PSL", "SL", "ndcg@20"),
    ("SmoothI@K far below SL", _M, "SL", "SmoothI@20, published", "ndcg@20"),
    ("RS@K the worst", _M, "SmoothI@20, published", "RS@20", "ndcg@20"),
    ("SL over BPR", _H, "SL", "BPR", "ndcg@20"),
    ("LightGCN over MF", _H, "full softmax, LightGCN", "full softmax", "ndcg@20"),
    ("LightGCN over MF", _H, "full SL@20, LightGCN", "full SL@20", "ndcg@20"),
    ("XSimGCL over MF", _H, "SL, XSimGCL", "SL", "ndcg@20"),
    ("XSimGCL over MF", _H, "SL@20, XSimGCL", "SL@20", "ndcg@20"),
    ("softmax over sparsemax", _M, "softmax, dot products", "sparsemax, factors of 0.01", "ndcg@20"),
    ("softmax over sparsemax", _M, "full softmax", "sparsemax, cosines", "ndcg@20"),
    *(("CCE over BPR", _M, f"CCE, {n} negatives", f"BPR, {n} negatives", "ndcg@20") for n in (1, 10, 100)),
    *(("BPR over BCE", _M, f"BPR, {n} negatives", f"BCE, {n} negatives", "ndcg@20") for n in (1, 10, 100)),
    ("more negatives are better", _M, "BCE, 100 negatives", "BCE, 1 negatives", "ndcg@20"),
    ("more negatives are better", _M, "CCE, 10 negatives", "CCE, 1 negatives", "ndcg@20"),
    ("more negatives are better", _M, "CCE, 100 negatives", "CCE, 10 negatives", "ndcg@20"),
    *(("nRBP over nDCG, lists", _C, "list nRBP", "list nDCG", metric) for metric in LIST_METRICS),
    *(("nRBP.95 over nDCG, lambda", _C, "lambda nRBP .95", "lambda nDCG", metric) for metric in LIST_METRICS),
    ("nRBP.95 over nRBP.9", _C, "lambda nRBP .95", "lambda nRBP .9", "AP"),
    ("nRBP.9 over nRBP.8", _C, "lambda nRBP .9", "lambda nRBP .8", "AP"),
    ("RR the worst, even by RR", _C, "list AP", "list RR, factors of 0.1", "RR"),
    ("RR the worst, even by RR", _C, "lambda AP", "lambda RR", "RR"),
]


def claims_table(rows: list[dict[str, Any]]) -> list[str]:
    """Yes or no where the means differ by more than two standard errors, by the spread over seeds on the set.

    A claim whose lines are not recorded is left out.
    """
    found = {name: groups(rows, name) for name in (_H, _M, _E)} | {_C: list_groups(rows)}
    head = ["| claim | set | better | worse | metric | figures | difference | seeds | holds |"]
    table = [*head, "|" + "---|" * 9]
    for claim, name, better, worse, metric in CLAIMS:
        if better not in found[name] or worse not in found[name]:
            continue
        many = [[row[metric] for row in group] for group in found[name].values() if len(group) > 2]
        spread = np.sqrt(np.mean([np.var(values, ddof=1) for values in many])) if many else np.inf
        sides = [[row[metric] for row in found[name][label]] for label in (better, worse)]
        a, b = map(np.mean, sides)
        error = spread * np.sqrt(sum(1 / len(side) for side in sides))
        holds = (
            "one seed"
            if not many
            else "yes"
            if a - b > 2 * error
            else "**no**"
            if b - a > 2 * error
            else "neither"
        )
        seeds = " / ".join(str(len(side)) for side in sides)
        words = f"{claim} | {name} | {better} | {worse} | {metric}"
        table.append(f"| {words} | {a:.4f} / {b:.4f} | {a / b - 1:+.1%} | {seeds} | {holds} |")
    return table


def advice_table(rows: list[dict[str, Any]]) -> list[str]:
    """Which loss to take when, in plain words, with the figures that say so."""
    found: dict[str, tuple[float, float]] = {}
    for mark, name in (("H", _H), ("M", _M), ("E", _E)):
        for label, group in groups(rows, name).items():
            mean = [float(np.mean([row[what] for row in group])) for what in ("ndcg@20", "cpu")]
            found[f"{mark} {label}"] = mean[0], mean[1]
        for row in rows:
            if row["set"] == name and "tuned" in row:
                how = "" if row["tuned"] else " defaults"
                found[f"{mark} {row['loss']}{how}"] = row["ndcg@20"], row["cpu"]

    def n(*labels: str) -> str:
        return " against ".join(f"{found[label][0]:.3f}" for label in labels)

    def n4(label: str) -> str:
        return f"{found[label][0]:.4f}"

    def cost(*labels: str) -> str:
        return " against ".join(f"{found[label][1]:.{int(found[label][1] < 2)}f} s" for label in labels)

    lines = [
        (
            "the best ranking for the time",
            "`RGALS`, no gradient descent",
            f"dense: {n('M ALS rg2 defaults', 'M PSL')} of PSL, {cost('M ALS rg2 defaults', 'M PSL')}; "
            f"sparse: iALS {n('H ALS ials defaults', 'H SL@20')} of the best in {cost('H SL@20')}",
        ),
        (
            "a sparse catalogue, K limited to 64",
            "a loss with a threshold; if K is free, `RGALS(K=256)`",
            f"sparse: SL@20 {n('H SL@20', 'H ALS ials')} of iALS, at K=256 {n('H ALS ials, K=256')} in "
            f"{cost('H ALS ials, K=256')}; Electronics: {PUBLISHED[_E]['SL@20'][1]:.4f} published, "
            f"RG2 {n4('E ALS rg2')}, at K=256 {n4('E ALS rg2, K=256')} in {cost('E ALS rg2, K=256')}",
        ),
        (
            "a catalogue of thousands of items, not millions",
            "a loss over all items instead of samples",
            f"dense: {n('M full softmax', 'M SL')} in {cost('M full softmax', 'M SL')}; "
            f"sparse: {n('H full softmax', 'H SL')} in {cost('H full softmax', 'H SL')}",
        ),
        (
            "a sparse catalogue, only the first K ranks matter",
            '`"sampled_softmax_at_k"`; all items, dense enough: `"softmax_at_k"`',
            f"sparse: {n('H SL@20', 'H SL')} of SL; all items {n('H full SL@20', 'H full softmax')}; "
            f"Electronics, sparser: {n('E SL@20', 'E SL')}; {n('E full SL@20', 'E full softmax')}",
        ),
        (
            "long histories, a small catalogue",
            '`"softmax"` or `"sl"`, without thresholds',
            f"dense: softmax {n('M full softmax', 'M full SL@20')} of SL@20, {n('M full Talos')} of Talos; "
            f"SL, PSL, Talos: {n('M SL')}, {n('M PSL')}, {n('M Talos')}",
        ),
        (
            "few negatives per positive",
            '`"bce"`; with a hundred `"sampled_cce"`',
            f"dense, dot products: 1, 10, 100 negatives {n('M BCE, 1 negatives')}, "
            f"{n('M BCE, 10 negatives')}, {n('M BCE, 100 negatives')}; CCE {n('M CCE, 1 negatives')}, "
            f"{n('M CCE, 10 negatives')}, {n('M CCE, 100 negatives')}",
        ),
        (
            "instead of an adversarial loss or a partial AUC",
            "SL; LLPAUC if its two parameters can be tuned",
            f"sparse: AdvInfoNCE {n('H AdvInfoNCE')}, SL {n('H SL')}, LLPAUC {n('H LLPAUC, ascending')}, "
            f"descending {n('H LLPAUC')}; Electronics {n('E LLPAUC, ascending', 'E SL')} of SL",
        ),
        (
            "instead of a smooth approximation of ranks",
            "SL",
            f"dense: SmoothI@20 {n('M SmoothI@20, published')}, RS@20 {n('M RS@20')}, SL {n('M SL')}",
        ),
        (
            "instead of a graph encoder",
            '`encoder="mf"`',
            f"sparse: softmax {n('H full softmax, LightGCN', 'H full softmax')} without, "
            f"SL@20 {n('H full SL@20, LightGCN', 'H full SL@20')}; noisy, SL {n('H SL, XSimGCL', 'H SL')}",
        ),
        (
            "sparse probabilities",
            '`"sparsemax"` over cosines, high temperature',
            f"dense: {n('M sparsemax, cosines', 'M full softmax')} of softmax; dot products with "
            f"`init_scale=0.01` {n('M sparsemax, factors of 0.01')}, 0.1 {n('M sparsemax, factors of 0.1')}",
        ),
    ]
    head = ["| for | use | NDCG@20 (sparse: Health, dense: ml-100k) |", "|---|---|---|"]
    return [*head, *(f"| {' | '.join(line)} |" for line in lines)]


def print_tables(rows: list[dict[str, Any]]) -> None:
    """What is recorded, a set after the other, then the claims."""
    for name in SETS:
        if any(row["set"] == name for row in rows):
            print(f"\n{name}\n", *set_table(rows, name), sep="\n")
    print(f"\n{_C}\n", *list_table(rows), sep="\n")
    print("\nclaims\n", *claims_table(rows), sep="\n")
    print("\nadvice\n", *advice_table(rows), sep="\n")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """The best validation NDCG@20 so far over CPU seconds: a panel a set, a line a loss, a point an ALS."""
    import matplotlib.pyplot as plt

    of_set = {name: found for name in SETS if len(found := groups(rows, name)) > 5}
    shown = {
        name: [group[0] for label, group in found.items() if "negatives" not in label]
        for name, found in of_set.items()
    }
    heights = [max(3.6, 0.18 * (len(lines) + 3) + 0.6) for lines in shown.values()]  # of the legends beside
    layout = {"figsize": (10, sum(heights)), "height_ratios": heights, "layout": "constrained"}
    figure, panels = plt.subplots(len(shown), 1, squeeze=False, **layout)
    colours = [colour for few in ("tab20", "Dark2", "Set2") for colour in plt.get_cmap(few).colors]
    labels = dict.fromkeys(row["loss"] for lines in shown.values() for row in lines)
    colour_of = {label: colours[k % len(colours)] for k, label in enumerate(labels)}
    for (name, lines), axes in zip(shown.items(), panels[:, 0], strict=True):
        for row in sorted(lines, key=lambda row: -row["valid"]):
            seconds, figures = np.array(row["curve"]).T
            style = "--" if row["loss"].startswith("full") else "-"
            style = ":" if row["loss"].endswith(("GCN", "GCL")) else style
            how = {"color": colour_of[row["loss"]], "linestyle": style, "label": row["loss"]}
            axes.plot(seconds, np.maximum.accumulate(figures), **how)
            axes.plot(seconds[-1], figures.max(), ".", color=how["color"])
        for row, mark in zip([r for r in rows if r["set"] == name and r.get("tuned")], "osD", strict=False):
            axes.plot(row["cpu"], row["valid"], mark, color="black", label=row["loss"])
        axes.set(xscale="log", xlabel="CPU seconds of training", title=name)
        axes.set_ylabel("best validation NDCG@20 so far")
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", default=[*SETS, "citeulike-a"], metavar="SET")
    parser.add_argument("--losses", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--looks", type=int, default=5, help="without a gain, after which a fit ends")
    parser.add_argument("--neighbours", type=int, default=len(NEIGHBOURS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    if args.tables:
        return print_tables(lines(args.out))
    if args.plot:
        return plot(lines(args.out), Path(__file__).resolve().parents[1] / "docs" / "losses.png")
    for name in args.data:
        if name == "citeulike-a":
            run_lists(args)
            continue
        if not args.losses:
            run_als(name, args)
        for label in SETS[name]:
            if not args.losses or label in args.losses:
                run_loss(name, label, args)
    return None


if __name__ == "__main__":
    main()
