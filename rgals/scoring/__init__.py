"""Batch top-K scoring: the best items of many users, with exact filters and bounded memory."""

from rgals.scoring._streaming import Written, recommend_all
from rgals.scoring._topk import as_factors, require_lists, topk, topk_dense, useful_jobs

__all__ = ["Written", "as_factors", "recommend_all", "require_lists", "topk", "topk_dense", "useful_jobs"]
