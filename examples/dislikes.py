"""Fewer disliked items in the lists, at less cost: likes by one model, taste by a second one, scores added.

What users chose, and whether they liked it, are two questions. The first model knows the likes alone. The
second sees nothing but the items that users rated: their stars, above or below the user's own level. With
its factors beside those of the first the lists are those of one factor model. On MovieLens 1M, with the share
that costs nothing on a validation part, there are a fifth (iALS, WRMF) to a quarter (RG2) fewer dislikes
among the first ten, and NDCG@10 is within .2 % (`python benchmarks/side_information.py dislikes`,
docs/quality.md).

    python examples/dislikes.py
"""

import numpy as np
import scipy.sparse as sp

from rgals import IALS, RGALS, WRMF
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

LIKED = 3.0  # stars, and more


def taste(stars: sp.csr_array, K: int = 16, reg: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    """Factors of users and items whose products tell who likes what, of all that they would choose."""
    rows = np.repeat(np.arange(stars.shape[0]), np.diff(stars.indptr))
    counts = np.bincount(rows, minlength=stars.shape[0])
    # The mean of a user's stars, of which few say little; nearer to the line between like and dislike.
    own = (np.bincount(rows, stars.data, stars.shape[0]) + 5 * stars.data.mean()) / (counts + 5)
    level = 0.7 * own + 0.3 * LIKED
    above = stars.astype(np.float64)
    above.data = above.data - level[rows]
    # alpha0=0: what was not rated does not count. Targets are 1 above the level and -1 below, the distance is
    # the weight. Users are pulled to their mean, which holds what all of them think of an item.
    loss = IALS(alpha0=0.0, dislikes=True, dislike_weight=1.0)
    model = RGALS(K, loss, reg=reg, reg_exponent=0, user_mean=True, values="raw", n_iter=12, random_state=0)
    return model.fit(above).factors_


def together(
    likes: tuple[np.ndarray, np.ndarray], tastes: tuple[np.ndarray, np.ndarray], share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Factors whose products are those of both; ``share``: spread of the second beside the first."""
    (P, Q), (R, S) = likes, tastes
    some = np.random.default_rng(0).choice(len(P), min(len(P), 500), replace=False)
    scale = share * (P[some] @ Q.T).std() / (R[some] @ S.T).std()
    return np.hstack([P, scale * R]), np.hstack([Q, S])


def simulated(seed: int = 0) -> sp.csr_array:
    """Stars from 1 to 5: items are noticed by clusters, and mostly chosen if liked, for other reasons."""
    noticed = make_implicit(1500, 600, mean_interactions=80, random_state=seed).matrix.tocoo()
    rng = np.random.default_rng(seed)
    users, items = noticed.row, noticed.col
    kinds, quality = rng.standard_normal((600, 3)), rng.standard_normal(600)
    opinion = 0.5 * (rng.standard_normal((1500, 3))[users] * kinds[items]).sum(axis=1) + 0.5 * quality[items]
    strict, chance = rng.standard_normal(1500)[users], rng.standard_normal(len(users))
    chosen = rng.random(len(users)) < 1 / (1 + np.exp(-2 * opinion))
    stars = np.clip(np.rint(3.3 + opinion + 0.3 * strict + 0.5 * chance), 1, 5)
    return sp.csr_array((stars[chosen], (users[chosen], items[chosen])), shape=noticed.shape)


def main() -> None:
    """Compare the lists: likes alone, both models, and one model that has dislikes as targets below 0."""
    train, test = split_interactions(simulated(), (0.8, 0.2), random_state=0)
    likes = sp.csr_array(train.multiply(train >= LIKED))
    truth = test.copy()
    truth.data = np.where(test.data >= LIKED, 1.0, -1.0)  # what is below 0 counts as disliked
    signed = train.copy()
    signed.data = np.where(train.data >= LIKED, train.data, -1.0)

    def show(name: str, factors: tuple[np.ndarray, np.ndarray]) -> None:
        found = evaluate(factors, train, truth, ("ndcg@10", "dislike_rate@10"))
        print(f"{name:28} ndcg@10 {found['ndcg@10']:.4f}  dislike_rate@10 {found['dislike_rate@10']:.4f}")

    model = RGALS(K=32, loss=WRMF(), values="raw", random_state=0)
    show("likes alone", model.fit(likes).factors_)
    tastes = taste(train)
    for share in (0.1, 0.2, 0.4):
        show(f"and taste, share {share}", together(model.factors_, tastes, share))
    for weight in (1.0, 3.0):
        model.set_params(loss=WRMF(dislikes=True, dislike_weight=weight))
        show(f"one model, dislikes weigh {weight:g}", model.fit(signed).factors_)
    print("take the largest share that costs nothing on a validation part; topk makes lists of such factors")


if __name__ == "__main__":
    main()
