"""Top-K on a GPU: tiles of scores by one product, and the best of each query taken one after the other."""

import numpy as np

from rgals.matrix.csr import CSR
from rgals.runtime.errors import ParameterError
from rgals.solvers.cuda import Device

LARGEST_N = 1024
TILE = 1 << 14  # items of a tile
QUERIES = 1 << 12  # queries at once


def device_topk(
    device: Device, queries: np.ndarray, items: np.ndarray, n: int, exclude: CSR, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`rgals.scoring.topk` on a GPU: ids (int32) and scores, both (B, n); ties and missing items as there."""
    # `scale`: factor on the scores of each item, (N,) or (0,); NaN removes it.
    if n > LARGEST_N:
        why = "every place of the lists is a pass over the scores; use the CPU"
        raise ParameterError("n", n, f"device='cuda' takes at most {LARGEST_N}: {why}")
    xp, up, size = device.xp, device.upload, items.dtype.itemsize
    on_device, factor = up(items), up(scale)
    tile = min(TILE, len(items))
    ids, best = np.empty((len(queries), n), np.int32), np.empty((len(queries), n), items.dtype)

    def block(start: int, stop: int) -> None:
        some, removed = up(queries[start:stop]), exclude.slice_rows(start, stop)
        every, of = xp.arange(stop - start), np.repeat(np.arange(stop - start), removed.row_counts)
        found = xp.full((stop - start, n), -1, np.int32)
        top = xp.full((stop - start, n), -np.inf, items.dtype)
        for first in range(0, len(items), tile):
            part = slice(first, first + tile)
            scores = some @ on_device[part].T
            if len(scale):
                scores *= factor[part]
            scores = xp.where(xp.isnan(scores), -np.inf, scores).astype(items.dtype)
            here = (removed.indices >= first) & (removed.indices < first + tile)
            scores[up(of[here]), up(removed.indices[here] - first)] = -np.inf
            # Of equal scores `argmax` takes the first: those of the list so far, which have smaller ids.
            pool, before = xp.concatenate([top, scores], axis=1), found.copy()
            for place in range(n):
                at = pool.argmax(axis=1)
                found[:, place] = xp.where(at < n, before[every, xp.minimum(at, n - 1)], first + at - n)
                top[:, place] = pool[every, at]
                pool[every, at] = -np.inf
        best[start:stop] = device.download(top)
        ids[start:stop] = np.where(np.isneginf(best[start:stop]), -1, device.download(found))

    longest = int(exclude.row_counts.max(initial=0))
    each = size * (3 * tile + queries.shape[1] + 4 * n) + 16 * longest
    device.chunks(len(queries), each, block, most=QUERIES)
    return ids, best
