"""Every kernel written from its description in numpy, with the arguments of the real one."""

from __future__ import annotations

import numpy as np
from solvers.cuda.emulator import check_arguments, signatures

VALUED, COLUMNS, UNWEIGHTED, SIGNED = 1, 2, 4, 8


def _coefficients(at, row, indices, values, row_terms, col_terms, flags):
    """Columns, m and l of stored entries of one row."""
    cols = indices[at]
    v = values[at] if flags & VALUED else np.ones(len(cols), row_terms.dtype)
    r = row_terms[row]
    c = col_terms[cols] if flags & COLUMNS else np.ones((len(cols), 4), row_terms.dtype)
    return cols, v * (r[0] * c[:, 0]) + r[1] * c[:, 1], v * (r[2] * c[:, 2]) + r[3] * c[:, 3]


def _usable(diagonal):
    return diagonal.min() > np.finfo(diagonal.dtype).tiny and np.isfinite(diagonal).all()


def spmm(n, row, begin, count, slot, indices, values, factors, row_terms, col_terms, flags, out, partial):
    for i in range(int(n)):
        at = np.arange(begin[i], begin[i] + count[i])
        cols, m, linear = _coefficients(at, row[i], indices, values, row_terms, col_terms, flags)
        if flags & UNWEIGHTED:
            linear = np.where(m == 0, linear, 0)
        total = linear.astype(factors.dtype) @ factors[cols]
        if slot[i] < 0:
            out[row[i]] = total
        else:
            partial[slot[i]] = total


def segment_add(n_numbers, size, target, first, count, parts, sums):
    assert n_numbers == len(target) * size
    for t, f, c in zip(target, first, count):
        for i in range(f, f + c):
            sums[t] += parts[i]


def gather(
    n_slots, length, row, local, begin, count, indices, values, factors, row_terms, col_terms, flags,
    inv_root, x, w, signed_x,
):  # fmt: skip
    assert n_slots == len(row) * length
    x[:], w[:] = 0, 0
    if flags & SIGNED:
        signed_x[:] = 0
    for i in range(len(row)):
        at = np.arange(begin[i], begin[i] + count[i])
        cols, m, linear = _coefficients(at, row[i], indices, values, row_terms, col_terms, flags)
        root = np.sqrt(np.abs(m))
        x[i, : count[i]] = root[:, None] * factors[cols] * inv_root[local[i]]
        w[i, : count[i]] = np.divide(linear, root, out=np.zeros_like(root), where=root > 0)
        if flags & SIGNED:
            signed_x[i, : count[i]] = np.sign(m)[:, None] * x[i, : count[i]]


def diagonal(n, rows, indptr, scale, linear, ridge, d, s, out, value, info):
    for row in rows[: int(n)]:
        if indptr[row] == indptr[row + 1] and linear[row] == 0:
            out[row], value[row] = 0, 0
            continue
        b = out[row] + out.dtype.type(linear[row]) * s
        D = out.dtype.type(scale[row]) * d + out.dtype.type(ridge[row])
        if not _usable(D):
            info[row] = -1
        with np.errstate(all="ignore"):
            out[row] = b / D
        value[row] = b.astype(np.float64) @ out[row]


def lower_solve(n, lower, x):
    for i in range(len(x)):
        x[i] = np.linalg.solve(np.tril(lower[i].view(np.ndarray)), x[i].view(np.ndarray))


def column_sums(n, rows_each, factors, weight, linear_weight, out):
    for part in range(len(out)):
        here = slice(part * rows_each, min(n, (part + 1) * rows_each))
        f = factors[here].astype(np.float64)
        out[part] = weight[here] @ f**2, weight[here] @ f, linear_weight[here] @ f


def pcg(
    order, indptr, indices, values, factors, row_terms, col_terms, flags, d, s, scale, linear, ridge, steps,
    out, value, info,
):  # fmt: skip
    for row in order:
        at = np.arange(indptr[row], indptr[row + 1])
        if len(at) == 0 and linear[row] == 0:
            out[row], value[row] = 0, 0
            continue
        D = out.dtype.type(scale[row]) * d + out.dtype.type(ridge[row])
        if not _usable(D):
            out[row], value[row], info[row] = 0, 0, -1
            continue
        cols, m, slope = _coefficients(at, row, indices, values, row_terms, col_terms, flags)
        root = 1 / np.sqrt(D)
        f = factors[cols] * root
        A = np.eye(len(d), dtype=out.dtype) + (f * m[:, None]).T @ f
        b = slope @ f + out.dtype.type(linear[row]) * s * root
        x = out[row] / root
        r = b - A @ x
        p = r.copy()
        rr = r @ r
        for _ in range(steps):
            if not rr > b @ b * np.finfo(out.dtype).eps ** 2:
                break
            curvature = p @ A @ p
            if not curvature > 0:
                info[row] = 1
                break
            x = x + rr / curvature * p
            r = r - rr / curvature * (A @ p)
            rr, before = r @ r, rr
            p = r + rr / before * p
        value[row] = (b + r).astype(np.float64) @ x
        out[row] = x * root


def mask(n_queries, first, width, indptr, indices, scores):
    for q in range(int(n_queries)):
        cols = indices[indptr[q] : indptr[q + 1]] - first
        scores[q, cols[(cols >= 0) & (cols < width)]] = -np.inf


def select_best(width, n, first, scores, scale, has_scale, names, has_names, best, best_ids):
    cols = np.arange(first, first + width)
    ids = names[cols] if has_names else cols
    for q in range(len(best)):
        v = scores[q] * scale[cols] if has_scale else scores[q]
        keep = v > -np.inf
        known = best_ids[q] >= 0
        v, items = np.concatenate([best[q][known], v[keep]]), np.concatenate([best_ids[q][known], ids[keep]])
        order = np.lexsort((items, -v))[: int(n)]
        best[q], best_ids[q] = -np.inf, -1
        best[q, : len(order)], best_ids[q, : len(order)] = v[order], items[order]


class NumpyModule:
    """`cupy.RawModule` with these functions in place of the kernels."""

    def __init__(self, *, code: str, options: tuple[str, ...]) -> None:
        self.signatures = signatures(code, np.dtype(np.float64 if "-DREAL=double" in options else np.float32))

    def get_function(self, name: str):
        expected = self.signatures[name]

        def launch(grid, block, args):
            check_arguments(name, expected, args)
            globals()[name](
                *(np.asarray(a).view(np.ndarray) if isinstance(a, np.ndarray) else a for a in args)
            )

        return launch
