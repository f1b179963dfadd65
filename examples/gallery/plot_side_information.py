"""
Side information: tags, ages, kinds of events
=============================================

Simulated data with known truth. Items without interactions are ranked by their tags; weights that halve with
age follow changing tastes; purchases are ranked better if all events of the shop are used.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

from rgals import RGALS
from rgals.datasets import make_implicit, read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions, temporal_split

rng = np.random.default_rng(0)

# %%
# A fifth of the items is new. Some tags are wrong: the item has the tag of another group.
data = make_implicit(1000, 500, n_clusters=10, mean_interactions=30, random_state=0)
new = rng.permutation(500) < 100
known, cold = (sp.csr_array(data.matrix @ sp.diags_array(part.astype(float))) for part in (~new, new))
shares, recall = [0, 0.2, 0.4, 0.6, 0.8, 1], []
for wrong in shares:
    tags = np.where(rng.random(500) < wrong, rng.integers(10, size=500), data.item_clusters)
    model = RGALS(K=16, random_state=0).fit(known, item_features=np.eye(10)[tags])
    scores = model.user_factors_ @ np.where(new[:, None], model.item_factors_, 0).T
    scores[:, ~new] = -np.inf
    top = np.argsort(-scores, axis=1)[:, :20]
    hits = np.take_along_axis(cold.toarray(), top, axis=1).sum(axis=1)
    counts = np.diff(cold.indptr)
    recall.append((hits[counts > 0] / np.minimum(counts[counts > 0], 20)).mean())
fig, ax = plt.subplots(layout="constrained")
ax.plot(shares, recall, marker="o", label="by tags")
ax.axhline(20 / 100, color="grey", linestyle=":", label="by chance")
ax.set(xlabel="share of wrong tags", ylabel="recall@20 among new items", ylim=0)
ax.legend(frameon=False)

# %%
# Every 120 days a user moves on to another of eight groups of items; a third of the events stay in the first.
user, day = rng.integers(400, size=24_000), rng.integers(360, size=24_000)
moved = np.where(rng.random(24_000) < 1 / 3, 0, (day + rng.integers(120, size=400)[user]) // 120)
taste = rng.integers(8, size=(400, 5))[user, moved]
log = read_interactions((user, rng.integers(50, size=24_000) * 8 + taste, None, day))
past, coming = temporal_split(log, 340)
lives = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
aged = [RGALS(K=16, half_life=life, values="binary", random_state=0).fit(past) for life in lives]
ageless = RGALS(K=16, values="binary", random_state=0).fit(past)
figures = [evaluate(model, past, coming, "ndcg@10")["ndcg@10"] for model in (*aged, ageless)]
fig, ax = plt.subplots(layout="constrained")
ax.plot(lives, figures[:-1], marker="o", label="half-life")
ax.axhline(figures[-1], color="grey", linestyle=":", label="all alike")
ax.set(xscale="log", xlabel="half-life in days", ylabel="NDCG@10 of the next 20 days", ylim=0)
ax.set_xticks(lives, lives)
ax.minorticks_off()
ax.legend(frameon=False)

# %%
# Buyers have viewed the item; people also view many items that they never buy. The models see all views,
# including those of held-out purchases, and rank which were bought: the warning about that is expected.
warnings.filterwarnings("ignore", "the model was fitted to")
buy = make_implicit(1000, 500, n_clusters=10, mean_interactions=12, noise=0.1, random_state=1).matrix
looked = make_implicit(1000, 500, n_clusters=10, mean_interactions=60, noise=0.4, random_state=1).matrix
train, held_out = split_interactions(buy, (0.7, 0.3), random_state=0)
view, weights, quality = sp.csr_array((looked + buy).sign()), [0, 1, 2, 5, 10, 20, 50, 100], []
for weight in weights:
    model = RGALS(K=16, values="raw", random_state=0).fit(sp.csr_array(view + weight * train))
    quality.append(evaluate(model, train, held_out, "ndcg@10")["ndcg@10"])
alone = evaluate(RGALS(K=16, random_state=0).fit(train), train, held_out, "ndcg@10")["ndcg@10"]
fig, ax = plt.subplots(layout="constrained")
ax.plot(weights, quality, marker="o", label="with views")
ax.axhline(alone, color="grey", linestyle=":", label="purchases alone")
ax.set(xscale="symlog", xlabel="weight of a purchase, views 1", ylabel="NDCG@10 of purchases", ylim=0)
ax.set_xlim(-0.2)
ax.set_xticks(weights, weights)
ax.minorticks_off()
ax.legend(frameon=False)
