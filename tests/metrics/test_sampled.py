"""The sampled-negative protocol does what it says, and its figures mislead as its documentation warns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import hypergeom

from rgals.baselines import Popularity
from rgals.datasets import Interactions
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate, evaluate_sampled
from rgals.metrics.sampled import _draw
from rgals.runtime.errors import InputError, ParameterError


def one_each(columns, n_items):
    n = len(columns)
    return sp.csr_array((np.ones(n), (np.arange(n), columns)), shape=(n, n_items))


def test_negatives_are_new_to_the_user_and_different(rng):
    known = as_csr(sp.csr_array(rng.random((40, 60)) < 0.5))
    users = np.repeat(np.arange(40), 3)
    drawn = _draw(users, known, 10, np.random.RandomState(0))
    dense = known.to_scipy().toarray()
    assert drawn.shape == (120, 10)
    assert not dense[users[:, None], drawn].any()
    assert all(len(set(row)) == 10 for row in drawn.tolist())
    counts = np.bincount(drawn.ravel(), minlength=60)
    assert counts.min() > 0 and len(np.unique(counts)) > 5


def test_nearly_all_items_are_drawn_without_redrawing_for_long():
    class Counting(np.random.RandomState):
        calls = 0

        def randint(self, *args, **kwargs):
            self.calls += 1
            return super().randint(*args, **kwargs)

    known = as_csr(sp.csr_array((np.ones(3), ([0, 0, 1], [5, 7, 999])), shape=(2, 1000)))
    rng = Counting(0)
    drawn = _draw(np.repeat([0, 1], 400), known, 998, rng)
    assert rng.calls < 100
    assert (np.sort(drawn[:400]) == np.delete(np.arange(1000), [5, 7])).all()
    left_out = 999 * 1000 // 2 - 999 - drawn[400:].sum(axis=1)  # one of 999 each
    assert all(len(set(row)) == 998 for row in drawn.tolist()) and left_out.max() < 999
    assert 430 < left_out.mean() < 570 and len(set(left_out.tolist())) > 250


def test_all_negatives_give_the_exact_figures(rng):
    P, Q = rng.standard_normal((30, 4)), rng.standard_normal((25, 4))
    seen = sp.csr_array((rng.random((30, 25)) < 0.2).astype(float))
    dense = seen.toarray()
    test = one_each([int(rng.choice(np.flatnonzero(row == 0))) for row in dense], 25)
    metrics = ("hit_rate@5", "ndcg@5", "mrr@5")
    for user in range(30):
        left = int((dense[user] == 0).sum()) - 1
        sampled, _ = evaluate_sampled(
            (P, Q), seen, test, metrics, n_negatives=left, users=[user], per_user=True
        )
        full, _ = evaluate((P, Q), seen, test, metrics, users=[user], per_user=True)
        for name in metrics:
            assert sampled[name][0] == pytest.approx(full[name][0], abs=1e-12)


def test_the_hit_rate_is_the_one_that_chance_gives():
    n_users, n_items, rank = 4000, 1000, 150  # 150 items are better than the one to find
    P, Q = np.ones((n_users, 1)), -np.arange(float(n_items))[:, None]
    test = one_each(np.full(n_users, rank), n_items)
    got = evaluate_sampled((P, Q), None, test, "hit_rate@10")["hit_rate@10"]
    expected = hypergeom(n_items - 1, rank, 99).cdf(9)
    assert 0.05 < expected < 0.95
    assert got == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / n_users))
    assert got != evaluate_sampled((P, Q), None, test, "hit_rate@10", random_state=1)["hit_rate@10"]


def test_two_models_change_places():
    """One model always puts the item 40th of 2,000; the other first for half the users, last for the rest."""
    n_users, n_items = 200, 2000
    test = one_each(np.zeros(n_users, int), n_items)
    even = np.ones((n_users, 1))
    always_40th = np.zeros(n_items)
    always_40th[1:40] = 1.0
    always_40th[0] = 0.5
    half = np.where(np.arange(n_users) % 2 == 0, 1.0, -1.0)[:, None]
    first_or_last = np.zeros((n_items, 1))
    first_or_last[0] = 1.0
    steady, split = (even, always_40th[:, None]), (half, first_or_last)
    full = [evaluate(m, None, test, "ndcg@10")["ndcg@10"] for m in (steady, split)]
    sampled = [evaluate_sampled(m, None, test, "ndcg@10")["ndcg@10"] for m in (steady, split)]
    assert full == [0.0, 0.5]
    assert sampled[0] > sampled[1], "the sampled figure prefers the model that never finds the item"


def test_equal_scores_rank_by_the_smaller_id():
    P, Q = np.ones((2, 1)), np.zeros((100, 1))
    test = one_each([0, 99], 100)
    got, users = evaluate_sampled((P, Q), None, test, "mrr@100", n_negatives=99, per_user=True)
    assert users.tolist() == [0, 1]
    np.testing.assert_allclose(got["mrr@100"], [1.0, 0.01])


def test_cold_users_are_missed_and_not_ranked_by_item_number():
    train, test = sp.csr_array([[0, 1.0, 0, 0], [0, 0, 0, 0]]), one_each([0, 0], 4)
    pair = np.array([[1.0], [0.0]]), np.ones((4, 1))
    for known in (train, None):
        values, users = evaluate_sampled(pair, known, test, "hit_rate@3", n_negatives=2, per_user=True)
        assert users.tolist() == [0, 1] and values["hit_rate@3"].tolist() == [1, 0]


def test_scores_that_are_nan_are_missed():
    """No score is greater than NaN, so that the items of a model that had diverged were all first."""
    Q = np.arange(6.0)[:, None]
    for bad in (np.nan, -np.inf):
        Q[:3] = bad
        got, _ = evaluate_sampled(
            (np.ones((2, 1)), Q), None, one_each([0, 3], 6), "mrr@6", n_negatives=5, per_user=True
        )
        assert got["mrr@6"].tolist() == [0.0, 1 / 3]


def test_several_test_items_are_averaged_within_the_user():
    P, Q = np.ones((2, 1)), -np.arange(6.0)[:, None]
    test = sp.csr_array(np.array([[1, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]))
    got = evaluate_sampled((P, Q), None, test, "mrr@6", n_negatives=np.int8(4))
    assert got["mrr@6"] == pytest.approx(((1 + 1 / 5) / 2 + 1) / 2)


@pytest.mark.parametrize("metric", ["recall@10", "auc", "coverage@10", "rbp@10"])
def test_other_metrics_are_refused(metric):
    with pytest.raises(ParameterError, match="hit_rate@k"):
        evaluate_sampled((np.ones((1, 1)), np.ones((9, 1))), None, one_each([0], 9), metric)


def test_too_few_items_name_the_user():
    train = sp.csr_array(np.array([[0, 0, 0, 0], [0, 1, 1, 0]]))
    with pytest.raises(InputError, match="user 1 has 1 items"):
        evaluate_sampled((np.ones((2, 1)), np.ones((4, 1))), train, one_each([0, 0], 4), n_negatives=3)
    named = Interactions(one_each([0, 0], 4), ["ann", "bob"], np.arange(4))
    with pytest.raises(InputError, match="user 'bob' has 1 items"):
        evaluate_sampled(
            (np.ones((2, 1)), np.ones((4, 1))),
            Interactions(train, ["ann", "bob"], np.arange(4)),
            named,
            n_negatives=3,
        )
    with pytest.raises(InputError, match="no interaction"):
        evaluate_sampled((np.ones((2, 1)), np.ones((4, 1))), None, sp.csr_array((2, 4)), n_negatives=3)


def test_users_and_items_that_the_model_does_not_know_are_refused():
    train = Interactions(sp.csr_array(np.eye(3)), ["ann", "bob", "eve"], ["milk", "rum", "tea"])
    model = Popularity().fit(train)
    for users, items in ((["ann", "zoe"], ["rum", "tea"]), (["ann", "bob"], ["cake", "tea"])):
        test = Interactions(sp.csr_array([[0, 1.0], [1, 0]]), users, items)
        with (
            pytest.warns(UserWarning, match="does not know"),
            pytest.raises(InputError, match="leave them out"),
        ):
            evaluate_sampled(model, train, test, n_negatives=1)


def test_disliked_test_items_are_no_negatives():
    test = sp.csr_array((np.array([1.0, -1.0, -1.0]), ([0, 0, 0], [1, 3, 4])), shape=(1, 5))
    model = np.ones((1, 1)), np.arange(5.0)[:, None]
    # Of the items beside 3 and 4, which score more, one is better than the one to find.
    assert evaluate_sampled(model, None, test, "mrr@5", n_negatives=2) == {"mrr@5": 0.5}
    with pytest.raises(InputError, match="user 0 has 2 items"):
        evaluate_sampled(model, None, test, n_negatives=3)
