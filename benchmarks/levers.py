"""How much large K and degree exponents give: `python benchmarks/levers.py amazon-book-kgat`.

iALS and RG2, each tuned on validation without and with exponents at the first K, and tuned again at every
larger K (``--transfer``: fitted at larger K with what was found at the first one); then fitted to training
and validation together and measured on test. Results go to ``levers_results.jsonl`` beside this file and are
not measured again; the searches have journals under ``results/levers``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

from quality import DATA, METRICS, protocol_of

from rgals import IALS, RG2, RGALS
from rgals.datasets import read_interactions
from rgals.files.journal import Journal
from rgals.metrics import evaluate
from rgals.model_selection import EdgeWarning, Search, tune
from rgals.model_selection.tuning.halving import TOP
from rgals.model_selection.tuning.prepared import split_for_tuning
from rgals.model_selection.tuning.trials import of_estimator
from rgals.runtime.threads import n_threads

RESULTS = Path(__file__).with_name("levers_results.jsonl")
LOSSES = {"IALS": IALS(), "RG2": RG2()}
EXPONENTS = {"both": (False, True), "no": (False,), "yes": (True,)}
PLAIN = {"user_exponent": 0.0, "item_exponent": 0.0}
COMMON = {"random_state": 0, "n_iter": 16, "init": "random"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", default=["amazon-book-kgat", "douban-book-music"])
    parser.add_argument("--losses", default="IALS,RG2", help="separated by commas")
    parser.add_argument("--exponents", choices=EXPONENTS, default="both")
    parser.add_argument("--K", default="64,512", help="ascending, separated by commas")
    parser.add_argument(
        "--budget", type=float, default=8, help="full fits at the first K, twice with exponents"
    )
    parser.add_argument("--time-limit", type=float, help="seconds for each search")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument(
        "--transfer", action="store_true", help="larger K with the setting of the first one, not tuned again"
    )
    parser.add_argument("--out", default="results/levers")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    args = parser.parse_args()
    warnings.simplefilter("ignore", EdgeWarning)
    ladder = [int(K) for K in args.K.split(",")]
    record = Journal(RESULTS, {"metric": "ndcg@10"})
    common = {**COMMON, "n_jobs": args.jobs}
    for name in [] if args.table else args.sets:
        data = read_interactions(DATA / f"{name}.npz")
        protocol = protocol_of(name)
        prepared = split_for_tuning(data, protocol, None, 1, 10_000, 0)
        for loss in (LOSSES[key] for key in args.losses.split(",")):
            for exponents in EXPONENTS[args.exponents]:
                keys = {K: f"{name} {loss.name} K{K} exponents={exponents}" for K in ladder}
                if all(record.get(key) for key in keys.values()):
                    continue
                chosen: dict[int, tuple[dict[str, Any], float | None, int]] = {}
                first = record.get(keys[ladder[0]])
                if args.transfer and first is not None:
                    chosen = {K: ({**first["setting"], "K": K}, None, 0) for K in ladder[1:]}
                else:
                    found = tune(
                        loss,
                        data,
                        {"K": ladder[:1] if args.transfer else ladder, **({} if exponents else PLAIN)},
                        budget=args.budget * (2 if exponents else 1),
                        protocol=protocol,
                        search=Search(min_gain=0.0, time_limit=args.time_limit),
                        journal=Path(args.out) / f"{name} {loss.name} exponents={exponents}.jsonl",
                        refit=False,
                        n_jobs=args.jobs,
                    )
                    for K in ladder:
                        rows = [r for r in found.trials if r["level"] == TOP and r["params"]["K"] == K]
                        if rows:
                            best = max(rows, key=lambda r: r["ndcg@10"])
                            chosen[K] = best["params"], best["ndcg@10"], len(rows)
                for K, (params, validation, fits) in chosen.items():
                    if record.get(keys[K]):
                        continue
                    model = RGALS(**{**common, **of_estimator(loss, params)})
                    model.set_params(n_iter=1).fit(prepared.final)  # compiles
                    model.set_params(n_iter=params.get("n_iter", COMMON["n_iter"]))
                    started, cpu = time.perf_counter(), time.process_time()
                    model.fit(prepared.final)
                    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
                    assert prepared.parts is not None
                    test = evaluate(model, prepared.final, prepared.parts.test, METRICS, n_jobs=args.jobs)
                    row = {"set": name, "loss": loss.name, "K": K, "exponents": exponents, "test": test}
                    row |= {"validation": validation, "setting": params, "fits": fits}
                    row |= {"seconds": seconds, "cpu_seconds": cpu, "threads": n_threads(args.jobs)}
                    record.add(keys[K], row)
                    print(f"{keys[K]}: validation {validation} test {test} {seconds:.1f} s", flush=True)
    print(
        "\n| set | loss | K | exponents | validation | ndcg@20 | recall@20 | s | CPU s | threads | setting |"
    )
    print("|" + "---|" * 11)
    for row in record.values():
        if "test" not in row:
            continue
        shown = {
            k: v for k, v in row["setting"].items() if isinstance(v, float) and k != "reg_exponent" and v
        }
        setting = " ".join(f"{k}={v:.3g}" for k, v in shown.items())
        validation = "of the first K" if row["validation"] is None else f"{row['validation']:.4f}"
        print(
            f"| {row['set']} | {row['loss']} | {row['K']} | {'yes' if row['exponents'] else 'no'} "
            f"| {validation} | {row['test']['ndcg@20']:.4f} | {row['test']['recall@20']:.4f} "
            f"| {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['threads']} | {setting} |"
        )


if __name__ == "__main__":
    main()
