"""Views, carts and purchases in one matrix, with weights found by what is to be predicted: purchases."""

import warnings
from itertools import product

import numpy as np
import scipy.sparse as sp

from rgals import RGALS
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

# Every purchase was a view before: the models know all views, and are asked which of them were bought.
warnings.filterwarnings("ignore", "the model was fitted to")

# A shop: people look at much, by taste and by chance; a part goes into the cart, a part of that is bought.
rng = np.random.default_rng(0)
interest = make_implicit(1500, 600, n_clusters=10, mean_interactions=40, noise=0.1, random_state=0).matrix
chance = sp.random_array(interest.shape, density=0.05, rng=rng, format="csr")
view = sp.csr_array(interest + chance).sign()


def part(matrix: sp.csr_array, share: float) -> sp.csr_array:
    """Some of the entries."""
    some = matrix.copy()
    some.data = (rng.random(some.nnz) < share).astype(float)
    some.eliminate_zeros()
    return some


cart = part(interest, 0.4) + part(chance.sign(), 0.04)
buy = part(sp.csr_array(cart.sign()), 0.3)
train, validation, test = split_interactions(buy, (0.6, 0.2, 0.2), random_state=0)


def fitted(views: float, carts: float, buys: float, known: sp.csr_array) -> RGALS:
    """A model of all events with these weights."""
    events = views * view + carts * cart + buys * known
    return RGALS(K=32, values="raw", random_state=0).fit(sp.csr_array(events))


def figure(model: RGALS, known: sp.csr_array, truth: sp.csr_array) -> float:
    """How well purchases are ranked; what was viewed or lies in the cart may be shown."""
    return evaluate(model, known, truth, "ndcg@10")["ndcg@10"]


grid = product([1], [0, 3, 10, 30], [0, 1, 5, 20])
best = max(grid, key=lambda weights: figure(fitted(*weights, train), train, validation))
known = sp.csr_array(train + validation)
for name, weights in {"purchases alone": (0, 0, 1), "all alike": (1, 1, 1), "found": best}.items():
    score = figure(fitted(*weights, known), known, test)
    print(f"{name}: view {weights[0]}, cart {weights[1]}, buy {weights[2]}: ndcg@10 {score:.4f}")
