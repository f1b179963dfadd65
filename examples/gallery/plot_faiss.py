"""
Export to faiss
===============

An index of the items for approximate search: how many of the exact top ten does it find, and what are
its limits?
"""

import matplotlib.pyplot as plt
import numpy as np

from rgals import RGALS, Positions
from rgals.datasets import make_implicit
from rgals.model.export import augment_queries, export_index

data = make_implicit(1000, 3000, n_clusters=64, random_state=0)
model = RGALS(K=32, random_state=0).fit(data)
exact = model.recommend(Positions(np.arange(data.n_users)), n=10, exclude=None)[0]  # columns, as faiss has

flat = export_index(model)  # inner products, exact
_, found = flat.search(model.user_factors_, 10)
print("of the exact ten, flat finds", np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact, found)]))

# %%
# A graph is approximate; ``efSearch`` trades time for recall. Distances of augmented vectors have the same
# ranking as inner products.

graph = export_index(model, kind="hnsw", space="l2")
queries = augment_queries(model.user_factors_)
efforts = [8, 16, 32, 64, 128, 256]
shares = []
for effort in efforts:
    graph.hnsw.efSearch = effort
    _, found = graph.search(queries, 10)
    shares.append(np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact, found)]))

fig, ax = plt.subplots(layout="constrained")
ax.plot(efforts, shares, marker="o")
ax.set(xscale="log", xlabel="efSearch", ylabel="share of the exact ten that is found", ylim=(None, 1.001))
ax.set_xticks(efforts, efforts)
ax.minorticks_off()

# %%
# Nearly all are found at once; ``efSearch`` buys the rest.
#
# An index has no filters: ask for more items than needed, and drop those that the user has.
# ``recommend_all`` filters exactly.
