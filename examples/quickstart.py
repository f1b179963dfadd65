"""First steps: fit, measure, recommend, save, load, and a user who came after the fit."""

import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from rgals import RG2, RGALS
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

data = make_implicit(random_state=0)  # generated; for a file: read_interactions("ratings.csv", min_value=4)
train, test = split_interactions(data.matrix, (0.8, 0.2), random_state=0)
print(f"{data.n_users} users, {data.n_items} items, {train.nnz} interactions to fit, {test.nnz} held out")

model = RGALS(K=32, loss=RG2(alpha=0.05), reg=0.2, random_state=0)
model.fit(train, user_ids=data.user_ids, item_ids=data.item_ids)
first, last = model.history_[0], model.history_[-1]
print(
    f"objective {first['objective']:.2f} after one iteration, {last['objective']:.2f} after {model.n_iter_}"
)

figures = evaluate(model, train, test, metrics=("ndcg@10", "recall@20", "mrr@10"))
print(", ".join(f"{name} {figures[name]:.4f}" for name in ("ndcg@10", "recall@20", "mrr@10")))

user = 7
had = data.item_ids[train[[user]].indices]
ids, scores = model.recommend([user], n=5)  # never what the user has already
print(f"{data.user_ids[user]} had {', '.join(had[:6])} ... and gets {', '.join(data.item_ids[ids[0]])}")

# Somebody new: the factors follow from the interactions, nothing is fitted again.
likes = data.items.index(list(had[:3]))
newcomer = sp.csr_array((np.ones(3), (np.zeros(3, int), likes)), shape=(1, data.n_items))
ids, _ = model.recommend_new(newcomer, n=5)
print(f"a newcomer with {', '.join(had[:3])} gets {', '.join(data.item_ids[ids[0]])}")

nearest, _ = model.similar_items(likes[:1], n=3)
print(f"closest to {had[0]}: {', '.join(data.item_ids[nearest[0]])}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.npz"
    model.save(path)
    again = RGALS.load(path)
    same = np.array_equal(again.recommend([user], n=5)[0], model.recommend([user], n=5)[0])
    print(f"saved to {path.stat().st_size} bytes and loaded: {'same' if same else 'other'} recommendations")
