// The best columns of every row of scores: a block of threads takes one row.
//
// Each thread holds the best of every THREADS-th column. The best one of all threads goes to the list, and the
// thread that held it looks for its next one. Macros given when compiled: REAL (float or double), THREADS.

typedef long long Index;

#define ALL 0xffffffffu

struct Scored { REAL score; int column; };

// Whether a comes before b in the list: of equal scores the smaller column comes first.
__device__ bool before(const Scored& a, const Scored& b) {
    return a.score > b.score || (a.score == b.score && a.column < b.column);
}

// The thread's best column that comes after `last` in the list, or (none, -1).
__device__ Scored next(const REAL* scores, Index n_columns, const REAL* scale, Scored last, REAL none) {
    Scored best = {none, -1};
    for (Index j = threadIdx.x; j < n_columns; j += THREADS) {
        const Scored x = {scale ? scores[j] * scale[j] : scores[j], (int)j};
        if (x.score > best.score && before(last, x)) best = x;  // never true for NaN
    }
    return best;
}

// scores (rows, n_columns): overwritten in columns that a row must not list, which `indptr` and `indices` give.
// scale (n_columns,) or null: multiplies the scores; NaN removes a column. none: minus infinity. columns and best
// (rows, n): the list and its scores; -1 and `none` if there are fewer than n.
extern "C" __global__ void __launch_bounds__(THREADS) best_of_rows(
    REAL* scores, Index n_columns, const REAL* scale, const Index* indptr, const int* indices, int n, REAL none,
    int* columns, REAL* best
) {
    __shared__ Scored of_warps[THREADS / 32];
    scores += blockIdx.x * n_columns;
    for (Index at = indptr[blockIdx.x] + threadIdx.x; at < indptr[blockIdx.x + 1]; at += THREADS)
        scores[indices[at]] = none - none;  // NaN, whatever the scale
    __syncthreads();
    Scored own = next(scores, n_columns, scale, {-none, -1}, none);
    for (int place = 0; place < n; place++) {
        Scored first = own;
        for (int over = 16; over; over /= 2) {
            const Scored other = {
                __shfl_xor_sync(ALL, first.score, over), __shfl_xor_sync(ALL, first.column, over)};
            if (before(other, first)) first = other;
        }
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = first;
        __syncthreads();
        for (int warp = 0; warp < THREADS / 32; warp++)
            if (before(of_warps[warp], first)) first = of_warps[warp];
        __syncthreads();
        if (threadIdx.x == 0) {
            columns[(Index)blockIdx.x * n + place] = first.score > none ? first.column : -1;
            best[(Index)blockIdx.x * n + place] = first.score;
        }
        if (first.score > none && own.column == first.column) own = next(scores, n_columns, scale, first, none);
    }
}
