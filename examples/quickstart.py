"""First steps: fit, measure, recommend, save, load, and a user who came after the fit."""

import tempfile
from pathlib import Path

import numpy as np

from rgals import RG2, RGALS
from rgals.datasets import make_implicit, read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

data = make_implicit(random_state=0)  # generated; for a file: read_interactions("ratings.csv", min_value=4)
train, test = split_interactions(data, (0.8, 0.2), random_state=0)
n_fit, n_held_out = train.matrix.nnz, test.matrix.nnz
print(f"{data.n_users} users, {data.n_items} items, {n_fit} interactions to fit, {n_held_out} held out")

model = RGALS(K=32, loss=RG2(alpha=0.05), reg=0.2, random_state=0).fit(train)
first, last = model.history_[0], model.history_[-1]
print(
    f"objective {first['objective']:.2f} after one iteration, {last['objective']:.2f} after {model.n_iter_}"
)

figures = evaluate(model, train, test, metrics=("ndcg@10", "recall@20", "mrr@10"))
print(", ".join(f"{name} {figures[name]:.4f}" for name in ("ndcg@10", "recall@20", "mrr@10")))

user = data.user_ids[7]
had = data.item_ids[train.matrix[[7]].indices]
items, scores = model.recommend([user], n=5)  # never what the user has already
print(f"{user} had {', '.join(had[:6])} ... and gets {', '.join(items[0])}")

# Somebody new: the factors follow from the interactions, nothing is fitted again.
newcomer = read_interactions((["somebody"] * 3, had[:3]))
items, _ = model.recommend_new(newcomer, n=5)
print(f"a newcomer with {', '.join(had[:3])} gets {', '.join(items[0])}")

nearest, _ = model.similar_items(had[0], n=3)
print(f"closest to {had[0]}: {', '.join(nearest[0])}")

# The next day: new interactions are merged, what they touch is solved again, nothing else changes.
today = read_interactions((["somebody"] * 3 + [user], [*had[:3], "something new"]))
model.partial_fit(today)
print(f"after a day {len(model.user_ids_)} users, {len(model.item_ids_)} items")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.npz"
    model.save(path)
    again = RGALS.load(path)
    same = np.array_equal(again.recommend([user], n=5)[0], model.recommend([user], n=5)[0])
    print(f"saved to {path.stat().st_size} bytes and loaded: {'same' if same else 'other'} recommendations")
