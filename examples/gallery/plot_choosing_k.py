"""
Choosing K
==========

The number of factors matters most. The validation curve over K, with its spread over folds of held-out
users, shows where more factors stop paying.
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
# Singular values of the fitted model, on a logarithmic axis: factors beyond the bend add little.

model = RGALS(K=128, random_state=0).fit(data)
fig, ax = plt.subplots(layout="constrained")
plots.spectrum(model, ax=ax)

# %%
# The values fall steeply after 45 or so: the data have 48 clusters of taste. What the factors beyond add is
# small, but still pays above, so the list of K is too short. ``RGALSCV(K=[64, 128, 256])`` goes up a list
# while that pays; ``K="auto"`` doubles from 64.
