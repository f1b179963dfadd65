"""Models of the package implicit, in both directions."""

from dataclasses import replace
from typing import Any, Self

import numpy as np

from rgals.datasets.given import given
from rgals.losses import WRMF, Degrees, Loss, get_loss
from rgals.matrix.csr import CSR
from rgals.matrix.validate import as_csr
from rgals.model.ranking import FactorRanker
from rgals.model.state import FitRecord, FittedState, check_labels, parameters_of
from rgals.runtime.errors import InputError, InputTypeError
from rgals.runtime.lazy import optional


class Interop(FactorRanker):
    """Exchange with other packages; a mixin of `rgals.RGALS`."""

    def to_implicit(self) -> Any:
        """The model as one of implicit's: same factors, hence the same recommendations.

        Returns
        -------
        implicit.cpu.als.AlternatingLeastSquares
            With these factors in float32. Its own fold-in (``recalculate_user``, ``partial_fit_users``)
            solves implicit's loss: this model's only for `WRMF` on binary data with all exponents 0.

        Raises
        ------
        MissingDependencyError
            implicit is not installed.
        """
        als = optional("implicit.cpu.als", "to_implicit needs implicit: pip install implicit")
        state: FittedState = self._state()
        # A positive weighs 1 + alpha v in `WRMF` and alpha v in implicit: equal for v = 1.
        alpha = 1.0 + float(state.loss.alpha) if isinstance(state.loss, WRMF) else 1.0
        users, items = (f.astype(np.float32) for f in (state.user_factors, state.item_factors))
        model = als.AlternatingLeastSquares(factors=items.shape[1], regularization=state.reg, alpha=alpha)
        model.user_factors, model.item_factors = users, items
        return model

    @classmethod
    def from_implicit(
        cls, model: Any, X: Any, *, loss: str | Loss | None = None, user_ids: Any = None, item_ids: Any = None
    ) -> Self:
        """A model that recommends as one of implicit's does, with everything else that this one can.

        Parameters
        ----------
        model : implicit ALS model, fitted, CPU or GPU
        X : sparse matrix, shape (n_users, n_items)
            What it was fitted to (implicit does not keep it): for exclusion and fold-in.
        loss : loss, optional
            For fold-in; with dislikes where ``X`` has some. By default implicit's, ``alpha v (1 - o)^2`` over
            the positives plus ``o^2`` over the rest, as `WRMF`: ``1 + alpha' v' = alpha v`` needs
            ``alpha v >= 1``, more where values differ; those kept, and to fold in, are then ``alpha v - 1``.
        user_ids, item_ids : array of labels, optional

        Returns
        -------
        RGALS

        Raises
        ------
        InputTypeError
            No fitted ALS model.
        InputError
            ``X`` is a frame or of another shape; its loss is none of these and ``loss`` is not given.
        """
        if hasattr(model, "to_cpu") and not isinstance(getattr(model, "user_factors", None), np.ndarray):
            model = model.to_cpu()
        users, items = (getattr(model, f"{side}_factors", None) for side in ("user", "item"))
        is_als = hasattr(model, "regularization") and hasattr(model, "alpha")  # other models lack these
        if not (is_als and isinstance(users, np.ndarray) and isinstance(items, np.ndarray)):
            raise InputTypeError(f"from_implicit takes a fitted ALS model, not {type(model).__name__}")
        data = given(X)
        if data.of_rows:  # its rows would be sorted by ids, and factors are in the caller's order
            raise InputError("X is a frame, in its own order; give the matrix of the fit, user_ids, item_ids")
        (n_users, K), n_items, dislikes = users.shape, len(items), getattr(loss, "dislikes", False)
        seen = as_csr(data.matrix, dtype=users.dtype, n_rows=n_users, n_cols=n_items, dislikes=dislikes)
        kept = seen
        if loss is None:
            kept, loss = _own_loss(seen, float(model.alpha))
        resolved, reg = get_loss(loss).resolve(Degrees.of(seen), K), float(model.regularization)
        objective: dict[str, Any] = {"loss": resolved, "reg": reg, "reg_exponent": 0.0}
        made = cls(K=K, dtype=users.dtype.name, values="raw", **objective)  # type: ignore[call-arg]
        labels = check_labels(*data.ids(user_ids, item_ids), seen.shape)
        record = FitRecord(parameters_of(made), [], int(getattr(model, "iterations", 0)), "implicit")
        degrees = Degrees.of(kept).alone()
        factors = np.array(users, order="C"), np.array(items, order="C")
        made._snapshot = FittedState(*factors, kept, *labels, record=record, degrees=degrees, **objective)
        return made


def _own_loss(seen: CSR, alpha: float) -> tuple[CSR, Loss]:
    """Implicit's loss as a `WRMF`, and the interactions with the values for which it is the same."""
    lowest = alpha * (1.0 if seen.is_binary else float(seen.values.min(initial=np.inf)))
    if seen.is_binary and lowest >= 1.0:
        return seen, WRMF(alpha=alpha - 1.0)
    if not seen.is_binary and lowest > 1.0:
        return replace(seen, values=(alpha * seen.values - 1.0).astype(seen.values.dtype)), WRMF(alpha=1.0)
    what = f"implicit's positives weigh alpha v, down to {lowest:g}, and others 1"
    advice = "Give loss=, which fold-in will use; recommendations do not depend on it"
    raise InputError(f"{what}: no loss of rgals weighs positives that little. {advice}")
