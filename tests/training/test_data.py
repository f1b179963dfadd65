"""What early stopping holds out where no validation matrix is given: the same part for ALS and SGD."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions

from rgals import RGALS
from rgals.matrix.entries import hold_out
from rgals.matrix.validate import as_csr
from rgals.model_selection import split_interactions
from rgals.runtime.errors import InputError
from rgals.sgd import SGDRanker


@pytest.mark.parametrize("kind", [RGALS, SGDRanker])
@pytest.mark.parametrize("length", [2, 5, 9])
def test_short_histories_can_be_watched(kind, length):
    """A tenth of five interactions, rounded down, is none: one is held out all the same."""
    rng = np.random.default_rng(0)
    X = np.zeros((30, 20))
    for row in X:
        row[rng.choice(20, length, replace=False)] = 1
    iterations = {"n_iter": 3} if kind is RGALS else {"n_epochs": 3}
    model = kind(K=2, early_stopping=True, random_state=0, **iterations).fit(sp.csr_array(X))
    assert all(0 <= record["ndcg@10"] <= 1 for record in model.history_)
    assert model.seen_.nnz == X.sum()


@pytest.mark.parametrize("valued", [False, True])
def test_every_user_keeps_most_and_gives_at_least_one_of_two(valued):
    X = as_csr(interactions(200, 60, valued=valued, seed=1))
    kept, held = hold_out(X, 0.1, seed=3)
    wanted = np.where(X.row_counts > 1, np.maximum(1, X.row_counts // 10), 0)
    np.testing.assert_array_equal(held.row_counts, wanted)
    assert (kept.to_scipy() + held.to_scipy() != X.to_scipy()).nnz == 0
    assert kept.is_binary == held.is_binary == (not valued)
    assert (hold_out(X, 0.1, seed=4)[1].to_scipy() != held.to_scipy()).nnz > 0
    same = split_interactions(X.to_scipy(), (0.9, 0.1), random_state=3)
    for ours, theirs in zip((kept, held), same, strict=True):
        assert (ours.to_scipy() != theirs).nnz == 0


@pytest.mark.parametrize("X", [np.full((4, 3), 1e-300), sp.csr_array(np.full((4, 3), 1e-300))])
def test_values_that_float32_rounds_to_zero_are_refused_as_such(X):
    """They were said to be no interactions."""
    with pytest.raises(InputError, match="X: its values are too small for float32"):
        RGALS(K=2, values="raw").fit(X)
    assert RGALS(K=2, dtype="float64", values="raw").fit(X).seen_.nnz == X.size
    with pytest.raises(InputError, match="no interactions"):
        RGALS(K=2).fit(X * 0)
