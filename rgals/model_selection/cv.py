"""`RGALSCV`: the estimator that tunes itself."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from rgals.datasets.given import Given, given
from rgals.estimator import RGALS
from rgals.losses import AUTO, Loss
from rgals.model_selection.tuning.engine import WEIGHTS, find, read_losses
from rgals.model_selection.tuning.halving import AGES, TOP
from rgals.model_selection.tuning.prepared import split_for_tuning
from rgals.model_selection.tuning.trials import of_estimator
from rgals.runtime.checks import RANGES, check_int, check_real, or_auto
from rgals.runtime.errors import ParameterError, warn
from rgals.runtime.memory import typed_errors
from rgals.runtime.progress import LOG
from rgals.runtime.sklearn import BaseEstimator
from rgals.training.data import draw_seed, dtype_name, is_seed, read

#: Number of hidden parts below a number of interactions: on small data, one part is too noisy.
_PARTS = ((8, 100_000), (3, 300_000), (2, 600_000))


class RGALSCV(RGALS):
    """`RGALS` that finds its own settings on held-out interactions, and is then a fitted `RGALS`.

    The search of `rgals.model_selection.tune`, around the rule: losses, ``alpha``, ``reg``, exponents of
    users and items, the exponent of the read-out, the number of iterations, and K if several are given;
    then, as far as the budget goes, weights of ``hard_negatives`` and ``reg`` beside them. A hidden tenth of
    every user's interactions judges the settings, on small data several such parts. The rule is a candidate
    too; another setting is taken only if it gains more than the standard error of the users' differences.
    The last fit takes all interactions.

    Parameters
    ----------
    K : int, list of int, or "auto", default=64
        Number of factors. An ascending list is searched at its first value; each larger one follows while the
        one before gained ``min_gain``. "auto" is 64, doubled while that pays and memory suffices.
    loss : str, Loss, or list of these, default="rg2"
        Several share the budget, the best mean wins. What an object sets otherwise than its class is fixed.
    budget : float, default=10
        Cost in default fits with the first K, evaluation and the last fit included: estimated, not timed. A
        fit counts as at least 2.5 seconds of two cores, about. At least two settings are fitted in full. Each
        larger K gets a fifth of the budget, in fits with that K and at most the iterations that were best
        before; if one is taken, it gets two fifths more, to move one parameter of the best setting at a time.
        From K=256 on, a quarter of the first K is searched, and its best settings are tried with the first K.
    space : dict, optional
        Changes of the space, as in `rgals.model_selection.tune`. By default the best setting is also tried
        with ``hard_negatives`` of 0.5, 1, 2 and 4, on the CPU and without dislikes; and with half-lives, if
        times are known, judged by the last tenth of all interactions (or by ``validation``, if that has
        times). ``{"hard_negatives": 0}`` and ``{"half_life": None}`` leave them out; a list names others.
    metric : str, default="ndcg@10"
        As in `rgals.metrics.evaluate`; larger must be better.
    n_iter : int, default=16
        Most iterations of a fit. With hard negatives the last 6, or half of all if fewer, draw them.
    min_gain : float, default=0.01
        Relative gain for which a larger K is worth its cost.
    n_splits : int or "auto", default="auto"
        Number of hidden parts: "auto" is 1, below 600,000 interactions 2, below 300,000 3, below 100,000 8.
        Half of them, at least one, judge all settings, the others only the rule and the three best.
    validation_users : int or None, default=10_000
        Most users who judge a setting: a sample, always the same.
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default="auto"
        Weight of an interaction, as in `RGALS`; "auto" is decided once, for all fits.
    dtype : {"float32", "float64"}, default="float32"
    device : {"cpu", "cuda", "cuda:N"}, default="cpu"
    n_jobs : int or None, default=None
        Threads; the result does not depend on it, not by a bit.
    random_state : int, RandomState, Generator or None, default=None
    verbose : int, default=0
        1 shows a progress bar with the time left, the memory that each K will need, and the gain.

    Attributes
    ----------
    best_params_ : dict
        Parameters of `RGALS` that the last fit took.
    best_score_ : float
        Their mean metric on the hidden parts that confirmed them. With a single hidden part it is the largest
        of many figures: read it as optimistic.
    best_index_ : int
        Their row of ``cv_results_``.
    cv_results_ : dict of arrays
        A row for every setting that was measured, as in scikit-learn: ``params``, ``param_NAME``,
        ``splitI_test_score``, ``mean_test_score``, ``std_test_score``, ``rank_test_score`` (full fits rank
        before cheap ones); ``level`` (-1: half-lives, on the newest interactions; 0, 1: cheap fits; 2: full
        fits; 3: full fits that confirm, on other hidden parts), ``cost`` in default fits, ``seconds``.
    gain_ : float
        Relative gain over the rule at the same K; 0 where the rule was kept.
    best_estimator_ : RGALS
        The fitted model on its own.
    n_splits_ : int
        Number of hidden parts.

    See Also
    --------
    rgals.RGALS : with the attributes of a fitted model, all of which are here too.

    Notes
    -----
    `save` writes a file that ``RGALS.load`` reads; it holds the fitted model and not the search.

    Examples
    --------
    >>> from rgals import RGALSCV
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> model = RGALSCV(K=8, budget=1, random_state=0).fit(X)
    >>> sorted(model.best_params_)
    ['K', 'loss', 'n_iter', 'readout_exponent', 'reg', 'reg_exponent', 'values']
    >>> ids, scores = model.recommend([0, 1], n=5)
    >>> ids.shape
    (2, 5)
    """

    def __init__(
        self,
        K: Any = 64,
        loss: Any = "rg2",
        *,
        budget: float = 10,
        space: Mapping[str, Any] | None = None,
        metric: str = "ndcg@10",
        n_iter: int = 16,
        min_gain: float = 0.01,
        n_splits: int | str = "auto",
        validation_users: int | None = 10_000,
        values: str = "auto",
        dtype: str = "float32",
        device: str = "cpu",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.K, self.loss, self.budget, self.space, self.metric = K, loss, budget, space, metric
        self.n_iter, self.min_gain, self.n_splits = n_iter, min_gain, n_splits
        self.validation_users, self.values, self.dtype, self.device = validation_users, values, dtype, device
        self.n_jobs, self.random_state, self.verbose = n_jobs, random_state, verbose

    @typed_errors
    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        *,
        validation: Any = None,
        folder: str | os.PathLike | None = None,
        user_ids: Any = None,
        item_ids: Any = None,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
    ) -> Self:
        """Search, then fit all interactions with what was found.

        Parameters
        ----------
        X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)
            As in `RGALS.fit`.
        y : ignored
        validation : sparse matrix, Interactions or frame, shape (n_users, n_items), optional
            Judges the settings instead of hidden parts of ``X``: for data whose future is no random part of
            them. The last fit takes it too. Users and items unknown to ``X`` are left out, with a warning.
        folder : path, optional
            Every measurement is written there. After an interruption the same call resumes from it, with the
            same results but for seconds; so does a larger budget. It needs an int ``random_state``.
        user_ids, item_ids, columns, user_features, item_features
            As in `RGALS.fit`. All fits of the search have the features. With those of users no hard negatives
            are tried.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is out of its range; the space names something unknown.
        InputError
            The matrix cannot be used; the folder belongs to other data or settings.

        Warns
        -----
        UserWarning
            No user has two interactions: the rule is taken. A larger K does not fit into memory.
        """
        losses, seed, K = self._read_parameters(folder)
        told, features = given(X, columns), {"user_features": user_features, "item_features": item_features}
        matrix, labels, names = read(self, told, dtype_name(self.dtype), user_ids, item_ids)
        whole, found, n_splits = matrix.to_scipy(), None, 0
        if validation is not None or matrix.row_counts.max(initial=0) > 1:
            auto = next((parts for parts, below in _PARTS if matrix.nnz < below), 1)
            n_splits = auto if isinstance(self.n_splits, str) else self.n_splits
            n_splits = 1 if validation is not None else n_splits
            known = None if validation is None else given(validation, columns, "validation")
            data = Given(whole, *labels, timestamp=told.timestamp, frame=told.frame), None, known
            prepared = split_for_tuning(*data, n_splits, self.validation_users, seed, features)
            asked = losses, prepared, self.space, self._common(seed), self.metric, self.budget, self.min_gain
            journal = None if folder is None else Path(folder) / "search.jsonl"
            defaults = {"K": self.K, "half_life": AUTO, "hard_negatives": list(WEIGHTS)}
            setting = {"dtype": dtype_name(self.dtype)}
            found = find(*asked, journal, setting, defaults, verbose=self.verbose)
            measure = found.measure
            params = {"values": measure.common["values"], **of_estimator(measure.loss, found.params)}
            whole, labels = prepared.final, (prepared.user_ids, prepared.item_ids)
        else:
            warn("no user has two interactions, so that nothing can be hidden: the rule is taken as it is")
            params = {"K": K, "loss": next(iter(losses.values())), "n_iter": self.n_iter}
        model = RGALS(**{**self._common(seed), **params}, verbose=self.verbose)
        model.fit(whole, user_ids=labels[0], item_ids=labels[1], **features)
        state = model._state()
        self.best_params_, self.n_splits_ = params, n_splits
        self.gain_, self.best_score_, self.best_index_, rows = 0.0, np.nan, -1, []
        said = "RGALSCV: nothing was searched; the rule is taken"
        if found is not None:
            self.gain_, rows = found.gain, found.rows
            self.best_score_, self.best_index_ = found.judged.figure, found.judged.row
            figures = f"{self.metric} {self.best_score_:.4f} on hidden interactions"
            said = f"RGALSCV: the rule is kept, {figures}: nothing found is better beyond noise"
            if self.gain_:
                said = f"RGALSCV: {figures}, {100 * self.gain_:+.1f} % over the rule; {self.best_params_}"
        self.cv_results_ = results(rows, self.metric, losses, n_splits)
        self._snapshot = replace(state, record=replace(state.record, feature_names=names))
        LOG.info(said)
        if self.verbose:
            print(said, file=sys.stderr)
        return self

    def _read_parameters(self, folder: Any) -> tuple[dict[str, Loss], int, int]:
        """Check all parameters; return the losses by name, the seed, and the first K."""
        losses = read_losses(self.loss)
        check_real("budget", self.budget, 0.0, open_min=True)
        check_real("min_gain", self.min_gain, 0.0)
        check_int("n_iter", self.n_iter, 1)
        or_auto(check_int, "n_splits", self.n_splits, 1)
        RANGES["int > 0, optional"]("validation_users", self.validation_users)
        K = self.K[0] if isinstance(self.K, list) and self.K else self.K
        K = 64 if isinstance(K, str) and K == AUTO else K
        RGALS(**{**self._common(0), "K": K})._check({})
        if folder is not None and not is_seed(self.random_state):
            raise ParameterError("random_state", self.random_state, "a search in a folder needs an int")
        seed = int(self.random_state) if is_seed(self.random_state) else draw_seed(self.random_state)
        draw_seed(seed)
        return losses, seed, K

    def _common(self, seed: int) -> dict[str, Any]:
        """Parameters of `RGALS` that all fits share."""
        names = ("n_iter", "values", "dtype", "device", "n_jobs", "metric")
        return {**{name: getattr(self, name) for name in names}, "random_state": seed}

    @property
    def best_estimator_(self) -> RGALS:
        """The fitted model on its own."""
        state = self._state()
        model = RGALS(**state.record.params)
        model._snapshot = state
        return model

    # Files and other packages' models hold no search, so these return an `RGALS`.
    load = staticmethod(RGALS.load)  # type: ignore[assignment]
    from_implicit = staticmethod(RGALS.from_implicit)  # type: ignore[assignment]

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters that were set and, once fitted, what was found."""
        text = BaseEstimator.__repr__(self, N_CHAR_MAX)
        best = getattr(self, "best_params_", None)
        return text if best is None else f"{text}  # found {best}"


def results(rows: Sequence[dict], metric: str, losses: Mapping[str, Loss], n_splits: int) -> dict[str, Any]:
    """The table of a search in the form of scikit-learn's ``cv_results_``: arrays by name."""
    scores = np.array([row[metric] for row in rows], np.float64)
    splits = np.full((len(rows), n_splits), np.nan)  # NaN for the parts that did not judge a row
    for n, row in enumerate(rows):
        start = n_splits - len(row["splits"]) if row["level"] > TOP else 0
        if row["level"] != AGES:  # judged by the newest interactions, which are none of the parts
            splits[n, start : start + len(row["splits"])] = row["splits"]
    # Rank by level first: scores of different levels cannot be compared.
    places = [(row["level"], row[metric]) for row in rows]
    ranks = [1 + sum(other > one for other in places) for one in places]
    out: dict[str, Any] = {"params": [of_estimator(losses[row["loss"]], row["params"]) for row in rows]}
    settings = [{"loss": row["loss"], **row["params"]} for row in rows]
    for name in dict.fromkeys(("loss", *(name for setting in settings for name in setting))):
        column = np.ma.masked_all(len(rows), object)
        for n, setting in enumerate(settings):
            column[n] = setting.get(name, np.ma.masked)
        out[f"param_{name}"] = column
    out |= {f"split{k}_test_score": splits[:, k] for k in range(n_splits)}
    out |= {"mean_test_score": scores, "std_test_score": np.array([np.std(row["splits"]) for row in rows])}
    out |= {"rank_test_score": np.array(ranks, np.int32), "level": np.array([n for n, _ in places], np.int32)}
    return out | {name: np.array([row[name] for row in rows], np.float64) for name in ("cost", "seconds")}
