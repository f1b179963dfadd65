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
from rgals.training.data import admit


def check_memory(model: Any, matrix: CSR, dtype: np.dtype, *, split: bool) -> None:
    """Raise `InsufficientMemoryError` where a fit needs more memory than there is.

    ``split``: early stopping holds interactions out of the matrix.
    """
    loss = get_loss(model.loss)
    size = model.batch_size or BATCH[loss.kind]
    negatives = size if model.sampler == "in_batch" else model.n_negatives
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
    admit(needed, model, matrix, dtype, split, f"batch_size={size}")
