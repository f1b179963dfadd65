"""What an SGD fit takes, and its refusal before anything is allocated."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime import memory as _memory
from rgals.sgd.epochs import BATCH
from rgals.sgd.losses import get_loss
from rgals.sgd.optimizers import get_optimizer
from rgals.sgd.trainer import scratch_bytes


def check_memory(model: Any, matrix: CSR, dtype: np.dtype, *, split: bool) -> None:
    """Raise `InsufficientMemoryError` where a fit needs more memory than there is.

    ``split``: early stopping holds interactions out of the matrix.
    """
    loss = get_loss(model.loss)
    size = model.batch_size or BATCH[loss.kind]
    negatives = size if model.sampler == "in_batch" else model.n_negatives
    n_users, n_items = matrix.shape
    data, batch = scratch_bytes(loss, matrix.shape, matrix.nnz, model.K, dtype.itemsize, size, negatives)
    needed = _memory.sgd_bytes(
        matrix.shape,
        model.K,
        dtype.itemsize,
        n_moments=get_optimizer(model.optimizer, model.momentum).n_moments,
        cosine=model.score == "cosine",
        best=model.early_stopping,
        data=data,
        batch=batch,
    )
    if split:  # the parts are held beside the matrix
        parts = 16 * n_users + matrix.nnz * (4 + (0 if matrix.is_binary else dtype.itemsize))
        needed = max(needed + parts, _memory.split_bytes(matrix.nnz))
    _memory.admit(
        needed,
        f"a fit with K={model.K} and batch_size={size} of {n_users:,} users, {n_items:,} items and "
        f"{matrix.nnz:,} interactions in {dtype.name}",
        "lower K or batch_size"
        + (" or use dtype='float32'" if dtype.itemsize == 8 else "")
        + ", or fit fewer users and items",
    )
