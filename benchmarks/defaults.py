"""Regret of the rule for parameters against tuned ones: `python benchmarks/defaults.py`.

For every set in ``quality_results.jsonl`` and every loss of rgals tuned there: validation NDCG@10 of the
tuned setting, of `rgals.losses.rule` (from the shape and density of the matrix alone) and of the constants
that the classes have as defaults. Same splits, same K; the regret is what is lost relative to the tuned
setting.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from quality import DATA, RESULTS, SMALL, TUNED, load, protocol_of

from rgals import IALS, RG2, RGALS, RGX, WRMF
from rgals.losses import rule
from rgals.model_selection.tuning.trials import judge, split_for_tuning

LOSSES = {"RG2": RG2, "RGx": RGX, "iALS": IALS, "WRMF scaled": WRMF}
OUT = Path(__file__).with_name("defaults_results.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--losses", default="RG2,iALS", help="separated by commas")
    parser.add_argument("--K", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=None)
    args = parser.parse_args()
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    tuned = {(r["set"], r["method"]): r for r in rows if r.get("K") == args.K and "test" in r}
    done = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    known = {(r["set"], r["loss"], r["K"], r["tuned"]): r for r in done}
    print("| set | loss | tuned | rule | regret | constants | regret | of the rule |")
    print("|---|---|---|---|---|---|---|---|")
    regrets: dict[str, list[float]] = {"rule": [], "constants": []}
    for name in dict.fromkeys(key[0] for key in tuned):
        if not (DATA / f"{name}.npz").is_file():
            continue
        prepared = None
        for loss in args.losses.split(","):
            row = tuned.get((name, loss))
            if row is None:
                continue
            found = known.get((name, loss, args.K, row["validation"]))
            if found is None:
                if prepared is None:
                    data, prepared = load(name, row["seed"])
                    if prepared.splits[0].train.nnz < SMALL:
                        prepared = split_for_tuning(data, protocol_of(name), None, 2, 10_000, row["seed"])
                train = prepared.splits[0].train
                ruled = rule(LOSSES[loss], *train.shape, train.nnz)
                found = {"set": name, "loss": loss, "K": args.K, "tuned": row["validation"], "setting": ruled}
                for kind, setting in (("rule", ruled), ("constants", {})):
                    of_loss = {k: v for k, v in setting.items() if k != "reg"}
                    reg = {"reg": setting["reg"]} if setting else {}
                    # As what was tuned was fitted.
                    how = {"n_iter": 16, "init": "random", "random_state": row["seed"], "n_jobs": args.jobs}
                    model = RGALS(args.K, LOSSES[loss](**of_loss), **how, **reg)
                    figures = [judge(model.fit(s.train), s, (TUNED,))[TUNED] for s in prepared.splits]
                    found[kind] = float(np.mean(figures))
                with OUT.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            lost = {kind: 1 - found[kind] / found["tuned"] for kind in regrets}
            for kind, values in regrets.items():
                values.append(lost[kind])
            setting = " ".join(f"{k}={v:.3g}" for k, v in found["setting"].items())
            print(
                f"| {name} | {loss} | {found['tuned']:.4f} | {found['rule']:.4f} "
                f"| {100 * lost['rule']:.1f} % | {found['constants']:.4f} "
                f"| {100 * lost['constants']:.1f} % | {setting} |",
                flush=True,
            )
    for kind, values in regrets.items():
        print(f"{kind}: median regret {100 * np.median(values):.1f} %, worst {100 * max(values):.1f} %")


if __name__ == "__main__":
    main()
