"""Finding good parameters with scikit-learn: RGALS is an estimator like any other.

Cross-validation splits the *users*: each candidate is fitted to some and scored on the others, of whom a part
of the interactions is shown to the model (fold-in) and the rest must be ranked high (NDCG@10).
"""

from sklearn.model_selection import GridSearchCV

from rgals import RG2, RGALS
from rgals.datasets import make_implicit

data = make_implicit(800, 500, mean_interactions=30, random_state=0)
search = GridSearchCV(
    RGALS(K=16, loss=RG2(), n_iter=8, random_state=0),
    {"loss__alpha": [0.003, 0.01, 0.03, 0.1], "reg": [0.05, 0.1, 0.2]},
    cv=3,
)
search.fit(data.matrix)

print("alpha  reg    NDCG@10")
results = search.cv_results_
for setting, mean, spread in zip(
    results["params"], results["mean_test_score"], results["std_test_score"], strict=True
):
    print(f"{setting['loss__alpha']:<6g} {setting['reg']:<6g} {mean:.4f} +- {spread:.4f}")
print(f"best: alpha={search.best_params_['loss__alpha']:g}, reg={search.best_params_['reg']:g}")
