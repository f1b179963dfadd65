"""`tune`: one call from interactions to a tuned and refitted model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rgals.datasets.given import given
from rgals.estimator import RGALS
from rgals.losses import Loss
from rgals.matrix.weighting import VALUES
from rgals.metrics import evaluate
from rgals.model_selection.protocol import Protocol
from rgals.model_selection.tuning.engine import find, read_losses
from rgals.model_selection.tuning.halving import TOP
from rgals.model_selection.tuning.prepared import split_for_tuning
from rgals.model_selection.tuning.space import default_space
from rgals.runtime.checks import RANGES, check_choice, check_int, check_real, record_of
from rgals.runtime.errors import warn

__all__ = ["EdgeWarning", "Search", "TuneResult", "default_space", "tune"]


class EdgeWarning(UserWarning):
    """The best value of a parameter lies at the edge of the range that was searched."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How `tune` searches, and when it ends early.

    Parameters
    ----------
    repeats : int, default 1
        Number of validation splits: on small data one alone is too noisy to choose by. All but the first are
        drawn anew from training and validation interactions together.
    max_users : int or None, default 10_000
        Most users who judge a setting: a sample, always the same, where there are more; None: all.
    n_iter : int, default 16
        Most iterations of a full fit.
    min_gain : float, default 0.005
        Relative gain for which a larger K is worth its cost.
    sampler : "gp"
        "optuna" is accepted with a warning and means the same: "gp" finds better settings.
    time_limit : float, optional
        Seconds after which no further fit starts, except the refit.

    Raises
    ------
    ParameterError
        A parameter is out of its range.
    """

    repeats: int = 1
    max_users: int | None = 10_000
    n_iter: int = 16
    min_gain: float = 0.005
    sampler: str = "gp"
    time_limit: float | None = None

    def __post_init__(self) -> None:
        check_int("repeats", self.repeats, 1)
        check_int("n_iter", self.n_iter, 1)
        check_real("min_gain", self.min_gain, 0.0)
        if check_choice("sampler", self.sampler, ("gp", "optuna")) != "gp":
            said = "sampler='optuna' has gone, as 'gp' finds better settings; leave sampler out"
            warn(said, FutureWarning)
        RANGES["int > 0, optional"]("max_users", self.max_users)
        if self.time_limit is not None:
            check_real("time_limit", self.time_limit, 0.0)


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
        Its best parameters, as the refit takes them: those of the loss, ``reg``, ``reg_exponent``, ``K``,
        ``n_iter``, ``readout_exponent``.
    figure : float
        Mean of the metric over the validation splits. The largest of many: read it as optimistic.
    metric : str
    edges : tuple of str
        Parameters whose best value lies at the edge of their range.
    finished : bool
        False where ``time_limit`` ended the search.
    trials : list of dict
        Every setting measured: ``loss``, ``level`` (2: full fits), ``params`` (as they ran), the metric, its
        ``splits``, ``cost`` (in default fits), ``seconds``, ``error``.
    test : dict or None
        Metric of the refitted model on the test part, where the protocol has one.
    gain : float
        Relative gain over the middle of the space at the same K, which is the rule by default.
    """

    model: RGALS = field(repr=False)
    loss: str
    params: dict[str, Any]
    figure: float
    metric: str
    edges: tuple[str, ...]
    finished: bool
    trials: list[dict[str, Any]] = field(repr=False)
    test: dict[str, float] | None
    gain: float = 0.0

    def table(self, n: int = 10) -> str:
        """The best ``n`` settings at full cost, as a Markdown table."""
        # Only rows of one level were judged by the same users.
        top, n = min(max(row["level"] for row in self.trials), TOP), check_int("n", n, 0)
        rows = sorted((r for r in self.trials if r["level"] == top), key=lambda r: -r[self.metric])[:n]
        names = list(dict.fromkeys(name for row in rows for name in row["params"]))
        lines = [["loss", self.metric, "seconds", *names], ["---"] * (len(names) + 3)]
        for row in rows:
            shown = (row["params"].get(name, "") for name in names)
            cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in shown]
            lines.append([row["loss"], f"{row[self.metric]:.4f}", f"{row['seconds']:.2f}", *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tune(
    loss: str | Loss | Sequence[str | Loss],
    X: Any,
    space: Mapping[str, Any] | None = None,
    *,
    budget: float = 30,
    protocol: Protocol | str | None = None,
    validation: Any = None,
    columns: Any = None,
    metric: str = "ndcg@10",
    values: str = "auto",
    search: Search | None = None,
    journal: str | Path | None = None,
    refit: bool = True,
    random_state: int = 0,
    n_jobs: int | None = None,
    verbose: int = 0,
    **features: Any,
) -> TuneResult:
    """Find good parameters of a loss on validation interactions, and refit.

    The search of `rgals.RGALSCV`, by successive halving: many settings in fits with at most 32 factors and 2
    iterations, the best third of them with 5, the best of these in full, beside the middle of the space,
    which by default is the rule (`rgals.losses.rule`); then further full fits. First settings are spread
    evenly over the space; later ones come from a Gaussian process, fitted to all that was measured. The
    cheapest fits start from the user factors of a fit in the middle. Full fits are judged after an eighth, a
    quarter, a half and all of their iterations, and the best of these with several exponents of the read-out.
    The middle is left only for a gain beyond the standard error of the users' differences. If K is a list,
    larger values follow, a fifth of the budget each, while the one before gained ``search.min_gain``; if one
    is taken, one parameter at a time is moved there while that pays. From K=256 on, it begins at K / 4.

    Parameters
    ----------
    loss : str, Loss or sequence of these
        What to tune, as in `rgals.RGALSCV`; the best is refitted.
    X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
    space : dict, optional
        Changes of the default space of the loss (`default_space`): a tuple ``(low, high)`` is a range,
        searched on a logarithmic scale if low > 0; a list holds choices; anything else is a fixed value.
        Parameters of the loss, ``reg``, ``reg_exponent``, ``K`` (a value, an ascending list, or "auto":
        doubled from 64 on), ``init_scale``, ``values``; judged on every full fit, ``n_iter`` and
        ``readout_exponent`` (a value or a list); and ``hard_negatives``, weights that are tried on what was
        found, as far as the budget goes, and then ``half_life``, a list or "auto", where X has times and no
        protocol divides it (by default none of either). With several losses, a dict by name of the loss
        gives each its own. Ranges are for the training part and the first K: elsewhere they move as the rule.
    budget : float, default 30
        As in `rgals.RGALSCV`: in default fits with the first K, the refit and all evaluation included.
    protocol : Protocol or str, optional
        How training, validation and test parts are made; a string names one of `PROTOCOLS`. By default a
        tenth of every user's interactions is held out for validation and there is no test part.
    validation : sparse matrix, Interactions or frame, shape (n_users, n_items), optional
        Held-out interactions, in place of a protocol; X is the training part.
    columns : dict or "matrix", optional
        Where X and validation are frames: as in `rgals.RGALS.fit`.
    metric : str, default "ndcg@10"
        As in `rgals.metrics.evaluate`; larger must be better.
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default "auto"
        As in `rgals.RGALSCV`.
    search : Search, optional
        Splits, iterations, limits.
    journal : path, optional
        File of JSON lines: every fit is written there, and read from there when the same call runs again,
        after an interruption or with a larger budget.
    refit : bool, default True
    random_state : int, default 0
        Of splits, search and fits.
    n_jobs : int or None
    verbose : int, default 0
        1 shows a progress bar.
    **features : sparse matrix, array, frame or (ids, matrix), optional
        ``user_features`` and ``item_features``, as in `rgals.RGALSCV.fit`; not beside a protocol.

    Returns
    -------
    TuneResult

    Raises
    ------
    ParameterError
        A parameter is out of its range; the space names something unknown.
    InputError
        Nothing can be held out; the journal belongs to other data or settings.

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
    search = record_of("search", search, Search)
    losses = read_losses(loss)
    check_real("budget", budget, 0.0, open_min=True)
    check_choice("values", values, VALUES)
    check_int("random_state", random_state, 0, 2**32 - 1)
    X = given(X, columns) if protocol is not None else given(X, columns).warned()
    validation = None if validation is None else given(validation, columns, "validation")
    for name in features.keys() - {"user_features", "item_features"}:
        raise TypeError(f"tune() got an unexpected keyword argument {name!r}")
    asked = search.repeats, search.max_users, random_state
    prepared = split_for_tuning(X, protocol, validation, *asked, features)
    common = {"n_jobs": n_jobs, "random_state": random_state, "n_iter": search.n_iter, "values": values}
    deadline = None if search.time_limit is None else time.monotonic() + search.time_limit
    how = losses, prepared, space, common, metric, budget, search.min_gain
    found = find(*how, journal, {}, {}, deadline, verbose)
    measure, params = found.measure, found.params
    edges = measure.space.edges(found.trial.params)
    if edges:
        at = ", ".join(f"{edge}={params[edge]:.4g}" for edge in edges)
        advice = "widen it there (space=..., or --space and --K on the command line)"
        warn(f"the best setting lies at the edge of the space: {at}; {advice}", EdgeWarning)
    model = measure.model(params)
    test = None
    if refit:
        model.fit(prepared.final, user_ids=prepared.user_ids, item_ids=prepared.item_ids, **features)
        parts = prepared.parts
        if parts is not None and parts.test.nnz:
            judged, known = cast(Any, model), prepared.final
            if parts.test_fold_in is not None:
                judged, known = (model.transform(parts.test_fold_in), model.item_factors_), parts.test_fold_in
            test = evaluate(judged, known, parts.test, metric, n_jobs=model.n_jobs)
    outcome = params, found.judged.figure, metric, edges, found.finished, found.rows, test
    return TuneResult(model, measure.name, *outcome, found.gain)
