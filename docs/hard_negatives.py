"""Draws docs/hard-negatives.png: where the weight of a user's pairs lies, without hard negatives and with.

python docs/hard_negatives.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from rgals import RGALS, HardNegatives
from rgals.datasets import make_implicit

USER, HARD = 7, HardNegatives(weight=2.0)
BEFORE, AFTER, SOFTMAX = "#4477aa", "#cc6644", "#777777"


def main() -> None:
    """Draw the picture."""
    X = make_implicit(3000, 4000, n_clusters=128, random_state=0).matrix
    model = RGALS(K=16, hard_negatives=HARD, random_state=0).fit(X)
    scores = model.item_factors_ @ model.user_factors_[USER]
    order = np.argsort(-np.delete(scores, X[[USER]].indices), kind="stable")
    scores = np.delete(scores, X[[USER]].indices)[order]
    n, rank = HARD.n_top(X.shape[1]), np.arange(1, len(scores) + 1)
    extra = np.where(rank <= n, HARD.weight, 0.0)
    probability = np.exp(scores - scores.max())
    probability /= probability.sum()
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True)
    for axis, title, weight, colour in (
        (axes[0], "without: every pair alike", np.ones(len(rank)), BEFORE),
        (axes[1], f"with: the {n} best once more, {HARD.weight:g} times", 1 + extra, AFTER),
    ):
        axis.fill_between(rank, weight, step="post", color=colour, alpha=0.35)
        axis.step(rank, weight, where="post", color=colour)
        axis.plot(rank, probability * len(rank), "--", color=SOFTMAX, label="softmax: the pair's probability")
        axis.set(xscale="log", xlim=(1, len(rank)), xlabel="items that the user does not have, by score")
        axis.set_yscale("symlog", linthresh=1)
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel("curvature of a pair, all pairs = 1")
    axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(Path(__file__).with_name("hard-negatives.png"), dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    main()
