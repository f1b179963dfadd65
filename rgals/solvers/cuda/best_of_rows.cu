// The best columns of every row of scores: a block of threads takes a row.
//
// A thread holds the best of every THREADS-th column. The best of these goes to the list, and the thread that held
// it looks for its next one. Given when compiled: REAL, THREADS.

typedef long long Index;

#define ALL 0xffffffffu

struct Scored { REAL score; int column; };

// Whether a comes first: of equal scores the smaller column does.
__device__ bool before(const Scored& a, const Scored& b) {
    return a.score > b.score || (a.score == b.score && a.column < b.column);
}

// The thread's best column after `last`, or (none, -1).
__device__ Scored next(const REAL* scores, Index n_columns, const REAL* scale, Scored last, REAL none) {
    Scored best = {none, -1};
    for (Index j = threadIdx.x; j < n_columns; j += THREADS) {
        const Scored x = {scale ? scores[j] * scale[j] : scores[j], (int)j};
        if (x.score > best.score && before(last, x)) best = x;  // NaN never is
    }
    return best;
}

// scores: (rows, n_columns), changed where a row of `indptr`, `indices` says that a column is not to be listed.
// scale: (n_columns,) or null; NaN removes a column. none: minus infinity. columns, best: (rows, n), -1 and `none`
// where there are no more.
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
