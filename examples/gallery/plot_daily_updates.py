"""
Daily updates
=============

Twenty days: one model takes in each day with ``partial_fit``, one is left as it was fitted, and one is
refitted every night. All three are evaluated on the next day.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rgals import RGALS
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import temporal_split

warnings.filterwarnings("ignore", "test has .* that the model does not know")
data = make_implicit(1500, 600, mean_interactions=50, timestamps=True, random_state=0)
cuts = np.quantile(data.timestamp, np.linspace(0.6, 1, 21)[:-1])
history, *days = temporal_split(data, cuts)
known = history

updated = RGALS(K=32, random_state=0).fit(known)
frozen = RGALS(K=32, random_state=0).fit(known)
figures = {"updated": [], "refitted": [], "left alone": []}
for today, tomorrow in zip(days[:-1], days[1:]):
    updated.partial_fit(today)
    known = known.replace(matrix=known.matrix + today.matrix, timestamp=None)
    refitted = RGALS(K=32, random_state=0).fit(known)
    for name, model in {"updated": updated, "refitted": refitted, "left alone": frozen}.items():
        figures[name].append(evaluate(model, known, tomorrow, "ndcg@10", cold="popular")["ndcg@10"])

fig, ax = plt.subplots(layout="constrained")
for name, values in figures.items():
    share = np.array(values) / figures["refitted"]
    ax.plot(np.arange(1, len(share) + 1), share, label=f"{name}: NDCG@10 {np.mean(values):.3f} in the mean")
ax.set(xlabel="day", ylabel="NDCG@10 of the next day, as a share of the refit's", ylim=0)
ax.set_xticks(range(1, len(days), 3))
ax.legend(frameon=False, loc="lower left")

# %%
# The updated model stays close to one that is refitted every night; the one that is left alone falls behind:
# it knows nothing of users who have joined since.
#
# ``drift`` measures how far updates have moved the model from a fit: the share of interactions that
# changed, and how much one more full iteration would lower the objective.

print(updated.drift())
