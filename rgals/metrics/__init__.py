"""Ranking metrics: exact, per user, with formula and source; `evaluate` computes them for a model.

What is often left open: equal scores are ranked by the smaller item id; users without test items are left
out (`evaluate`) or get NaN (the functions); ranks beyond the number of items count as misses.
"""

from rgals.metrics import lists as _lists
from rgals.metrics import significance as _significance
from rgals.metrics._judged import Judged, Outranked, judge
from rgals.metrics.catalogue import average_popularity, coverage, exposure, gini, novelty
from rgals.metrics.evaluation import Evaluation, evaluate, evaluate_segments
from rgals.metrics.lists import *  # noqa: F403
from rgals.metrics.sampled import evaluate_sampled
from rgals.metrics.significance import *  # noqa: F403

__all__ = ["Evaluation", "Judged", "Outranked", "evaluate", "evaluate_sampled", "evaluate_segments", "judge"]
__all__ += ["average_popularity", "coverage", "exposure", "gini", "novelty"]
__all__ += _lists.__all__ + _significance.__all__
