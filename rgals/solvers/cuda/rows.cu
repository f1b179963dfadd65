// Half-steps: sums over positives, packed rows, diagonal systems, triangular solves, weighted sums of columns.

// out[row] = sum of l f over a piece of a row. A warp per piece; pieces of long rows go to `partial`.
extern "C" __global__ void spmm(
    long long n_pieces, const int *row, const long long *begin, const int *count, const int *slot,
    const int *indices, const REAL *values, const REAL *factors, const REAL *row_terms, const REAL *col_terms, int flags,
    REAL *out, REAL *partial
) {
    long long piece = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (piece >= n_pieces) return;
    int n = count[piece];
    long long first = begin[piece];
    const REAL *terms = row_terms + 4 * (long long)row[piece];
    REAL sum[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) sum[j] = 0;
    for (int base = 0; base < n; base += WARP) {
        // Each lane looks up one positive, then all of them work on one after another.
        int col = 0;
        REAL weight = 0;
        if (base + lane < n) {
            REAL m;
            col = indices[first + base + lane];
            coefficients(first + base + lane, col, values, terms, col_terms, flags, &m, &weight);
            if ((flags & UNWEIGHTED) && m != 0) weight = 0;
        }
        int here = min(WARP, n - base);
#pragma unroll 4
        for (int i = 0; i < here; i++) {
            long long c = __shfl_sync(FULL, col, i);
            REAL w = __shfl_sync(FULL, weight, i);
            REAL f[OWN];
            load_row(factors + c * K, lane, f);
#pragma unroll
            for (int j = 0; j < OWN; j++) sum[j] += w * f[j];
        }
    }
    int to = slot[piece];
    store_row(to < 0 ? out + (long long)row[piece] * K : partial + (long long)to * K, lane, sum);
}

// sums[target[i]] += parts[first[i]] + parts[first[i] + 1] + ..., one thread per number, in this order.
extern "C" __global__ void segment_add(
    long long n_numbers, long long size, const int *target, const int *first, const int *count, const REAL *parts,
    REAL *sums
) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n_numbers) return;
    long long i = at / size, j = at % size;
    REAL sum = sums[target[i] * size + j];
    for (int k = 0; k < count[i]; k++) sum += parts[(first[i] + k) * size + j];
    sums[target[i] * size + j] = sum;
}

// Positives of many pieces of rows, packed to a common length with zeros: x holds sqrt(|m|) D^-1/2 f, w holds
// l / sqrt(|m|), signed_x (where asked for) holds sign(m) x. A warp per positive.
extern "C" __global__ void gather(
    long long n_slots, int length, const int *row, const int *local, const long long *begin, const int *count,
    const int *indices, const REAL *values, const REAL *factors, const REAL *row_terms, const REAL *col_terms, int flags,
    const REAL *inv_root, REAL *x, REAL *w, REAL *signed_x
) {
    long long slot = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (slot >= n_slots) return;
    long long piece = slot / length;
    int i = (int)(slot % length);
    REAL f[OWN], scale[OWN], m = 0, l = 0, root = 0;
    if (i < count[piece]) {
        long long at = begin[piece] + i;
        int col = indices[at];
        coefficients(at, col, values, row_terms + 4 * (long long)row[piece], col_terms, flags, &m, &l);
        root = sqrt(m < 0 ? -m : m);
        load_row(factors + (long long)col * K, lane, f);
        load_row(inv_root + (long long)local[piece] * K, lane, scale);
#pragma unroll
        for (int j = 0; j < OWN; j++) f[j] *= root * scale[j];
    } else {
#pragma unroll
        for (int j = 0; j < OWN; j++) f[j] = 0;
    }
    store_row(x + slot * K, lane, f);
    if (lane == 0) w[slot] = root > 0 ? l / root : (REAL)0;
    if (flags & SIGNED) {
#pragma unroll
        for (int j = 0; j < OWN; j++) f[j] = m < 0 ? -f[j] : f[j];
        store_row(signed_x + slot * K, lane, f);
    }
}

// Rows without extra weight on any positive: out holds their sums and receives (sums + linear s) / D. A warp per row.
extern "C" __global__ void diagonal(
    long long n, const int *rows, const long long *indptr, const double *scale, const double *linear,
    const double *ridge, const REAL *d, const REAL *s, REAL *out, double *value, int *info
) {
    long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (at >= n) return;
    long long row = rows[at];
    REAL b[OWN], t[OWN];
    if (indptr[row + 1] == indptr[row] && linear[row] == 0) { // nothing pulls: zero, whatever the curvature
#pragma unroll
        for (int j = 0; j < OWN; j++) b[j] = 0;
        store_row(out + row * K, lane, b);
        if (lane == 0) value[row] = 0;
        return;
    }
    REAL a = (REAL)scale[row], pull = (REAL)linear[row], lift = (REAL)ridge[row];
    load_row(out + row * K, lane, b);
    load_row(s, lane, t);
#pragma unroll
    for (int j = 0; j < OWN; j++) b[j] += pull * t[j];
    load_row(d, lane, t);
    double total = 0;
    int bad = 0;
#pragma unroll
    for (int c = 0; c < OWN; c++) {
        if ((c / VEC * WARP + lane) * VEC >= K) continue;
        REAL D = a * t[c] + lift;
        bad |= !(D > TINY && D < infinity());
        REAL p = b[c] / D;
        total += (double)b[c] * (double)p;
        b[c] = p;
    }
    store_row(out + row * K, lane, b);
    total = warp_sum_double(total);
    bad = __any_sync(FULL, bad);
    if (lane == 0) {
        value[row] = total;
        if (bad) info[row] = -1;
    }
}

// x <- L^-1 x for a batch of lower triangles L (n x n) and n x K matrices x. A block of 32 x 8 threads per 32 columns.
extern "C" __global__ void lower_solve(int n, const REAL *lower, REAL *x) {
    __shared__ REAL l[WARP][WARP + 1];
    __shared__ REAL y[WARP][WARP + 1];
    const int tiles = (K + WARP - 1) / WARP;
    long long which = blockIdx.x / tiles;
    int tx = threadIdx.x, ty = threadIdx.y, col = (int)(blockIdx.x % tiles) * WARP + tx;
    lower += which * n * n;
    x += which * n * K;
    for (int top = 0; top < n; top += WARP) {
        REAL sum[4];
        for (int q = 0; q < 4; q++) {
            int r = top + ty + 8 * q;
            sum[q] = r < n && col < K ? x[(long long)r * K + col] : (REAL)0;
        }
        for (int left = 0; left <= top; left += WARP) {
            for (int q = 0; q < 4; q++) {
                int r = ty + 8 * q;
                bool inside = top + r < n && left + tx < n && left + tx <= top + r;
                l[r][tx] = inside ? lower[(long long)(top + r) * n + left + tx] : (REAL)0;
                if (left < top) y[r][tx] = col < K ? x[(long long)(left + r) * K + col] : (REAL)0;
                else y[r][tx] = sum[q];
            }
            __syncthreads();
            if (left < top) {
                for (int t = 0; t < WARP; t++)
                    for (int q = 0; q < 4; q++) sum[q] -= l[ty + 8 * q][t] * y[t][tx];
                __syncthreads();
            }
        }
        for (int t = 0; t < WARP && top + t < n; t++) { // the triangle on the diagonal, row after row
            REAL solved = y[t][tx] / l[t][t];
            __syncthreads();
            if (ty == 0) y[t][tx] = solved;
            for (int r = ty; r < WARP; r += 8)
                if (r > t) y[r][tx] -= l[r][t] * solved;
            __syncthreads();
        }
        for (int q = 0; q < 4; q++) {
            int r = ty + 8 * q;
            if (top + r < n && col < K) x[(long long)(top + r) * K + col] = y[r][tx];
        }
        __syncthreads();
    }
}

// Sums over the rows of a part of `factors`: weight f^2, weight f and linear_weight f, in double. A block of 32 x 8
// threads per part and 32 columns.
extern "C" __global__ void column_sums(
    long long n, long long rows_each, const REAL *factors, const double *weight, const double *linear_weight, double *out
) {
    __shared__ double sums[8][3][WARP];
    const int tiles = (K + WARP - 1) / WARP;
    long long part = blockIdx.x / tiles;
    int tx = threadIdx.x, ty = threadIdx.y, col = (int)(blockIdx.x % tiles) * WARP + tx;
    long long end = min(n, (part + 1) * rows_each);
    double squares = 0, plain = 0, linear = 0;
    if (col < K)
        for (long long r = part * rows_each + ty; r < end; r += 8) {
            double f = factors[r * K + col], w = weight[r];
            squares += w * f * f;
            plain += w * f;
            linear += linear_weight[r] * f;
        }
    sums[ty][0][tx] = squares;
    sums[ty][1][tx] = plain;
    sums[ty][2][tx] = linear;
    __syncthreads();
    if (ty < 3 && col < K) {
        double total = 0;
        for (int i = 0; i < 8; i++) total += sums[i][ty][tx];
        out[(part * 3 + ty) * K + col] = total;
    }
}
