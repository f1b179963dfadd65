"""Metrics against hand-computed values, plain Python on dense scores, and trec_eval."""

import math
import warnings
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.integrate import trapezoid
from sklearn.metrics import roc_auc_score, roc_curve

from rgals import RGALS, metrics
from rgals.datasets import Interactions
from rgals.metrics import _table, evaluate, evaluate_segments, judge
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError, UnknownIdError

# ---------------------------------------------------------------- an independent oracle: plain loops


def dcg(flags):
    return sum(1 / math.log2(i + 2) for i, flag in enumerate(flags) if flag)


def geometric(flags, p):
    return sum(p**i for i, flag in enumerate(flags) if flag)


def ap(flags):
    return sum(sum(flags[: i + 1]) / (i + 1) for i, flag in enumerate(flags) if flag)


def first(flags):
    return next((1 / (i + 1) for i, flag in enumerate(flags) if flag), 0.0)


# name -> (flags up to k, number of relevant items, k) -> value
ORACLE = {
    "ndcg": lambda h, t, k: dcg(h) / dcg([1] * min(t, k)),
    "mrr": lambda h, t, k: first(h),
    "map": lambda h, t, k: ap(h) / t,
    "capped_map": lambda h, t, k: ap(h) / min(t, k),
    "recall": lambda h, t, k: sum(h) / t,
    "capped_recall": lambda h, t, k: sum(h) / min(t, k),
    "precision": lambda h, t, k: sum(h) / k,
    "f1": lambda h, t, k: 2 * sum(h) / (k + t),
    "hit_rate": lambda h, t, k: float(any(h)),
    "rbp": lambda h, t, k: 0.2 * geometric(h, 0.8),
    "nrbp": lambda h, t, k: geometric(h, 0.8) / geometric([1] * min(t, k), 0.8),
}
LISTS = [name for name, row in _table.METRICS.items() if row.needs == _table.LISTS]


def ranking_of(scores, seen):
    """Every item that is not seen, best first, equal scores by id."""
    return [int(i) for i in np.argsort(-scores, kind="stable") if not seen[i]]


def auc_of(scores, seen, relevant):
    """Mann-Whitney by comparing every pair."""
    positives = [scores[i] for i in np.flatnonzero(relevant)]
    negatives = [scores[i] for i in np.flatnonzero(~relevant & ~seen)]
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives)) if negatives else math.nan


def problem(seed, ties=True):
    """Factors with (or without) many equal scores, disjoint seen and relevant items, empty rows."""
    rng = np.random.default_rng(seed)
    m, n, k = int(rng.integers(1, 30)), int(rng.choice([3, 20, 90])), int(rng.integers(1, 5))
    dtype = rng.choice([np.float32, np.float64])
    draw = (
        (lambda rows: rng.integers(-2, 3, (rows, k)))
        if ties
        else (lambda rows: rng.standard_normal((rows, k)))
    )
    factors = draw(m).astype(dtype), draw(n).astype(dtype)
    fate = rng.random((m, n))
    seen, relevant = fate < rng.choice([0, 0.1, 0.5]), fate > rng.choice([0.5, 0.8, 0.97])
    relevant[rng.random(m) < 0.2] = False
    return factors, seen, relevant


def is_cold(P, seen, u):
    """Whether nothing is known about a user."""
    return not (seen[u].any() if seen.any() else P[u].any())


def matrix(mask):
    return sp.csr_array(mask.astype(np.float32))


# ---------------------------------------------------------------- evaluate


def test_every_list_metric_has_an_oracle():
    assert set(LISTS) == set(ORACLE)


def test_evaluate_equals_the_oracle_on_random_problems(amount):
    names = [f"{name}@{k}" for name in LISTS for k in (1, 5, 100)] + ["auc"]
    checked = ties = colds = 0
    seeds = amount(15, 120)
    for seed in range(seeds):
        (P, Q), seen, relevant = problem(seed)
        scores = P @ Q.T
        users = np.flatnonzero(relevant.any(1))
        if len(users) == 0:
            continue
        got, who = evaluate((P, Q), matrix(seen), matrix(relevant), names, per_user=True)
        np.testing.assert_array_equal(who, users)
        means = evaluate((P, Q), matrix(seen), matrix(relevant), names)
        for j, u in enumerate(users):
            cold = is_cold(P, seen, u)
            order = [] if cold else ranking_of(scores[u], seen[u])
            colds += cold
            for name in names[:-1]:
                metric, k = name.split("@")
                flags = [bool(relevant[u, i]) for i in order[: int(k)]]
                want = ORACLE[metric](flags, relevant[u].sum(), int(k))
                assert got[name][j] == pytest.approx(want, rel=1e-13, abs=1e-14), (seed, name, u)
                checked += 1
            want = auc_of(scores[u] * (not cold), seen[u], relevant[u])
            assert got["auc"][j] == pytest.approx(want, rel=1e-13, nan_ok=True), (seed, u)
            ties += len(set(scores[u])) < len(scores[u])
        for name in names:
            defined = got[name][~np.isnan(got[name])]
            want = defined.mean() if len(defined) else math.nan
            assert means[name] == pytest.approx(want, rel=1e-14, nan_ok=True)
    assert checked > 160 * seeds and ties > 4 * seeds and colds > seeds / 3


def test_auc_equals_sklearn_with_few_and_with_many_relevant_items():
    rng = np.random.default_rng(1)
    P, Q = rng.integers(-3, 4, (12, 3)).astype(float), rng.integers(-3, 4, (400, 3)).astype(float)
    fate = rng.random((12, 400))
    for share in (
        0.01,
        0.04,
        0.05,
        0.4,
    ):  # around the number that changes the way of counting, and far beyond
        relevant, seen = fate < share, fate > 0.9
        relevant[:, 0] = True
        seen[:, 0] = False
        pair = matrix(seen), matrix(relevant)
        got, users = evaluate((P, Q), *pair, ("auc", "pauc(0.2)", "pauc(1)"), per_user=True)
        assert len(users) == 12 and np.ptp(got["auc"]) > 0.01
        for u in range(12):
            kept = ~seen[u]
            truth, scores = relevant[u, kept], (P @ Q.T)[u, kept]
            assert got["auc"][u] == pytest.approx(roc_auc_score(truth, scores), rel=1e-12)
            assert got["pauc(1)"][u] == pytest.approx(got["auc"][u], rel=1e-12)
            fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
            x = np.append(fpr[fpr < 0.2], 0.2)
            area = trapezoid(np.append(tpr[fpr < 0.2], np.interp(0.2, fpr, tpr)), x)
            assert got["pauc(0.2)"][u] == pytest.approx(area / 0.2, rel=1e-10)


@pytest.mark.parametrize(
    ("figure", "more"), [("exposure", [3]), ("novelty", [[1, 2], 4]), ("average_popularity", [[1, 2]])]
)
def test_catalogue_metrics_take_integers_alone(figure, more):
    """Items were cut off to integers, or ended in an error of numpy."""
    for wrong in ([[0.5, 1.0]], [[True, False]], [["a"]]):
        with pytest.raises(InputTypeError, match="ranked must hold integer item ids, not"):
            getattr(metrics, figure)(wrong, *more)


def test_catalogue_metrics_equal_plain_counting():
    for seed in range(20):
        (P, Q), seen, relevant = problem(seed, ties=False)
        relevant[0] |= ~seen[0]
        users = np.flatnonzero(relevant.any(1))
        got = evaluate((P, Q), matrix(seen), matrix(relevant), ("coverage@4", "gini@4", "novelty@4"))
        lists = [[] if is_cold(P, seen, u) else ranking_of((P @ Q.T)[u], seen[u])[:4] for u in users]
        shown = [i for one in lists for i in one]
        if not shown:
            continue
        counts = sorted(shown.count(i) for i in range(len(Q)))
        assert got["coverage@4"] == np.mean(np.array(counts) > 0)
        pairs = sum(abs(a - b) for a in counts for b in counts)
        assert got["gini@4"] == pytest.approx(
            pairs / (2 * (len(Q) - 1) * sum(counts))
        )  # mean difference form
        bits = -np.log2(np.maximum(seen.sum(0), 1) / len(P))
        assert got["novelty@4"] == pytest.approx(np.mean([bits[one].mean() for one in lists if one]))


def test_models_pairs_and_callables_agree():
    (P, Q), seen, relevant = problem(5)
    relevant[:] |= ~seen & (np.arange(len(Q)) % 7 == 0)

    class Fitted:
        user_factors_, item_factors_ = P, Q

    names = ("ndcg@10", "recall@3", "auc", "pauc(0.3)", "gini@5", "novelty@2")
    asked = []

    def scores(users):
        asked.append(len(users))
        return (P @ Q.T)[users]

    want = evaluate((P, Q), matrix(seen), matrix(relevant), names)
    assert evaluate(Fitted(), matrix(seen), matrix(relevant), names) == want
    for batch in (None, 1, 7):
        asked.clear()
        assert evaluate(scores, matrix(seen), matrix(relevant), names, batch_size=batch) == want
        assert batch is None or max(asked) == batch
        assert evaluate((P, Q), matrix(seen), matrix(relevant), names, batch_size=batch) == want
    sparse = sp.csr_array(P @ Q.T)
    assert evaluate(lambda users: sparse[users], matrix(seen), matrix(relevant), names) == want
    kept = (P @ Q.T).copy()
    evaluate(lambda users: kept, matrix(seen), matrix(relevant), names, users=np.arange(len(P)))
    np.testing.assert_array_equal(kept, P @ Q.T)  # the caller's scores are not touched


def test_users_selects_and_keeps_the_order():
    (P, Q), seen, relevant = problem(4, ties=False)
    assert len(P) > 10
    everybody = np.flatnonzero(relevant.any(1))
    full, _ = evaluate((P, Q), matrix(seen), matrix(relevant), "ndcg@5", per_user=True)
    chosen = everybody[::-2]
    some, who = evaluate((P, Q), matrix(seen), matrix(relevant), "ndcg@5", users=chosen, per_user=True)
    np.testing.assert_array_equal(who, chosen)
    np.testing.assert_array_equal(some["ndcg@5"], full["ndcg@5"][::-2])
    assert len(chosen) > 3 and np.ptp(full["ndcg@5"]) > 0


def test_same_bytes_for_any_number_of_threads():
    rng = np.random.default_rng(2)
    P, Q = rng.standard_normal((700, 16), np.float32), rng.standard_normal((900, 16), np.float32)
    fate = rng.random((700, 900))
    pair = matrix(fate < 0.05), matrix(fate > 0.97)
    names = ("ndcg@10", "auc", "map@50")
    runs = [
        evaluate((P, Q), *pair, names, per_user=True, n_jobs=jobs)[0]
        for jobs in range(1, numba.config.NUMBA_NUM_THREADS + 1)
    ]
    for other in runs[1:]:
        for name in names:
            assert other[name].tobytes() == runs[0][name].tobytes()


def test_overlap_of_train_and_test_is_dropped_with_a_warning():
    P, Q = np.ones((3, 1)), np.array([[3.0], [2.0], [1.0]])
    train = sp.csr_array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    test = sp.csr_array([[1, 0, 1], [0, 1, 0], [1, 0, 0]])
    with pytest.warns(UserWarning, match="2 test interactions are also in train"):
        got, who = evaluate((P, Q), train, test, ("recall@1", "mrr@2"), per_user=True)
    np.testing.assert_array_equal(who, [0, 2])  # user 1 has nothing left to find
    np.testing.assert_array_equal(got["recall@1"], [0, 1])
    np.testing.assert_array_equal(got["mrr@2"], [0.5, 1])
    with pytest.warns(UserWarning), pytest.raises(InputError, match="no interaction outside train"):
        evaluate((P, Q), test, test)


def test_dislikes_count_where_all_likes_of_the_user_are_in_train():
    model = np.ones((2, 1)), np.array([[3.0], [2.0], [1.0]])
    train, test = sp.csr_array([[1.0, 0, 0], [1, 0, 0]]), sp.csr_array([[1.0, -1, 0], [0, 1, -1]])
    with pytest.warns(UserWarning, match="^1 test interactions are also in train"):
        found, users = evaluate(model, train, test, "dislike_rate@1", per_user=True)
    assert users.tolist() == [0, 1] and found["dislike_rate@1"].tolist() == [1.0, 0.0]


@pytest.mark.filterwarnings("error")
def test_a_model_that_was_fitted_to_the_test_set_is_told():
    """Its figures are too good, whatever is left out of the rankings; nothing said so."""
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.random((60, 40)) < 0.3).astype(float))
    hidden = rng.random(X.nnz) < 0.3
    train, test = (
        sp.csr_array((X.data[part], (X.nonzero()[0][part], X.indices[part])), X.shape)
        for part in (~hidden, hidden)
    )
    strangers = sp.csr_array(np.ones((3, 40)))
    assert 0 < hidden.sum() < X.nnz / 2 and test.nnz == hidden.sum()
    on_all, on_train = (RGALS(K=4, random_state=0).fit(part) for part in (X, train))
    for measure in (evaluate, evaluate_segments):
        with pytest.warns(UserWarning, match=f"fitted to {test.nnz} of {test.nnz} test interactions"):
            measure(on_all, train, test)
        measure(on_train, train, test)
    new = Interactions(sp.vstack([test, strangers], format="csr"), np.arange(63), np.arange(40))
    model = RGALS(K=4, random_state=0).fit(Interactions(X, np.arange(60), np.arange(40)))
    train = Interactions(train, np.arange(60), np.arange(40))
    told = f"fitted to {test.nnz} of {test.nnz} test interactions"
    with pytest.warns(UserWarning, match="3 users"), pytest.warns(UserWarning, match=told):
        evaluate(model, train, new)


def test_values_of_the_test_matrix_do_not_matter():
    (P, Q), seen, relevant = problem(3)
    ones, stars = matrix(relevant), matrix(relevant)
    stars.data[:] = np.random.default_rng(0).integers(1, 6, len(stars.data))
    assert np.ptp(stars.data) > 0
    names = ("ndcg@5", "auc")
    assert evaluate((P, Q), None, ones, names) == evaluate((P, Q), None, stars, names)


def test_scores_that_are_nan_rank_last():
    Q = np.array([[1.0], [np.nan], [2.0], [np.nan]])
    test = sp.csr_array([[0, 1, 0, 0]])
    got = evaluate((np.ones((1, 1)), Q), None, test, ("recall@4", "auc"))
    assert got == {"recall@4": 0.0, "auc": pytest.approx(1 / 6)}  # below two, tied with one
    assert evaluate((np.ones((1, 1)), Q), None, sp.csr_array([[0, 0, 1, 0]]), "auc")["auc"] == 1.0


def test_auc_of_scores_that_are_nan_or_infinite():
    """A relevant item of score NaN was above all others of score NaN: a model that diverged had AUC 1."""
    rng = np.random.default_rng(3)
    checked = 0
    for share in (0.02, 0.5):  # few and many relevant items
        scores = rng.integers(-2, 3, (12, 90)).astype(float)
        for odd in (np.nan, np.inf, -np.inf):
            scores[rng.random(scores.shape) < 0.15] = odd
        fate = rng.random(scores.shape)
        seen, relevant = fate > 0.9, fate < share
        got, users = evaluate(scores.__getitem__, matrix(seen), matrix(relevant), "auc", per_user=True)
        ranks = np.where(np.isnan(scores), -np.inf, scores)
        for auc, u in zip(got["auc"], users, strict=True):
            assert auc == pytest.approx(auc_of(ranks[u], seen[u], relevant[u]), rel=1e-13)
            checked += np.isnan(scores[u, relevant[u]]).any()
    assert checked > 8


def test_a_function_whose_scores_are_all_nan_is_refused_by_its_user():
    """A model that diverged had the figures of no lists, as a poor model has."""
    table = np.array([[np.nan, 1.0, 2.0], [np.nan] * 3, [3.0, 2.0, 1.0]])
    test = sp.csr_array([[0, 1, 0], [0, 1, 0], [1, 0, 0]])
    for metric in ("recall@1", "auc"):
        with pytest.raises(InputError, match=r"scores of user 1 are all NaN.*-inf"):
            evaluate(lambda users: table[users], None, test, metric)
    assert evaluate(lambda users: table[users], None, test, "recall@1", users=[0, 2])["recall@1"] == 0.5
    assert evaluate(lambda users: table[users], None, test, "recall@1", users=[0, 2, 0])["recall@1"] == 0.5
    known, named = (Interactions(part, list("abc"), np.arange(3)) for part in (test[:, [1, 2, 0]], test))
    with pytest.raises(InputError, match="scores of user 'b' are all NaN"):
        evaluate(lambda users: table[users], known, named, "auc", users=["b"])


def test_factors_with_nan_are_refused_by_their_row():
    """A pair that had diverged had an AUC of .5."""
    P, Q, test = np.ones((3, 2)), np.ones((3, 2)), sp.csr_array(np.eye(3))
    P[1, 1] = np.nan
    for given in ((P, Q), [P, Q], SimpleNamespace(user_factors_=P, item_factors_=Q)):
        with pytest.raises(InputError, match="user factors hold NaN, first in row 1"):
            evaluate(given, None, test, ("auc", "ndcg@3"))
    with pytest.raises(InputError, match="item factors hold NaN, first in row 0"):
        evaluate((Q, P * np.nan), None, test, ("auc", "ndcg@3"))
    assert evaluate((Q, P), None, test, "auc")["auc"] < 0.6


# ---------------------------------------------------------------- given rankings


def test_hand_computed_values():
    lists = judge([[3, 1, 4, -1, -1]], sp.csr_array([[1, 1, 0, 0, 1, 0]]))  # misses, hits, hits; 3 relevant
    log2 = math.log2
    for function, k, options, want in (
        (metrics.ndcg, 3, {}, (1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3) + 1 / log2(4))),
        (metrics.ndcg, 2, {}, (1 / log2(3)) / (1 + 1 / log2(3))),
        (metrics.ndcg, None, {}, (1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3) + 1 / log2(4))),
        (metrics.mrr, 5, {}, 1 / 2),
        (metrics.mrr, 1, {}, 0),
        (metrics.average_precision, 5, {}, (1 / 2 + 2 / 3) / 3),
        (metrics.capped_average_precision, 2, {}, (1 / 2) / 2),
        (metrics.recall, 2, {}, 1 / 3),
        (metrics.capped_recall, 2, {}, 1 / 2),
        (metrics.precision, 5, {}, 2 / 5),
        (metrics.precision, 50, {}, 2 / 50),
        (metrics.hit_rate, 1, {}, 0),
        (metrics.hit_rate, 2, {}, 1),
        (metrics.rbp, 5, {"p": 0.5}, 0.5 * (0.5 + 0.25)),
        (metrics.nrbp, 2, {"p": 0.5}, 0.5 / 1.5),
    ):
        np.testing.assert_allclose(
            function(lists, k=k, **options), [want], rtol=1e-15, err_msg=str((function, k))
        )


def test_users_without_truth_are_nan_and_empty_lists_are_misses():
    truth = sp.csr_array([[0, 0, 0], [1, 0, 0]])
    for name in LISTS:
        values = _table.METRICS[name].function([[0, 1], [-1, -1]], truth, 2)
        assert math.isnan(values[0]) and values[1] == 0, name
        assert _table.METRICS[name].function(np.empty((0, 2), int), truth[:0], 2).shape == (0,)
        assert _table.METRICS[name].function(np.empty((2, 0), int), truth, 5)[1] == 0, name


def test_the_best_ranking_is_worth_one_even_where_the_truth_is_longer_than_the_list():
    truth = matrix(np.ones((1, 30), bool))
    for function in (
        metrics.ndcg,
        metrics.capped_recall,
        metrics.capped_average_precision,
        metrics.nrbp,
        metrics.precision,
        metrics.mrr,
    ):
        assert function([list(range(10))], truth, 10)[0] == pytest.approx(1, rel=1e-15)
    assert metrics.recall([list(range(10))], truth, 10)[0] == pytest.approx(1 / 3)
    # A cutoff beyond the catalogue: all 30 are there, the other ranks are misses.
    assert metrics.ndcg([list(range(30))], truth, 100)[0] == pytest.approx(1)
    assert metrics.precision([list(range(30))], truth, 100)[0] == 0.3


def test_no_list_is_worth_more_than_one_and_the_best_exactly_one():
    """Sums in another order than that of the ideal list gave 1.0000000000000002."""
    for k in range(1, 120):
        hits = np.arange(k) < np.array([[k], [k // 2 + 1], [k]])
        lists = metrics.Judged(np.zeros((3, k), np.int32), hits, np.array([k, k // 2 + 1, 2 * k]))
        for function in (metrics.ndcg, metrics.nrbp, metrics.capped_average_precision):
            assert function(lists, k=k).tolist() == [1.0, 1.0, 1.0], (function, k)


def outside_cases(n_cases=1000, n_items=40):
    """Rankings by scores full of ties; document names sort so that the smaller id wins a tie, as here."""
    rng = np.random.default_rng(7)
    scores = rng.integers(0, 6, (n_cases, n_items)).astype(np.float64)
    relevant = rng.random((n_cases, n_items)) < rng.choice([0.05, 0.2, 0.6], (n_cases, 1))
    relevant[np.arange(n_cases), rng.integers(0, n_items, n_cases)] = True
    assert all(len(set(row)) < n_items for row in scores)
    return scores, relevant


def test_equal_to_trec_eval_on_rankings_with_ties():
    ir = pytest.importorskip("ir_measures")
    scores, relevant = outside_cases()
    name = [f"d{9999 - i}" for i in range(scores.shape[1])]  # trec_eval ranks ties by descending name
    run = {str(u): dict(zip(name, map(float, row))) for u, row in enumerate(scores)}
    qrels = {str(u): {name[i]: int(row[i]) for i in range(len(row))} for u, row in enumerate(relevant)}
    ours = {
        ir.nDCG @ 10: "ndcg@10",
        ir.nDCG @ 40: "ndcg@40",
        ir.AP @ 10: "map@10",
        ir.P @ 10: "precision@10",
        ir.R @ 20: "recall@20",
        ir.Success @ 5: "hit_rate@5",
        ir.RR: "mrr@40",
    }
    got, _ = evaluate(lambda users: scores[users], None, matrix(relevant), ours.values(), per_user=True)
    compared = 0
    for value in ir.iter_calc(list(ours), qrels, run):
        mine = got[ours[value.measure]][int(value.query_id)]
        assert mine == pytest.approx(value.value, abs=1e-12, rel=1e-12), value
        compared += 1
    assert compared == len(ours) * len(scores)
    assert all(np.ptp(values) > 0.3 for values in got.values())


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ndgc@10", "names: ndcg, mrr"),
        ("ndcg", "give a cutoff"),
        ("ndcg@0", "give a cutoff"),
        ("ndcg@-1", "form is"),
        ("ndcg@ten", "form is"),
        ("ndcg(2)@10", "takes no parameter"),
        ("auc@10", "whole ranking"),
        ("rbp(x)@10", "not a number"),
        ("rbp(1)@10", "between 0 and 1"),
        ("rbp(nan)@10", "finite"),
        ("rbp(2)@10", r"^metrics='rbp\(2\)@10' is not valid: p: give a number between 0 and 1"),
        ("pauc(0)", r"^metrics='pauc\(0\)' is not valid: max_fpr"),
        ("pauc(1.5)", "max_fpr"),
        ("ndcg@10,auc", "several are given as a tuple"),
        (10, "form is"),
        (["ndcg@10"], "form is"),
        ("precision@99999999999999999999", "^metrics='precision@9{20}'.*<= 2147483647"),
        ("precision@" + "9" * 5000, "<= 2147483647"),
        ([], "at least one"),
    ],
)
def test_bad_names_are_explained(name, words):
    with pytest.raises(ParameterError, match=words):
        evaluate(
            (np.ones((1, 1)), np.ones((2, 1))), None, sp.csr_array([[1, 0]]), name if name == [] else [name]
        )


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": object()}, InputTypeError, "user_factors_"),
        ({"model": RGALS}, InputTypeError, "class RGALS; give RGALS\\(\\).fit"),
        ({"model": (np.ones((2, 1)),)}, InputTypeError, "1 things"),
        ({"model": (np.ones((2, 2)), np.ones((3, 1)))}, ShapeError, "user factors have 2"),
        ({"model": lambda users: np.ones((len(users), 4))}, ShapeError, r"expected \(1, 3\)"),
        ({"model": lambda users: [["a"] * 3] * len(users)}, InputTypeError, "real numbers"),
        ({"train": sp.csr_array((3, 2))}, ShapeError, "train.*transposed"),
        ({"test": sp.csr_array((3, 2))}, ShapeError, "test.*transposed"),
        ({"test": sp.csr_array((2, 3))}, InputError, "no interaction"),
        ({"users": [1]}, InputError, "no interaction"),
        ({"users": [2]}, UnknownIdError, r"users\[0\]=2"),
        ({"batch_size": 0}, ParameterError, "batch_size=0"),
        ({"metrics": "coverage@2", "per_user": True}, ParameterError, "all users together"),
        ({"metrics": 3}, InputTypeError, "names such as"),
        ({"per_user": "no"}, ParameterError, "per_user='no'"),
        ({"n_jobs": np.zeros(0)}, ParameterError, "n_jobs"),
    ],
)
def test_bad_calls_of_evaluate_are_named(change, error, words):
    args = {
        "model": (np.ones((2, 1)), np.ones((3, 1))),
        "train": sp.csr_array((2, 3)),
        "test": sp.csr_array([[0, 1, 0], [0, 0, 0]]),
    }
    with pytest.raises(error, match=words), warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(**args | change)


@pytest.mark.parametrize(
    ("ranked", "error", "words"),
    [
        ([[0, 3]], InputError, "row 0 holds item 3 at rank 2"),
        ([[-2, 1]], InputError, "item -2 at rank 1"),
        ([[2, 0, 2]], InputError, "item 2 twice"),
        ([[0, 2, 0]], InputError, "item 0 twice"),
        ([[0.0, 1.0]], InputTypeError, "integer"),
        ([[0, 1], [2]], ShapeError, "several lengths.*-1"),
        ([0, 1], ShapeError, "two dimensions"),
        ([[0], [1]], ShapeError, r"expected \(2, items\)"),
    ],
)
def test_bad_rankings_are_named(ranked, error, words):
    with pytest.raises(error, match=words):
        metrics.ndcg(ranked, sp.csr_array([[1, 0, 1]]))


@pytest.mark.parametrize("name", LISTS)
def test_help_of_a_metric_is_complete(name):
    text = _table.METRICS[name].function.__doc__
    for section in ("Parameters", "Returns", "Examples"):
        assert text.count(f"{section}\n---") == 1
    assert text.index("ranked : array") < text.index("truth : sparse") < text.index("k : int")
    assert ("p : float" in text) == (name in ("rbp", "nrbp"))


def test_counts_of_any_type_give_the_figures_of_float64():
    lists, counts = [[0, 1], [1, 2]], np.array([100, 7, 3])
    of_float = metrics.novelty(lists, counts.astype(float), 200), metrics.average_popularity(lists, counts)
    for kind in (np.uint8, np.int8, np.int16, np.float16, np.float32):
        np.testing.assert_array_equal(metrics.novelty(lists, counts.astype(kind), 200), of_float[0])
        np.testing.assert_array_equal(metrics.average_popularity(lists, counts.astype(kind)), of_float[1])
    assert metrics.average_popularity([[0, 1]], np.float16([60_000, 60_000]))[0] == np.float16(60_000)
    shares = np.array([1.0, 2.0, 5.0]) / 8.5  # whose sum has no whole part
    assert metrics.gini(shares) == pytest.approx(metrics.gini(np.array([1, 2, 5])))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.coverage([[0, 1, 2]]), ShapeError, "exposures must have one dimension, items"),
        (lambda: metrics.gini(np.array([[0, 1]])), ShapeError, "exposures must have one dimension, items"),
        (lambda: metrics.novelty([[0]], ["a"], 5), InputTypeError, "counts must hold numbers"),
        (lambda: metrics.exposure([[0, 1]], None), ParameterError, "n_items=None"),
        (lambda: metrics.exposure([[0, -5]], 3), InputError, "item -5 at rank 2, outside -1..2"),
        (lambda: metrics.average_popularity([[0, -5]], [1, 2]), InputError, "-5 at rank 2, outside -1..1"),
        (lambda: metrics.compare([[0.1, 0.2]], "a"), InputTypeError, "figures must be a dict"),
    ],
)
def test_what_is_no_count_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
