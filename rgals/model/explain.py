"""Explanations: a score taken apart into what each past interaction and the all-pairs part gave to it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from rgals.losses.base import positive_coefficients
from rgals.model.state import FittedState
from rgals.runtime.errors import InputError
from rgals.solvers.hard_negatives import pair_terms


@dataclass(frozen=True)
class Explanation:
    """Where a score comes from: ``contributions.sum() + rest + all_pairs + negatives + features``.

    Attributes
    ----------
    user, item : int or id
        As they were asked for.
    score : float
        ``p_x . q_y``, with ``p_x`` from the user's interactions in float64.
    items : ndarray, shape (n,)
        Ids, or columns, of past interactions of the user, those that moved the score most first.
    contributions : ndarray of float64, shape (n,)
        What each of them added; negative where it lowered the score.
    rest : float
        Sum over the interactions that are not listed.
    all_pairs : float
        What the user's factors take from all items together, interactions or not: the pull of RG2 and RGX on
        every score; 0 for WRMF and iALS.
    negatives : float
        What ``hard_negatives`` took away, or gave, by their own pull: of the best items that the user does
        not have, together. 0 without them, and for WRMF and iALS, whose other pairs pull to 0.
    features : float
        What the user's features gave.
    """

    user: Any
    item: Any
    score: float
    items: np.ndarray
    contributions: np.ndarray
    rest: float
    all_pairs: float
    negatives: float = 0.0
    features: float = 0.0


def explain(state: FittedState, user: int, item: int, n: int | None) -> Explanation:
    """Decompose a score exactly; list the ``n`` interactions that moved it most (None: all)."""
    # A user's factors solve `A_x p_x = b_x` with `b_x = sum_{i in I_x} l_xi q_i + t_x s`, so that the score
    # is a sum: `q_y . p_x = sum_i l_xi (w . q_i) + t_x (w . s)` with `w = A_x^-1 q_y` (Hu, Koren, Volinsky
    # 2008, section 5, for WRMF; here from the coefficients of any loss). Hard negatives add their terms to
    # both `A_x` and `b_x`.
    if state.seen is None:
        raise InputError("this model carries no training interactions, which an explanation is made of")
    row = state.weighting.rows(state.seen.take_rows(np.array([user])))
    own = state.priors[0]
    prior = None if own is None else own.take_rows(np.array([user]))
    coefficients, side = state.half(row, prior)
    curvature, pull = state.user_system
    past = state.solved_items[row.indices].astype(np.float64)
    _, m, linear = positive_coefficients(row, side.row_terms, side.col_terms)
    system = side.scale[0] * curvature + (past * m[:, None]).T @ past
    system[np.diag_indices_from(system)] += side.ridge[0]
    parts, all_pairs, negatives, features = np.empty(0), 0.0, 0.0, 0.0
    predicted = np.zeros(len(system)) if prior is None else prior.predict(len(system))[0]
    if not row.nnz and side.linear[0] == 0:
        features = float(predicted @ state.item_factors[item].astype(np.float64))
    else:
        hard, hard_linear = np.empty((0, len(system))), np.empty(0)
        if state.hard_negatives is not None and row.nnz:
            right = linear @ past + side.linear[0] * pull + side.ridge[0] * predicted
            first = scipy.linalg.solve(system, right, assume_a="pos")
            found = state.hard_negatives.best_of(state.solved_items @ first, row.indices)
            of_users, of_items = pair_terms(coefficients, state.hard_negatives.weight)
            hard = state.solved_items[found].astype(np.float64)
            weight, hard_linear = (of_users * of_items[found]).T
            system += (hard * weight[:, None]).T @ hard
        w = scipy.linalg.solve(system, state.item_factors[item].astype(np.float64), assume_a="pos")
        parts, all_pairs = linear * (past @ w), float(side.linear[0] * (w @ pull))
        features = float(side.ridge[0] * (w @ predicted))
        negatives = float(hard_linear @ (hard @ w))
    order = np.argsort(-np.abs(parts), kind="stable")
    listed = order[: len(order) if n is None else n]
    score = float(parts.sum() + all_pairs + negatives + features)
    items, rest = row.indices[listed].astype(np.int64), float(parts[order[len(listed) :]].sum())
    return Explanation(user, item, score, items, parts[listed], rest, all_pairs, negatives, features)
