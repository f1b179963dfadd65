"""RGALS: its parameters, and what a fitted one answers; `rgals.training.fit` fits it."""

from copy import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import sklearn
from sklearn.utils import Tags

from rgals.datasets.given import Given, given
from rgals.losses import AUTO, Loss, get_loss
from rgals.losses.base import takes_dislikes
from rgals.model.exchange import Interop
from rgals.model.file import FORMAT
from rgals.model.fitted import told
from rgals.model.state import FittedState
from rgals.runtime.lazy import optional
from rgals.runtime.sklearn import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from rgals.runtime.threads import workers
from rgals.training import fit
from rgals.training.base import Trained
from rgals.training.data import dtype_name
from rgals.training.forget import Forgetting
from rgals.training.rows import OfRows


@dataclass(eq=False, repr=False)
class RGALS(
    Trained, Forgetting, OfRows, Interop, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Matrix factorisation for top-K ranking from implicit feedback, by exact alternating least squares.

    Finds user factors P and item factors Q that minimise a ranking loss over *all* user-item pairs plus
    ``sum_x rho_x |p_x|^2 + sum_y rho_y |q_y|^2``, where ``rho = reg * weight^reg_exponent`` and the weight of
    a row is the sum of its loss weights (Eqs. 36-39 of Pu et al.; frequency scaling in Rendle et al. 2022).
    Every half-step is solved exactly, so the objective never rises (but for ``hard_negatives``).

    Parameters
    ----------
    K : int, default=64
        Number of factors. 512 to 1024 raise quality on sparse catalogues and are affordable.
    loss : {"rg2", "rgx", "wrmf", "ials"} or Loss, default="rg2"
        What is minimised. A name stands for the loss with its defaults; parameters that are not set follow
        from the matrix and K. See `RG2`, `RGX`, `WRMF`, `IALS`; any other `Loss` will do.
    reg : float or "auto", default="auto"
        Strength of the regularisation, >= 0. "auto" computes it from the matrix and K
        (`rgals.losses.rule`), in the scale of ``reg_exponent``. ``params_`` has the value that was used.
    reg_exponent : float, default=1.0
        ``nu`` above: 1 scales with the weight of each row, 0 is the plain Frobenius norm.
    n_iter : int or "auto", default="auto"
        Iterations (an item and a user half-step each). "auto" stops when the objective settles, after at most
        16; with ``early_stopping``, when patience ends, after at most 32. ``tol`` alone ends a given number.
    solver : {"auto", "exact", "pcg", "svd", "dense"}, default="auto"
        ``"exact"``: every row to the rounding of ``dtype``, by Cholesky or, where that costs less, by
        conjugate gradients until only rounding is left; ``"pcg"``: approximate, ``pcg_steps`` conjugate
        gradient steps from the last iterate, preconditioned by the all-pairs part; ``"svd"``: the global
        optimum in closed form (RG2 or RGX with alpha=0 only); ``"dense"``: the slow float64 reference.
        ``"auto"`` is ``"exact"``. What ran is in ``solver_``.
    pcg_steps : int, default=3
        Used by ``solver="pcg"``.
    dtype : {"float32", "float64"}, default="float32"
        Of the factors. Factorisations that all rows share run in float64 either way.
    device : {"cpu", "cuda", "cuda:N"}, default="cpu"
        Where half-steps and top-K run: ``"cuda"`` is the first NVIDIA GPU and needs the extra ``cuda13`` or
        ``cuda12``; at most 1024 factors. Results agree with the CPU's (``user_mean=False``) up to rounding.
    n_jobs : int or None, default=None
        Threads; None or -1 for all. The result does not depend on it, not by a bit.
    init : {"auto", "random", "spectral"}, default="auto"
        User factors to start from: random numbers, or a randomised SVD of the matrix scaled by its degrees,
        which costs about an iteration and saves several. Where the loss has a closed form (see ``"svd"``),
        the spectral start is that. "auto" is "spectral" from 2^24 interactions times factors on: 262,144
        interactions at K=64.
    init_scale : float or None, default=None
        Standard deviation of the random start; None for ``1 / sqrt(K)``. If given, ``init="auto"`` is random.
    readout_exponent : float, default=0.0
        ``e`` of the read-out, -1 to 1: after the fit the factors of every item are multiplied by ``c_y^e``,
        with mean 1 over the interactions. It costs nothing; most searches leave it at 0.
        Rankings, early stopping and exports use the multiplied factors; objectives, fold-in and updates use
        the solved ones, ``item_factors_ / item_scale_[:, None]``.
    hard_negatives : None, float or HardNegatives, default=None
        Weight for the unobserved pairs that a user's current scores put first; a number is
        ``HardNegatives(weight)``. It raises quality where K is small for the catalogue: see `HardNegatives`
        for the objective and its source. Fold-in, too, includes the best items that a user does not have.
        ``n_iter="auto"`` is 16 then, or 6 after ``warmup``, the last 6 with such pairs. As the objective may
        rise, it ends no fit: leave ``tol`` 0. Not for ``solver="svd"``, dislikes, stores, GPUs.
    feature_reg : float or "auto", default="auto"
        Where a fit has features: strength of the regularisation of their weights, > 0, in units of the mean
        ridge of the rows: ``alpha`` of a ridge regression on the factors. "auto" is found in the fit, for
        each side, by what the features predict of rows left out: those that say nothing then cost nothing.
        ``history_`` has what was found, as ``user_feature_reg`` and ``item_feature_reg``.
    user_mean : bool or "auto", default="auto"
        Whether the regularisation pulls users to their mean w, fitted with the factors, instead of to zero:
        ``sum_x rho_x |p_x - w|^2 + mean(rho) |w|^2``. Users with few interactions then rank by popularity.
        "auto" does so where ``reg`` is "auto" and the matrix tells little more than popularity, or rows are
        short for what it tells; on the CPU, without ``user_features``.
    tol : float, default=0.0
        Stop when the objective falls by less than this share of its magnitude in an iteration; 0: when
        rounding makes it rise. Whatever ``n_iter`` is.
    early_stopping : bool, default=False
        Watch ``metric`` on ``validation`` (or on a tenth of every user's interactions, held out, where none
        is given), stop after ``patience`` iterations without improvement and keep the best iterate.
    patience : int, default=5
    metric : str, default="ndcg@10"
        As in `rgals.metrics.evaluate`; used by early stopping and by `score`.
    validation_users : int or None, default=None
        Number of users whose validation interactions are measured after an iteration: always the same sample.
        It bounds the cost of validation; None is all users.
    warm_start : bool, default=False
        Start from the factors of the last fit, matched by ids if there are some; ``init`` is for the first.
        New users and items are refused: `partial_fit` takes them.
    values : {"auto", "raw", "log1p", "binary", "bm25"}, default="auto"
        Weight of an interaction, ``v_xy``: its value, ``log(1 + value)``, 1, or BM25, which also lowers the
        weight of long histories and popular items. "log1p" and "bm25" are divided by their mean; for formulas
        see `rgals.matrix.weighting.Weighting`. "auto" is "binary" where the standard deviation of the values
        exceeds their mean (play counts, hours, money) and says so with a `ValuesWarning`; otherwise "raw".
        Statistics are always those of the fitted matrix.
    half_life : float, str or None, default=None
        Time in which an interaction loses half of its weight, counted back from the newest one: a number in
        the unit of the timestamps (nanoseconds for dates), or a text such as ``"90d"`` (s, min, h, d, w, y).
        The mean weight stays the same. Histories then need times in every method: give `Interactions` or
        frames. Updates count back from their newest interaction; popular items for cold users, too, are
        ranked by these weights.
    random_state : int, RandomState, Generator or None, default=None
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    user_factors_ : ndarray, shape (n_users, K)
    item_factors_ : ndarray, shape (n_items, K)
        What scores: with ``readout_exponent``, ``item_scale_`` times what was solved.
    item_scale_ : ndarray, shape (n_items,)
        Factor of the read-out; ones without ``readout_exponent``.
    loss_ : Loss
        What was minimised, with numbers in place of "auto".
    reg_ : float
        The strength of the regularisation that was used.
    params_ : dict
        ``loss``, ``reg``, ``user_mean``, ``values``, ``init`` and ``n_iter`` as used by the fit:
        ``RGALS(...).set_params(**model.params_)`` fits the same. With ``hard_negatives``, ``n_iter="auto"``
        remains "auto".
    n_iter_ : int
        Iterations that ran.
    history_ : list of dict
        Per iteration: ``iteration``, ``seconds`` (training so far), ``objective``, validation metrics and
        what took the place of "auto".
    solver_ : str
        ``"exact"``, ``"pcg"``; ``"shared"`` where no positive carries extra weight, so that all rows share
        one matrix; ``"svd"``; ``"dense"``.
    n_features_in_ : int
        Number of items.

    See Also
    --------
    rgals.metrics.evaluate, rgals.scoring.topk, rgals.sgd.SGDRanker

    References
    ----------
    Pu et al., "NDCG-Consistent Softmax Approximation with Accelerated Convergence". Hu, Koren, Volinsky,
    "Collaborative filtering for implicit feedback datasets", 2008. Rendle et al., "Revisiting the performance
    of iALS", 2022.

    Examples
    --------
    >>> from rgals import RGALS
    >>> from rgals.datasets import make_implicit
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> model = RGALS(K=16, random_state=0).fit(X)
    >>> ids, scores = model.recommend([0, 1], n=5)
    >>> ids.shape
    (2, 5)
    >>> model.similar_users([0], n=3)[0].shape, model.fit_transform(X).shape, model.score(X) > 0.1
    ((1, 3), (200, 16), True)
    """

    K: int = 64
    loss: str | Loss = "rg2"
    _: KW_ONLY
    reg: float | str = AUTO
    reg_exponent: float = 1.0
    n_iter: int | str = AUTO
    solver: str = "auto"
    pcg_steps: int = 3
    dtype: str = "float32"
    device: str = "cpu"
    n_jobs: int | None = None
    init: str = AUTO
    init_scale: float | None = None
    readout_exponent: float = 0.0
    hard_negatives: Any = None
    feature_reg: float | str = AUTO
    user_mean: bool | str = AUTO
    tol: float = 0.0
    early_stopping: bool = False
    patience: int = 5
    metric: str = "ndcg@10"
    validation_users: int | None = None
    warm_start: bool = False
    values: str = AUTO
    half_life: float | str | None = None
    random_state: Any = None
    verbose: int = 0

    _checkpoint = fit.CHECKPOINT
    _file: ClassVar[Any] = FORMAT
    _get_loss = staticmethod(get_loss)
    _streams: ClassVar[bool] = True  # matrices may stay on their disk
    _check = fit.check_parameters
    _check_memory = fit.check_memory
    _choose = fit.choose_mean
    _train = fit.train

    # ------------------------------------------------------------------ use

    solver_ = told("record.solver", "What ran; see the class.")
    reg_ = told("reg", "The strength of the regularisation that was used.")

    @property
    def loss_(self) -> Loss:
        """The loss that was minimised, with numbers in place of "auto"."""
        return copy(self._outline().loss)

    @property
    def item_scale_(self) -> np.ndarray:
        """What the read-out multiplied the factors of each item by, shape (N,)."""
        state: FittedState = self._state()
        return np.ones(len(state.item_factors)) if state.item_scale is None else state.item_scale

    @property
    def params_(self) -> dict[str, Any]:
        """The values that replaced "auto": see the class."""
        state = self._outline()
        record = state.record
        # With hard negatives, "auto" also says in which iterations they are drawn.
        n_iter = record.n_iter if state.hard_negatives is None else AUTO
        found = {"init": (record.history or [{}])[0].get("init", AUTO), "n_iter": n_iter}
        given = {k: record.params.get(k, AUTO) for k in found}  # subclasses may have other parameters
        kept = {k: v if given[k] == AUTO else given[k] for k, v in found.items()}
        kept["user_mean"] = state.priors[0] is not None and state.priors[0].mean
        return {"loss": self.loss_, "reg": self.reg_, "values": state.weighting.kind, **kept}

    def _taken(self) -> dict[str, Any]:
        first, params = self.history_[0], self.params_
        found = {k: first[k] for k in (*get_loss(self.loss).get_params(), "reg", "init") if k in first}
        if self.n_iter == AUTO:
            found["n_iter"] = len(self.history_)
        if self.user_mean == AUTO and params["user_mean"]:
            found["user_mean"] = True
        if self.values == AUTO and params["values"] != "raw":
            found["values"] = params["values"]
        return found

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> np.ndarray:
        """Fit and return the user factors.

        Parameters
        ----------
        X, y, **fit_params
            As in `fit`.

        Returns
        -------
        ndarray, shape (n_users, K)
        """
        X = given(X, fit_params.get("columns"))
        fixed = copy(self.fit(X, y, **fit_params))
        state: FittedState = fixed._state()
        if state.seen is not None and state.seen.nnz != state.degrees.pairs[0].sum():
            # The fit held interactions out, which `transform` includes.
            return fixed.transform(X, fit_params.get("user_features"))
        return self._by_user(state.user_factors.copy(), X, state.user_ids)

    def transform(self, X: Any, user_features: Any = None) -> np.ndarray:
        """Factors of users from their interactions: the exact user half-step (fold-in).

        On the training rows, if none was held out, it equals ``user_factors_``. With ``hard_negatives`` it is
        done twice, the second time with the best items of the first that the user does not have.

        Parameters
        ----------
        X : sparse matrix, array, Interactions or frame, shape (n, n_items); or None
            Full history of each user, over the items of the fit; None where there are features alone.
        user_features : sparse matrix, array, frame or (ids, matrix), optional
            Their features, where the fit had some: n rows, or by the ids of ``X``; users with features alone
            are appended.

        Returns
        -------
        ndarray, shape (n, K)
            Zero for users without interactions and features.

        Raises
        ------
        ShapeError
            The number of items is not that of the fit.
        """
        found = None if X is None else given(X)
        fixed, state, rows = self._read_rows(found)
        rows, prior, ids = state.described(rows, user_features, found and found.user_ids)
        return self._by_user(fixed._fold_in(state, rows, prior), found, ids)

    def _by_user(self, factors: np.ndarray, found: Given | None, ids: np.ndarray | None) -> Any:
        # scikit-learn's `set_output` would give the result the index of the frame, which is one of events.
        whole = sklearn.get_config()["transform_output"]
        shown = getattr(self, "_sklearn_output_config", {}).get("transform", whole)
        if found is None or not found.of_rows or shown != "pandas":
            return factors
        return optional("pandas", "set_output needs pandas").DataFrame(factors, index=ids)

    def objective(self, X: Any) -> float:
        """Value of the stated objective at the current factors (see the loss for the formula).

        The terms of ``hard_negatives`` are not part of it.

        Parameters
        ----------
        X : sparse matrix, array, Interactions or frame, shape (n_users, n_items)

        Returns
        -------
        float
        """
        state: FittedState = self._state()
        matrix = self._laid_out(state, given(X), "X", "both", np.float64)
        matrix = state.weighting.rows(matrix)
        with workers():
            args = state.user_factors, state.solved_items, state.reg, state.reg_exponent, state.priors
            return state.loss.objective(matrix, *args, state.degrees.aged)

    # ------------------------------------------------------------------ scikit-learn

    @property
    def _n_features_out(self) -> int:
        return self._state().item_factors.shape[1]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = not takes_dislikes(self)
        tags.transformer_tags.preserves_dtype = [dtype_name(self.dtype)]
        return tags
