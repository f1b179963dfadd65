"""Ranking metrics: exact, per user, with formula and source; `evaluate` computes them for a model.

What is often left open: equal scores are ranked by the smaller item id; users without test items are left
out (`evaluate`) or get NaN (the functions); ranks beyond the number of items count as misses.
"""

from rgals.metrics._judged import Judged, Outranked, judge
from rgals.metrics.catalogue import average_popularity, coverage, exposure, gini, novelty
from rgals.metrics.evaluation import Evaluation, evaluate, evaluate_segments
from rgals.metrics.lists import (
    auc,
    average_precision,
    capped_average_precision,
    capped_recall,
    dislike_rate,
    f1,
    hit_rate,
    mrr,
    ndcg,
    nrbp,
    partial_auc,
    precision,
    rbp,
    recall,
)
from rgals.metrics.sampled import evaluate_sampled
from rgals.metrics.significance import (
    Comparison,
    bootstrap_interval,
    compare,
    effect_size,
    holm,
    paired_test,
    standard_error,
)

__all__ = ["Evaluation", "Judged", "Outranked", "evaluate", "evaluate_sampled", "evaluate_segments", "judge"]
__all__ += ["average_precision", "capped_average_precision", "capped_recall", "f1", "hit_rate", "mrr"]
__all__ += ["ndcg", "nrbp", "precision", "rbp", "recall", "auc", "partial_auc", "dislike_rate"]
__all__ += ["average_popularity", "coverage", "exposure", "gini", "novelty", "standard_error"]
__all__ += ["Comparison", "bootstrap_interval", "compare", "effect_size", "holm", "paired_test"]
