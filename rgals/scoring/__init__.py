"""Batch top-K scoring: the best items of many users, with exact filters and bounded memory."""

from typing import TYPE_CHECKING

from rgals.runtime.lazy import later
from rgals.scoring._topk import as_factors, require_lists, topk, topk_dense, useful_jobs

if TYPE_CHECKING:
    from rgals.scoring._streaming import Written, recommend_all

__all__ = ["Written", "as_factors", "recommend_all", "require_lists", "topk", "topk_dense", "useful_jobs"]

__getattr__, __dir__ = later(__name__, {"_streaming": "Written recommend_all"})
