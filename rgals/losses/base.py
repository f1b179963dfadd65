"""Base of the losses: parameter objects that turn a matrix into the coefficient arrays of its objective."""

# Every loss of this package is a quadratic in the scores ``o_xy = p_x . q_y``::
#
#     L = sum_x [ g_x sum_y h_y o_xy^2               all pairs
#               + sum_{y in I_x} m_xy o_xy^2         extra weight on the positives
#               - 2 sum_{y in I_x} l_xy o_xy         linear, positives
#               - 2 t_x sum_y h_y o_xy               linear, all pairs
#               - i g_x (sum_y h_y o_xy)^2 ]         interaction (RGx)
#       + sum_x rho_x |p_x|^2 + sum_y rho_y |q_y|^2 + constant
#
# with ``rho_x = reg (sum_y W_xy)^nu``, ``rho_y = reg (sum_x W_xy)^nu`` and ``W_xy = g_x h_y + m_xy``.
# The coefficients of the positives are separable, so that no array of a number per interaction is stored::
#
#     m_xy = v_xy U_x0 V_y0 + U_x1 V_y1,     l_xy = v_xy U_x2 V_y2 + U_x3 V_y3
#
# Solvers see nothing of a loss but these arrays; a new loss is one class with one method.

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np

from rgals.losses.degrees import Degrees, power
from rgals.losses.fitted import spectral_edge
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.runtime.checks import RANGES, check_real, or_auto, plain_number
from rgals.runtime.errors import InputError, InputTypeError, ParameterError, ShapeError
from rgals.runtime.sklearn import BaseEstimator

#: A parameter's value for "take the number that the loss's rule gives for the matrix".
AUTO = "auto"

Priors = tuple[Any, Any]  # of users and items: a `rgals.solvers.prior.Prior` or None

_CHUNK = 1 << 20  # interactions per step of numpy code: bounds temporary memory


@dataclass(frozen=True)
class Side:
    """One half-step: the systems of the rows that are solved, given factors ``F`` of the fixed side.

    Row r minimises ``p^T A_r p - 2 b_r . p`` with::

        G = F^T diag(gram_weight) F,   s = F^T linear_weight,   u = F^T gram_weight
        A_r = scale_r G + sum_k m_rk f_k f_k^T + ridge_r I  [- scale_r i u u^T  where not coupled]
        b_r = sum_k l_rk f_k + linear_r s

    Where ``coupled`` and ``interaction = i > 0`` (the item side of RGx), the rows share the term
    ``- i v^T G v`` with ``v = sum_r scale_r p_r`` instead, which couples them.

    Attributes
    ----------
    scale, linear, ridge : ndarray of float64, shape (n_rows,)
    gram_weight, linear_weight : ndarray of float64, shape (n_fixed,)
    row_terms : ndarray of float64, shape (n_rows, 4)
    col_terms : ndarray of float64, shape (n_fixed, 4)
        Separable coefficients of the positives (module docstring). The last two of six columns are those of
        pairs that are no positives: see `with_pairs`.
    interaction : float
    coupled : bool
    prior : Prior or None
        The ridge pulls rows to its predictions instead of zero; rows without interactions become these.
    paired : bool
        Whether rows have pairs that are no positives: see `with_pairs`.
    """

    scale: np.ndarray
    linear: np.ndarray
    ridge: np.ndarray
    gram_weight: np.ndarray
    linear_weight: np.ndarray
    row_terms: np.ndarray
    col_terms: np.ndarray
    interaction: float
    coupled: bool
    prior: Any = None
    paired: bool = False

    def with_pairs(self, rows: np.ndarray, cols: np.ndarray) -> "Side":
        """The side of a matrix whose values below 0 are pairs with a weight and a target of their own."""
        # Such a pair of value v has m = -v rows_0 cols_0 and l = -v rows_1 cols_1 beside the terms of all
        # pairs; ``rows`` is of shape (n_rows, 2), ``cols`` (n_fixed, 2). Ridges do not count such pairs.
        row_terms, col_terms = np.hstack([self.row_terms, rows]), np.hstack([self.col_terms, cols])
        return replace(self, row_terms=row_terms, col_terms=col_terms, paired=True)

    def take_rows(self, at: np.ndarray | slice) -> "Side":
        """The side of some of its rows."""
        by_row = {name: getattr(self, name)[at] for name in ("scale", "linear", "ridge", "row_terms")}
        return replace(self, **by_row, prior=None if self.prior is None else self.prior.take_rows(at))


@dataclass(frozen=True)
class Coefficients:
    """The arrays of a loss on one matrix, in the notation of the module docstring.

    Attributes
    ----------
    g, t : ndarray of float64, shape (n_users,)
    h : ndarray of float64, shape (n_items,)
    user_terms : ndarray of float64, shape (n_users, 4)
        ``U``: value and constant part of m, value and constant part of l.
    item_terms : ndarray of float64, shape (n_items, 4)
        ``V``. Where the loss takes dislikes, both have six columns: see `with_dislikes`.
    interaction : float, default 0
        ``i``; the all-pairs part is positive semidefinite up to ``1 / sum_y h_y``.
    removed : float, default 0
        Share of the all-pairs quadratic that is left out (the gramian form of RGx). Regularisation weights
        do not change with it, as in Eqs. 38-39 of the paper.
    """

    g: np.ndarray
    h: np.ndarray
    t: np.ndarray
    user_terms: np.ndarray
    item_terms: np.ndarray
    interaction: float = 0.0
    removed: float = 0.0

    def with_dislikes(self, weight: float) -> "Coefficients":
        """The same with the term ``weight |v_xy| (o_xy + 1)^2`` for every negative value."""
        user_terms = np.hstack([self.user_terms, np.tile([weight, -weight], (len(self.g), 1))])
        item_terms = np.hstack([self.item_terms, np.ones((len(self.h), 2))])
        return replace(self, user_terms=user_terms, item_terms=item_terms)

    def user_side(self, users: CSR, reg: float, reg_exponent: float) -> Side:
        """The user half-step on ``users`` (users x items)."""
        return self._side(users, reg, reg_exponent, items=False)

    def item_side(self, items: CSR, reg: float, reg_exponent: float) -> Side:
        """The item half-step on ``items`` (items x users, the transposed matrix)."""
        return self._side(items, reg, reg_exponent, items=True)

    def _side(self, matrix: CSR, reg: float, reg_exponent: float, items: bool) -> Side:
        # Of users and of items: weights of all pairs, the same without the removed share, linear terms of all
        # pairs, terms of the positives.
        both = (
            (self.g, self.g * (1.0 - self.removed), self.t, self.user_terms),
            (self.h, self.h, self.h, self.item_terms),
        )
        (weights, scale, linear, own), (fixed, gram, gram_linear, other) = both[::-1] if items else both
        total = weights * fixed.sum() + weight_sums(matrix, own, other)
        # The ridge of a row with nothing but interactions of weight 0 (dislikes) is reg, as its system would
        # be singular without.
        ridge = reg * np.where((total == 0) & (matrix.row_counts > 0), 1.0, power(total, reg_exponent))
        linear = linear * (self.t.any() or self.interaction != 0)  # else items without interactions stay 0
        return Side(scale, linear, ridge, gram, gram_linear, own, other, self.interaction, coupled=items)


def as_array(given: Any) -> np.ndarray:
    """What a loss gives, as an array; one of objects, which are no numbers, if its rows differ in length."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.empty(0, object)


def check_methods(loss: Any, name: str, methods: Mapping[str, str]) -> None:
    """Raise an `InputTypeError` for a method of a loss that is missing or takes other arguments."""
    for method, takes in methods.items():
        try:
            signature(getattr(loss, method)).bind(*takes.split(", "))
        except (AttributeError, TypeError):
            raise InputTypeError(f"the loss {name} needs a method {method}({takes})") from None


def takes_dislikes(model: Any) -> bool:
    """Whether negative values are dislikes to a model: by its loss, or by all if it has several."""
    # If a space of `RGALSCV` has ``dislikes``, the search refuses candidates that do not take them.
    space = getattr(model, "space", None)
    spaces = [space, *space.values()] if isinstance(space, Mapping) else []
    if any(isinstance(part, Mapping) and "dislikes" in part for part in spaces):
        return True
    loss = getattr(model, "loss", None)
    several = loss if isinstance(loss, list | tuple) else [loss]
    return all(getattr(one, "dislikes", False) for one in several)


def positive_terms(loss: Any, degrees: Degrees, *of_users: Any) -> tuple[np.ndarray, np.ndarray]:
    """Terms of users (M, 4) and items (N, 4) for `Coefficients`: ``of_users`` times the weights by degree."""
    # A loss whose weight is set may be used without `Loss.resolve`: by the rule its "auto" exponent is 0.
    exponent = 0.0 if loss.item_exponent == AUTO else float(loss.item_exponent)
    boost, items = degrees.user_factor(loss.user_exponent), degrees.item_factor(exponent)
    users = np.stack([term * boost for term in of_users], 1)
    return users, np.repeat(items[:, None], 4, axis=1)


def positive_coefficients(
    matrix: CSR, row_terms: np.ndarray, col_terms: np.ndarray, start: int = 0, stop: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, and m and l in float64, of the stored entries ``start:stop`` of a matrix."""
    stop = matrix.nnz if stop is None else min(stop, matrix.nnz)
    rows = matrix.rows_between(start, stop)
    cols = matrix.indices[start:stop]
    v = 1.0 if matrix.is_binary else matrix.values[start:stop].astype(np.float64)
    r, c = row_terms[rows], col_terms[cols]
    m = v * (r[:, 0] * c[:, 0]) + r[:, 1] * c[:, 1]
    linear = v * (r[:, 2] * c[:, 2]) + r[:, 3] * c[:, 3]
    if r.shape[1] == 6:  # of `Side.with_pairs`
        m = np.where(v < 0, -v * (r[:, 4] * c[:, 4]), m)
        linear = np.where(v < 0, -v * (r[:, 5] * c[:, 5]), linear)
    return rows, m, linear


def weight_sums(matrix: CSR, row_terms: np.ndarray, col_terms: np.ndarray) -> np.ndarray:
    """``sum_k m_rk`` of every row, float64, of m as in `positive_coefficients`."""
    total = np.zeros(matrix.n_rows)
    if row_terms.shape[1] == 6:  # of `Side.with_pairs`: margins do not tell positives from other pairs
        for start in range(0, matrix.nnz, _CHUNK):
            rows, m, _ = positive_coefficients(matrix, row_terms, col_terms, start, start + _CHUNK)
            total += np.bincount(rows, m, matrix.n_rows)
        return total
    for term, margins in ((0, matrix.row_sums), (1, matrix.row_counts)):
        rows, cols = row_terms[:, term], col_terms[:, term]
        if not (rows.any() and cols.any()):
            continue
        total += rows * (cols[0] * margins if (cols == cols[0]).all() else _row_sums(matrix, cols, term == 0))
    return total


def _row_sums(matrix: CSR, cols: np.ndarray, valued: bool) -> np.ndarray:
    """``sum_k cols[k]``, times the values if ``valued``, over the stored entries of every row."""
    if valued and not matrix.is_binary:
        return matrix.sum_rows(lambda at: cols[matrix.indices[at]] * matrix.values[at])
    return matrix.sum_rows(lambda at: cols[matrix.indices[at]])


def with_priors(found: Coefficients, degrees: Degrees, priors: Priors) -> "Coefficients":
    """The coefficients of a fit with features: rows that have features alone are left out of the loss."""
    # The factors of such rows are what their features predict.
    if priors == (None, None):
        return found
    users, items = (p is not None and (n == 0) & p.described for n, p in zip(degrees.pairs, priors))
    g, t, h = (np.where(users, 0.0, found.g), np.where(users, 0.0, found.t), np.where(items, 0.0, found.h))
    return replace(found, g=g, t=t, h=h)


def constant_of_ones(loss: Any, matrix: CSR, coefficients: Coefficients) -> float:
    """`Loss.constant` if targets are 1 and -1, those of all pairs -1 or 0: weights times squared targets."""
    all_pairs = coefficients.g @ (coefficients.t != 0) * coefficients.h.sum()
    return float(all_pairs + weight_sums(matrix, coefficients.user_terms, coefficients.item_terms).sum())


def _predicted(factors: np.ndarray, prior: Any) -> Any:
    return 0.0 if prior is None else prior.predict(factors.shape[1])


class Loss(BaseEstimator):
    """Base of the losses: parameters, their rule, objective and gradient; subclasses give coefficients.

    ``get_params``, ``set_params`` and ``clone`` work as in scikit-learn, so ``loss__alpha`` can be searched.
    A loss of one's own is a subclass with `coefficients`, whose ``__init__`` stores its parameters, each with
    a default. It fits, tunes, compares and saves like those of the package; `constant`, `defaults` and
    `validate` are worth overriding.

    Examples
    --------
    Squared loss with targets of 1 for the positives and ``floor`` for all other pairs, which weigh
    ``weight``. The all-pairs term ``weight (o - floor)^2`` counts the positives too, so that their own terms
    take it away again::

        L = sum_{x, y in I_x} (o_xy - 1)^2 + weight sum_{x, y not in I_x} (o_xy - floor)^2

    >>> import numpy as np
    >>> from rgals import RGALS
    >>> from rgals.datasets import make_implicit
    >>> from rgals.losses import Coefficients, Loss
    >>> class Floor(Loss):
    ...     def __init__(self, weight=0.1, floor=-0.1):
    ...         self.weight, self.floor = weight, floor
    ...
    ...     def coefficients(self, degrees):
    ...         n_users, n_items = len(degrees.user_sum), len(degrees.item_sum)
    ...         own = 0, 1 - self.weight, 0, 1 - self.weight * self.floor  # m and l: value and constant parts
    ...         return Coefficients(
    ...             g=np.full(n_users, self.weight),
    ...             h=np.ones(n_items),
    ...             t=np.full(n_users, self.weight * self.floor),
    ...             user_terms=np.tile(own, (n_users, 1)),
    ...             item_terms=np.ones((n_items, 4)),
    ...         )
    ...
    ...     def constant(self, matrix, coefficients):  # L where all scores are 0
    ...         others = matrix.n_rows * matrix.n_cols - matrix.nnz
    ...         return matrix.nnz + self.weight * self.floor**2 * others
    >>> X = make_implicit(200, 100, random_state=0).matrix
    >>> RGALS(K=16, loss=Floor(), random_state=0).fit(X).loss_
    Floor()
    """

    #: The loss in messages and tables.
    name: str = "Loss"
    #: Whether a negative value is a dislike; otherwise it is refused.
    dislikes: bool = False
    _auto: ClassVar[tuple[str, ...]] = ()  # parameters that may be "auto"; all but exponents are >= 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Name a class that does not name itself."""
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @abstractmethod
    def coefficients(self, degrees: Degrees) -> "Coefficients":
        """The coefficient arrays for a matrix with the given margins."""

    def defaults(self, degrees: Degrees, K: int) -> dict[str, float]:
        """Values for ``"auto"`` in a fit with K factors, given the margins of the training matrix.

        Parameters of this loss by name, and ``reg`` for ``reg_exponent=1``, which must be there; by default
        ``reg`` alone, the `spectral_edge`. Searches range around all of them, also those that are no "auto".
        """
        return {"reg": spectral_edge(*degrees.counted, degrees.nnz)}

    def defaults_for(self, degrees: Degrees, K: int) -> Mapping[str, Any]:
        """`defaults`, or an error that says what they lack."""
        found: Any = self.defaults(degrees, K)
        if not isinstance(found, Mapping):
            raise InputTypeError(f"{self.name}.defaults gives {found!r:.40}; a dict with 'reg' is needed")
        check_real(f"{self.name}.defaults: reg", found.get("reg"), 0.0)
        return found

    def resolve(self, degrees: Degrees, K: int) -> Self:
        """A copy in which every ``"auto"`` is the number that `defaults` gives, or a `ParameterError`."""
        params = self.get_params()
        lost = [name for name in self._auto if name not in params and getattr(self, name) == AUTO]
        if lost:  # a subclass whose __init__ has other parameters
            raise InputTypeError(f"the loss {self.name}: its __init__ has no {lost[0]}; set a number for it")
        unset = [name for name, value in params.items() if isinstance(value, str) and value == AUTO]
        found = self.defaults_for(degrees, K) if unset else {}
        for name in unset:
            params[name] = found.get(name, AUTO)
            if isinstance(params[name], str) and params[name] == AUTO:
                raise ParameterError(
                    f"{self.name}.{name}", AUTO, "the loss has no rule for it; give a number"
                )
        made = type(self)(**{name: plain_number(value) for name, value in params.items()})
        made.validate()  # the rule may come from outside, and give what is out of range
        return made

    def validate(self) -> None:
        """Check the parameters; a `ParameterError` names one that is out of its range."""
        RANGES["bool"](f"{self.name}.dislikes", self.dislikes)
        for name, value in self.get_params().items():
            label, exponent = f"{self.name}.{name}", name.endswith("_exponent")
            limits = (-4.0, 4.0) if exponent else (0.0,)
            if name in self._auto:
                or_auto(check_real, label, value, *limits)
            elif exponent or name == "dislike_weight":
                check_real(label, value, *limits)

    def couples_items(self) -> bool:
        """Whether the items share an interaction term, whose sums a half-step has to form."""
        return False

    def lacks_closed_form(self) -> str | None:
        """Why ``solver="svd"`` cannot minimise this loss; None where it can."""
        return f"{self.name} has no closed form"

    def coefficients_for(self, degrees: Degrees) -> "Coefficients":
        """`coefficients` in float64; an error says which have a wrong shape or numbers that cannot be."""
        found = self.coefficients(degrees)
        if not isinstance(found, Coefficients):
            said = f"the loss {self.name}: coefficients gives no Coefficients but {found!r:.40}"
            raise InputTypeError(said)
        (n_users, n_items), width = degrees.shape, 6 if self.dislikes else 4
        arrays: dict[str, Any] = {}
        for field in ("g", "h", "t", "user_terms", "item_terms"):
            side, n = ("item", n_items) if field in ("h", "item_terms") else ("user", n_users)
            shape = (n, width) if field.endswith("terms") else (n,)
            what, array = f"the loss {self.name}: its coefficients {field}", as_array(getattr(found, field))
            if array.dtype.kind not in "biuf":
                raise InputTypeError(f"{what} are of {array.dtype}; real numbers are needed")
            if array.shape != shape:
                raise ShapeError(f"{what} have the shape {array.shape}; {shape} is needed")
            good = np.isfinite(array)
            if field in ("g", "h"):  # positives may weigh less than other pairs, m < 0; no pair less than 0
                good &= array >= 0
            bad = np.argwhere(~good)[:, 0]
            if len(bad):
                why = "below 0" if np.isfinite(array[bad[0]]).all() else "not finite"
                raise InputError(f"{what} are {why} at {side} {bad[0]}: {array[bad[0]]}")
            arrays[field] = array.astype(np.float64, copy=False)
        # Beyond 1 / sum_y h_y the interaction outweighs the all-pairs part; h of other items has another sum.
        total = arrays["h"].sum() if degrees.reference is None else 0.0
        for field, most in (("interaction", (1 + 1e-9) / total if total else np.inf), ("removed", 1.0)):
            check_real(f"the loss {self.name}: its coefficients {field}", getattr(found, field), 0.0, most)
        return replace(found, **arrays)

    def constant(self, matrix: CSR, coefficients: Coefficients) -> float:
        """The part of the objective that does not depend on the factors: its value where all scores are 0.

        By default that of the squares ``g h (o - t / g)^2`` of all pairs and ``m (o - l / m)^2`` of the
        positives; a loss that is no sum of these overrides it. On a cluster ``matrix`` has some of the users.
        """
        g, t = coefficients.g, coefficients.t
        total = np.divide(t * t, g, out=np.zeros_like(g), where=g != 0).sum() * coefficients.h.sum()
        terms = coefficients.user_terms, coefficients.item_terms
        for start in range(0, matrix.nnz, _CHUNK):
            _, m, linear = positive_coefficients(matrix, *terms, start, start + _CHUNK)
            total += np.divide(linear * linear, m, out=np.zeros_like(m), where=m != 0).sum()
        return float(total)

    def objective(
        self,
        X: Any,
        P: Any,
        Q: Any,
        reg: float = 0,
        reg_exponent: float = 1,
        priors: Priors = (None, None),
        aged: bool = False,
    ) -> float:
        """Value of the objective, in float64, at any factors P (n_users, K) and Q (n_items, K).

        ``reg`` and ``reg_exponent`` are strength and exponent ``nu`` of the regularisation, ``priors`` those
        of users and items in a fit with features, ``aged`` whether values fade with age (see `Degrees`).
        """
        matrix, loss, coef, P, Q, users, items = self._read(X, P, Q, reg, reg_exponent, priors, aged)
        quadratic = Q.T @ (Q * coef.h[:, None])
        total = Q.T @ coef.h
        sums = P @ total
        value = coef.g @ ((1.0 - coef.removed) * np.einsum("ij,ij->i", P @ quadratic, P))
        value -= 2.0 * (coef.t @ sums) + coef.interaction * (coef.g @ sums**2)
        for start in range(0, matrix.nnz, _CHUNK):
            stop = start + _CHUNK
            rows, m, linear = positive_coefficients(matrix, coef.user_terms, coef.item_terms, start, stop)
            scores = np.einsum("ij,ij->i", P[rows], Q[matrix.indices[start:stop]])
            value += m @ scores**2 - 2.0 * (linear @ scores)
        for factors, ridge, prior in ((P, users, priors[0]), (Q, items, priors[1])):
            rest = factors - _predicted(factors, prior)
            value += ridge @ np.einsum("ij,ij->i", rest, rest)
            value += 0.0 if prior is None else prior.reg * np.square(prior.weights_of(P.shape[1])).sum()
        return float(value) + check_real(f"{self.name}.constant", loss.constant(matrix, coef))

    def gradient(
        self, X: Any, P: Any, Q: Any, reg: float = 0, reg_exponent: float = 1, priors: Priors = (None, None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient of `objective` with respect to ``P`` and ``Q``, in their shapes and float64."""
        matrix, _, coef, P, Q, users, items = self._read(X, P, Q, reg, reg_exponent, priors)
        g = coef.g * (1.0 - coef.removed)
        hQ = Q * coef.h[:, None]
        total = hQ.sum(axis=0)
        pull = coef.t + coef.interaction * coef.g * (P @ total)
        dP = (P @ (Q.T @ hQ)) * g[:, None] - pull[:, None] * total
        dP += users[:, None] * (P - _predicted(P, priors[0]))
        dQ = hQ @ (P.T @ (P * g[:, None])) - np.outer(coef.h, pull @ P)
        dQ += items[:, None] * (Q - _predicted(Q, priors[1]))
        rows, m, linear = positive_coefficients(matrix, coef.user_terms, coef.item_terms)
        cols = matrix.indices
        slope = (m * np.einsum("ij,ij->i", P[rows], Q[cols]) - linear)[:, None]
        np.add.at(dP, rows, slope * Q[cols])
        np.add.at(dQ, cols, slope * P[rows])
        return 2.0 * dP, 2.0 * dQ

    def _read(
        self, X: Any, P: Any, Q: Any, reg: float, reg_exponent: float, priors: Priors, aged: bool = False
    ) -> tuple[CSR, "Loss", Coefficients, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Matrix, resolved loss, its coefficients, P and Q in float64, ridges of users and items."""
        reg, reg_exponent = check_real("reg", reg, 0.0), check_real("reg_exponent", reg_exponent, -4.0, 4.0)
        matrix = as_csr(X, dtype=np.float64, dislikes=self.dislikes)
        P, Q = np.asarray(P, np.float64), np.asarray(Q, np.float64)
        if P.ndim != 2 or Q.ndim != 2 or (len(P), len(Q)) != matrix.shape or P.shape[1] != Q.shape[1]:
            raise InputError(f"factors of shapes {P.shape} and {Q.shape} do not fit a matrix {matrix.shape}")
        degrees = Degrees.of(matrix, aged)
        loss = self.resolve(degrees, P.shape[1])
        coef = with_priors(loss.coefficients_for(degrees), degrees, priors)
        users = coef.user_side(matrix, reg, reg_exponent)
        items = coef.item_side(matrix.transpose(), reg, reg_exponent)
        return matrix, loss, coef, P, Q, users.ridge, items.ridge
