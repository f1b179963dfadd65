"""
Popularity bias
===============

How often are items recommended, relative to how often they occur? A flat line at 1 means no popularity
bias; a rising one favours popular items. Two settings move it: ``item_exponent`` in training,
``readout_exponent`` after it.
"""

import matplotlib.pyplot as plt

from rgals import RG2, RGALS, plots
from rgals.baselines import Popularity
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

train, test = split_interactions(make_implicit(1200, 800, random_state=0), (0.8, 0.2), random_state=0)
models = {
    "popularity": Popularity(),
    "RG2": RGALS(K=32, random_state=0),
    "RG2, readout_exponent=-0.3": RGALS(K=32, readout_exponent=-0.3, random_state=0),
    "RG2, item_exponent=-0.5": RGALS(K=32, loss=RG2(item_exponent=-0.5), random_state=0),
}
for model in models.values():
    model.fit(train)
fig, ax = plt.subplots(layout="constrained")
plots.popularity_bias(models, train, ax=ax)

# %%
# Popularity recommends only the most popular items. RG2 never shows the rarest ones; both settings bring more
# of them into the lists. Costs and benefits: coverage is the share of the catalogue that is recommended to at
# least one user.

for name, model in models.items():
    figures = evaluate(model, train, test, ("ndcg@10", "coverage@10", "arp@10"))
    print(f"{name:28}", {metric: round(float(value), 3) for metric, value in figures.items()})
