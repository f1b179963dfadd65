"""Metrics under every usual name, their definitions on the command line, and figures of segments."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import interactions

from rgals.baselines import Popularity
from rgals.cli import main
from rgals.datasets import Interactions
from rgals.matrix.entries import entries
from rgals.metrics import average_popularity, evaluate, evaluate_segments, f1, precision, recall
from rgals.metrics._table import METRICS, WHOLE, definitions, parse
from rgals.runtime.errors import InputError, ParameterError, ShapeError

PAIR = np.array([[1.0], [2.0], [0.0]]), np.array([[3.0], [2.0], [1.0], [0.5]])
TRAIN = sp.csr_array([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
TEST = sp.csr_array([[0, 1, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("hr@10", "hit_rate@10"),
        ("HR@10", "hit_rate@10"),
        ("hitrate@5", "hit_rate@5"),
        ("hit-rate@5", "hit_rate@5"),
        ("p@2", "precision@2"),
        ("Prec@2", "precision@2"),
        ("r@2", "recall@2"),
        ("NDCG@3", "ndcg@3"),
        ("ndcg_at_3", "ndcg@3"),
        ("MAP@3", "map@3"),
        ("mean_average_precision@3", "map@3"),
        ("rr@3", "mrr@3"),
        ("f1@2", "f1@2"),
        ("ROC-AUC", "auc"),
        ("partial_auc(0.5)", "pauc(0.5)"),
        ("item_coverage@2", "coverage@2"),
        ("gini_index@2", "gini@2"),
        ("self_information@2", "novelty@2"),
        ("average_popularity@2", "arp@2"),
    ],
)
def test_usual_names_mean_one_metric_and_come_back_as_given(name, usual):
    got = evaluate(PAIR, TRAIN, TEST, name)
    assert got == {name: evaluate(PAIR, TRAIN, TEST, usual)[usual]}


def test_no_name_means_two_metrics():
    names = [other for name, row in METRICS.items() for other in (name, *row.also)]
    assert len(names) == len(set(names)) > 40
    for name, row in METRICS.items():
        for other in (name, *row.also):
            assert parse(other if row.needs == WHOLE else f"{other}@3").function is row.function


def test_f1_and_popularity_by_hand():
    lists, truth = [[0, 1, 2], [3, -1, -1]], sp.csr_array([[1, 0, 1, 1], [1, 0, 0, 0]])
    p, r = precision(lists, truth, 2), recall(lists, truth, 2)
    np.testing.assert_allclose(f1(lists, truth, 2), [2 * p[0] * r[0] / (p[0] + r[0]), 0.0])
    np.testing.assert_allclose(average_popularity(lists, [9, 1, 5, 2]), [5, 2])
    # Users 0 and 1 are shown 1, 2 and 0, 3; nobody else is shown anything.
    assert evaluate(PAIR, TRAIN, TEST, "arp@2")["arp@2"] == np.mean([(1 + 1) / 2, (1 + 0) / 2])


@pytest.mark.filterwarnings("ignore:the model was fitted to")
def test_without_train_popularity_is_that_of_the_models_fit():
    """It was 0, and every item as new as can be, though the model has its interactions."""
    model = Popularity().fit([[1, 0, 1, 1], [1, 0, 0, 0]])  # everybody is shown 0 and 2
    for train in (None, sp.csr_array((2, 4))):
        got = evaluate(model, train, TEST[:2], ("arp@2", "novelty@2"))
        assert got == {"arp@2": (2 + 1) / 2, "novelty@2": (0 + 1) / 2}
    assert evaluate(model, TRAIN[:2], TEST[:2], "arp@1")["arp@1"] == 1.0  # what is given counts


def test_definitions_are_printed_by_any_name(capsys):
    assert main(["metrics"]) == 0
    everything = capsys.readouterr().out
    for form, (also, text) in definitions().items():
        assert form in everything and text.splitlines()[0].replace("``", "") in everything
        assert all(name in everything for name in also)
    assert "``" not in everything, "marks of the site"
    assert "sum_{i<=k} h_i / log2(i + 1)" in everything and "pauc(max_fpr)" in everything
    assert main(["metrics", "hr", "NDCG@10", "recall_at_20"]) == 0
    some = capsys.readouterr().out
    assert all(name in some for name in ("hit_rate@k", "ndcg@k", "recall@k")) and "gini" not in some
    assert main(["metrics", "sharpness"]) == 1
    assert "names: ndcg" in capsys.readouterr().err


# ------------------------------------------------------------------ segments


@pytest.fixture
def parts(rng):
    X = interactions(80, 50, seed=2)
    held = rng.random(X.nnz) < 0.3
    P, Q = rng.standard_normal((80, 4)), rng.standard_normal((50, 4))
    return (P, Q), entries(X, ~held), entries(X, held)


@pytest.mark.parametrize("bins", [1, 3, (1, 4, 12)])
def test_segments_by_activity_partition_the_users(parts, bins):
    model, train, test = parts
    found = evaluate_segments(model, train, test, ("ndcg@10", "coverage@5"), by="activity", bins=bins)
    whole = evaluate(model, train, test, "ndcg@10")
    assert sum(one.n_users for one in found.values()) == whole.n_users
    mean = sum(one.n_users * one["ndcg@10"] for one in found.values()) / whole.n_users
    assert mean == pytest.approx(whole["ndcg@10"], rel=1e-12)
    activity = np.diff(train.indptr)
    for name, figures in found.items():
        low, _, high = name.replace("+", "-999").partition("-")
        low, high = int(low), int(high or low)
        rows = np.flatnonzero((activity >= low) & (activity <= high) & (np.diff(test.indptr) > 0))
        assert figures == evaluate(model, train, test, ("ndcg@10", "coverage@5"), users=rows)
        assert figures.n_cold == (len(rows) if name == "0" else 0)
    if bins == 3:
        sizes = [one.n_users for name, one in found.items() if name != "0"]
        assert len(sizes) == 3 and max(sizes) < 2 * min(sizes)


def test_segments_by_popularity_judge_the_same_lists_by_some_items(parts):
    model, train, test = parts
    found = evaluate_segments(model, train, test, ("recall@10", "hit_rate@5"), by="popularity", bins=(1, 10))
    known = np.asarray(train.astype(bool).sum(axis=0))
    masks = {"0": known == 0, "1-9": (known > 0) & (known < 10), "10+": known >= 10}
    assert set(found) == {name for name, mask in masks.items() if test.astype(bool)[:, mask].nnz}
    assert len(found) >= 2
    for name, figures in found.items():
        part = sp.csr_array(test.multiply(masks[name]))
        part.eliminate_zeros()
        assert figures == evaluate(model, train, part, ("recall@10", "hit_rate@5"))
    thirds = evaluate_segments(model, train, test, "recall@10", by="popularity")
    assert len([name for name in thirds if name != "0"]) == 3
    hidden = sum(one.n_interactions for one in found.values())
    assert hidden == sum(one.n_interactions for one in thirds.values()) == test.nnz


@pytest.mark.parametrize("by", ["activity", "popularity"])
def test_dislikes_belong_to_the_group_of_their_user_or_item(parts, by):
    model, train, test = parts
    test.data[::3] = -1
    found = evaluate_segments(model, train, test, "dislike_rate@10", by=by, bins=(1, 10))
    sums = np.asarray(train.astype(bool).sum(axis=1 if by == "activity" else 0))
    masks = {"0": sums == 0, "1-9": (sums > 0) & (sums < 10), "10+": sums >= 10}
    assert len(found) >= 2
    for name, figures in found.items():
        part = sp.csr_array(test.multiply(masks[name][:, None] if by == "activity" else masks[name]))
        part.eliminate_zeros()
        whole = evaluate(model, train, part, "dislike_rate@10")
        assert (figures, figures.n_users) == (whole, whole.n_users)


def test_items_are_as_popular_as_they_are_liked():
    train = sp.csr_array([[1.0, -1, 0], [1, -1, 0], [0, 1, 0], [0, 0, 1]])
    test = sp.csr_array([[0.0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]])
    model = np.ones((4, 1)), np.array([[3.0], [2.0], [1.0]])
    found = evaluate_segments(model, train, test, "hit_rate@1", by="popularity", bins=(1, 2))
    assert found == {"1": {"hit_rate@1": 0.0}, "2+": {"hit_rate@1": 1.0}}


@pytest.mark.parametrize("by", ["activity", "popularity"])
def test_a_group_whose_test_items_are_all_in_train_is_left_out(by):
    model = np.array([[1.0], [2.0], [1.0]]), np.array([[3.0], [2.0], [1.0]])
    train = sp.csr_array([[1, 0, 0], [0, 1, 1], [1, 0, 0]])
    test = sp.csr_array([[0, 0, 1], [0, 1, 0], [0, 0, 1]])  # of the second user, the one with two, and train
    train = train + sp.csr_array([[0, 1, 0], [0, 0, 0], [0, 1, 0]]) if by == "popularity" else train
    with pytest.warns(UserWarning, match="^1 test interactions are also in train") as said:
        found = evaluate_segments(model, train, test, "hit_rate@2", by=by, bins=(1, 2))
    assert len(said) == 1 and found == {"1": {"hit_rate@2": 1.0}}


def test_a_best_seller_and_more_groups_than_users_make_fewer_groups():
    at = np.r_[np.arange(20), 20, 21, 22], np.r_[np.zeros(20, int), 1, 1, 2]
    train = sp.csr_array((np.ones(23), at), shape=(23, 3))  # more than a third of all are of one item
    test = sp.csr_array((np.ones(3), ([0, 20, 21], [1, 0, 2])), shape=(23, 3))
    model = np.ones((23, 1)), np.array([[3.0], [2.0], [1.0]])
    found = evaluate_segments(model, train, test, "hit_rate@1", by="popularity", bins=3)
    assert found == {"1-19": {"hit_rate@1": 0.5}, "20+": {"hit_rate@1": 1.0}}
    assert evaluate_segments(model, train, test, "hit_rate@1", bins=100) == {"1+": {"hit_rate@1": 2 / 3}}


def test_segments_take_ids_and_refuse_what_makes_no_groups(parts):
    model, train, test = parts
    with pytest.raises(InputError, match="holds no interaction outside train"):
        evaluate_segments(model, train, sp.csr_array(test.shape))
    users, items = np.arange(80) + 1000, np.array([f"i{k}" for k in range(50)])
    labelled = [Interactions(part, users, items) for part in (train, test)]
    assert evaluate_segments(model, *labelled) == evaluate_segments(model, train, test)
    with pytest.raises(InputError, match="no training interactions"):
        evaluate_segments(model, None, test)
    for bins in (0, (0, 3), (3, 2), (1.5,), (), [[1, 2], [3]]):
        with pytest.raises(ParameterError, match="bins"):
            evaluate_segments(model, train, test, bins=bins)
    with pytest.raises(ParameterError, match="by"):
        evaluate_segments(model, train, test, by="age")
    with pytest.raises(ShapeError):
        evaluate_segments(model, train, test[:, :4])


def test_small_parameters_are_written_as_numbers_are():
    """The minus of 1e-3 was taken for one between words: pauc(1e-3) was no number."""
    assert parse("pauc(1e-3)").options == parse("partial-auc(0.001)").options == {"max_fpr": 0.001}
    assert parse("RBP(9.5E-1)@5").options == {"k": 5, "p": 0.95}
    with pytest.raises(ParameterError, match="max_fpr"):
        parse("pauc(-1e-3)")
