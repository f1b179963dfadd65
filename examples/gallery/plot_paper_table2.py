"""
Rates of convergence, in small
==============================

Table 2 of the paper on RG losses is about convergence rates: the gap between the objective and its
minimum at each iteration. A straight line on a log scale is linear convergence. ``benchmarks/paper.py``
follows the paper's protocol; this is a small version on generated data, where the minimum is known in
closed form.
"""

import matplotlib.pyplot as plt
import numpy as np

from rgals import RG2, RGALS
from rgals.datasets import make_implicit

X = make_implicit(400, 300, random_state=0).matrix
loss, options = RG2(alpha=0.0), {"K": 16, "reg": 0.05, "dtype": "float64", "random_state": 0}
best = RGALS(loss=loss, solver="svd", **options).fit(X).objective(X)  # no fit ends lower
model = RGALS(loss=loss, solver="exact", init="random", n_iter=60, **options).fit(X)
objective = np.array([entry["objective"] for entry in model.history_])
gap = (objective - best) / abs(best)
gap = gap[gap > 1e-13]

fig, ax = plt.subplots(layout="constrained")
ax.semilogy(np.arange(1, len(gap) + 1), gap, marker=".")
ax.set(
    xlabel="iterations", ylabel="relative gap of the objective", title="RG2 with alpha=0, from random factors"
)

# %%
# After the first iterations the line is straight: ALS converges linearly. The factor by which the gap shrinks
# per iteration in the end:

late = np.log(gap[len(gap) // 2 :])
print(f"{np.exp(np.polyfit(np.arange(len(late)), late, 1)[0]):.3f}")
