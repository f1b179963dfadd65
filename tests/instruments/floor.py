"""A loss from outside the package, as a user writes one."""

from __future__ import annotations

import numpy as np

from rgals.losses import AUTO, Coefficients, Loss, spectral_edge


class Floor(Loss):
    """Squared loss with a target of its own for the pairs that are not observed::

    L = sum_{x, y in I_x} (o_xy - 1)^2 + weight sum_{x, y not in I_x} (o_xy - floor)^2
    """

    def __init__(self, weight=AUTO, floor=-0.1):
        self.weight = weight
        self.floor = floor

    def defaults(self, degrees, K):
        users, items = degrees.shape
        edge = spectral_edge(users, items, degrees.nnz)
        return {"weight": degrees.nnz / (users * items), "reg": 0.1 * edge * (8 / K)}

    def coefficients(self, degrees):
        n_users, n_items = len(degrees.user_sum), len(degrees.item_sum)
        own = 0.0, 1 - self.weight, 0.0, 1 - self.weight * self.floor
        return Coefficients(
            g=np.full(n_users, self.weight),
            h=np.ones(n_items),
            t=np.full(n_users, self.weight * self.floor),
            user_terms=np.tile(own, (n_users, 1)),
            item_terms=np.ones((n_items, 4)),
        )

    def constant(self, matrix, coefficients):
        others = matrix.n_rows * matrix.n_cols - matrix.nnz
        return matrix.nnz + self.weight * self.floor**2 * others
