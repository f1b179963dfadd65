"""Scores and positives for losses in score space, and derivatives by central differences."""

from __future__ import annotations

import numpy as np

from rgals.matrix.csr import CSR
from rgals.sgd.losses import Rows


def csr(dense) -> CSR:
    dense = np.asarray(dense, dtype=np.float64)
    rows, cols = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(dense)))])
    values = dense[rows, cols]
    return CSR(indptr, cols.astype(np.int32), values[:0] if (values == 1).all() else values, dense.shape[1])


def block(rng, n=7, valued=False) -> CSR:
    """Rows with no, one, some and all positives."""
    dense = (rng.random((5, n)) < 0.4).astype(float)
    dense[0], dense[1], dense[2] = 0, np.eye(n)[n // 2], 1
    if valued:
        dense *= rng.integers(1, 5, dense.shape)
        assert len(np.unique(dense)) > 2
    return csr(dense)


def central(f, x, h=1e-6):
    out = np.empty_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        out[i] = (f(up) - f(down)) / (2 * h)
    return out


def call(loss, pos, neg, state=None, adversary=None):
    """What a loss makes of rows, the third argument too where it asks for one."""
    if not (loss.state or loss.adversary or loss.takes_rows):
        return loss.value_and_grad(pos, neg)
    if state is None:
        state = np.tile([s.start + 0.1 for s in loss.state], (len(pos), 1)).reshape(len(pos), -1)
    if loss.adversary and adversary is None:
        adversary = np.linspace(-1, 1, neg.size).reshape(neg.shape).astype(neg.dtype)
    return loss.value_and_grad(pos, neg, Rows(np.full(len(pos), 3), 40, state, adversary))
