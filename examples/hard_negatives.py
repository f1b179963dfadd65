"""Hard negatives: weight for the pairs among which a ranking is decided, where K is small."""

from rgals import RGALS, HardNegatives
from rgals.datasets import make_implicit
from rgals.metrics import evaluate
from rgals.model_selection import split_interactions

data = make_implicit(
    3000, 4000, n_clusters=128, random_state=0
)  # generated; for a file: read_interactions("ratings.csv")
train, test = split_interactions(data.matrix, (0.8, 0.2), random_state=0)
fit, validation = split_interactions(train, (0.8, 0.2), random_state=1)

# The weight is searched on a part of the training data, 0 among them: dense small catalogues want none.
scores = {}
for weight in (0, 0.5, 1, 2, 4):
    model = RGALS(K=16, hard_negatives=HardNegatives(weight), random_state=0).fit(fit)
    scores[weight] = evaluate(model, fit, validation, "ndcg@20")["ndcg@20"]
    print(f"weight {weight:<3}  ndcg@20 on validation {scores[weight]:.4f}")
best = max(scores, key=scores.get)

for name, weight in (("without", 0), (f"weight {best}", best)):
    model = RGALS(K=16, hard_negatives=HardNegatives(weight), random_state=0).fit(train)
    print(f"{name}: ndcg@20 {evaluate(model, train, test, 'ndcg@20')['ndcg@20']:.4f} on test")

why = model.explain(user=7, item=int(model.recommend([7], n=1)[0][0, 0]))
print(
    f"a score of {why.score:.2f}: {why.contributions.sum() + why.rest:.2f} from past interactions, "
    f"{why.all_pairs:.2f} from all pairs, {why.negatives:.2f} from hard negatives"
)
