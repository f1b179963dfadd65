"""
Convergence: RG2 against softmax
================================

The same kind of model fitted by least squares and by gradient descent, both with default settings:
validation NDCG@10 over training seconds, without evaluation, on the machine that built this page. The
pages of results have real data, with both tuned.
"""

import matplotlib.pyplot as plt

from rgals import RGALS, plots
from rgals.datasets import make_implicit
from rgals.model_selection import split_interactions
from rgals.sgd import SGDRanker

data = make_implicit(1500, 1000, random_state=0)
train, validation = split_interactions(data, (0.8, 0.2), random_state=0)
RGALS(K=32, n_iter=1, random_state=0).fit(train)  # kernels are compiled here, not while the clock runs
SGDRanker(K=32, n_epochs=1, random_state=0).fit(train)
models = {
    "RG2 (least squares)": RGALS(K=32, n_iter=16, random_state=0),
    "iALS (least squares)": RGALS(K=32, loss="ials", n_iter=16, random_state=0),
    "softmax (gradient descent)": SGDRanker(K=32, loss="softmax", random_state=0),
}
for model in models.values():
    model.fit(train, validation=validation)
fig, ax = plt.subplots(layout="constrained")
plots.time_to_quality(models, ax=ax)

# %%
# Dots mark the best iteration, dotted lines 95 % and 99 % of the best value. Least squares is there when
# gradient descent has done its first epochs.
#
# The objective of least squares never rises, iteration by iteration:

fig, ax = plt.subplots(layout="constrained")
plots.learning_curve(models["RG2 (least squares)"], "objective", ax=ax)
