"""The search of a half-life: where times are known, judged by what came last, within the budget."""

from __future__ import annotations

import numpy as np
import pytest

from rgals import RGALS, RGALSCV, ParameterError
from rgals.datasets import Interactions, read_interactions
from rgals.metrics import evaluate
from rgals.model_selection import temporal_split, tune
from rgals.model_selection.tuning.engine import AGES_TRIED

OPTIONS = {"K": 8, "n_iter": 6, "random_state": 0, "values": "binary", "n_splits": 1}


def drifting(seed=0, days=200, n_users=150, n_items=120, clusters=6, stay=40) -> Interactions:
    """Users who change their cluster of items after ``stay`` days, each at a time of their own."""
    rng = np.random.default_rng(seed)
    user = rng.integers(n_users, size=9000)
    day = np.sort(rng.integers(days, size=len(user)))
    phase = (day + rng.integers(stay, size=n_users)[user]) // stay
    taste = rng.integers(clusters, size=(n_users, phase.max() + 1))[user, phase]
    item = rng.integers(n_items // clusters, size=len(user)) * clusters + taste
    return read_interactions((user, item, None, day))


@pytest.fixture(scope="module")
def data() -> Interactions:
    return drifting()


@pytest.fixture(scope="module")
def model(data):
    return RGALSCV(budget=4, **OPTIONS).fit(data)


def test_a_half_life_is_found_where_tastes_change_and_ranks_what_comes_next(data, model):
    life = model.best_params_["half_life"]
    assert 5 < life < 80  # tastes stay for 40 days
    past, coming = temporal_split(data, 180)
    same = {name: value for name, value in model.best_params_.items() if name != "half_life"}
    with_age, without = (RGALS(**same, half_life=h, random_state=0).fit(past) for h in (life, None))
    figures = [evaluate(m, past, coming, "ndcg@10")["ndcg@10"] for m in (with_age, without)]
    assert figures[0] > 1.1 * figures[1]
    tried = [row["half_life"] for row in model.cv_results_["params"] if row.get("half_life")]
    early = data.timestamp[data.timestamp < np.quantile(data.timestamp, 0.9)]
    lives = [float(f"{np.mean(early.max() - early) * share:.4g}") for share in AGES_TRIED]
    assert len(set(tried)) >= 2 and set(tried) <= set(lives) and life in tried


def test_a_wrong_date_does_not_hide_the_half_life(data):
    wrong = data.replace(timestamp=np.where(np.arange(data.nnz) == 5, -20_000, data.timestamp))
    assert 5 < RGALSCV(budget=4, **OPTIONS).fit(wrong).best_params_["half_life"] < 80


def test_the_last_fit_is_that_of_all_interactions_with_their_times(data, model):
    again = RGALS(**model.best_params_, random_state=0).fit(data)
    np.testing.assert_array_equal(model.item_factors_, again.item_factors_)
    np.testing.assert_array_equal(model.transform(data), model.user_factors_)


def test_none_is_taken_where_times_say_nothing_or_nobody_asks(data):
    shuffled = data.replace(timestamp=np.random.default_rng(0).permutation(data.timestamp))
    timeless = data.replace(timestamp=None)
    assert "half_life" not in RGALSCV(budget=0.5, **OPTIONS).fit(timeless).best_params_
    assert "half_life" not in RGALSCV(budget=0.5, space={"half_life": None}, **OPTIONS).fit(data).best_params_
    life = RGALSCV(budget=2, **OPTIONS).fit(shuffled).best_params_.get("half_life", np.inf)
    assert life > 100  # of 200 days: nothing that times could tell


def test_tune_tries_what_is_listed_and_judges_by_the_later_part_that_is_given(data):
    past, coming = temporal_split(data, 180)
    options = {"K": 8, "half_life": [20, "2000d"]}
    seconds = [X.replace(timestamp=X.timestamp * 86_400 + 1_700_000_000) for X in (past, coming)]
    options["half_life"][0] *= 86_400
    found = tune("rg2", seconds[0], options, validation=seconds[1], budget=2, values="binary")
    assert found.params["half_life"] == 20 * 86_400
    seen = found.model._state().seen
    assert seen.times.max() == seconds[1].timestamp.max() and seen.nnz == data.nnz
    without = tune("rg2", seconds[0], {"K": 8}, validation=seconds[1], budget=0.5, values="binary")
    assert "half_life" not in without.params


def test_half_lives_that_cannot_be_judged_are_refused(data):
    past, coming = temporal_split(data, 180)
    timeless = data.replace(timestamp=None)
    asked = {"K": 8, "half_life": [20]}
    for X, more in (
        (timeless, {}),
        (past, {"validation": coming.matrix}),
        (data, {"protocol": "user 80/10/10"}),
    ):
        with pytest.raises(
            ParameterError, match="half_life.*half-lives need times in X and in validation, and no protocol"
        ):
            tune("rg2", X, asked, budget=2, **more)


def forgetting(seed, life=30.0, n_users=300, n_items=480, groups=12, days=360, each=60) -> Interactions:
    """Users draw new tastes at random times: what an event says of the present one halves in ``life``."""
    rng = np.random.default_rng(seed)
    changes = (rng.random((days, n_users)) < 1 - 0.5 ** (1 / life)).cumsum(axis=0)
    user, day = rng.integers(n_users, size=days * each), np.repeat(np.arange(days), each)
    tastes = rng.integers(groups, size=(n_users, changes.max() + 1))
    chance = rng.integers(groups, size=len(user))
    liked = np.where(rng.random(len(user)) < 0.8, tastes[user, changes[day, user]], chance)
    item = rng.integers(n_items // groups, size=len(user)) * groups + liked
    return read_interactions((user, item, None, day))


def test_the_half_life_of_a_log_whose_truth_is_known_is_found_and_pays(amount):
    for seed in range(amount(1, 5)):
        past, coming = temporal_split(forgetting(seed), 330)
        found = RGALSCV(budget=4, **OPTIONS).fit(past)
        same = {name: value for name, value in found.best_params_.items() if name != "half_life"}
        ageless = RGALS(**same, random_state=0).fit(past)
        figures = [evaluate(m, past, coming, "ndcg@10")["ndcg@10"] for m in (found, ageless)]
        life = found.best_params_.get("half_life")
        assert life is not None and 15 <= life <= 60 and figures[0] > figures[1], (seed, life, figures)
