"""
Explaining a recommendation
===========================

A score is a sum of a contribution of each past interaction and one of the all-pairs terms of the loss.
"""

import matplotlib.pyplot as plt

from rgals import RGALS
from rgals.datasets import make_implicit

data = make_implicit(800, 500, random_state=0)
model = RGALS(K=32, random_state=0).fit(data)
user = data.user_ids[7]
item = model.recommend([user], n=1)[0][0, 0]
why = model.explain(user, item, n=8)

names = [*why.items, "all others", "all pairs"]
parts = [*why.contributions, why.rest, why.all_pairs]
fig, ax = plt.subplots(layout="constrained")
ax.barh(names[::-1], parts[::-1], color=["#888888"] * 2 + ["#1f77b4"] * len(why.items))
ax.set(xlabel="part of the score", title=f"Why {user} gets {item}: {why.score:.2f}")

# %%
# In the names of the generated items the word is the cluster of taste: most of the score comes from items
# of the same cluster.

print(f"sum of the parts {sum(parts):.4f}, score {why.score:.4f}")
