"""Batch top-K scoring: the best items of many users, with exact filters and bounded memory."""

from typing import TYPE_CHECKING

from rgals.runtime.lazy import later
from rgals.scoring._topk import as_factors, topk, topk_dense, useful_jobs
from rgals.scoring._topk import require_lists as require_lists

if TYPE_CHECKING:
    from rgals.scoring._streaming import Written, recommend_all

__all__ = ["Written", "as_factors", "recommend_all", "topk", "topk_dense", "useful_jobs"]

__getattr__, __dir__ = later(__name__, {"_streaming": "Written recommend_all"})
