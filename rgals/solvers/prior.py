"""Features as a prior: rows are pulled to what a regression on their features predicts, not to zero."""

# The regularisation of a side with features F (rows x features) is sum_r ridge_r |q_r - F_r W|^2 + reg |W|^2.
# Given the factors, W is a ridge regression. Given W, ridge_r F_r W is added to the right-hand side of row r.
# Either is the exact minimiser, so that the objective never rises. With a single feature that is 1 for all
# rows, W is their mean, pulled to zero as if by one more row: this is ``user_mean``.

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, cg

from rgals.kernels.queue import spread
from rgals.matrix.digest import short_digest
from rgals.runtime.errors import ModelFileError, NumericalError
from rgals.runtime.lazy import cached_property

DIRECT = 4096  # up to so many features the normal equations are factorised: 128 MB
_STEPS, _TOLERANCE = 2000, 1e-10  # of conjugate gradients, for more features
# Of `Prior.settle`: what it tries as ``reg``, in mean ridges; parts of the rows; up to how many features it
# factorises; the tolerance beyond; what the best is divided by, as factors become clearer after that.
_TRIED, _PARTS, _SMALL, _ROUGHLY, _CLEARER = 10.0 ** np.arange(5, -1, -0.5), 3, 1024, 1e-3, 10**0.5
# The rise of the error that ends its search. With a constant or another strong column among them, the error
# rises a little before features that say something lower it.
_RISEN = 1.05
_FEW = 30  # rows of which nothing can be told: ``reg`` is the mean ridge
NOTHING = float(_TRIED[0] / _CLEARER)  # ``reg`` where features say nothing beyond chance
_ROWS_AT_ONCE = 1 << 12  # rows of predictions that a thread holds at once


@dataclass(eq=False)
class Prior:
    """The features of a side's rows, and the weights by which they predict factors."""

    features: sp.csr_array  # (n_rows, n_features), float64
    reg: float
    ridge: Any = None  # of the rows, (n_rows,), in a fit; a row of ridge 0 does not count in the regression
    weights: np.ndarray | None = None  # (n_features, K), in the basis of the factors; None: zero
    mean: bool = False  # made by `mean_prior`
    auto: bool = False  # `settle` is still to choose `reg`
    #: The right side of the last regression's ``(F^T diag(ridge) F + reg) W = F^T diag(ridge) Q``.
    _moments: np.ndarray | None = field(default=None, init=False)

    @property
    def described(self) -> np.ndarray:
        """Whether each row has a feature."""
        return np.diff(self.features.indptr) > 0

    def take_rows(self, at: Any) -> "Prior":
        """The prior of some of its rows."""
        ridge = None if self.ridge is None else self.ridge[at]
        return replace(self, features=self.features[at], ridge=ridge)

    def grown(self, counts: np.ndarray) -> "Prior":
        """The prior after a fit, with new rows at the end; ``counts``: interactions of all rows."""
        if self.mean:
            return mean_prior(counts, self.reg, self.weights)
        features = sp.csr_array(self.features)  # a new matrix that shares the entries
        features.resize(len(counts), self.features.shape[1])
        return replace(self, features=features, ridge=None)

    def predict(self, K: int, at: Any = slice(None)) -> np.ndarray:
        """``F W`` of some rows, in float64."""
        return self.features[at] @ self.weights_of(K)

    def predict_into(self, table: np.ndarray, weights: np.ndarray, n_threads: int) -> None:
        """``table = F weights``, (n_rows, K)."""

        def work(first: int, stop: int) -> None:
            for part, F, _ in self._blocks[first:stop]:
                table[part] = F @ weights

        spread(work, len(self._blocks), n_threads)

    def fill(self, factors: np.ndarray, counts: np.ndarray) -> None:
        """Set rows with features but without interactions (``counts`` 0) to their predictions."""
        alone = np.flatnonzero((counts == 0) & self.described)
        for some in np.array_split(alone, len(alone) // _ROWS_AT_ONCE + 1):
            factors[some] = self.predict(factors.shape[1], some)

    def weights_of(self, K: int) -> np.ndarray:
        """The weights (n_features, K); zeros before the first regression."""
        return np.zeros((self.features.shape[1], K)) if self.weights is None else self.weights

    def regress(self, factors: np.ndarray) -> None:
        """Set the weights to those that minimise the regularisation; ``factors`` may be in any basis."""
        right = np.zeros((self.features.shape[1], factors.shape[1]))
        for part, _, pulls in self._blocks:
            right += pulls @ factors[part].astype(np.float64)
        if self.features.shape[1] <= DIRECT:
            found = scipy.linalg.cho_solve(self._factor, right, check_finite=False)
            # In C order, as when loaded from a file: products then have the same bits.
            self.weights = np.ascontiguousarray(found)
        else:
            self.weights = self._iterate(right)
        self._moments = right

    def settle(self, factors: np.ndarray, given: "Prior") -> None:
        """Choose `reg` by what the regression predicts of rows left out; ``given`` has it in mean ridges."""
        # Features that say nothing, of which there are always some, would pull rows with few interactions to
        # noise; ``reg`` is then so large that the fit is that without features.
        known = np.flatnonzero(self.ridge)
        if len(known) < _FEW:
            return self.take(1.0, given)
        targets, errors = factors[known].astype(np.float64), np.full((len(_TRIED), len(known)), np.inf)
        # What all rows share is no merit of the features.
        targets -= np.average(targets, axis=0, weights=self.ridge[known])
        # Whole powers of ten first, where each costs a factorisation; iterations begin at the one before.
        step = 1 + (self.features.shape[1] <= _SMALL)
        self._left_out(known, targets, errors, range(0, len(_TRIED), step))
        if best := int(errors.sum(axis=1).argmin()):
            if step == 2:
                self._left_out(known, targets, errors, range(best - 1, min(best + 2, len(_TRIED)), 2))
            total = errors.sum(axis=1)
            best = int(total.argmin())
            gain = errors[0] - errors[best]
            if gain.sum() > 2 * np.linalg.norm(gain):  # two standard errors: less may be chance
                # With less than all parts found weights with, the regression may not find them.
                least = _TRIED[np.isfinite(total)].min()
                return self.take(float(max(_TRIED[best] / _CLEARER, least)), given)
        self.take(NOTHING, given)

    def _left_out(self, known: np.ndarray, targets: np.ndarray, errors: np.ndarray, some: range) -> None:
        """Set ``errors`` (tried, rows) of ``known`` rows, predicted by those of other parts, for ``some``."""
        ridge, features = self.ridge[known], self.features[known]
        # Two numbers as a seed: a single one is often that of the data, whose groups would be the parts.
        part = np.random.default_rng([0, 1]).integers(_PARTS, size=len(known))
        for left in range(_PARTS):
            fit, rest = part != left, part == left
            made = Prior(features[fit], 0.0, ridge[fit])
            right = made.features.T @ (ridge[fit, None] * targets[fit])
            gram = made._gram() if len(right) <= _SMALL else None
            weights = np.zeros_like(right)
            for at in some:
                made.reg = _TRIED[at] * self.mean_ridge
                try:
                    if gram is None:
                        weights = made._iterate(right, weights, _ROUGHLY)
                    else:
                        weights = scipy.linalg.cho_solve(made._factorised(gram), right, check_finite=False)
                except NumericalError:  # nor are they found with less
                    break
                wrong = targets[rest] - features[rest] @ weights
                errors[at, rest] = ridge[rest] * np.einsum("ij,ij->i", wrong, wrong)
                if errors[at, rest].sum() > _RISEN * errors[: at + 1, rest].sum(axis=1).min():
                    break

    def take(self, reg: float, given: "Prior") -> None:
        """Take what `settle` found, in mean ridges; `NOTHING` may be followed by more."""
        self.reg, given.reg = reg * self.mean_ridge, reg
        self.auto = given.auto = reg == NOTHING
        vars(self).pop("_factor", None)  # that of another strength

    def state(self) -> dict[str, np.ndarray]:
        """The result of the last regression, as a checkpoint stores it."""
        assert self.weights is not None and self._moments is not None
        return {"weights": self.weights, "moments": self._moments}

    def restore(self, weights: np.ndarray | None, moments: np.ndarray | None) -> None:
        """Continue from a `state`."""
        if any(array is None or len(array) != self.features.shape[1] for array in (weights, moments)):
            raise ModelFileError("the checkpoint has no weights of the features")
        self.weights, self._moments = weights, moments

    def digest(self) -> str:
        """A digest of the features."""
        features = self.features
        return short_digest(np.array(features.shape), features.indptr, features.indices, features.data)

    def turn(self, change: np.ndarray | None) -> None:
        """Follow a change of basis of the factors to ``factors @ change``, without a regression."""
        if change is not None and self._moments is not None:
            self.weights, self._moments = self.weights_of(len(change)) @ change, self._moments @ change

    def moments(self, K: int, ridge: np.ndarray) -> np.ndarray:
        """``(F^T diag(ridge) F + reg) W``; ``ridge`` are those of the regression."""
        if self._moments is not None:
            return self._moments
        return self._image(self.weights_of(K), ridge)

    def _image(self, weights: np.ndarray, ridge: np.ndarray) -> np.ndarray:
        total = self.reg * weights
        for part, F, _ in self._blocks:
            total += F.T @ (ridge[part, None] * (F @ weights))
        return total

    def explained(self) -> float:
        """What the regression took from ``sum_r ridge_r |q_r|^2``: the trace of ``W^T moments``."""
        assert self.weights is not None and self._moments is not None
        return float(np.sum(self.weights * self._moments))

    @property
    def mean_ridge(self) -> float:
        """The unit of `feature_reg`."""
        return float(self.ridge[self.ridge > 0].mean()) if self.ridge.any() else 0.0

    @cached_property
    def _blocks(self) -> list[tuple[slice, Any, Any]]:
        """Blocks of rows: the slice, the features F, and ``F^T diag(ridge)``."""
        ridge = np.ones(self.features.shape[0]) if self.ridge is None else self.ridge
        parts = (slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(ridge), _ROWS_AT_ONCE))
        found = ((part, self.features[part], sp.diags_array(ridge[part])) for part in parts)
        return [(part, F, (weights @ F).T) for part, F, weights in found]

    def _gram(self) -> np.ndarray:
        weighted = sp.diags_array(self.ridge) @ self.features
        return (self.features.T @ weighted).toarray()

    @cached_property
    def _factor(self) -> Any:
        return self._factorised(self._gram())

    def _factorised(self, gram: np.ndarray) -> Any:
        system = gram.copy()
        system[np.diag_indices_from(system)] += self.reg
        try:
            return scipy.linalg.cho_factor(system, overwrite_a=True)
        except ValueError as error:  # not positive definite, as reg is lost in rounding, or not finite
            raise self._not_found("by Cholesky: they are large, or collinear besides") from error

    def _iterate(
        self, right: np.ndarray, start: np.ndarray | None = None, tolerance: float = _TOLERANCE
    ) -> np.ndarray:
        """Solve by conjugate gradients, all columns as one system, preconditioned by the diagonal."""
        diagonal = (self.features.power(2).T @ self.ridge + self.reg)[:, None]
        operator = partial(LinearOperator, (right.size, right.size), dtype=right.dtype)
        system = operator(matvec=lambda W: self._image(W.reshape(right.shape), self.ridge).ravel())
        inverse = operator(matvec=lambda rest: (rest.reshape(right.shape) / diagonal).ravel())
        first = None if start is None else start.ravel()
        found, failed = cg(system, right.ravel(), first, rtol=tolerance, maxiter=_STEPS, M=inverse)
        if failed:
            raise self._not_found(f"in {_STEPS} steps of conjugate gradients")
        return found.reshape(right.shape)

    def _not_found(self, how: str) -> NumericalError:
        said = f"the weights of {self.features.shape[1]:,} features are not found {how}"
        return NumericalError(f"{said}; scale the features, or raise feature_reg")


def mean_prior(counts: np.ndarray, reg: float, weights: np.ndarray | None = None) -> Prior:
    """The prior that pulls rows to their mean: a feature that is 1 for each row with interactions."""
    edges = np.append(0, np.cumsum(counts > 0))
    ones, zeros = np.ones(edges[-1]), np.zeros(edges[-1], np.int32)
    return Prior(sp.csr_array((ones, zeros, edges), shape=(len(counts), 1)), reg, None, weights, True)


def prior_bytes(priors: tuple[Any, Any], K: int, itemsize: int, tables: tuple[bool, bool]) -> int:
    """Bytes that the features of both sides take in a fit, on top of the rest."""
    # ``tables``: whether a side needs a table for its predictions, because solutions do not overwrite them.
    total, table = 0, 0
    for prior, apart in zip(priors, tables, strict=True):
        if prior is None:
            continue
        (n, d), nnz = prior.features.shape, prior.features.nnz
        # The weights and the vectors of conjugate gradients; a block of predictions; of `settle` all factors,
        # parts of them, errors, and what an earlier regression keeps meanwhile. All in float64.
        total += 8 * K * (6 * d + 4 * min(n, _ROWS_AT_ONCE)) + 56 * nnz + (24 * d * d if d <= DIRECT else 0)
        total += 8 * (K * (3 * d + 2 * n) + len(_TRIED) * n) + 28 * nnz if prior.auto else 0
        table = max(table, itemsize * K * n * apart)
    return total + table
