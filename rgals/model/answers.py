"""What a model answers with: lists, their scores, and who asked."""

from typing import Any, NamedTuple, Self

import numpy as np

from rgals.runtime.lazy import optional


class _Lists(NamedTuple):
    ids: np.ndarray
    scores: np.ndarray


class Recommendations(_Lists):
    """Lists of items or users, best first, with their scores: ``ids, scores = model.recommend(...)``.

    Attributes
    ----------
    ids : ndarray, shape (B, n)
        Ids and None, or numbers and -1: see `FactorRanker.recommend`.
    scores : ndarray, shape (B, n)
        -inf where there is none.
    asked : ndarray, shape (B,)
        Whose lists these are, as they were asked for.
    columns : tuple of str
        What `to_frame` calls those who were asked for, and what they got.

    Examples
    --------
    >>> from rgals import RGALS
    >>> from rgals.datasets import read_interactions
    >>> data = read_interactions((["ann", "ann", "bob", "bob"], ["tea", "milk", "tea", "rum"]))
    >>> lists = RGALS(K=2, random_state=0).fit(data).recommend(["bob", "ann"], n=2)
    >>> lists.ids[:, 0], lists.to_frame()["user"].tolist()
    (array(['milk', 'rum'], dtype=object), ['bob', 'ann'])
    """

    asked: np.ndarray
    columns: tuple[str, str]

    @classmethod
    def of(cls, ids: np.ndarray, scores: np.ndarray, asked: np.ndarray, columns: tuple[str, str]) -> Self:
        """Lists of those who asked."""
        made = cls(ids, scores)
        made.asked, made.columns = asked, columns
        return made

    def to_frame(self) -> Any:
        """The lists as a pandas DataFrame: a row for each entry, with its rank from 1 and its score.

        Its columns are ``user`` and ``item`` (of neighbours ``item`` and ``similar_item``, ``user`` and
        ``similar_user``), ``rank``, ``score``. Without pandas it raises a `MissingDependencyError`.
        """
        pandas = optional("pandas", "a frame needs pandas: pip install pandas")
        row, place = np.nonzero(self.ids != None if self.ids.dtype == object else self.ids >= 0)  # noqa: E711
        columns = self.asked[row], self.ids[row, place], place + 1, self.scores[row, place]
        names = *self.columns, "rank", "score"
        return pandas.DataFrame(dict(zip(names, columns, strict=True))).infer_objects()
