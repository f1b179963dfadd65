"""
Comparing losses, with significance
===================================

Every method is tuned on validation with the same number of trials, run with several seeds, and tested
over the same users, with Holm's correction for the number of comparisons.
"""

import matplotlib.pyplot as plt

from rgals.compare import Effort, compare
from rgals.datasets import make_implicit

data = make_implicit(600, 400, random_state=0)
effort = Effort(max_trials=4, time_limit=5, objective_iterations=0)
result = compare(data, "rg2,rgx,ials,wrmf,ease,popularity", K=16, seeds=2, effort=effort, verbose=0)
print(result)

# %%
# The best method in dark blue, in light blue those that are not significantly worse. The four losses of ALS
# are equally good here; all are far above popularity.

frame = result.to_frame()[::-1]
fig, ax = plt.subplots(layout="constrained")
ax.barh(
    frame["label"],
    frame["ndcg@10"],
    color=["#1f77b4" if b else "#9ecae1" if t else "#cccccc" for b, t in zip(frame["best"], frame["tied"])],
)
ax.set(xlabel="test NDCG@10", title="Light blue: not significantly below the best")
