"""LightGCN: a factor is scored as the mean of what the graph of interactions makes of it, layer by layer."""

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.matrix.csr import CSR
from rgals.sgd.optimizers import SideState

#: Ids (None: all rows) and gradients.
SideGradient = tuple[np.ndarray | None, np.ndarray]
#: What `SGDRanker` scores: its factors, or their propagations.
ENCODERS = ("mf", "lightgcn")


class LightGCN:
    """``E = (1 / (L + 1)) sum_l A^l E0`` of the factors E0 of users and items together, and its chain rule.

    ``A = D^-1/2 B D^-1/2``, B the graph of users and items with an edge for every interaction, D its degrees.
    He et al. (2020). The effective rows of the sides are those of E, of unit length for cosine.
    """

    def __init__(self, X: CSR, sides: tuple[SideState, SideState], cosine: bool, n_layers: int) -> None:
        self.sides, self.cosine, self.n_layers, self.n_threads = sides, cosine, n_layers, sides[0].n_threads
        halves, dtype = (X, X.transpose()), sides[0].param.dtype
        self._edges = [(half.indptr.copy(), half.indices.copy()) for half in halves]
        self._roots = [(np.maximum(half.row_counts, 1) ** -0.5).astype(dtype) for half in halves]
        self.encode()

    def propagate(self, users: np.ndarray, items: np.ndarray) -> list[np.ndarray]:
        """The mean of vectors (M, K), (N, K) of all users and items and of their L propagations."""
        layer, found = [users, items], [users.copy(), items.copy()]
        for _ in range(self.n_layers):
            layer = [self._neighbours(side, layer[1 - side]) for side in (0, 1)]
            for total, part in zip(found, layer, strict=True):
                total += part
        for total in found:
            total /= self.n_layers + 1
        return found

    def _neighbours(self, side: int, vectors: np.ndarray) -> np.ndarray:
        """Sum over the neighbours of each row of a side, over the roots of both degrees."""
        out = np.empty((len(self._roots[side]), vectors.shape[1]), vectors.dtype)
        given = *self._edges[side], self._roots[1 - side], 1, vectors
        spread(kernel.group_sum, len(out), self.n_threads, *given, out)
        out *= self._roots[side][:, None]
        return out

    def encode(self) -> None:
        """Bring the effective rows up to date after the factors have changed."""
        means = self.propagate(*(side.param for side in self.sides))
        for side, mean in zip(self.sides, means, strict=True):
            if self.cosine:
                spread(kernel.normalise, len(mean), self.n_threads, mean, mean, side.inverse_norm)
            side.effective = mean

    def chain(self, users: SideGradient, items: SideGradient) -> tuple[SideGradient, SideGradient]:
        """Gradients of all factors, from those of effective rows of either side."""
        # A is symmetric: the same sum takes gradients of E back to E0.
        whole = []
        for side, (ids, grad) in zip(self.sides, (users, items), strict=True):
            which = slice(None) if ids is None else ids
            if self.cosine:
                rows = side.effective[which]
                along = np.einsum("rk,rk->r", grad, rows)[:, None]
                grad = (grad - along * rows) * side.inverse_norm[which][:, None]
            whole.append(np.zeros_like(side.param))
            whole[-1][which] = grad
        of_users, of_items = self.propagate(*whole)
        return (None, of_users), (None, of_items)
