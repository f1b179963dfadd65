"""Encoders: factors propagated over the graph of interactions, and their chain rule."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.matrix.csr import CSR
from rgals.sgd.losses._base import row_softmax
from rgals.sgd.optimizers import SideState

#: Ids of some rows (None: all) and their gradients.
SideGradient = tuple[np.ndarray | None, np.ndarray]
#: Gradients with respect to the effective rows of the users, and of the items.
Gradients = tuple[SideGradient, SideGradient]
#: An array for the users, and one for the items.
Sides = list[np.ndarray]
_ROWS = 256  # rows of the contrastive term whose similarities are computed at once
_NOISE, _TEMPERATURE = 0.1, 0.1  # XSimGCL: length of the noise, temperature of the contrastive term


class LightGCN:
    """``E = (1 / (L + 1)) sum_l A^l E0`` of the factors E0 of both sides together, and its chain rule."""

    # ``A = D^-1/2 B D^-1/2``, B the graph of users and items, an edge for every interaction, D its degrees.
    # He et al. (2020). The effective rows of the sides are those of E, of unit length for cosine.

    def __init__(self, X: CSR, sides: tuple[SideState, SideState], model: Any) -> None:
        self.sides, self.n_threads = sides, sides[0].n_threads
        self.cosine, self.n_layers, self.contrast = model.score == "cosine", model.n_layers, model.contrast
        halves, dtype = (X, X.transpose()), sides[0].param.dtype
        self._edges = [(half.indptr.copy(), half.indices.copy()) for half in halves]
        self._roots = [(np.maximum(half.row_counts, 1) ** -0.5).astype(dtype) for half in halves]
        self.encode()

    def mean(self, vectors: Sides, n: int, noise: Any = None) -> Sides:
        """The mean of vectors (M, K), (N, K) of all users and items and of their n propagations."""
        layer, found = vectors, [part.copy() for part in vectors]
        for _ in range(n):
            layer = self.propagate(layer, noise)
            for total, part in zip(found, layer, strict=True):
                total += part
        for total in found:
            total /= n + 1
        return found

    def propagate(self, vectors: Sides, noise: Any = None) -> Sides:
        """``A v``: for every row the sum of its neighbours, each over the root of the product of degrees."""
        found = []
        for edges, roots, others, theirs in zip(self._edges, self._roots, self._roots[::-1], vectors[::-1]):
            out = np.empty((len(roots), theirs.shape[1]), theirs.dtype)
            spread(kernel.group_sum, len(out), self.n_threads, *edges, others, 1, theirs, out)
            out *= roots[:, None]
            found.append(out if noise is None else _perturbed(out, noise))
        return found

    def layers(self, key: Any) -> Sides:
        """E from the current factors; ``key`` is that of the random noise of a step, None for no noise."""
        return self.mean([side.param for side in self.sides], self.n_layers)

    def encode(self, key: Any = None) -> None:
        """Compute the effective rows anew after the factors have changed."""
        for side, mean in zip(self.sides, self.layers(key), strict=True):
            if self.cosine:
                spread(kernel.normalise, len(mean), self.n_threads, mean, mean, side.inverse_norm)
            side.effective = mean

    def unscaled(self, gradients: Sequence[SideGradient]) -> Sides:
        """Gradients of all rows with respect to what `layers` returns, the chain rule of unit length."""
        found = []
        for side, (ids, grad) in zip(self.sides, gradients, strict=True):
            which = slice(None) if ids is None else ids
            if self.cosine:
                grad = _tangent(grad, side.effective[which]) * side.inverse_norm[which][:, None]
            found.append(np.zeros_like(side.param))
            found[-1][which] = grad
        return found

    def chain(self, gradients: Gradients, batch: Sides, weight: float) -> tuple[float, Sides]:
        """The encoder's term for a batch of users and items, times ``weight``; gradients of all factors."""
        # A is symmetric: the same sum takes gradients of E back to E0.
        return 0.0, self.mean(self.unscaled(gradients), self.n_layers)


class XSimGCL(LightGCN):
    """``E = (1 / L) sum_l H_l``, ``H_l = A H_(l-1) + noise``, ``H_0 = E0``, and a contrastive term."""

    # The noise of a step is ``0.1 sign(A H) u``, u >= 0 of unit length, a constant for the gradient; what is
    # scored between epochs has none. The mean loss grows by ``contrast`` times the mean of
    # ``-log softmax_j(cos(e_i, h_j) / 0.1)_i``, e rows of E, h of H_1, over the distinct users of a batch,
    # and the same over its distinct items. Yu et al. (2024), with the numbers of SL@K.

    def layers(self, key: Any) -> Sides:  # noqa: D102 - as its base has it
        noise = None if key is None else np.random.default_rng([key, 1])
        self.first = self.propagate([side.param for side in self.sides], noise)
        return self.mean(self.first, self.n_layers - 1, noise)

    def chain(self, gradients: Gradients, batch: Sides, weight: float) -> tuple[float, Sides]:  # noqa: D102
        value, scale, pairs, first = 0.0, self.contrast * weight, [], [np.zeros_like(h) for h in self.first]
        for side, h, grad, ids in zip(self.sides, self.first, first, batch, strict=True):
            rows = np.unique(ids)
            one, of_mean, grad[rows] = _info_nce(side.effective[rows], h[rows])
            pairs.append((rows, scale * of_mean))
            value += scale * one
        whole = zip(self.unscaled(gradients), self.unscaled(pairs), strict=True)
        means = self.mean([loss + own for loss, own in whole], self.n_layers - 1)
        return value, self.propagate([m + scale * grad for m, grad in zip(means, first, strict=True)])


def _perturbed(rows: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    drawn = noise.random(rows.shape, rows.dtype)
    drawn *= _NOISE / np.maximum(np.linalg.norm(drawn, axis=1, keepdims=True), np.finfo(rows.dtype).tiny)
    return rows + np.sign(rows) * drawn  # rows without neighbours stay zero


def _tangent(grad: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return grad - np.einsum("rk,rk->r", grad, unit)[:, None] * unit


def _info_nce(e: np.ndarray, h: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The mean over rows i of ``-log softmax_j(cos(e_i, h_j) / t)_i`` and its gradients."""
    norms = [np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(x.dtype).tiny) for x in (e, h)]
    e, h = e / norms[0], h / norms[1]
    value, of_e, of_h = 0.0, np.empty_like(e), np.zeros_like(h)
    for start in range(0, len(e), _ROWS):
        some = e[start : start + _ROWS]
        share = some @ h.T
        own = share.diagonal(start) / _TEMPERATURE
        total, share = row_softmax(share, _TEMPERATURE)
        value += float((total - own).sum())
        share.reshape(-1)[start :: len(h) + 1][: len(some)] -= 1
        of_e[start : start + _ROWS] = share @ h
        of_h += share.T @ some
    scale = e.dtype.type(len(e) * _TEMPERATURE)
    return value / len(e), _tangent(of_e, e) / (scale * norms[0]), _tangent(of_h, h) / (scale * norms[1])


#: How `SGDRanker` makes scored rows of factors; None: they are the factors themselves.
ENCODERS: dict[str, Any] = {"mf": None, "lightgcn": LightGCN, "xsimgcl": XSimGCL}
