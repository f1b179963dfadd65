"""Popularity: the same ranking for every user, without the items that the user has."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from rgals.baselines.base import Baseline
from rgals.datasets.times import half_life_in
from rgals.matrix.csr import CSR
from rgals.matrix.entries import times_of
from rgals.matrix.weighting import Weighting
from rgals.model.file import ModelFormat, model_spec
from rgals.model.state import Snapshot


@dataclass(eq=False, repr=False)
class Popularity(Baseline):
    """Ranks items by their number of users, weighted by age if so wanted: no model should rank worse.

    Every value above 0 is one interaction, whatever its size; dislikes are refused.

    Parameters
    ----------
    half_life : float, str or None, default=None
        Time in which an interaction loses half of its weight, as in `rgals.RGALS`; None counts all alike.
    n_jobs : int or None, default=None
        Threads; None for all.

    Attributes
    ----------
    item_factors_ : ndarray, shape (n_items, 1)
        Weight of each item: the number of its interactions, or their sum of weights by age.
    user_factors_ : ndarray, shape (n_users, 1)
        Ones.

    Examples
    --------
    >>> from rgals.baselines import Popularity
    >>> from rgals.datasets import read_interactions
    >>> users, items = ["ann", "bob", "bob", "eve"], ["tea", "tea", "rum", "rum"]
    >>> data = read_interactions((users, items, None, [1, 2, 3, 4]))
    >>> Popularity().fit(data).recommend_ids(["ann", "eve"], n=1)[0].tolist()
    [['rum'], ['tea']]
    >>> Popularity(half_life=2).fit(data).item_factors_.ravel().round(2).tolist()  # rum, tea
    [1.71, 0.85]
    """

    half_life: float | str | None = None
    _: KW_ONLY
    n_jobs: int | None = None

    _file: ClassVar = ModelFormat("Popularity", model_spec("rgals-popularity", 1))
    _needs_history: ClassVar[bool] = False

    def _fitted(self, X: Any, user_ids: Any, item_ids: Any) -> Snapshot:
        matrix, fields = self._read(X, np.float64, user_ids, item_ids)
        age: Any = 1.0
        if self.half_life is not None:
            Weighting(half_life=self.half_life).check_times(matrix)  # type: ignore[arg-type]
            span = half_life_in(self.half_life, matrix.times)
            age = np.exp2((times_of(matrix) - Weighting().halving(span, matrix).newest) / span)
        counts = np.bincount(matrix.indices, np.broadcast_to(age, matrix.nnz), minlength=matrix.n_cols)
        # Counts up to 2^24 are exact in float32, for which kernels are compiled already; ages need the range
        # of float64.
        exact = self.half_life is None and matrix.n_rows <= 1 << 24
        factors = counts[:, None].astype(np.float32 if exact else np.float64)
        return Snapshot(np.ones((matrix.n_rows, 1), factors.dtype), factors, **fields)

    def _fold_in(self, snapshot: Snapshot, rows: CSR, prior: Any = None) -> np.ndarray:
        return np.ones((rows.n_rows, 1), snapshot.item_factors.dtype)

    def _dense(self, items: np.ndarray, queries: Any) -> np.ndarray:
        return queries @ items.T
