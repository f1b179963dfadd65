"""
A search by scikit-learn
========================

``RGALS`` is a scikit-learn estimator. Folds consist of users: a part of each held-out user's interactions
is folded in, the rest is to be predicted.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from rgals import RG2, RGALS
from rgals.datasets import make_implicit

data = make_implicit(1000, 600, random_state=0)
grid = {"loss__alpha": [0.003, 0.01, 0.03, 0.1, 0.3], "reg": [0.03, 0.1, 0.3, 1.0]}
search = GridSearchCV(RGALS(K=16, loss=RG2(), n_iter=6, random_state=0), grid, cv=3).fit(data.matrix)

scores = search.cv_results_["mean_test_score"].reshape(5, 4)
fig, ax = plt.subplots(layout="constrained")
image = ax.imshow(scores, origin="lower", cmap="viridis")
ax.set_xticks(range(4), grid["reg"])
ax.set_yticks(range(5), grid["loss__alpha"])
ax.set(xlabel="reg", ylabel="alpha", title=f"NDCG@10; best {search.best_params_}")
for (row, column), score in np.ndenumerate(scores):
    ax.text(
        column,
        row,
        f"{score:.3f}",
        ha="center",
        va="center",
        color="white" if score < scores.mean() else "black",
    )

# %%
# Scores hardly differ where both are small, so that a finer grid gains nothing. A large ``reg`` leaves little
# but popularity.
