"""Batches of row systems on a device: packed rows, one batched product, one batched Cholesky."""

from typing import Any

import numpy as np

from rgals.kernels.row import DIAGONAL, DUAL
from rgals.losses.base import Side
from rgals.matrix.csr import CSR
from rgals.solvers.cuda import Device, Room
from rgals.solvers.cuda.plan import COLUMNS, PIECE, SEGMENT, SIGNED, UNWEIGHTED, VALUED, Bucket, buckets, cut
from rgals.solvers.plan import GPU, classify, common_ratio, rows_of, weigh


class DeviceMatrix:
    """A sparse matrix whose arrays are on the device, the values in ``dtype``."""

    def __init__(self, device: Device, matrix: CSR, dtype: np.dtype) -> None:
        self.host, self.dtype = matrix, dtype
        self.indptr = device.upload(matrix.indptr)
        self.indices = device.upload(matrix.indices)
        values = np.zeros(1, dtype) if matrix.is_binary else matrix.values.astype(dtype, copy=False)
        self.values = device.upload(values)
        self.flags = 0 if matrix.is_binary else VALUED


class DeviceSide:
    """One side of a fit on the device: coefficients, and rows in batches for ``k`` factors."""

    def __init__(self, device: Device, matrix: DeviceMatrix, side: Side, k: int) -> None:
        dtype = matrix.dtype
        self.matrix, self.side, self.k = matrix, side, k
        host = matrix.host
        counts = host.row_counts
        rows = rows_of(host, side, dtype)
        row_terms, col_terms = rows.row_terms, rows.col_terms
        n_zero, n_negative, heaviest = weigh(rows)
        kind = classify(counts, n_zero, n_negative, heaviest, side.linear, side.scale, k, dtype, GPU)
        up = device.upload
        self.flags = matrix.flags | (COLUMNS if len(col_terms) else 0)
        self.row_terms = up(row_terms)
        self.col_terms = up(col_terms if len(col_terms) else np.zeros((1, 4), dtype))
        self.scale, self.linear, self.ridge = up(side.scale), up(side.linear), up(side.ridge)
        self.gram_weight, self.linear_weight = up(side.gram_weight), up(side.linear_weight)
        solved = (counts > 0) | (side.linear != 0)
        self.pulled = up(solved)
        self.free = up(np.flatnonzero(kind <= DIAGONAL).astype(np.int32))
        self.longest_first = up(np.argsort(-counts, kind="stable").astype(np.int32))
        pieces = cut(np.flatnonzero(n_zero > 0), host.indptr, PIECE)
        self.pieces = [up(a) for a in (pieces.row, pieces.begin, pieces.count, pieces.slot)]
        self.n_slots = int(pieces.cut_count.sum())
        self.cut_rows = [up(a) for a in (pieces.cut_row, pieces.cut_first, pieces.cut_count)]
        self.buckets = buckets(host, kind, n_negative)
        n = counts.astype(np.int32)
        self.bucket_arrays = [tuple(map(up, (b.rows, host.indptr[b.rows], n[b.rows]))) for b in self.buckets]
        all_free = len(self.free) == host.n_rows
        self.ratio = common_ratio(side.ridge, side.scale, solved) if all_free else None
        self.uniform = bool(len(side.gram_weight) and (side.gram_weight == side.gram_weight[0]).all())


# Notation as in `rgals.kernels.row`: scaled by D^-1/2, with X the rows sqrt(|m_k|) D^-1/2 f_k, S the signs of
# m, w_k = l_k / sqrt(|m_k|) and c = D^-1/2 (linear s + what carries no weight), a row's system is
# (I + X^T S X) x = X^T w + c and p = D^-1/2 x. Where no weight is negative and n <= K it is solved in the
# dual, (I + X X^T) z = w - X c, x = c + X^T z.
class Systems:
    """The systems of all rows of a side, for factors that are given."""

    def __init__(self, device: Device, room: Room, side: DeviceSide, rotated: Any, d: Any, out: Any) -> None:
        # rotated, (n_fixed, K): the fixed factors, in a basis where the Gramian is diagonal; d, (K,): its
        # diagonal. out, (n_rows, K), receives solutions.
        self.device, self.room, self.side = device, room, side
        self.rotated, self.d, self.out = rotated, d, out
        self.k, self.dtype = rotated.shape[1], rotated.dtype
        n_rows = side.matrix.host.n_rows
        xp = device.xp
        self.value = xp.zeros(n_rows, np.float64)
        self.info = xp.zeros(n_rows, np.int32)
        self.inverse: Any = None  # sum of scale_r^2 A_r^-1 over all rows, where asked for

    def check_diagonal(self, smallest: float, largest: float) -> None:
        """Mark rows whose diagonal, between these eigenvalues, is not positive and finite."""
        side, xp = self.side, self.device.xp
        low = side.scale * smallest + side.ridge
        high = side.scale * largest + side.ridge
        finfo = np.finfo(self.dtype)
        bad = ~((low > float(finfo.tiny)) & (high < float(finfo.max))) & side.pulled
        self.info = xp.where(bad, np.int32(-1), np.int32(0)).astype(np.int32)

    def add_up(self, out: Any) -> None:
        """``out[r]`` of every row with positives that carry no weight: the sum of their ``l f``."""
        side, device, k = self.side, self.device, self.k
        partial = device.xp.empty((max(1, side.n_slots), k), self.dtype)
        positives = self._positives(UNWEIGHTED)
        work = "spmm", self.dtype, k, len(side.pieces[0])
        device.launch_warps(*work, *side.pieces, *positives, out, partial)
        row, first, count = side.cut_rows
        device.segment_add(row, first, count, partial, out)

    def solve(self, s: Any, *, with_inverse: bool = False) -> None:
        """Solve every row exactly; ``s``, (K,): the all-pairs linear term."""
        # with_inverse: also sum scale_r^2 A_r^-1 into self.inverse.
        device, side, xp = self.device, self.side, self.device.xp
        self.s = s
        self.out.fill(0)
        self.value.fill(0)
        self.add_up(self.out)
        if with_inverse:
            self.inverse = xp.zeros((self.k, self.k), np.float64)
            self._add_diagonals(side.free)
            for bucket, (rows, _, _) in zip(side.buckets, side.bucket_arrays):
                if bucket.kind == DUAL:
                    self._add_diagonals(rows)
        coefficients = side.scale, side.linear, side.ridge, self.d, s
        free, result = (side.free, side.matrix.indptr), (self.out, self.value, self.info)
        device.launch_warps("diagonal", self.dtype, self.k, len(side.free), *free, *coefficients, *result)
        for bucket, arrays in zip(side.buckets, side.bucket_arrays):
            if bucket.length == 0:
                self._solve_long(bucket, arrays, with_inverse)
            else:
                self._solve_bucket(bucket, arrays, with_inverse)

    def improve(self, s: Any, steps: int) -> None:
        """Improve every row by ``steps`` conjugate gradient steps from what ``out`` holds."""
        side, matrix = self.side, self.side.matrix
        threads = 128 if self.k * (self.dtype.itemsize // 4) > 1024 else 256
        work = "pcg", self.dtype, self.k, matrix.host.n_rows, (threads,), side.longest_first, matrix.indptr
        coefficients = self.d, s, side.scale, side.linear, side.ridge, np.int32(steps)
        self.device.launch(*work, *self._positives(), *coefficients, self.out, self.value, self.info)

    def _positives(self, flags: int = 0) -> tuple:
        """What kernels read of the positives, with flags beside those of the side."""
        side, matrix = self.side, self.side.matrix
        terms = side.row_terms, side.col_terms, np.int32(side.flags | flags)
        return matrix.indices, matrix.values, self.rotated, *terms

    # ------------------------------------------------------------------ batches

    def _start(self, rows: Any) -> tuple[Any, Any]:
        """``D^-1/2`` and ``c`` of some rows."""
        side, xp = self.side, self.device.xp
        scale, ridge = side.scale[rows].astype(self.dtype), side.ridge[rows].astype(self.dtype)
        inv_root = 1 / xp.sqrt(scale[:, None] * self.d + ridge[:, None])
        c = side.linear[rows].astype(self.dtype)[:, None] * self.s
        c += self.out[rows]
        c *= inv_root
        return inv_root, c

    def _gather(self, pieces: tuple, local: Any, length: int, inv_root: Any, signed: bool) -> tuple:
        """Packed positives X, their w, and S X (X itself where no weight is negative)."""
        row, begin, count = pieces
        xp, n, k = self.device.xp, len(pieces[0]), self.k
        x = xp.empty((n, length, k), self.dtype)
        w = xp.empty((n, length), self.dtype)
        other = xp.empty((n, length, k), self.dtype) if signed else x
        places = np.int32(length), row, local, begin, count
        positives = self._positives(SIGNED if signed else 0)
        work = "gather", self.dtype, k, n * length
        self.device.launch_warps(*work, *places, *positives, inv_root, x, w, other)
        return x, w, other

    def _finish(self, rows: Any, inv_root: Any, x: Any, rhs: Any, info: Any) -> None:
        xp = self.device.xp
        self.value[rows] = (rhs * x).sum(axis=1, dtype=np.float64)
        self.info[rows] = xp.where(info > 0, info, self.info[rows])
        x *= inv_root
        self.out[rows] = x

    def _solve_bucket(self, bucket: Bucket, arrays: tuple, with_inverse: bool) -> None:
        k, length, size = self.k, bucket.length, self.dtype.itemsize
        square = length**2 if bucket.kind == DUAL else k**2
        packed = length * k * (2 if bucket.signed else 1)
        more = 2 * k**2 if with_inverse and bucket.kind != DUAL else 0
        each = size * (packed + square + more + 3 * length + 8 * k)
        solve = self._solve_dual if bucket.kind == DUAL else self._solve_primal

        def work(start: int, stop: int) -> None:
            solve(tuple(a[start:stop] for a in arrays), length, bucket.signed, with_inverse)

        self.room.chunks(len(bucket.rows), each, work)

    def _solve_dual(self, pieces: tuple, length: int, signed: bool, with_inverse: bool) -> None:
        device, xp = self.device, self.device.xp
        rows = pieces[0]
        n = len(rows)
        inv_root, c = self._start(rows)
        x, w, _ = self._gather(pieces, xp.arange(n, dtype=np.int32), length, inv_root, False)
        lower = device.gemm(x, x, xp.empty((n, length, length), self.dtype), tb=True)
        lower.reshape(n, -1)[:, :: length + 1] += 1
        info = device.cholesky(lower)
        z = w.copy()
        device.gemm(x, c[:, :, None], z[:, :, None], alpha=-1.0, beta=1.0)
        device.cholesky_solve(lower, z)
        solution = c.copy()
        device.gemm(x, z[:, :, None], solution[:, :, None], ta=True, beta=1.0)
        device.gemm(x, w[:, :, None], c[:, :, None], ta=True, beta=1.0)  # now the right-hand side
        if with_inverse:  # A^-1 = D^-1 - Z^T Z with Z = L^-1 X D^-1/2
            x *= (inv_root * self.side.scale[rows].astype(self.dtype)[:, None])[:, None, :]
            device.lower_solve(lower, x)
            part = gram(device, self.room, x.reshape(-1, self.k), None)
        self._finish(rows, inv_root, solution, c, info)
        if with_inverse:  # last: a chunk that ran out of memory runs again
            self.inverse -= part

    def _solve_primal(self, pieces: tuple, length: int, signed: bool, with_inverse: bool) -> None:
        device, xp, k = self.device, self.device.xp, self.k
        rows = pieces[0]
        n = len(rows)
        inv_root, c = self._start(rows)
        x, w, other = self._gather(pieces, xp.arange(n, dtype=np.int32), length, inv_root, signed)
        lower = device.gemm(x, other, xp.empty((n, k, k), self.dtype), ta=True)
        device.gemm(x, w[:, :, None], c[:, :, None], ta=True, beta=1.0)
        del x, other
        self._factor_and_finish(rows, inv_root, c, lower, with_inverse)

    def _factor_and_finish(self, rows: Any, inv_root: Any, rhs: Any, lower: Any, with_inverse: bool) -> None:
        device, k = self.device, self.k
        lower.reshape(len(rows), -1)[:, :: k + 1] += 1
        info = device.cholesky(lower)
        solution = rhs.copy()
        device.cholesky_solve(lower, solution)
        if with_inverse:  # A^-1 = Z^T Z with Z = L^-1 D^-1/2
            z = device.xp.zeros((len(rows), k, k), self.dtype)
            scale = self.side.scale[rows].astype(self.dtype)[:, None]
            z.reshape(len(rows), -1)[:, :: k + 1] = inv_root * scale
            device.lower_solve(lower, z)
            part = gram(device, self.room, z.reshape(-1, k), None)
        self._finish(rows, inv_root, solution, rhs, info)
        if with_inverse:
            self.inverse += part

    def _solve_long(self, bucket: Bucket, arrays: tuple, with_inverse: bool) -> None:
        """Rows of more than `SEGMENT` positives: products of their pieces, added up."""
        device, xp, k, size = self.device, self.device.xp, self.k, self.dtype.itemsize
        packed = SEGMENT * k * (2 if bucket.signed else 1)

        def some_rows(start: int, stop: int) -> None:
            host_rows = bucket.rows[start:stop]
            rows = arrays[0][start:stop]
            n = len(host_rows)
            inv_root, rhs = self._start(rows)
            matrices = xp.zeros((n, k, k), self.dtype)
            cuts = cut(host_rows, self.side.matrix.host.indptr, SEGMENT)
            local = np.repeat(np.arange(n, dtype=np.int32), cuts.cut_count)

            def some_pieces(first: int, last: int) -> None:
                pieces = tuple(device.upload(a[first:last]) for a in (cuts.row, cuts.begin, cuts.count))
                of = device.upload(local[first:last])
                x, w, other = self._gather(pieces, of, SEGMENT, inv_root, bucket.signed)
                products = device.gemm(x, other, xp.empty((last - first, k, k), self.dtype), ta=True)
                sums = xp.empty((last - first, k), self.dtype)
                device.gemm(x, w[:, :, None], sums[:, :, None], ta=True)
                # Rows of these pieces, where each one's begin, and how many there are.
                target, begin, count = np.unique(local[first:last], return_index=True, return_counts=True)
                to, at, many = (device.upload(a.astype(np.int32)) for a in (target, begin, count))
                device.segment_add(to, at, many, products, matrices)
                device.segment_add(to, at, many, sums, rhs)

            each = size * (packed + k * k + SEGMENT + k)
            self.room.chunks(len(cuts.row), each, some_pieces)
            self._factor_and_finish(rows, inv_root, rhs, matrices, with_inverse)

        self.room.chunks(len(bucket.rows), size * k * k * (4 if with_inverse else 1) * 2, some_rows)

    # ------------------------------------------------------------------ what couples the rows

    def _add_diagonals(self, rows: Any) -> None:
        """Add ``scale^2 / D`` of some rows to the sum of inverses."""
        side, xp = self.side, self.device.xp

        def work(start: int, stop: int) -> None:
            part = rows[start:stop]
            scale = side.scale[part][:, None]
            D = scale * self.d.astype(np.float64) + side.ridge[part][:, None]
            terms = (scale**2 / xp.where(scale > 0, D, 1.0)).sum(axis=0)
            self.inverse.reshape(-1)[:: self.k + 1] += terms

        self.room.chunks(len(rows), 8 * 4 * self.k, work, most=1 << 20)


def gram(device: Device, room: Room, factors: Any, weight: Any | None) -> Any:
    """``F^T diag(weight) F``: blocks of rows in the factors' precision, added up in float64 on the device."""
    # factors (n, K), weight (n,) in float64, and the result (K, K).
    xp = device.xp
    n, k = factors.shape
    block = max(1024, -(-n // 64))
    total = xp.zeros((k, k), np.float64)

    def work(start: int, stop: int) -> None:
        first, last = start * block, min(stop * block, n)
        whole = (last - first) // block
        sums = xp.zeros((k, k), np.float64)
        for at, count, rows in ((first, whole, block), (first + whole * block, 1, (last - first) % block)):
            if count and rows:
                part = factors[at : at + count * rows]
                left = part
                if weight is not None:
                    left = part * weight[at : at + count * rows].astype(part.dtype)[:, None]
                products = xp.empty((count, k, k), part.dtype)
                device.gemm(left.reshape(count, rows, k), part.reshape(count, rows, k), products, ta=True)
                sums += products.sum(axis=0, dtype=np.float64)
        total[...] += sums

    each = factors.dtype.itemsize * (k * k + (0 if weight is None else block * k))
    room.chunks(-(-n // block), each, work)
    return (total + total.T) / 2
