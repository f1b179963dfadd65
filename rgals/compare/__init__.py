"""Methods compared on the same data, split and metric: quality, its significance, and time to quality."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from rgals.compare.data import Split, prepare
from rgals.compare.methods import DEFAULT, METHODS, Method, get_methods
from rgals.compare.page import write
from rgals.compare.report import Comparison, Comparisons, summarise
from rgals.compare.runner import TEST_METRICS, Effort, Runner
from rgals.matrix.weighting import VALUES
from rgals.metrics._table import parse_all, rising
from rgals.metrics.significance import Against
from rgals.model_selection import Protocol
from rgals.plots import new_figure
from rgals.runtime.checks import check_choice, check_int, record_of
from rgals.runtime.errors import InputError, ParameterError


@overload
def compare(data: Mapping[str, Any], methods: Any = ..., **options: Any) -> Comparisons: ...
@overload
def compare(data: Any, methods: Any = ..., **options: Any) -> Comparison: ...
def compare(  # type: ignore[misc]  # the overloads name no options
    data: Any,
    methods: Any = DEFAULT,
    *,
    out: str | os.PathLike | None = None,
    name: str | None = None,
    protocol: Protocol | str | None = None,
    columns: Any = None,
    K: int = 64,
    seeds: int = 3,
    metric: Any = "ndcg@10",
    values: str = "auto",
    effort: Effort | None = None,
    n_jobs: int | None = None,
    verbose: int = 1,
) -> Any:
    """Compare methods by test quality, its significance, and validation quality over training seconds.

    Methods by name and losses are tuned on validation by climbing ladders of their parameters, then run with
    several seeds; their fits end when validation no longer improves. Estimators and functions run as they
    are, on the same training part. Results from before an interruption are read from ``results.jsonl``, not
    computed again.

    Parameters
    ----------
    data : path, matrix, Interactions, frame, Split, or mapping of str to these
        A marked test part is kept and a tenth of the training part becomes validation; otherwise the
        interactions of every user are split 80 / 10 / 10. See `prepare`. A mapping holds several data sets
        by name.
    methods : str, Loss, estimator, function, `Method`, sequence of these, or mapping of names to these
        Names from `METHODS`, also in one text with commas. Losses, for ALS: what their rule chooses and the
        object does not set is tuned; exponents are 0 unless set. Estimators of rgals, scikit-learn's kind,
        implicit's: anything with ``fit(X)`` and ``recommend(users, n)`` (ids of the best items of each user,
        or ids and scores), ``predict(X)`` (scores of all items) or ``get_score(users)``. Functions of the
        training matrix (a csr_matrix) that return the scores of all users and items, a function from users to
        their scores, or something fitted, as irspack's ``lambda X: IALSRecommender(X).learn()``. Either in a
        pair with ladders, ``(EASE(), {"reg": [100, 300, 1000]})``, is tuned on them. Any ``random_state``
        is set to the number of the run; those without one run once.
    out : path, optional
        Folder for ``results.jsonl``, ``convergence.png`` and ``report.html``, created if absent, with one
        folder inside it for each of several data sets. Without it nothing is stored.
    name : str, optional
        Title of the data; by default the name of the file.
    protocol, columns
        How the data are split, and the roles of a frame's columns, as in `prepare`.
    K : int, default=64
        Number of factors of methods by name and losses.
    seeds : int, default=3
        Runs of every method with random choices; results are means over them.
    metric : str or sequence of str, default="ndcg@10"
        As in `rgals.metrics.evaluate`; larger must be better. The first is tuned and watched, and rows are
        sorted and tested by it. All are measured on test, with MRR@10 and NDCG@10.
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default="auto"
        How fits of rgals weigh interactions, as in `rgals.RGALS`, unless an estimator sets it itself; "auto"
        is decided once for all. Other estimators and functions get the values unchanged.
    effort : Effort, optional
        Trials of tuning, limits of fits, starts.
    n_jobs : int, optional
        Threads; None for all.
    verbose : int, default=1
        Whether to show a progress bar over the whole comparison.

    Returns
    -------
    Comparison, or Comparisons if data is a mapping
        Rows in the order of test quality; ``text()``, ``markdown()``, ``to_frame()``, ``against()``.

    Raises
    ------
    ParameterError
        Unknown method, option out of range.
    InputError
        The folder holds a comparison with other settings.
    MissingDependencyError
        ``out`` is given but matplotlib is not installed: raised before the first fit.

    Warns
    -----
    ValuesWarning
        As in `rgals.RGALS.fit`, once for each data set.

    Notes
    -----
    A folder identifies an estimator by its name and parameters, and a function by its name and source: give
    it another name if anything else changes.

    Examples
    --------
    >>> from rgals.baselines import EASE
    >>> from rgals.compare import compare
    >>> from rgals.datasets import make_implicit
    >>> def neighbours(X):  # items that the same users have
    ...     return X @ (X.T @ X)
    >>> methods = {"EASE": EASE(), "neighbours": neighbours, "popular": "popularity"}
    >>> result = compare(make_implicit(200, 100, random_state=0), methods, metric="recall@5", verbose=0)
    >>> [row.method for row in result.rows]
    ['EASE', 'neighbours', 'popular']
    >>> sorted(result.rows[0].test)
    ['mrr@10', 'ndcg@10', 'recall@5']
    >>> result.against()["popular"].corrected < 0.05
    True
    """
    effort = record_of("effort", effort, Effort)
    chosen = get_methods(methods)
    effort.check(chosen)
    if out is not None and not effort.tune_only:
        new_figure()  # raises where matplotlib is missing: before fits of minutes, not after them
    check_int("K", K, 1)
    check_int("seeds", seeds, 1)
    check_choice("values", values, VALUES)
    wanted = parse_all(map(str.strip, metric.split(",")) if isinstance(metric, str) else metric)
    rising(wanted[0].name)
    metrics = tuple(parse_all([*(one.name for one in wanted), *TEST_METRICS]))
    several = isinstance(data, Mapping)
    default = Path(data).stem if isinstance(data, str | os.PathLike) else "comparison"
    sets = {str(key): one for key, one in data.items()} if several else {str(name or default): data}
    are_names = all(Path(key).name == key not in ("", "..") for key in sets)
    if several and (name is not None or not 0 < len(sets) == len(data) or not are_names):
        raise ParameterError("data", list(data), "keys must be names of data sets, usable for folders, too")
    splits = {key: prepare(one, protocol=protocol, columns=columns) for key, one in sets.items()}
    found = Comparisons()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary if out is None else out)
        for key, split in splits.items():
            subfolder = folder / key if several else folder
            for path in (folder, subfolder):
                if path.exists() and not path.is_dir():
                    raise InputError(f"{path} is a file; out must be a folder")
            runner = Runner(split, chosen, subfolder, K, seeds, metrics, effort, values, n_jobs, verbose)
            runner.run()
            found[key] = summarise(key, runner)
            if out is not None and not effort.tune_only:
                write(found[key], subfolder)
    return found if several else next(iter(found.values()))


__all__ = ["DEFAULT", "METHODS", "Against", "Comparison", "Comparisons", "Effort", "Method", "Split"]
__all__ += ["compare", "prepare"]
