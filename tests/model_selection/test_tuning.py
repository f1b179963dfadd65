"""`tune` finds what is there to find, resumes, leaves the test part alone and names too narrow ranges."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV

from rgals import IALS, RG2, RGALS, RGX, WRMF
from rgals.cli import main
from rgals.datasets import make_implicit
from rgals.losses import Loss
from rgals.matrix.validate import as_csr
from rgals.metrics import evaluate
from rgals.model_selection import (
    RGALSCV,
    EdgeWarning,
    Protocol,
    Search,
    default_space,
    split_interactions,
    tune,
)
from rgals.model_selection import tuning as searching
from rgals.model_selection.tuning import trials as measuring
from rgals.model_selection.tuning.engine import polish, read_losses
from rgals.model_selection.tuning.halving import (
    ETA,
    LEVELS,
    GaussianProcess,
    OutOfTimeError,
    Trial,
    best_trial,
    counts,
    search,
)
from rgals.model_selection.tuning.prepared import split_for_tuning
from rgals.model_selection.tuning.space import OneOf, Range, make_space
from rgals.runtime.errors import InputError, InputTypeError, NumericalError, ParameterError

TOP = len(LEVELS) - 1
SMALL = {"K": 8, "user_exponent": 0.0, "item_exponent": 0.0}
AS_IT_IS = {"n_iter": 16, "readout_exponent": 0.0}  # one figure for a fit


@pytest.fixture(scope="module")
def data():
    data = make_implicit(150, 100, n_clusters=5, mean_interactions=14, random_state=3)
    assert len(np.unique(np.diff(data.matrix.indptr))) > 5
    return data


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        yield


def space_of(given=None, loss=None):
    X = as_csr(make_implicit(150, 100, random_state=0).matrix)
    return make_space(loss or IALS(), X, {"K": 16, **(given or {})})


# The space.


def test_a_range_knows_its_scale_and_its_edges():
    log, linear = Range(0.01, 100.0, True), Range(-0.6, 0.2, False)
    assert log.value(0.5) == pytest.approx(1.0) and linear.value(0.5) == pytest.approx(-0.2)
    for d in (log, linear):
        for u in (0.0, 0.2, 0.77, 1.0):
            assert d.place(d.value(u)) == pytest.approx(u, abs=1e-3)
            assert d.low <= d.value(u) <= d.high
    assert log.at_edge(0.0101) and log.at_edge(99) and not log.at_edge(3.0)
    assert linear.value(linear.neutral) == 0.0 and log.neutral is None


def test_choices_are_at_the_edge_only_if_they_are_ordered_numbers():
    assert OneOf((1, 2, 4)).at_edge(4) and not OneOf((1, 2, 4)).at_edge(2)
    assert not OneOf(("exact", "gramian")).at_edge("exact")
    assert not OneOf((0.0, 1.0)).at_edge(1.0)
    for option in ("a", "b", "c"):
        assert OneOf(("a", "b", "c")).value(OneOf(("a", "b", "c")).place(option)) == option


@pytest.mark.parametrize("loss", [RG2(), RGX(), IALS(), WRMF()])
def test_default_spaces_follow_the_data(loss):
    def space(n_items, each=1):
        X = sum(sp.eye_array(500, n_items, k=7 * k, format="csr") for k in range(each))
        return default_space(loss, as_csr(sp.csr_array(X)))

    few, many = space(1000)["reg"], space(1000, each=40)["reg"]
    assert few[0] > many[0] and few[1] > many[1]
    if not isinstance(loss, RG2):  # alpha of RG2 and RGX is relative to N
        name = "alpha0" if isinstance(loss, IALS) else "alpha"
        users, items = np.repeat(np.arange(500), 40), np.arange(20_000) * 7919  # everybody has 40 items
        small, large = (
            default_space(loss, as_csr(sp.csr_array((np.ones(20_000), (users, items % n)), shape=(500, n))))
            for n in (1000, 20_000)
        )
        small, large = small[name], large[name]
        if isinstance(loss, WRMF):  # its alpha is the reciprocal of alpha0
            small, large = large, small
        assert small[0] > large[0] and small[1] > large[1]
    assert few[1] / few[0] == pytest.approx(36)
    weight = next(name for name in ("alpha", "alpha0") if name in space(1000))
    assert space(1000)[weight][1] / space(1000)[weight][0] == pytest.approx(100)
    assert {"reg", "K", "user_exponent", "item_exponent"} <= set(space(1000))
    assert max(space(1000)["K"]) <= 500


def test_a_space_is_changed_by_the_caller_and_by_the_loss_object():
    space = space_of({"alpha0": [0.1, 0.3], "reg": 0.02}, IALS(item_exponent=-0.4))
    assert space.fixed["item_exponent"] == -0.4 and space.fixed["reg"] == 0.02
    assert space.dimensions["alpha0"] == OneOf((0.1, 0.3))
    assert space.ladder == (16,)
    assert "user_exponent" in space.dimensions


def test_settings_move_to_other_data_as_the_rule_moves():
    """Exponents by a difference, others by a factor; choices and fixed values stay."""
    space = space_of({"alpha0": (0.01, 10.0), "reg": (0.001, 1.0), "user_exponent": [0.0, 0.5]})
    space = dataclasses.replace(
        space, centre={"alpha0": 0.1, "reg": 0.02, "item_exponent": -0.1, "user_exponent": 0}
    )
    params = {"alpha0": 0.3, "reg": 0.05, "item_exponent": 0.2, "user_exponent": 0.5, "K": 16}
    there = {"alpha0": 0.1, "reg": 0.06, "item_exponent": -0.3, "user_exponent": 0.1}
    moved = space.carried(params, there)
    assert moved == {**params, "reg": pytest.approx(0.15), "item_exponent": pytest.approx(0.0)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": (0.1, 1.0)}, "IALS has alpha0"),
        ({"reg": (1.0, 0.1)}, "low < high"),
        ({"reg": (0.1, 0.2, 0.3)}, "low < high"),
        ({"reg": []}, "at least one choice"),
        ({"K": [64, 32]}, "ascends"),
        ({"K": [8, 8]}, "ascends"),
        ({"reg": (1.0, 1.0)}, "low < high"),
        ({"K": 0}, "ascends"),
        ({"K": True}, "ascends"),
        ({"readout_exponent": []}, "one number, or a list"),
        ({"n_iter": 2.5}, "one integer, or a list"),
    ],
)
def test_a_wrong_space_is_named(given, message):
    with pytest.raises(ParameterError, match=message):
        space_of(given)


def test_numbers_of_numpy_are_numbers():
    """A range of float32 or of integers of numpy was no range."""
    space = space_of({"reg": (np.float32(0.5), np.int64(2)), "n_iter": [np.int64(2)], "readout_exponent": 0})
    assert space.dimensions["reg"] == Range(0.5, 2.0, True) and space.stops == (2,)
    assert type(space.stops[0]) is int, "as a journal keeps it"


# The search, on functions whose optimum is known.


def bowl(peak, collapse=False):
    """Quality with a known best setting, noisy where it is cheap; far off it is nothing."""

    def measure(params, level):
        far = np.log(params["alpha0"] / peak[0]) ** 2 + np.log(params["reg"] / peak[1]) ** 2
        far += 4 * (params["item_exponent"] - peak[2]) ** 2
        bias = 0.2 * (TOP - level) * np.log(params["reg"] / peak[1])
        value = 0.3 - 0.02 * far + 0.01 * bias
        return Trial(params, level, 0.001 if collapse and far > 6 else value)

    return measure


def nominal(K, level, n_iter=None):
    """A level costs as many times as much as the one before as settings go on to it."""
    return float(ETA) ** (level - TOP)


@pytest.mark.few(2)
@pytest.mark.parametrize("collapse", [False, True])
def test_the_search_finds_the_top_of_a_bowl(collapse):
    given = {"alpha0": (0.01, 10.0), "reg": (0.001, 1.0), "user_exponent": 0.0}
    space = space_of(given)
    peak = (0.9, 0.02, 0.0)
    trials = search(space, bowl(peak, collapse), 30, nominal)
    best = best_trial(trials)
    assert best.level == TOP
    # The bowl falls by 0.02 a unit of log squared; a random draw among 30 is about 0.02 below the top.
    assert best.figure > 0.3 - 0.003


def test_levels_cost_what_the_budget_says():
    for costs in ([1 / 9, 1 / 3, 1.0], [0.05, 0.07, 0.9], [0.2, 0.3, 2.0]):
        levels, most = counts(30, costs)
        assert sum(n * cost for n, cost in zip(levels, costs, strict=True)) <= 30
        assert levels[0] == 3 * levels[1] >= 3 and most == 48


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_what_fits_leave_that_end_early_is_for_more_of_them(share):
    space = space_of({"alpha0": (0.01, 10.0), "reg": (0.001, 1.0)})
    figure = bowl((1, 0.1, 0))

    def measure(params, level):
        return dataclasses.replace(figure(params, level), cost=share * nominal(16, level))

    trials = search(space, measure, 12, nominal)
    levels, _ = counts(12, [nominal(16, level) for level in range(TOP + 1)])
    assert [sum(t.level == k for t in trials) for k in range(TOP)] == levels[:TOP]
    spent = share * sum(nominal(16, t.level) for t in trials)
    assert 11 < spent <= 12, "a fit may cost 1, as far as is known before it"


def test_what_is_far_worse_in_cheap_fits_is_not_fitted_in_full():
    space = space_of({"alpha0": (0.01, 10.0), "reg": (0.001, 1.0)})
    trials = search(space, bowl((1, 0.1, 0)), 30, nominal)
    points = [tuple(space.point(t.params)) for t in trials]
    cheap = {point: t.figure for point, t in zip(points, trials, strict=True) if t.level == TOP - 1}
    full = {point for point, t in zip(points, trials, strict=True) if t.level == TOP}
    full -= {tuple(space.point(space.params(space.middle)))}
    assert len(full & cheap.keys()) >= 2
    assert min(cheap[point] for point in full & cheap.keys()) >= 0.95 * max(cheap.values())


def test_small_data_are_not_searched_without_end():
    levels, most = counts(10, [1e-6, 1e-6, 1e-6])
    assert levels[0] <= 48 and levels[1] <= 16 and levels[TOP] <= most == 16


def test_a_small_budget_takes_two_settings_in_full():
    levels, most = counts(0.1, [0.1, 0.2, 1.5])
    assert levels[TOP] == most == 2 and levels[:TOP] == [3, 1]


def test_points_fill_the_cube_and_three_of_four_have_the_rules_exponents():
    space = space_of({"alpha0": (0.01, 10.0), "reg": (0.001, 1.0)})
    space = dataclasses.replace(space, centre={**space.centre, "item_exponent": -0.3})
    points = np.array([GaussianProcess(space, 1).next(n) for n in range(64)])
    names = list(space.dimensions)
    searched = points[:, [names.index("alpha0"), names.index("reg")]]
    assert np.abs(np.histogram2d(*searched.T, bins=4, range=[[0, 1]] * 2)[0] - 4).max() <= 3
    exponent = [space.params(p)["item_exponent"] for p in points]
    others = [e for n, e in enumerate(exponent) if n % 4 != 3]
    assert others == [-0.3] * 48 and len(set(exponent[3::4])) == 16
    assert space.params(space.middle)["user_exponent"] == 0


def test_k_is_climbed_while_it_pays():
    gains = {16: 0.20, 32: 0.22, 64: 0.2205, 128: 0.9}
    space = space_of({"K": [16, 32, 64, 128], "reg": (0.001, 1.0)})

    def measure(params, level):
        return Trial(params, level, gains[params["K"]])

    trials = search(space, measure, 10, nominal, min_gain=0.005)
    assert {t.params["K"] for t in trials} == {16, 32, 64}, "64 gains too little, so 128 is not tried"
    assert best_trial(trials, 0.005).params["K"] == 32
    assert best_trial(trials, 0.0).params["K"] == 64


@pytest.mark.parametrize("climb", [None, 3.0])
def test_a_larger_k_is_tried_with_as_many_settings_as_its_share_pays_for(climb):
    """By what fits cost with the iterations that are left, and where the best is the middle too."""
    space = space_of({"K": [16, 32], "reg": (0.001, 1.0)})

    def measure(params, level):
        far = np.abs(space.point(params) - space.middle).max()
        return Trial(params, level, 0.2 + 0.001 * params["K"] - 0.01 * far, {"n_iter": 8})

    def cost(K, level, n_iter):
        return nominal(K, level) * (n_iter or 16) / 16

    trials = search(space, measure, 10, cost, climb=climb)
    larger = [t for t in trials if t.params["K"] == 32]
    assert len(larger) == (2.0 if climb is None else climb) / 0.5
    assert {t.params["n_iter"] for t in larger} == {8}


def test_a_smaller_k_that_leads_says_nothing_of_iterations():
    """Later ones take no more than were best at the K before, and the read-out is always tried anew."""
    space = dataclasses.replace(space_of({"K": [16, 32], "reg": (0.001, 1.0)}), lead=(4,))

    def measure(params, level):
        taken = {"n_iter": 8, "readout_exponent": 0.1}
        return Trial(params, level, 0.2 + 0.001 * params["K"], taken)

    trials = search(space, measure, 4, nominal)
    given = {
        K: [t.params.keys() & {"n_iter", "readout_exponent"} for t in trials if t.params["K"] == K]
        for K in (4, 16, 32)
    }
    assert not any(given[4]) and not any(given[16]) and len(given[16]) > 1
    assert given[32] and all(names == {"n_iter"} for names in given[32])


def test_searches_of_other_seeds_try_other_settings():
    space = space_of({"alpha0": (0.01, 10.0), "reg": (0.001, 1.0)})
    seeds = (0, 0, 1)
    one, same, other = (search(space, bowl((1, 0.1, 0)), 3, nominal, random_state=k) for k in seeds)
    assert one == same and one[0].params == other[0].params and one[1].params != other[1].params


def test_nothing_to_search_is_one_fit_for_each_k():
    space = space_of({"alpha0": 0.1, "reg": 0.1, "user_exponent": 0.0, "item_exponent": 0.0})
    trials = search(space, lambda params, level: Trial(params, level, 0.5), 30, nominal)
    assert [(t.level, t.params["K"]) for t in trials] == [(TOP, 16)]


def test_what_was_measured_before_the_time_ran_out_is_kept():
    space = space_of()
    found: list[Trial] = []

    def measure(params, level):
        if len(found) == 5:
            raise OutOfTimeError
        return Trial(params, level, 0.1)

    with pytest.raises(OutOfTimeError):
        search(space, measure, 30, nominal, trials=found)
    assert len(found) == 5


# The whole, on generated data.


def test_tune_beats_the_middle_of_the_space_and_refits_to_everything(data, quiet):
    found = tune("ials", data, SMALL, budget=5, random_state=0)
    top = [row for row in found.trials if row["level"] == TOP]
    middle, best = top[0], max(row["ndcg@10"] for row in top)
    assert middle["params"]["alpha0"] == pytest.approx(found.trials[0]["params"]["alpha0"], rel=1e-2)
    assert found.figure == best or found.params["reg"] == pytest.approx(middle["params"]["reg"], rel=0.1)
    assert found.gain >= 0 and found.figure <= best
    assert found.finished and found.test is None
    assert found.model.seen_.nnz == data.matrix.nnz
    assert np.array_equal(found.model.item_ids_, data.item_ids)
    assert found.model.n_iter in (4, 8, 12, 16) and found.model.K == 8
    of_model = {name: found.params[name] for name in ("reg", "n_iter", "readout_exponent")}
    again = RGALS(8, IALS(found.params["alpha0"]), random_state=0, **of_model).fit(data)
    np.testing.assert_array_equal(again.item_factors_, found.model.item_factors_)
    assert found.table(3).count("\n") == 4 and "alpha0" in found.table()


def test_the_table_has_all_settings_in_full_where_some_were_confirmed(data, quiet):
    found = tune("ials", data, SMALL, budget=5, search=Search(n_iter=8, repeats=2), refit=False)
    levels = [row["level"] for row in found.trials]
    assert max(levels) == TOP + 1 and levels.count(TOP) > levels.count(TOP + 1)
    assert found.table(99).count("\n") == 1 + levels.count(TOP)
    assert found.table(0).count("\n") == 1
    assert len(repr(found)) < 500 < len(str(found.trials))
    with pytest.raises(ParameterError, match="^n=-1 "):  # which left out the last one
        found.table(-1)


def test_figures_are_those_of_evaluate(data, quiet):
    train, validation = split_interactions(data.matrix, (0.8, 0.2), random_state=5)
    space = {**SMALL, **AS_IT_IS, "alpha0": 0.1, "reg": 0.02}
    found = tune("ials", train, space, validation=validation, metric="recall@20", refit=False)
    model = RGALS(8, IALS(0.1), reg=0.02, n_iter=16, random_state=0).fit(train)
    assert found.figure == evaluate(model, train, validation, "recall@20")["recall@20"]
    assert not hasattr(found.model, "_snapshot")


def test_users_are_sampled_and_splits_repeated(data, quiet):
    space = {**SMALL, **AS_IT_IS, "alpha0": 0.1, "reg": 0.02}
    prepared = split_for_tuning(data, None, None, 3, 20, 0)
    assert [len(split.users) for split in prepared.splits] == [20] * 3
    hidden = [split.hidden.to_scipy() for split in prepared.splits]
    assert (hidden[0] != hidden[1]).nnz > 0 and prepared.final.nnz == data.matrix.nnz
    single = [tune("ials", data, space, search=Search(repeats=r), refit=False).figure for r in (1, 3)]
    assert single[0] != single[1]
    few = tune("ials", data, space, search=Search(max_users=20), refit=False).figure
    assert few not in (single[0], tune("ials", data, space, random_state=1, refit=False).figure)


def test_every_split_is_of_all_that_is_fitted_in_the_end(data):
    splits = split_for_tuning(data, None, None, 3, None, 0).splits
    for split in splits:
        both = split.train.to_scipy() + split.hidden.to_scipy()
        assert (both != data.matrix).nnz == 0 and split.train.nnz + split.hidden.nnz == data.matrix.nnz
        assert split.hidden.nnz == pytest.approx(splits[0].hidden.nnz, rel=0.1)
    other = split_for_tuning(data, None, None, 3, None, 5).splits
    assert len({split.hidden.indices.tobytes() for split in (*splits, *other)}) == 6
    with pytest.raises(ParameterError, match=r"repeats=2 .*where users are held out"):
        split_for_tuning(data, Protocol(split="held_out_users"), None, 2, None, 0)
    with pytest.raises(InputError, match="makes no validation part"):
        split_for_tuning(data, Protocol(ratios=(0.9, 0.0, 0.1)), None, 1, None, 0)
    with pytest.raises(InputError, match="not both"):
        split_for_tuning(data, Protocol(), data, 1, None, 0)


def test_what_is_asked_of_tune_reaches_its_fits(data, quiet):
    space = {"K": [2, 8], **AS_IT_IS, "alpha0": 0.1, "reg": 0.02, "user_exponent": 0.0, "item_exponent": 0.0}
    protocol = Protocol(ratios=(0.9, 0.1, 0.0))
    how = {"protocol": protocol, "budget": 0.5, "random_state": 3, "values": "raw"}
    tuned = [tune("ials", data, space, search=Search(min_gain=g), **how) for g in (0.0, 1e9)]
    assert [found.params["K"] for found in tuned] == [8, 2] and tuned[0].test is None
    model = tuned[1].model
    assert model.random_state == 3 and model.values == "raw"
    again = RGALS(2, IALS(0.1), reg=0.02, n_iter=16, values="raw", random_state=3).fit(data)
    np.testing.assert_array_equal(model.item_factors_, again.item_factors_)
    found = tune("ials", data, space, **{**how, "protocol": "user 80/10/10"}, metric="recall@5")
    assert list(found.test) == ["recall@5"] and found.metric == "recall@5"
    parts = Protocol(core=8).apply(data)
    small = tune("ials", data, {**space, "K": 2}, **{**how, "protocol": Protocol(core=8)}).model
    assert len(parts.users) < data.n_users and len(parts.items) < data.n_items
    assert small.user_ids_.tolist() == data.user_ids[parts.users].tolist()
    assert small.item_ids_.tolist() == data.item_ids[parts.items].tolist()
    marked = data.replace(split=np.arange(data.nnz).astype(np.int8) % 2)
    with pytest.warns(UserWarning, match="marked"):
        tune("ials", marked, {**space, "K": 2}, budget=0.5, refit=False)


def test_the_test_part_is_not_looked_at(data, quiet):
    protocol = Protocol(seed=3)
    parts = protocol.apply(data)
    space = {**SMALL, **AS_IT_IS, "alpha0": [0.1], "reg": [0.02]}
    found = tune("ials", data, space, protocol=protocol, budget=2)
    assert found.model.seen_.nnz == parts.train.nnz + parts.validation.nnz
    assert found.test == evaluate(found.model, parts.train_and_validation, parts.test, "ndcg@10")
    blind = RGALS(8, IALS(0.1), reg=0.02, n_iter=16, random_state=0).fit(parts.train)
    assert found.figure == evaluate(blind, parts.train, parts.validation)["ndcg@10"]


def test_held_out_users_are_folded_in(data, quiet, monkeypatch):
    threads = []
    judged = searching.evaluate
    monkeypatch.setattr(
        searching, "evaluate", lambda *given, **how: threads.append(how["n_jobs"]) or judged(*given, **how)
    )
    protocol = Protocol(split="held_out_users", ratios=(0.6, 0.2, 0.2))
    parts = protocol.apply(data)
    space = {**SMALL, **AS_IT_IS, "alpha0": 0.1, "reg": 0.02}
    found = tune("ials", data, space, protocol=protocol, n_jobs=1)
    assert threads == [1]
    model = RGALS(8, IALS(0.1), reg=0.02, n_iter=16, random_state=0).fit(parts.train)
    users = model.transform(parts.validation_fold_in), model.item_factors_
    expected = evaluate(users, parts.validation_fold_in, parts.validation)["ndcg@10"]
    assert found.figure == expected and found.test is not None
    assert np.array_equal(found.model.user_ids_, data.user_ids[parts.users[parts.train_users]])


def test_an_edge_is_warned_of(data):
    space = {**SMALL, "alpha0": 0.1, "reg": [0.1, 0.5, 2.0]}
    with pytest.warns(EdgeWarning, match="reg=0.1"):
        found = tune("ials", data, space, budget=4, refit=False)
    assert found.edges == ("reg",)


def test_losses_may_come_from_an_iterator():
    assert list(read_losses(iter(["rg2", "ials"]))) == ["rg2", "ials"]


def test_several_losses_share_a_table_and_the_best_is_refitted(data, quiet):
    space = {"rg2": {**SMALL, "reg": 0.1}, "ials": {**SMALL, "alpha0": 1e-8, "reg": 1e3}}
    found = tune(["rg2", IALS()], data, space, budget=3)
    assert found.loss == "rg2" and isinstance(found.model.loss, RG2)
    assert {row["loss"] for row in found.trials} == {"rg2", "ials"}


def test_a_journal_is_taken_up_again(data, quiet, tmp_path, monkeypatch):
    path = tmp_path / "trials.jsonl"
    options = {"budget": 1.5, "journal": path, "refit": False, "search": Search(n_iter=8, repeats=2)}
    whole = tune("rg2", data, SMALL, **options)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(whole.trials) + 1 and {row["level"] for row in whole.trials} == {0, 1, 2, 3}
    path.write_bytes(b"".join(lines[:6]) + lines[6][:20])
    measured = []
    row = measuring.Measurement._row
    monkeypatch.setattr(measuring.Measurement, "_row", lambda *args: measured.append(1) or row(*args))
    again = tune("rg2", data, SMALL, **options)
    assert len(measured) == len(whole.trials) - 5
    figures = [[row["ndcg@10"] for row in found.trials] for found in (whole, again)]
    assert figures[0] == figures[1] and again.params == whole.params
    with pytest.raises(InputError, match="other settings"):
        tune("rg2", data, SMALL, metric="recall@5", **options)


def test_a_journal_is_of_its_values_and_seed(data, quiet, tmp_path):
    options = {"budget": 0.5, "journal": tmp_path / "trials.jsonl", "refit": False}
    tune("rg2", data, {**SMALL, "reg": 0.1}, values="binary", **options)
    for what, other in (
        ("values", {"values": "bm25"}),
        ("random_state", {"values": "binary", "random_state": 1}),
    ):
        with pytest.raises(InputError, match=rf"other settings \(.*{what}"):
            tune("rg2", data, {**SMALL, "reg": 0.1}, **other, **options)


def test_a_journal_takes_numpys_numbers(data, quiet, tmp_path):
    space = SMALL | {"reg": np.float32(0.25), "readout_exponent": [np.float32(0.0)]}
    options = {"budget": 1, "journal": tmp_path / "trials.jsonl", "refit": False}
    assert tune("rg2", data, space, **options).figure == tune("rg2", data, space, **options).figure


def test_a_journal_of_more_iterations_has_no_figures_of_fewer(data, quiet, tmp_path):
    """Cheap fits of one iteration were taken for those of two and five."""
    options = {"budget": 1, "journal": tmp_path / "trials.jsonl", "refit": False}
    tune("ials", data, SMALL, **options)
    found = tune("ials", data, SMALL, search=Search(n_iter=np.uint8(1)), **options)
    fresh = tune("ials", data, SMALL, search=Search(n_iter=1), budget=1, refit=False)
    assert [row["ndcg@10"] for row in found.trials] == [row["ndcg@10"] for row in fresh.trials]


def test_a_journal_of_other_iterations_leaves_the_rule_its_own_figure(tmp_path):
    """Where others were confirmed, the rule kept the figure after the iterations of the first call."""
    X = make_implicit(120, 80, random_state=0)

    def found(n_iter, folder=None):
        search = RGALSCV(K=32, budget=3, n_iter=n_iter, random_state=0, space={"hard_negatives": 0})
        search.fit(X, folder=folder)
        return str(search.best_params_), search.best_score_, search.gain_

    short, long = found(4, tmp_path), found(16)
    assert long[2] > 0 and short != long
    assert found(16, tmp_path) == long and found(4, tmp_path) == short


@pytest.mark.parametrize("order", [["ials", "rg2"], ["rg2", "ials"]])
def test_past_the_time_limit_losses_are_compared_on_the_same_hidden_parts(order, monkeypatch):
    """One that was not confirmed any more won by figures of other users, with a gain that nobody measured."""
    X, looks = make_implicit(150, 100, random_state=3), iter(range(1, 100))
    clock = SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: float(next(looks)))
    for module in (searching, measuring):
        monkeypatch.setattr(module, "time", clock)
    search = Search(repeats=4, n_iter=4, time_limit=14)
    found = tune(order, X, {"K": 4}, budget=3, search=search)
    assert not found.finished and {row["level"] for row in found.trials} >= {2, 3}, "some were confirmed"
    figures = {
        loss: [r["ndcg@10"] for r in found.trials if (r["loss"], r["level"]) == (loss, 2)] for loss in order
    }
    assert min(figures["ials"]) > max(figures["rg2"]) and found.loss == "ials"
    assert found.figure in figures["ials"]
    first = figures[order[0]]
    assert found.figure / max(first) - 1 <= found.gain <= found.figure / min(first) - 1


def test_the_score_is_the_mean_of_splits_of_different_sizes(rng):
    X = make_implicit(300, 200, random_state=0).matrix.tocsr()
    X.data[:] = np.where(rng.random(X.nnz) < 0.4, -1.0, 1.0)  # some users have likes in one part alone
    model = RGALSCV(K=8, loss=IALS(dislikes=True), budget=4, random_state=0).fit(X)
    row = {name: column[model.best_index_] for name, column in model.cv_results_.items()}
    splits = [row[f"split{i}_test_score"] for i in range(model.n_splits_)]
    splits = [score for score in splits if not np.isnan(score)]
    assert np.ptp(splits) > 0
    assert model.best_score_ == row["mean_test_score"] == pytest.approx(np.mean(splits), rel=1e-12)


def test_a_time_limit_ends_the_search(data, quiet, tmp_path):
    path = tmp_path / "trials.jsonl"
    with pytest.raises(InputError, match="time limit"):
        tune("rg2", data, SMALL, budget=2, search=Search(time_limit=0.0))
    tune("rg2", data, SMALL, budget=2, journal=path, refit=False)
    kept = path.read_bytes().splitlines(keepends=True)[:4]
    path.write_bytes(b"".join(kept))
    found = tune("rg2", data, SMALL, budget=2, journal=path, search=Search(time_limit=0.0))
    assert not found.finished and len(found.trials) == 3
    assert found.model.n_iter == 16, "the refit is a full fit even if only cheap ones were measured"


def test_no_fit_starts_after_the_time_limit(data, quiet, monkeypatch):
    measured, levels = measuring.Measurement._measured, []

    def noted(self, params, level, taken):
        levels.append(level)
        return measured(self, params, level, taken)

    clock = SimpleNamespace(monotonic=lambda: float(levels.count(TOP) > 1), perf_counter=time.perf_counter)
    monkeypatch.setattr(measuring.Measurement, "_measured", noted)
    monkeypatch.setattr(measuring, "time", clock)
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: 0.0))
    options = {"search": Search(n_iter=4, repeats=4, time_limit=0.5), "refit": False}
    found = tune("rg2", data, {"K": 4}, budget=4, **options)
    assert levels.count(TOP) == 2 and levels[-1] == TOP and not found.finished


def test_a_system_that_cannot_be_solved_counts_as_nothing(data, quiet, monkeypatch):
    fit = RGALS.fit

    def fails_without_reg(self, *args, **options):
        if self.reg == 0:
            raise NumericalError("the system of row 3 is not positive definite")
        return fit(self, *args, **options)

    monkeypatch.setattr(RGALS, "fit", fails_without_reg)
    found = tune("ials", data, {**SMALL, "alpha0": 0.1, "reg": [0.0, 0.02]}, budget=2)
    assert found.params["reg"] == 0.02
    assert {row["error"][:10] for row in found.trials if row["params"]["reg"] == 0} == {"the system"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget"),
        ({"protocol": "by moon"}, "protocol"),
        ({"random_state": 2**32}, "random_state"),
        ({"metric": "ndgc@10"}, "ndgc"),
    ],
)
def test_wrong_options_are_named(data, options, message):
    with pytest.raises(ParameterError, match=message):
        tune("rg2", data, SMALL, **{"budget": 1, **options})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"beta": (0.0, 1.5)}, "RGX.beta=1.5"),
        ({"form": ["exact", "exakt"]}, "RGX.form='exakt'"),
        ({"alpha": (-1, 0.0)}, "RGX.alpha=-1.0"),
        ({"init": ["auto", "spectral"], "init_scale": 0.1}, "init_scale=0.1"),
        ({"K": [4, 1 << 16]}, "K=65536"),
    ],
)
def test_what_no_fit_takes_is_refused_before_the_first(data, space, message, monkeypatch):
    monkeypatch.setattr(RGALS, "fit", None)
    with pytest.raises(ParameterError, match=message):
        tune("rgx", data, {"K": 4, **space}, budget=1)


def test_what_are_no_records_is_refused(data):
    with pytest.raises(ParameterError, match="protocol={.* is not valid: choose one of 'user 80/10/10'"):
        tune("rg2", data, SMALL, protocol={"core": 5})
    with pytest.raises(InputTypeError, match=r"search is a dict: write search=Search\(...\)"):
        tune("rg2", data, SMALL, search={"n_iter": 5})


def test_the_last_seed_has_splits_too(data):
    """The seed of the second split was 2^32."""
    first, second = (split_for_tuning(data, None, None, 2, None, 2**32 - 1).splits[k].hidden for k in (0, 1))
    assert min(first.nnz, second.nnz) > 0 and not np.array_equal(first.indices, second.indices)


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeats": 0},
        {"max_users": 0},
        {"n_iter": 0},
        {"min_gain": -1},
        {"sampler": "grid"},
        {"time_limit": -1},
    ],
)
def test_a_search_names_what_is_out_of_range(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        Search(**wrong)


def test_tune_takes_frames_whose_columns_are_named(data, quiet):
    """The frame, its part that judges, and both as matrices of the same users and items: one figure."""
    train, held = split_interactions(data, (0.8, 0.2), random_state=5)
    frames = [
        pd.DataFrame({"who": part.user_ids[pairs.row], "what": part.item_ids[pairs.col], "n": 1.0})
        for part, pairs in ((part, sp.coo_matrix(part.matrix)) for part in (train, held))
    ]
    columns = {"user": "who", "item": "what", "value": "n"}
    space = {**SMALL, **AS_IT_IS, "alpha0": 0.1, "reg": 0.02}
    found = tune("ials", frames[0], space, validation=frames[1], columns=columns)
    same = tune("ials", train, space, validation=held)
    assert found.figure == pytest.approx(same.figure, rel=1e-6)
    assert found.model.user_ids_.tolist() == same.model.user_ids_.tolist()
    with pytest.raises(InputError, match="columns="):
        tune("ials", frames[0], space)


def test_a_sampler_that_has_gone_warns_and_changes_nothing(data, quiet):
    with pytest.warns(FutureWarning, match="leave sampler out"):
        gone = Search(sampler="optuna")
    found = [tune("ials", data, SMALL, budget=2, search=one, refit=False).params for one in (gone, Search())]
    assert found[0] == found[1]


def test_a_metric_without_a_value_for_anybody_is_refused(quiet):
    """Nobody has an item that is neither known nor hidden: no area under any curve."""
    with pytest.raises(ParameterError, match="metric='auc' .* any judged user"):
        tune("ials", sp.csr_array(np.ones((20, 8))), {**SMALL, "K": 2}, budget=2, metric="auc")


def test_a_nan_is_no_better_than_the_best_that_is_polished():
    space = space_of({"reg": (0.001, 1.0)})
    best = Trial({**space.params(space.middle), "K": 16}, TOP, 0.2, {"n_iter": 4})
    measure = SimpleNamespace(
        space=space,
        price=lambda *given: 1.0,
        again=lambda why, params, taken, level: Trial(params, level, np.nan, taken, cost=1.0),
    )
    tried = polish(measure, best, 100.0)
    # Two steps to either side of every parameter of the best, from where no NaN led away.
    assert len(tried) == 4 * len(space.dimensions)
    assert len(polish(measure, best, 3.5)) == 3, "as far as the budget goes"


def test_a_setting_is_polished_as_long_as_that_pays_and_measured_once():
    space = space_of({"reg": (0.001, 1.0), "alpha0": 0.1, "user_exponent": 0.0, "item_exponent": 0.0})
    best = Trial({**space.params(np.array([0.1])), "K": 16}, TOP, -1.0, {"n_iter": 4})
    seen = []

    def again(why, params, taken, level):
        seen.append(float(space.point(params)[0]))
        return Trial(params, level, -abs(seen[-1] - 0.6), taken, cost=1.0)

    tried = polish(SimpleNamespace(space=space, price=lambda *given: 1.0, again=again), best, 100.0)
    assert len(tried) == len(seen) == len(set(seen))
    assert max(t.figure for t in tried) > -0.05, "downwards first, then up to where it is best"


class Plain(Loss):
    """A loss of somebody else."""

    name = "Plain"

    def __init__(self, strength=0.5):
        self.strength = strength

    def coefficients(self, degrees):
        return IALS(self.strength).coefficients(degrees)


def test_an_unknown_loss_is_searched_by_reg(data, quiet):
    found = tune(Plain(), data, {"K": 4, "strength": (0.05, 1.0)}, budget=2)
    assert found.loss == "Plain" and {"reg", "strength"} <= set(found.params)


# scikit-learn's own searches.


@pytest.mark.parametrize("kind", [GridSearchCV, HalvingGridSearchCV])
def test_scikit_learn_searches(data, kind):
    options = (
        {"resource": "n_iter", "max_resources": 8, "min_resources": 2} if kind is HalvingGridSearchCV else {}
    )
    grid = {"loss__alpha": [0.01, 0.3], "reg": [0.05, 100.0]}
    model = RGALS(4, RG2(), n_iter=4, random_state=0)
    found = kind(model, grid, cv=2, **options).fit(data.matrix)
    assert found.best_params_["reg"] == 0.05
    assert found.best_estimator_.item_factors_.shape == (100, 4)


# The command.


@pytest.fixture
def ratings(data, tmp_path):
    path = tmp_path / "ratings.csv"
    users, items = data.matrix.tocoo().coords
    lines = [f"u{u},i{i}" for u, i in zip(users.tolist(), items.tolist(), strict=True)]
    path.write_text("user,item\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.few(0)
def test_the_command_tunes_saves_and_goes_on(ratings, tmp_path, capsys):
    model, journal = tmp_path / "model.npz", tmp_path / "trials.jsonl"
    options = ["--K", "4,8", "--space", "user_exponent=0", "--space", "item_exponent=-0.2,0,0.1"]
    options += ["--space", "reg=0.001:1", "--budget", "2", "--journal", str(journal), "--show", "2"]
    assert main(["tune", str(ratings), "-o", str(model), "--loss", "rg2,ials", *options]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4 and "saved to" in err
    loaded = RGALS.load(model)
    assert loaded.item_ids_[0].startswith("i") and loaded.K in (4, 8)
    rows = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert {row["params"]["item_exponent"] for row in rows} <= {-0.2, 0, 0.1}
    assert main(["tune", str(ratings), "-o", str(model), "--loss", "rg2,ials", *options, "-q"]) == 0
    assert len(journal.read_text().splitlines()) == len(rows) + 1
    assert capsys.readouterr().out == out


def test_the_command_takes_exponents_of_the_read_out_and_says_what_was_gained(ratings, tmp_path, capsys):
    model = tmp_path / "model.npz"
    options = ["--K", "4", "--space", "readout_exponent=0.1", "--space", "reg=0.1", "--budget", "0.5"]
    assert main(["tune", str(ratings), "-o", str(model), "--n-iter", "4", *options]) == 0
    loaded = RGALS.load(model)
    assert loaded.readout_exponent == 0.1 and loaded.item_scale_.std() > 0
    assert "% over the rule" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ["reg", "reg=", "reg=2:1", "speed=3"])
def test_the_command_refuses_a_wrong_space(ratings, tmp_path, entry, capsys):
    assert main(["tune", str(ratings), "-o", str(tmp_path / "m.npz"), "--space", entry]) == 1
    assert "space" in capsys.readouterr().err


# Early stopping with bounded cost.


def test_validation_judges_by_a_sample_of_users(data):
    train, held_out = split_interactions(data.matrix, (0.8, 0.2), random_state=0)

    def curve(n):
        model = RGALS(8, "ials", n_iter=3, validation_users=n, random_state=0)
        return [record["ndcg@10"] for record in model.fit(train, validation=held_out).history_]

    everybody = curve(None)
    assert curve(10_000) == everybody and curve(20) == curve(20) != everybody
    model = RGALS(8, "ials", n_iter=30, early_stopping=True, patience=2, validation_users=40, random_state=0)
    figures = [record["ndcg@10"] for record in model.fit(train, validation=held_out).history_]
    judged = np.flatnonzero(np.diff(held_out.indptr))
    sample = np.sort(np.random.default_rng(0).choice(judged, 40, replace=False))
    assert evaluate(model, train, held_out, users=sample)["ndcg@10"] == pytest.approx(max(figures), rel=1e-3)
    with pytest.raises(ParameterError, match="validation_users"):
        RGALS(8, validation_users=0).fit(train)


def test_validation_that_is_all_in_X_is_refused_before_the_first_fit(data, monkeypatch):
    """It ended in the words of `evaluate`, about a test part and users that nobody had asked for."""
    monkeypatch.setattr(RGALS, "fit", lambda *_, **__: pytest.fail("fitted"))
    for find in (partial(tune, "ials"), RGALSCV(K=4, n_iter=2).fit):
        with pytest.raises(InputError, match="^validation holds no interaction that is not in X too"):
            find(data, validation=data[:5])
        with pytest.raises(InputError, match="validation: its user ids are integers.*the model text"):
            find(data, validation=data.replace(user_ids=np.arange(data.n_users)))
