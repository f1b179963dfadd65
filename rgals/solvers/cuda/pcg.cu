// Conjugate gradients for the rows of a half-step, preconditioned by the diagonal of the rotated basis.

#define WARPS (K * (WIDE + 1) > 1024 ? 4 : 8) // the partial products of all warps fit into shared memory
#define THREADS (WARPS * WARP)
#define MINE ((K + THREADS - 1) / THREADS) // numbers of a row that a thread owns

// Sum over a block, in the same order in every run; every thread gets the result.
__device__ inline double block_sum(double x, double *sums) {
    x = warp_sum_double(x);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
    __syncthreads();
    double total = 0;
    for (int i = 0; i < WARPS; i++) total += sums[i];
    __syncthreads();
    return total;
}

// What a row is, for the functions below.
struct Row {
    long long begin, end;
    const int *indices;
    const REAL *values, *factors, *terms, *col_terms;
    int flags;
};

// Thread-owned parts of `inv_root sum m f (f . direction)`; with `linear` also of `inv_root sum l f`.
__device__ inline void positives(
    const Row &row, const REAL *direction, REAL parts[][K], const REAL *inv_root, REAL *product, REAL *linear
) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    REAL q[OWN], sum[OWN], pull[OWN];
    load_row(direction, lane, q);
#pragma unroll
    for (int j = 0; j < OWN; j++) sum[j] = pull[j] = 0;
    for (long long at = row.begin + warp; at < row.end; at += WARPS) {
        REAL m, l, f[OWN], dot = 0;
        int col = row.indices[at];
        coefficients(at, col, row.values, row.terms, row.col_terms, row.flags, &m, &l);
        load_row(row.factors + (long long)col * K, lane, f);
#pragma unroll
        for (int j = 0; j < OWN; j++) dot += f[j] * q[j];
        dot = m * warp_sum(dot);
#pragma unroll
        for (int j = 0; j < OWN; j++) sum[j] += dot * f[j];
        if (linear) {
#pragma unroll
            for (int j = 0; j < OWN; j++) pull[j] += l * f[j];
        }
    }
    for (int pass = 0; pass < (linear ? 2 : 1); pass++) {
        store_row(parts[warp], lane, pass ? pull : sum);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < MINE; e++) {
            int j = threadIdx.x + e * THREADS;
            REAL total = 0;
            if (j < K)
                for (int i = 0; i < WARPS; i++) total += parts[i][j];
            if (j < K) (pass ? linear : product)[e] = inv_root[e] * total;
        }
        __syncthreads();
    }
}

// Improve a row by `steps` steps from what `out` holds. A block per row.
extern "C" __global__ void __launch_bounds__(THREADS) pcg(
    const int *order, const long long *indptr, const int *indices, const REAL *values, const REAL *factors,
    const REAL *row_terms, const REAL *col_terms, int flags, const REAL *d, const REAL *s, const double *scale,
    const double *linear, const double *ridge, int steps, REAL *out, double *value, int *info
) {
    __shared__ __align__(16) REAL direction[K];
    __shared__ __align__(16) REAL parts[WARPS][K];
    __shared__ double sums[WARPS];
    long long id = order[blockIdx.x];
    Row row = {indptr[id], indptr[id + 1], indices, values, factors, row_terms + 4 * id, col_terms, flags};
    REAL a = (REAL)scale[id], pull = (REAL)linear[id], lift = (REAL)ridge[id];
    bool nothing = row.begin == row.end && linear[id] == 0; // b = 0
    REAL inv_root[MINE], b[MINE], x[MINE], r[MINE], p[MINE], ap[MINE];
    double bad = 0;
#pragma unroll
    for (int e = 0; e < MINE; e++) {
        int j = threadIdx.x + e * THREADS;
        inv_root[e] = b[e] = x[e] = r[e] = p[e] = ap[e] = 0;
        if (j < K) {
            REAL D = a * d[j] + lift;
            bool usable = D > TINY && D < infinity();
            bad += !usable;
            inv_root[e] = usable ? 1 / sqrt(D) : (REAL)1;
            REAL start = out[id * K + j];
            x[e] = start / inv_root[e];
            direction[j] = start;
        }
    }
    bad = block_sum(bad, sums);
    if (nothing || bad > 0) {
        for (int j = threadIdx.x; j < K; j += THREADS) out[id * K + j] = 0;
        if (threadIdx.x == 0) {
            value[id] = 0;
            if (!nothing) info[id] = -1;
        }
        return;
    }
    // The right-hand side and the operator at the start, in one pass over the positives.
    positives(row, direction, parts, inv_root, ap, b);
    double rr = 0, bb = 0;
#pragma unroll
    for (int e = 0; e < MINE; e++) {
        int j = threadIdx.x + e * THREADS;
        if (j < K) b[e] += pull * s[j] * inv_root[e];
        ap[e] += x[e];
        p[e] = r[e] = b[e] - ap[e];
        rr += (double)r[e] * r[e];
        bb += (double)b[e] * b[e];
    }
    rr = block_sum(rr, sums);
    double enough = block_sum(bb, sums) * EPS * EPS;
    for (int step = 0; step < steps && rr > enough; step++) {
        for (int e = 0; e < MINE; e++) {
            int j = threadIdx.x + e * THREADS;
            if (j < K) direction[j] = inv_root[e] * p[e];
        }
        __syncthreads();
        positives(row, direction, parts, inv_root, ap, (REAL *)0);
        double curvature = 0;
#pragma unroll
        for (int e = 0; e < MINE; e++) {
            ap[e] += p[e];
            curvature += (double)p[e] * ap[e];
        }
        curvature = block_sum(curvature, sums);
        if (!(curvature > 0)) {
            if (threadIdx.x == 0) info[id] = 1;
            break;
        }
        REAL along = (REAL)(rr / curvature);
        double next = 0;
#pragma unroll
        for (int e = 0; e < MINE; e++) {
            x[e] += along * p[e];
            r[e] -= along * ap[e];
            next += (double)r[e] * r[e];
        }
        next = block_sum(next, sums);
        REAL beta = (REAL)(next / rr);
        rr = next;
#pragma unroll
        for (int e = 0; e < MINE; e++) p[e] = r[e] + beta * p[e];
    }
    double total = 0;
#pragma unroll
    for (int e = 0; e < MINE; e++) {
        int j = threadIdx.x + e * THREADS;
        total += ((double)b[e] + r[e]) * x[e];
        if (j < K) out[id * K + j] = x[e] * inv_root[e];
    }
    total = block_sum(total, sums);
    if (threadIdx.x == 0) value[id] = total;
}
