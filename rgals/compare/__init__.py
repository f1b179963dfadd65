"""Time to quality: alternating least squares and gradient descent on the same data, split and metric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rgals.compare.methods import DEFAULT, METHODS, get_methods
from rgals.compare.report import Comparison, summarise, write
from rgals.compare.runner import Options, Runner, Split, prepare
from rgals.runtime.errors import InputError


def compare(
    data: Any,
    methods: Any = DEFAULT,
    *,
    out: str | os.PathLike,
    name: str | None = None,
    min_value: float | None = None,
    core: int | None = None,
    K: int = 64,
    seeds: int = 3,
    max_trials: int = 16,
    time_limit: float = 120.0,
    patience: int = 8,
    metric: str = "ndcg@10",
    objective_iterations: int = 60,
    validation_users: int | None = None,
    start: Mapping[str, Mapping[str, float]] | None = None,
    tune_only: bool = False,
    random_state: int = 0,
    n_jobs: int | None = None,
    verbose: int = 1,
) -> Comparison:
    """Compare methods by validation quality against training seconds, and by test quality.

    Every method is tuned on validation by climbing ladders of its parameters, then run with several seeds.
    What was done before an interruption is read from ``results.jsonl`` and not done again.

    Parameters
    ----------
    data : path, matrix, Interactions or Split
        A marked test part is kept and a tenth of the training part becomes validation; otherwise the
        interactions of every user are split 80 / 10 / 10.
    methods : str, Loss, or sequence of these
        Names from `METHODS`, or losses of your own, for ALS.
    out : path
        Folder for ``results.jsonl``, ``convergence.png`` and ``report.html``; made if need be.
    name : str, optional
        Of the data, for titles. By default that of the file.
    min_value : float, optional
        Values from here on are positives of weight 1.
    core : int, optional
        Keep the part in which every user and item has so many interactions. Data that mark a test part are
        then split anew.
    K : int, default=64
    seeds : int, default=3
    max_trials : int, default=16
        Fits that tuning a method may use; with 0 it runs where its tuning would start. A method that the
        folder has tuned already is not tuned again, unless its trials ran out and this allows more.
    time_limit : float, default=120
        Training seconds after which a fit ends, of tuning or of the comparison.
    patience : int, default=8
        Iterations or epochs without improvement after which it ends.
    metric : str, default="ndcg@10"
    objective_iterations : int, default=60
        Length of the runs that follow the objective.
    validation_users : int, optional
        Watch so many users, drawn at random, instead of all: validation after every iteration takes long on
        large data. Test metrics are over all users.
    start : mapping of str to mapping of str to float, optional
        By method: parameters that its tuning starts from (at the nearest rungs) instead of its own, such as
        ``{"softmax": {"temperature": 0.1}}``. With ``max_trials=0`` they are used as they are.
    tune_only : bool, default=False
        Find the parameters of every method, where seconds do not matter, and stop. The same call without it
        goes on with the timed runs, on a machine that is then at rest. Curves and times are always those of
        these runs; they must all be made with the same ``n_jobs`` and ``time_limit`` on one machine, while
        tuning may use others.
    random_state : int, default=0
        Of the split.
    n_jobs : int, optional
    verbose : int, default=1
        Shows a progress bar over the whole comparison.

    Returns
    -------
    Comparison

    Raises
    ------
    ParameterError
        Unknown method, option out of range.
    InputError
        The folder holds a comparison with other settings.
    MissingDependencyError
        Without matplotlib (results are kept all the same).
    """
    chosen = get_methods(methods)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; out must be a folder")
    options = Options(
        K=K,
        seeds=seeds,
        max_trials=max_trials,
        time_limit=time_limit,
        patience=patience,
        metric=metric,
        objective_iterations=objective_iterations,
        validation_users=validation_users,
        start=start or {},
        tune_only=tune_only,
        n_jobs=n_jobs,
        verbose=verbose,
    )
    options.check(chosen)
    split = prepare(data, min_value=min_value, core=core, random_state=random_state)
    runner = Runner(split, chosen, options, folder)
    runner.run()
    if name is None:
        name = Path(data).stem if isinstance(data, str | os.PathLike) else "comparison"
    result = summarise(name, runner.journal.records, chosen, seeds)
    if not tune_only:
        write(result, folder)
    return result


__all__ = ["DEFAULT", "METHODS", "Comparison", "Split", "compare", "prepare"]
