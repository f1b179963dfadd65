"""Plots show what the fits, searches and lists hold: compared by the drawn numbers, not by pixels."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from rgals import RGALS, RGALSCV, InputError, InputTypeError, ParameterError, ShapeError, plots
from rgals.baselines import EASE, Popularity
from rgals.datasets import Interactions, make_implicit
from rgals.sgd import SGDRanker

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def X():
    return make_implicit(300, 120, random_state=0).matrix


@pytest.fixture(scope="module")
def watched(X):
    return RGALS(8, early_stopping=True, patience=3, random_state=0).fit(X)


def lines(ax, n):
    """The first lines with more than a mark."""
    return [line.get_xydata() for line in ax.lines if len(line.get_xdata()) > 1][:n]


def test_a_learning_curve_is_the_metric_or_the_objective_of_the_history(X, watched):
    drawn = lines(plots.learning_curve(watched), 1)[0]
    assert len(drawn) > 3 and np.ptp(drawn[:, 1]) > 0
    np.testing.assert_array_equal(drawn[:, 0], [row["iteration"] for row in watched.history_])
    np.testing.assert_array_equal(drawn[:, 1], [row["ndcg@10"] for row in watched.history_])
    ax = plots.learning_curve(watched, "objective")
    np.testing.assert_array_equal(lines(ax, 1)[0][:, 1], [row["objective"] for row in watched.history_])
    assert ax.get_ylabel() == "objective" and plots.learning_curve(watched).get_ylabel() == "NDCG@10"


def test_the_best_of_what_is_better_when_smaller_is_the_least():
    history = [
        {"iteration": k, "seconds": float(k), "dislike_rate@5": v} for k, v in enumerate((0.3, 0.1, 0.2))
    ]
    for draw in (plots.learning_curve, plots.time_to_quality):
        ax = draw(history)
        assert [line.get_xydata().tolist() for line in ax.lines[1:]] == [[[1, 0.1]]], (
            "a dot, and no shares of it"
        )
        assert not ax.texts


def test_several_fits_share_what_all_of_them_measured(X, watched):
    plain = SGDRanker(8, n_epochs=3, random_state=0).fit(X)
    ax = plots.learning_curve({"ALS": watched, "SGD": plain.history_})
    assert ax.get_ylabel() == "objective"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ALS", "SGD"]
    with pytest.raises(ParameterError, match=r"ndcg@10.*the history has objective"):
        plots.learning_curve({"ALS": watched, "SGD": plain}, "ndcg@10")


def test_a_figure_that_is_none_is_not_the_best():
    history = [{"iteration": k, "seconds": 1.0, "auc": v} for k, v in enumerate((np.nan, 0.6, 0.5))]
    assert list(plots.learning_curve(history).lines[-1].get_xdata()) == [1]
    marks = [line for line in plots.time_to_quality(history).lines if line.get_linestyle() == ":"]
    assert [line.get_ydata()[0] for line in marks] == [0.95 * 0.6, 0.99 * 0.6]


def test_time_to_quality_leaves_out_evaluation_and_marks_shares_of_the_best(watched):
    ax = plots.time_to_quality({"RG2": watched})
    drawn = lines(ax, 1)[0]
    np.testing.assert_array_equal(drawn[:, 0], [row["seconds"] for row in watched.history_])
    best = max(row["ndcg@10"] for row in watched.history_)
    marks = [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(marks, [0.95 * best, 0.99 * best])
    assert [text.get_text() for text in ax.texts] == ["95% of best", "99% of best"]


def test_numbers_of_a_logarithmic_axis_do_not_lie_on_each_other():
    history = [{"seconds": 0.01 * 1.6**k, "ndcg@10": 0.3 - 0.2 * 0.7**k} for k in range(10)]
    ax = plots.time_to_quality(history)
    assert ax.get_xscale() == "log"
    ax.figure.canvas.draw()
    labels = [
        label for which in (False, True) for label in ax.get_xticklabels(minor=which) if label.get_text()
    ]
    left, right = ax.get_window_extent().intervalx
    boxes = sorted(label.get_window_extent().intervalx.tolist() for label in labels)
    shown = [(start, end) for start, end in boxes if end > left and start < right]
    assert len(shown) > 3 and all(float(label.get_text()) > 0 for label in labels)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(shown))


def test_a_sweep_runs_through_the_best_of_each_value(X):
    found = {
        "param_reg": np.ma.array([0.1, 0.1, 1.0, 10.0, None], dtype=object),
        "param_K": np.ma.array([8, 16, 8, 8, 8]),
        "mean_test_score": np.array([0.2, 0.3, 0.4, 0.1, 0.9]),
        "std_test_score": np.array([0.0, 0.01, 0.02, 0.03, 0.0]),
    }
    ax = plots.sweep(found, "reg")
    np.testing.assert_array_equal(lines(ax, 2)[1], [[0.1, 0.3], [1.0, 0.4], [10.0, 0.1]])
    assert ax.get_xscale() == "log" and [text.get_text() for text in ax.texts] == ["1"]
    assert plots.sweep({8: 0.1, 16: 0.2}, "K").get_xscale() == "linear"
    with pytest.raises(ParameterError, match=r"alpha.*the search has K, reg"):
        plots.sweep(found, "alpha")
    for folds in ([[0.1, 0.2], [0.3, 0.2]], [[0.1, 0.2], [0.3]], ["low", "high"]):
        with pytest.raises((InputError, InputTypeError), match="^search must (hold|have one)"):
            plots.sweep(dict(zip((8, 16), folds, strict=True)), "K")
    with pytest.raises(ParameterError, match="no trial has a number"):
        plots.sweep({"auto": 0.3}, "reg")


def test_a_sweep_has_a_band_of_the_deviation_of_the_best_trials():
    found = {"param_reg": ["auto", 0.1, 0.1, 1.0], "mean_test_score": [0.9, 0.2, 0.3, 0.4]}
    found["std_test_score"] = [7, 9, 0.01, 0.02]
    search = SimpleNamespace(cv_results_=found, metric="recall@5")
    ax = plots.sweep(search, "reg")
    corners = {(round(x, 9), round(y, 9)) for x, y in ax.collections[0].get_paths()[0].vertices}
    assert corners == {(0.1, 0.29), (0.1, 0.31), (1.0, 0.38), (1.0, 0.42)}
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("RECALL@5", "reg")
    assert (
        ax.lines[-1].get_xydata().tolist() == [[1.0, 0.4]]
        and len(plots.sweep({1: 0.2}, "K").collections) == 0
    )


def test_a_sweep_takes_numbers_of_numpy_and_leaves_out_what_is_masked_or_no_number():
    """scikit-learn masks a parameter in the trials of grids without it."""
    places = np.ma.array([np.int64(8), np.int64(64), 99, "auto", 16], dtype=object, mask=[0, 0, 1, 0, 0])
    scores = [0.1, 0.2, 0.9, 0.8, np.nan]
    ax = plots.sweep({"param_K": places, "mean_test_score": scores}, "K")
    assert lines(ax, 1)[0].tolist() == [[8, 0.1], [64, 0.2]] and ax.lines[-1].get_xdata().tolist() == [64]
    for wrong in ({}, [0.1], 3):
        with pytest.raises(InputTypeError, match="a fitted search, its cv_results_ or a dict of scores"):
            plots.sweep(wrong, "K")


def test_a_sweep_draws_the_last_scale_that_has_scores():
    found = {"param_K": [1, 2, 3, 4], "mean_test_score": [0.9, 0.1, 0.2, np.nan], "level": [0, 1, 1, 2]}
    assert lines(plots.sweep(found, "K"), 1)[0].tolist() == [[2, 0.1], [3, 0.2]]


@pytest.mark.few(0)
def test_a_sweep_compares_trials_of_one_scale_only(X):
    search = RGALSCV(K=8, budget=2, random_state=0).fit(X)
    levels = search.cv_results_["level"]
    assert len(set(levels)) > 1
    last = levels[np.isfinite(search.cv_results_["mean_test_score"])].max()
    ax = plots.sweep(search, "reg")
    drawn = lines(ax, 1)[0]
    assert len(drawn) == np.sum((levels == last) & np.isfinite(search.cv_results_["mean_test_score"]))
    assert ax.get_ylabel() == "NDCG@10"


def test_popularity_bias_is_that_of_the_served_lists(X):
    popularity, model = Popularity().fit(X), RGALS(8, random_state=0).fit(X)
    ax = plots.popularity_bias({"popularity": popularity, "RG2": model}, X, n=5)
    steep, flat = lines(ax, 2)
    assert steep[-1, 1] > 1.5 * flat[-1, 1] and (steep[:-1, 1] < flat[:-1, 1]).sum() >= 3
    # By hand, of all items with as many interactions as the most popular one has.
    ids, _ = popularity.recommend(range(X.shape[0]), 5)
    counts = np.bincount(X.indices, minlength=X.shape[1])
    shown = np.bincount(ids[ids >= 0], minlength=X.shape[1])
    edges = np.geomspace(1, counts.max() + 1, 13)
    top = (counts >= edges[11]) & (counts > 0)
    expected = shown[top].sum() / counts[top].sum() * counts.sum() / shown.sum()
    assert steep[-1, 1] == pytest.approx(expected)
    group = np.searchsorted(edges, counts[counts > 0], "right")
    means = [counts[counts > 0][group == k].mean() for k in np.unique(group)]
    np.testing.assert_allclose(steep[:, 0], means)
    full = plots.popularity_bias(lambda users: np.ones((len(users), 3)), np.ones((4, 3)))  # nobody lacks one
    assert full.lines[0].get_xydata().tolist() == [[4, 0.001]]


def test_lists_of_items_that_nobody_has_take_their_share():
    train = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.0]])
    scores = np.tile([0, 1, 1, 9.0], (4, 1))  # half of each list of two is the item without interactions
    drawn = lines(plots.popularity_bias(lambda users: scores[users], train, n=2), 1)[0]
    shares = np.array([1, 3]) / 8 / (np.array([2, 2]) / 4)  # items 0 and 2 once in all, item 1 three times
    assert drawn[:, 1] @ [2, 2] == pytest.approx(shares @ [2, 2]) and (drawn[:, 1] < 1).all()


def test_what_is_hardly_recommended_is_drawn_as_a_thousandth_over_its_interactions():
    train = np.zeros((401, 3))  # the last user has nothing, and is asked for no list
    train[:400, 0] = train[:4, 1] = train[0, 2] = 1
    ax = plots.popularity_bias(lambda users: np.tile([9.0, 2, 3], (len(users), 1)), train, n=1)
    drawn = lines(ax, 1)[0]
    # Who has item 0 alone, or item 1 too, gets item 2; user 0 has all.
    np.testing.assert_allclose(drawn, [[1, 405 / 1], [4, 0.001], [400, 0.001]])
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [1]


def test_popularity_bias_is_the_same_in_batches_and_of_a_frame_with_its_columns(X, monkeypatch):
    pandas = pytest.importorskip("pandas")
    model, (users, items) = Popularity().fit(X), X.nonzero()
    whole = lines(plots.popularity_bias(model, X, n=7), 1)[0]
    monkeypatch.setattr(plots, "_BATCH_USERS", 70)
    np.testing.assert_array_equal(lines(plots.popularity_bias(model, X, n=7), 1)[0], whole)
    frame = pandas.DataFrame({"who": users, "what": items})
    named = Popularity().fit(Interactions(X, np.arange(X.shape[0]), np.arange(X.shape[1])))
    ax = plots.popularity_bias(named, frame, n=7, columns={"user": "who", "item": "what"})
    np.testing.assert_allclose(lines(ax, 1)[0], whole)
    for n in (0, 2.5):
        with pytest.raises(ParameterError, match="n="):
            plots.popularity_bias(model, X, n=n)


def test_an_item_that_is_disliked_is_not_popular(X, watched):
    train, model = X.copy(), (watched.user_factors_, watched.item_factors_)
    train.data[::2] = -1
    counts = (train > 0).sum(axis=0)
    assert plots._exposure(model, train, 5, None)[0].tolist() == counts[counts > 0].tolist()
    with pytest.raises(InputError, match="no user has an interaction"):
        plots.popularity_bias(model, -X)


def test_numbers_below_popularity_do_not_lie_on_each_other():
    X = make_implicit(500, 400, mean_interactions=30, random_state=0).matrix
    ax = plots.popularity_bias(Popularity().fit(X), X, ax=plots.new_figure(3.5, 3).subplots())
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.get_xticklabels(which="both") if text.get_text()]
    shown = sorted((box.x0, box.x1) for box in boxes if ax.bbox.x0 < box.x1 and box.x0 < ax.bbox.x1)
    assert len(shown) > 2 and all(left[1] < right[0] for left, right in itertools.pairwise(shown))


def test_popularity_bias_takes_ids_in_any_order(X):
    users, items = np.array([f"u{k}" for k in range(300)]), np.array([f"i{k}" for k in range(120)])
    model = EASE().fit(X, user_ids=users, item_ids=items)
    rows, columns = np.random.default_rng(0).permutation(300), np.random.default_rng(1).permutation(120)
    turned = Interactions(X[rows][:, columns].tocsr().sorted_indices(), users[rows], items[columns])
    plain = lines(plots.popularity_bias(model, Interactions(X, users, items)), 1)[0]
    np.testing.assert_allclose(lines(plots.popularity_bias(model, turned), 1)[0], plain)
    with pytest.raises(InputError, match="no user has an interaction"):
        plots.popularity_bias(RGALS(4, random_state=0).fit(X), X * 0)
    with pytest.raises(ShapeError, match="^train has shape"):  # not "test", which there is not
        plots.popularity_bias(RGALS(4, random_state=0).fit(X), X[:, :5])


@pytest.mark.parametrize("shape", [(50, 20, 6), (5, 40, 8)])  # of lower rank than K, too
def test_the_spectrum_is_that_of_the_scores(shape):
    m, n, K = shape
    rng = np.random.default_rng(0)
    P, Q = rng.normal(size=(m, K)), rng.normal(size=(n, K)) * np.geomspace(1e-11, 1, K)
    expected = np.linalg.svd(P @ Q.T, compute_uv=False)[:K]
    drawn = plots.spectrum((P, Q)).lines[0].get_ydata()
    assert expected[-1] < 1e-5 * expected[0]
    np.testing.assert_allclose(drawn, expected, rtol=1e-3, atol=1e-14 * expected[0])


def test_a_spectrum_of_factors_of_float32_has_its_small_values_too():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 4)))[0] for n in (30, 4))
    P = ((left * [1, 1e-2, 1e-4, 1e-6]) @ right.T).astype(np.float32)
    drawn = plots.spectrum((P, np.eye(20, 4, dtype=np.float32))).lines[0]
    expected = np.linalg.svd(P.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(drawn.get_ydata(), expected, rtol=1e-6)
    assert drawn.get_xdata().tolist() == [1, 2, 3, 4] and drawn.axes.get_yscale() == "log"
    with pytest.raises(InputTypeError, match="a model with factors or a pair of them is needed"):
        plots.spectrum(lambda users: np.ones((len(users), 3)))


def test_axes_that_are_given_are_drawn_into(watched):
    from matplotlib.figure import Figure

    given = Figure().subplots()
    assert plots.learning_curve(watched, ax=given) is given and given.lines
    assert plots.learning_curve(watched) is not given


@pytest.mark.parametrize("draw", [plots.learning_curve, plots.time_to_quality])
def test_what_has_no_history_is_refused(draw):
    with pytest.raises(InputTypeError, match="a fitted model or its history_"):
        draw(3)
    for history in ([1, 2], {"RG2": "ndcg"}, [{"iteration": 1}, None]):
        with pytest.raises(InputTypeError, match="a fitted model or its history_"):
            draw(history)
    with pytest.raises(InputError, match="empty"):
        draw([])
    with pytest.raises(InputError, match="nothing is given"):
        draw({})


def test_sweeps_and_spectra_are_saved(watched, tmp_path):
    """Tests of tick labels and legends render the other plots."""
    for ax in (plots.sweep({0.1: 0.3, 1.0: 0.4}, "reg"), plots.spectrum(watched)):
        ax.figure.savefig(tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 5000


def test_several_axes_are_refused():
    """Those of `plt.subplots(1, 2)` ended in an `AttributeError`."""
    model = RGALS(2, n_iter=2, random_state=0).fit(make_implicit(30, 20, random_state=0))
    with pytest.raises(InputTypeError, match="ax is a ndarray; give plain axes of matplotlib's"):
        plots.spectrum(model, ax=np.array([None, None]))


def curves(n):
    """A rising curve of each of n models, the next one 0.01 lower."""
    plain = [{"iteration": k, "seconds": 0.1 * k, "objective": 1.0} for k in range(1, 31)]
    rise = [0.3 - 0.1 * 0.8**k for k in range(30)]
    return {
        f"model {m}": [row | {"ndcg@10": v - 0.01 * m} for row, v in zip(plain, rise, strict=True)]
        for m in range(n)
    }


def covered(ax):
    """Points of curves that lie below the legend."""
    ax.figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    return [
        point
        for line in ax.lines
        if line.get_transform() == ax.transData
        for point in ax.transData.transform(line.get_xydata())
        if box.contains(*point)
    ]


@pytest.mark.parametrize("draw", [plots.learning_curve, plots.time_to_quality])
def test_the_legend_does_not_lie_on_the_curves(draw):
    """That of a slow fit began below the names, and many names covered all curves."""
    assert not covered(draw(curves(14)))
    slow = [row | {"seconds": row["seconds"] + 20} for row in curves(1)["model 0"]]
    assert not covered(draw({"fast": curves(1)["model 0"], "slow": slow}))


@pytest.mark.parametrize(
    "names", [[f"method {k}" for k in range(30)], [f"{'a long name ' * 14}{k}" for k in "ab"]]
)
def test_many_and_long_names_leave_room_for_the_curves(names, recwarn):
    """Of thirty names twenty were drawn, beside axes of no size; a long one began outside of the figure."""
    curve = curves(1)["model 0"]
    for draw in (plots.learning_curve, plots.time_to_quality):
        ax = draw(dict.fromkeys(names, curve))
        assert not covered(ax) and not recwarn.list
        whole, own = ax.figure.bbox, ax.get_window_extent()
        legend = ax.get_legend().get_window_extent()
        assert own.width > 0.3 * whole.width and own.height > 0.6 * whole.height
        assert legend.x0 > own.x1 and legend.x1 <= whole.x1 and whole.y0 <= legend.y0 <= legend.y1 <= whole.y1
        styles = {(line.get_color(), line.get_linestyle()) for line in ax.lines if line.get_label()[0] != "_"}
        assert len(styles) == len(names)


def test_numbers_of_things_have_whole_ticks(watched):
    drawn = (
        plots.spectrum((np.ones((3, 1)), np.ones((4, 1)))),
        plots.sweep({16: 0.3}, "K"),
        plots.learning_curve(watched.history_[:2]),
    )
    for ax in drawn:
        assert all(tick == round(tick) for tick in ax.get_xticks())


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(InputError, match="all factors of zero are zero: there is nothing to draw"):
        plots.spectrum({"zero": (np.zeros((5, 2)), np.zeros((6, 2)))})
    with pytest.raises(InputError, match="auc is a number in no iteration"):
        plots.learning_curve([{"iteration": 1, "auc": np.nan}])
    polar = plots.new_figure().add_subplot(projection="polar")
    with pytest.raises(InputTypeError, match="ax is a PolarAxes; give plain axes"):
        plots.learning_curve(curves(1), ax=polar)


def test_names_are_drawn_as_they_are():
    """Those with an underscore in front were left out, and two dollars were a formula, wrong here."""
    curve = curves(1)["model 0"]
    ax = plots.learning_curve({"_old": curve, r"5$ \frac $": curve, "1 $": curve})
    ax.figure.draw_without_rendering()
    shown = [text.get_text().strip().replace(r"\$", "$") for text in ax.get_legend().get_texts()]
    assert shown == ["_old", r"5$ \frac $", "1 $"]


def test_an_axis_is_logarithmic_for_decades_of_seconds_or_of_objectives_alone():
    history = [{"iteration": k, "seconds": v, "ndcg@10": v} for k, v in enumerate((0.01, 0.1, 0.9))]
    assert plots.time_to_quality(history).get_xscale() == "log"
    assert plots.time_to_quality(history).get_yscale() == "linear"
    history[0]["seconds"] = 0.0  # which has no logarithm
    assert plots.time_to_quality(history).get_xscale() == "linear"


def test_one_iteration_is_a_dot_and_the_best_of_several_has_one():
    history = curves(1)["model 0"]
    assert [line.get_marker() for line in plots.learning_curve(history[:1]).lines] == ["o"]
    whole, dot = plots.learning_curve(history).lines
    assert whole.get_marker() == "None" and dot.get_xydata().tolist() == [[30, history[-1]["ndcg@10"]]]


def test_a_long_name_stays_inside_where_the_layout_is_the_callers():
    """Beside the axes there is no room, if no layout makes it."""
    from matplotlib.figure import Figure

    ax = plots.learning_curve({"a long name " * 6: curves(1)["model 0"]}, ax=Figure().subplots())
    ax.figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().x1 <= ax.get_window_extent().x1


def test_objectives_of_other_sizes_share_a_picture():
    """Least squares sum thousands, softmax means a few: that one lay on the axis."""
    history = curves(1)["model 0"]
    sums = [row | {"objective": 1e6 + 1e6 / row["iteration"]} for row in history]
    ax = plots.learning_curve({"sum": sums, "mean": history}, "objective")
    assert ax.get_yscale() == "log"
    assert plots.learning_curve(sums, "objective").get_yscale() == "linear"
    assert plots.learning_curve({"a": history, "b": history}).get_yscale() == "linear"


def test_iterations_are_whole_numbers_and_may_be_on_a_logarithmic_axis():
    from matplotlib.figure import Figure

    one = plots.learning_curve(curves(1)["model 0"][:1])
    ticks = one.xaxis.get_major_locator().tick_values(0.94, 1.06)
    assert (ticks == ticks.round()).all()
    given = Figure().subplots()
    given.set_xscale("log")
    assert plots.learning_curve(curves(1), ax=given).get_xscale() == "log"


def test_no_two_colours_are_nearly_one():
    """The tenth was the third, 27 of 256 apart."""
    from matplotlib.colors import to_rgb

    colours = 255 * np.array([to_rgb(colour) for colour in plots.COLORS])
    distances = np.linalg.norm(colours[:, None] - colours, axis=2)
    assert distances[np.triu_indices(len(colours), 1)].min() > 30


def test_the_ratio_of_popularity_bias_has_numbers_on_its_axis(X):
    """Between 0.1 and 1.9 a logarithmic axis had the number 1 alone."""
    scores = np.random.default_rng(0).random((X.shape[0], X.shape[1]))
    for model in (RGALS(8, random_state=0).fit(X), lambda users: scores[users]):
        ax = plots.popularity_bias(model, X)
        low, high = ax.get_ylim()
        assert sum(low <= tick <= high for tick in ax.yaxis.get_majorticklocs()) >= 3
