"""`tune`: one call from interactions to a tuned and refitted model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rgals.estimator import RGALS
from rgals.files.journal import Journal
from rgals.losses import LOSSES, Loss, get_loss
from rgals.matrix.validate import as_csr
from rgals.matrix.weighting import VALUES
from rgals.metrics import evaluate
from rgals.model_selection.protocol import Protocol
from rgals.model_selection.tuning.halving import PROPOSERS, OutOfTimeError, Trial, best_trial, counts, search
from rgals.model_selection.tuning.space import Space, default_space, make_space
from rgals.model_selection.tuning.trials import Measurement, Prepared, make_model, split_for_tuning
from rgals.runtime.bars import Bar
from rgals.runtime.checks import check_choice, check_int, check_real
from rgals.runtime.errors import InputError, ParameterError
from rgals.training.data import weigh

__all__ = ["EdgeWarning", "TuneResult", "default_space", "tune"]

_TOP = 2  # the level of full cost


class EdgeWarning(UserWarning):
    """The best value of a parameter lies at the edge of the range that was searched."""


@dataclass(frozen=True)
class TuneResult:
    """What `tune` found.

    Attributes
    ----------
    model : RGALS
        The best setting, refitted to training and validation interactions together (to training alone where
        users were held out); not fitted with ``refit=False``.
    loss : str
        Name of the best loss.
    params : dict
        Its best parameters: those of the loss, ``reg``, ``reg_exponent``, ``K``, ``n_iter``.
    figure : float
        Mean of the metric over the validation splits. The largest of many: read it as optimistic.
    metric : str
    edges : tuple of str
        Parameters whose best value lies at the edge of what was searched.
    finished : bool
        False where ``time_limit`` ended the search.
    trials : list of dict
        Every fit: ``loss``, ``level`` (2 is full cost), ``params`` (K and n_iter as they ran), the metric,
        ``seconds``, ``error``.
    test : dict or None
        Metric of the refitted model on the test part, where the protocol has one.
    """

    model: RGALS
    loss: str
    params: dict[str, Any]
    figure: float
    metric: str
    edges: tuple[str, ...]
    finished: bool
    trials: list[dict[str, Any]]
    test: dict[str, float] | None

    def table(self, n: int = 10) -> str:
        """The best n settings at full cost, as a Markdown table.

        Parameters
        ----------
        n : int, default 10

        Returns
        -------
        str
        """
        top = max(row["level"] for row in self.trials)
        rows = sorted((r for r in self.trials if r["level"] == top), key=lambda r: -r[self.metric])[:n]
        names = list(dict.fromkeys(name for row in rows for name in row["params"]))
        lines = ["| " + " | ".join(["loss", self.metric, "seconds", *names]) + " |"]
        lines.append("|" + "---|" * (len(names) + 3))
        for row in rows:
            shown = [row["params"].get(name, "") for name in names]
            cells = [row["loss"], f"{row[self.metric]:.4f}", f"{row['seconds']:.2f}", *map(_cell, shown)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tune(
    loss: str | Loss | Sequence[str | Loss],
    X: Any,
    space: Mapping[str, Any] | None = None,
    *,
    budget: float = 30,
    protocol: Protocol | str | None = None,
    validation: Any = None,
    metric: str = "ndcg@10",
    repeats: int = 1,
    max_users: int | None = 10_000,
    n_iter: int = 16,
    values: str = "auto",
    min_gain: float = 0.005,
    sampler: str = "gp",
    time_limit: float | None = None,
    journal: str | Path | None = None,
    refit: bool = True,
    random_state: int = 0,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> TuneResult:
    """Find good parameters of a loss on validation interactions, and refit.

    Successive halving: many settings at half of K and a quarter of the iterations, the best third of them at
    the whole K, the best third of those in full; then further settings in full. A Gaussian process, fitted to
    everything measured so far, chooses where to look, after settings spread evenly over the space. Where K is
    a list, that happens with its first value; larger ones follow, with a fifth of the budget each, as long as
    each improves the metric by ``min_gain``.

    Parameters
    ----------
    loss : str, Loss or sequence of these
        What to tune. Of several, each gets the budget and the best is refitted. Parameters of an object that
        differ from the defaults of its class stay as they are.
    X : sparse matrix, array or Interactions, shape (n_users, n_items)
    space : dict, optional
        Changes of the default space of the loss (`default_space`): a tuple ``(low, high)`` is a range,
        searched on a logarithmic scale if low > 0; a list holds choices; anything else is a fixed value.
        Parameters of the loss, ``reg``, ``reg_exponent``, ``K`` (a value or an ascending list), ``n_iter``,
        ``init_scale``, ``values``. With several losses, a dict by name of the loss gives each its own.
    budget : float, default 30
        In full fits with the first K, for each loss. A level of the halving counts as three times as costly
        as the one before.
    protocol : Protocol or str, optional
        How training, validation and test parts are made; a string names one of `PROTOCOLS`. By default a
        tenth of every user's interactions is held out for validation and there is no test part.
    validation : sparse matrix, shape (n_users, n_items), optional
        Held-out interactions, in place of a protocol; X is the training part.
    metric : str, default "ndcg@10"
        As in `rgals.metrics.evaluate`; larger must be better.
    repeats : int, default 1
        Validation splits to average over: on small data one alone is too noisy to choose by. The further
        ones are drawn anew from training and validation interactions together.
    max_users : int or None, default 10_000
        Users that a setting is judged by: a sample, always the same, where there are more; None for all.
    n_iter : int, default 16
        Iterations of a full fit.
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default "auto"
        What an interaction weighs, as in `rgals.RGALS`; "auto" is decided once, for all fits.
    min_gain : float, default 0.005
        Relative gain for which a larger K is worth its cost.
    sampler : {"gp", "optuna"}, default "gp"
        Who proposes settings: evenly spread points and then a Gaussian process, or Optuna's TPE (extra
        ``tune``) for both.
    time_limit : float, optional
        Seconds after which no further fit starts, except the refit.
    journal : path, optional
        File of JSON lines: every fit is written there, and read from there when the same call runs again,
        after an interruption or with a larger budget.
    refit : bool, default True
    random_state : int, default 0
        Of splits, search and fits.
    n_jobs : int or None
    verbose : int, default 0
        1 shows a progress bar.

    Returns
    -------
    TuneResult

    Raises
    ------
    ParameterError
        A parameter is out of its range; the space names something unknown.
    InputError
        Nothing can be held out; the journal belongs to other data or settings.
    MissingDependencyError
        ``sampler="optuna"`` without optuna.

    Warns
    -----
    EdgeWarning
        The best value lies at the edge of its range: widen it.
    ValuesWarning
        As in `rgals.RGALS.fit`.

    References
    ----------
    Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS
    2016. Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998.

    Examples
    --------
    >>> from rgals.datasets import make_implicit
    >>> from rgals.model_selection import tune
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> found = tune("ials", X, {"K": 8, "alpha0": (0.001, 30.0), "reg": (1e-5, 10.0)}, budget=4)
    >>> found.model.user_factors_.shape, sorted(found.params)[:3]
    ((200, 8), ['K', 'alpha0', 'item_exponent'])
    """
    losses = _losses(loss)
    check_real("budget", budget, 0.0, open_min=True)
    check_int("repeats", repeats, 1)
    check_int("n_iter", n_iter, 1)
    check_real("min_gain", min_gain, 0.0)
    check_choice("values", values, VALUES)
    check_choice("sampler", sampler, tuple(PROPOSERS))
    check_int("random_state", random_state, 0)
    if max_users is not None:
        check_int("max_users", max_users, 1)
    if time_limit is not None:
        check_real("time_limit", time_limit, 0.0)
    prepared = split_for_tuning(X, protocol, validation, repeats, max_users, random_state)
    spaces = {
        name: make_space(one, prepared.splits[0].train, _own(space, name, losses))
        for name, one in losses.items()
    }
    if any("values" not in {**one.fixed, **one.dimensions} for one in spaces.values()):
        values = weigh(values, as_csr(prepared.final), depth=3).kind
    common = {"n_jobs": n_jobs, "random_state": random_state, "n_iter": n_iter, "values": values}
    record = None
    if journal is not None:
        setting = {"data": prepared.fingerprint(), "metric": metric, "random_state": random_state}
        setting |= {} if values == "raw" else {"values": values}
        record = Journal(Path(journal), setting)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    found: dict[str, list[Trial]] = {name: [] for name in losses}
    rows: list[dict[str, Any]] = []
    finished = True
    with Bar(desc="tune", unit="fit", total=_total(spaces, budget), disable=not verbose) as bar:
        best_so_far = [0.0]

        def report(row: dict[str, Any]) -> None:
            rows.append(row)
            if row["level"] == _TOP:
                best_so_far[0] = max(best_so_far[0], row[metric])
            bar.set_postfix_str(f"{row['loss']} K={row['params']['K']} best {best_so_far[0]:.4f}")
            bar.update()

        for name, one in losses.items():
            proposer = PROPOSERS[sampler](spaces[name], random_state)
            measure = Measurement(one, name, prepared, metric, common, record, deadline, report)
            try:
                search(spaces[name], measure, budget, proposer, min_gain=min_gain, trials=found[name])
            except OutOfTimeError:
                finished = False
    name, best = _best_loss(found, min_gain)
    edges = spaces[name].edges(best.params)
    if edges:
        values = ", ".join(f"{edge}={best.params[edge]:.4g}" for edge in edges)
        warnings.warn(
            f"the best setting lies at the edge of the space: {values}; widen it there (space=...)",
            EdgeWarning,
            stacklevel=2,
        )
    model = make_model(losses[name], best.params, _TOP, **common)
    params = {**best.params, "n_iter": model.n_iter}
    test = None
    if refit:
        model.fit(prepared.final, user_ids=prepared.user_ids, item_ids=prepared.item_ids)
        test = _test(model, prepared, metric)
    return TuneResult(model, name, params, best.figure, metric, edges, finished, rows, test)


def _losses(given: Any) -> dict[str, Loss]:
    listed: list[Any] = [given] if isinstance(given, str | Loss | type) else list(given)
    objects = [get_loss(one) for one in listed]
    if not objects:
        raise ParameterError("loss", given, "give at least one loss")
    names = [next((n for n, kind in LOSSES.items() if kind is type(one)), one.name) for one in objects]
    repeated = {name for name in names if names.count(name) > 1}
    labels = [repr(one) if name in repeated else name for name, one in zip(names, objects, strict=True)]
    if len(set(labels)) != len(labels):
        raise ParameterError("loss", given, "give each loss once")
    return dict(zip(labels, objects, strict=True))


def _own(space: Mapping[str, Any] | None, name: str, losses: Mapping[str, Loss]) -> Mapping[str, Any] | None:
    """The part of ``space`` that is for this loss."""
    if space is not None and space and set(space) <= set(losses):
        return space.get(name)
    return space


def _total(spaces: Mapping[str, Space], budget: float) -> int:
    levels, refinements = counts(budget)
    return sum(sum(levels) + refinements if space.dimensions else 1 for space in spaces.values())


def _best_loss(found: Mapping[str, list[Trial]], min_gain: float) -> tuple[str, Trial]:
    """The name of the best loss, among those that came to the costliest level, and its best setting."""
    bests = {name: best_trial(trials, min_gain) for name, trials in found.items() if trials}
    if not bests:
        raise InputError("the time limit ended the search before its first fit; give more time_limit")
    level = max(trial.level for trial in bests.values())
    return max((x for x in bests.items() if x[1].level == level), key=lambda x: x[1].figure)


def _test(model: RGALS, prepared: Prepared, metric: str) -> dict[str, float] | None:
    """Quality on the test part of the protocol."""
    parts = prepared.parts
    if parts is None or parts.test.nnz == 0:
        return None
    if parts.test_fold_in is not None:
        users = model.transform(parts.test_fold_in)
        return evaluate((users, model.item_factors_), parts.test_fold_in, parts.test, metric)
    return evaluate(model, prepared.final, parts.test, metric, n_jobs=model.n_jobs)
