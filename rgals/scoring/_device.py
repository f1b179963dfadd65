"""Top-K on a GPU: tiles of scores by one product, a selection per query; results leave meanwhile."""

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime.errors import ParameterError
from rgals.solvers.cuda import Device, Room

#: A list and as many newcomers are sorted in a block's shared memory.
LARGEST_N = 1024
TILE = 1 << 14  # items of a tile
QUERIES = 1 << 12  # queries at once: a block of threads for each
_ANY_K = 1  # the kernels of the selection do not know the factors


class TopK:
    """`rgals.scoring.topk` on a GPU, in blocks of queries; ties and missing items as there."""

    # `blocked`: items that nobody gets. `scale`: factor on the scores of each item, (N,) or (0,).

    def __init__(
        self,
        device: Device,
        queries: np.ndarray,
        items: np.ndarray,
        n: int,
        exclude: CSR,
        blocked: np.ndarray,
        scale: np.ndarray,
    ) -> None:
        if n > LARGEST_N:
            short = "lists are sorted in shared memory; use the CPU"
            raise ParameterError("n", n, f"device='cuda' takes at most {LARGEST_N}: {short}")
        if len(blocked):
            scale = scale.copy() if len(scale) else np.ones(len(items), items.dtype)
            scale[blocked] = np.nan  # which removes them
        self.device, self.n, self.queries, self.exclude = device, n, queries, exclude
        self.dtype = items.dtype
        self.items = device.upload(items)
        self.scale = device.upload(scale if len(scale) else np.zeros(1, self.dtype))
        self.has_scale = np.int32(len(scale) > 0)
        self.names = device.upload(np.zeros(1, np.int32)), np.int32(0)  # items have their own numbers
        self.tile = min(TILE, len(items))
        self.ids = np.empty((len(queries), n), np.int32)
        self.scores = np.empty((len(queries), n), self.dtype)
        self.copies = device.xp.cuda.Stream(non_blocking=True)
        # Pinned memory, which the device writes while it computes; two parts take turns.
        self.host_ids = [device.pinned((QUERIES, n), np.int32) for _ in range(2)]
        self.host_scores = [device.pinned((QUERIES, n), self.dtype) for _ in range(2)]
        self.turn = 0
        self.waiting: tuple | None = None

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids (int32) and scores, both (B, n)."""
        size, k = self.dtype.itemsize, self.queries.shape[1]
        room = Room(self.device.workspace // 2, self.device.free)
        longest = int(self.exclude.row_counts.max(initial=0))
        each = size * (self.tile + k + 2 * self.n) + 4 * (2 * self.n + longest)
        room.chunks(len(self.queries), each, self._block, most=QUERIES)
        self._collect()
        return self.ids, self.scores

    def _block(self, start: int, stop: int) -> None:
        """Compute one block, send its lists off, and take those of the block before."""
        device, xp, n = self.device, self.device.xp, stop - start
        queries = device.upload(self.queries[start:stop])
        exclude = self.exclude.slice_rows(start, stop)
        indptr = device.upload(exclude.indptr)
        indices = device.upload(exclude.indices if exclude.nnz else np.zeros(1, np.int32))
        best = xp.empty((n, self.n), self.dtype)
        best.fill(-np.inf)
        ids = xp.empty((n, self.n), np.int32)
        ids.fill(-1)
        buffer = xp.empty(n * self.tile, self.dtype)
        for first in range(0, len(self.items), self.tile):
            part = self.items[first : first + self.tile]
            scores = buffer[: n * len(part)].reshape(n, len(part))
            device.gemm(queries, part, scores, tb=True)
            width = np.int32(len(part))
            mask = "mask", self.dtype, _ANY_K, n
            device.launch_warps(*mask, np.int32(first), width, indptr, indices, scores)
            work = "select_best", self.dtype, _ANY_K, n, (256,), width, np.int32(self.n), np.int32(first)
            how = self.scale, self.has_scale, *self.names
            device.launch(*work, scores, *how, best, ids)
        computed = xp.cuda.Event()
        computed.record()
        self.copies.wait_event(computed)
        to = self.host_scores[self.turn][:n], self.host_ids[self.turn][:n]
        xp.asnumpy(best, stream=self.copies, out=to[0], blocking=False)
        xp.asnumpy(ids, stream=self.copies, out=to[1], blocking=False)
        copied = xp.cuda.Event()
        copied.record(self.copies)
        self._collect()
        # The device's arrays are kept until the copy has been seen to end.
        self.waiting = (start, stop, to, copied, (best, ids))
        self.turn = 1 - self.turn

    def _collect(self) -> None:
        if self.waiting is None:
            return
        start, stop, (scores, ids), copied, _ = self.waiting
        copied.synchronize()
        self.scores[start:stop], self.ids[start:stop] = scores, ids
        self.waiting = None
