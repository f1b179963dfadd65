"""
Weights from play counts
========================

Counts spread over orders of magnitude. Used as weights, a few pairs would dominate all others; ``values=``
sets how a value becomes a weight.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rgals import RGALS, ValuesWarning
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

warnings.simplefilter("ignore", ValuesWarning)
rng = np.random.default_rng(0)
data = make_implicit(800, 500, valued=True, random_state=0)
data.matrix.data[:] **= 1 + 2 * rng.random(data.nnz)  # some are played over and over
train, test = split_interactions(data, (0.8, 0.2), random_state=0)
kinds = ["raw", "log1p", "binary", "bm25", "auto"]
scores = []
for kind in kinds:
    model = RGALS(K=16, values=kind, random_state=0).fit(train)
    scores.append(evaluate(model, train, test)["ndcg@10"])
    print(kind, model.params_["values"], round(scores[-1], 3))

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.hist(data.matrix.data, bins=np.geomspace(1, data.matrix.data.max(), 30), color="#888888")
left.set(xscale="log", yscale="log", xlabel="value", ylabel="interactions")
right.bar(kinds, scores)
right.set(ylabel="NDCG@10")

# %%
# Most values are 1, a few are ten thousand times as large: as weights (``"raw"``) these decide the fit, and
# the lists are worst. ``"auto"`` sees that, and takes all values as 1.
