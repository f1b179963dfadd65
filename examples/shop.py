"""A shop's year: every night the model takes in the day's purchases, and is refitted when that pays.

The next day judges it.

python examples/shop.py                       prints a line a month, ends with shop.png
python examples/shop.py --out /srv/models     the files that a service would load, in a folder of yours

The purchases are generated: customers with a taste come and go, goods come into fashion and leave it. A real
job reads the day's file instead (`rgals.datasets.read_interactions("2024-06-01.csv")`), once a night.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from rgals import RGALS
from rgals.baselines import Popularity
from rgals.datasets import Interactions, read_interactions
from rgals.metrics import evaluate
from rgals.scoring import recommend_all

TASTES = 20
REFIT = 0.01  # of what the objective fell since factors of 0: above the .003 at which a fit itself ends
GROWN = 0.2  # of all interactions, new since the fit: what it took from fewer does not suit them any more


def purchases(days: int, seed: int) -> list[Interactions]:
    """A day's purchases each: who bought what. Customers and goods come daily; fashions last some months."""
    rng = np.random.default_rng(seed)
    n_users, n_items = 1500 + 8 * days, 400 + 3 * days
    since = np.sort(np.r_[np.zeros(1500), rng.integers(1, days + 1, n_users - 1500)])
    until = since + rng.exponential(150, n_users)  # customers leave
    born = np.sort(np.r_[np.zeros(400), rng.integers(1, days + 1, n_items - 400)])
    taste, kind = rng.dirichlet(np.full(TASTES, 0.1), n_users), rng.integers(0, TASTES, n_items)
    appeal = rng.pareto(1.2, n_items) + 0.1
    had: list[list[int]] = [[] for _ in range(n_users)]
    out = []
    for day in range(days + 1):
        here = np.flatnonzero((since <= day) & (day < until) & (rng.random(n_users) < 0.12))
        age = day - born
        weight = appeal * np.where(age < 0, 0, np.exp(-age / 120) + 0.05)
        users, items = [], []
        for user in here:
            chance = weight * (taste[user][kind] + 0.01)
            chance[had[user]] = 0  # nobody buys a thing twice
            k = 1 + rng.poisson(1)
            items += rng.choice(n_items, k, replace=False, p=chance / chance.sum()).tolist()
            users += [user] * k
            had[user] += items[-k:]
        names = [f"customer {u}" for u in users], [f"article {i}" for i in items]
        out.append(read_interactions(names))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="folder of the model and the lists; by default one that goes"
    )
    parser.add_argument("--plot", default="shop.png", help="file of the picture; '' draws none")
    args = parser.parse_args()
    # Goods that are new tomorrow count as missed, and what came later is nothing to the model of the first
    # night; nobody needs to be told so each night.
    warnings.filterwarnings("ignore", "(train|test) has .* that the model does not know")
    with tempfile.TemporaryDirectory() as folder:
        nights = run(purchases(args.days, args.seed), args.out or Path(folder))
    if args.out:
        print(f"model.npz and lists.csv: {args.out}")
    if args.plot:
        draw(nights, args.plot)
        print(f"\nNDCG@10 of every night: {args.plot}")


def known(model: RGALS) -> Interactions:
    """All purchases that a model knows."""
    return Interactions(model.seen_, model.user_ids_, model.item_ids_)


def run(days: list[Interactions], out: Path) -> dict[str, list[float]]:
    """Every night's figures, by name."""
    out.mkdir(parents=True, exist_ok=True)
    opening = 30  # days before the first model
    model = RGALS(K=32, random_state=0).fit(days[0])
    for day in days[1:opening]:
        model.partial_fit(day)
    model.fit(known(model))
    model.save(out / "model.npz")
    frozen = RGALS.load(out / "model.npz")  # what would have come of no updates
    nights: dict[str, list[float]] = {name: [] for name in ("updated", "never updated", "popular", "refit")}
    print("night  customers  goods  purchases  NDCG@10  popular  never updated  refits  ms a night")
    seconds = 0.0
    for night, (today, tomorrow) in enumerate(
        zip(days[opening:], days[opening + 1 :], strict=False), opening
    ):
        began = time.perf_counter()
        model.partial_fit(today)
        refit = False
        if night % 7 == 0:  # asking costs an iteration and a half: once a week
            drift = model.drift()
            refit = drift.fall > REFIT or drift.merged > GROWN
        if refit:
            model.fit(known(model))
        model.save(out / "model.npz")  # in one step: a service sees the old file or the new one
        seconds += time.perf_counter() - began
        nights["refit"].append(refit)
        past = known(model)
        served = {"updated": model, "never updated": frozen, "popular": Popularity().fit(past)}
        for name, one in served.items():
            nights[name].append(evaluate(one, past, tomorrow, "ndcg@10", cold="popular")["ndcg@10"])
        if night % 30 == 0:
            updated, never, popular = (np.mean(nights[name][-30:]) for name in served)
            refits = sum(nights["refit"][-30:])
            print(
                f"{night:5d}  {past.n_users:9,d}  {past.n_items:5,d}  {past.nnz:9,d}  {updated:7.4f}  "
                f"{popular:7.4f}  {never:13.4f}  {refits:6.0f}  {1e3 * seconds / 30:10.0f}"
            )
            seconds = 0.0
    lists = recommend_all(model, out=out / "lists.csv", n=10, resume=False)
    print(f"\n{lists.users:,} lists of 10 for the newsletter")
    return nights


def draw(nights: dict[str, list[float]], path: str) -> None:
    """Weekly means, and when the model was refitted."""
    from matplotlib.figure import Figure

    ax = Figure(figsize=(9, 4.5), layout="constrained").subplots()
    weeks = len(nights["refit"]) // 7
    for name in ("updated", "never updated", "popular"):
        ax.plot(7 * np.arange(weeks), np.reshape(nights[name][: 7 * weeks], (weeks, 7)).mean(1), label=name)
    for night in np.flatnonzero(nights["refit"]):
        ax.axvline(night, color="#999999", linewidth=0.8, linestyle=":")
    ax.set_xlabel("nights (dotted: refitted)")
    ax.set_ylabel("NDCG@10 of the next day")
    ax.set_ylim(0)
    ax.legend(frameon=False)
    ax.figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
