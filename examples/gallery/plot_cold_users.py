"""
Users who arrive after the fit
==============================

A new user needs no refit: the user's factors are solved exactly from the history. How good are the lists
after one interaction, two, five, twenty?
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

from rgals import RGALS
from rgals.baselines import Popularity
from rgals.datasets import make_implicit
from rgals.metrics import ndcg

data = make_implicit(2000, 800, mean_interactions=60, random_state=0)
X = data.matrix
rng = np.random.default_rng(0)
new = np.flatnonzero(np.diff(X.indptr) >= 40)[:200]  # users of whom the model knows nothing
old = np.setdiff1d(np.arange(X.shape[0]), new)
model, popular = RGALS(K=32, random_state=0).fit(X[old]), Popularity().fit(X[old])
histories = [rng.permutation(X[[user]].indices) for user in new]


def matrix(lists: list) -> sp.csr_array:
    """Users times items, with a 1 for each item of a list."""
    rows = np.repeat(np.arange(len(lists)), [len(items) for items in lists])
    return sp.csr_array((np.ones(len(rows)), (rows, np.concatenate(lists))), shape=(len(lists), X.shape[1]))


def quality(model, told: int) -> float:
    """NDCG@10 on what was not told."""
    items, _ = model.recommend_new(matrix([history[:told] for history in histories]), n=10)
    return ndcg(items, matrix([history[told:] for history in histories]), 10).mean()


told = [1, 2, 3, 5, 8, 12, 20, 30]
fig, ax = plt.subplots(layout="constrained")
ax.plot(told, [quality(model, n) for n in told], marker="o", label="RG2, folded in")
ax.plot(told, [quality(popular, n) for n in told], marker="o", label="popularity")
ax.set(xscale="log", xlabel="interactions told", ylabel="NDCG@10 on the others", ylim=0)
ax.set_xticks(told, told)
ax.minorticks_off()
ax.legend(frameon=False)

# %%
# After one interaction popularity is as good; from the second on, lists of the new user's own are better, and
# each further interaction helps. Both lines end lower because little of the histories is left to be found.
