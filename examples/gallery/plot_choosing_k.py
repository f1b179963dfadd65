"""
Choosing K
==========

The number of factors is the largest lever. A line over K, with the spread over folds of held-out users,
says where more factors stop to pay.
"""

import matplotlib.pyplot as plt
from sklearn.model_selection import GridSearchCV

from rgals import RGALS, plots
from rgals.datasets import make_implicit

data = make_implicit(1200, 800, n_clusters=48, random_state=0)
search = GridSearchCV(RGALS(n_iter=6, random_state=0), {"K": [4, 8, 16, 32, 64, 128]}, cv=3)
search.fit(data.matrix)
fig, ax = plt.subplots(layout="constrained")
plots.sweep(search, "K", ax=ax)

# %%
# Singular values of the fitted model: factors that carry nothing are in the tail.

model = RGALS(K=128, random_state=0).fit(data)
fig, ax = plt.subplots(layout="constrained")
plots.spectrum(model, ax=ax)

# %%
# Here every step pays, so the list is too short. ``RGALSCV(K=[64, 128, 256])`` climbs a list while it
# pays; ``K="auto"`` doubles from 64.
