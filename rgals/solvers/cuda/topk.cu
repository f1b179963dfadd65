// Selection of the best items from tiles of scores.

#define SELECT_THREADS 256
#define ENTRIES 2048 // list and newcomers of one query
#define EACH 2       // scores that a thread looks at between two barriers

// Scores of items that a query must not get become -inf. A warp per query.
extern "C" __global__ void mask(
    long long n_queries, int first, int width, const long long *indptr, const int *indices, REAL *scores
) {
    long long query = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (query >= n_queries) return;
    long long low = indptr[query], end = indptr[query + 1], high = end;
    while (low < high) { // the first index that is not below `first`
        long long middle = low + (high - low) / 2;
        if (indices[middle] < first) low = middle + 1;
        else high = middle;
    }
    for (long long at = low + threadIdx.x % WARP; at < end && indices[at] < first + width; at += WARP)
        scores[query * width + indices[at] - first] = -infinity();
}

// Larger scores first, equal ones by the smaller id. Ids differ, so the order is the same in every run.
__device__ inline bool better(REAL a, int i, REAL b, int j) { return a > b || (a == b && i < j); }

__device__ inline void sort_entries(REAL *score, int *id, int n) { // bitonic; n is a power of two
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < n / 2; i += SELECT_THREADS) {
                int a = 2 * i - (i & (step - 1)), b = a + step;
                bool down = (a & size) == 0; // best first
                bool swap = down ? better(score[b], id[b], score[a], id[a]) : better(score[a], id[a], score[b], id[b]);
                if (swap) {
                    REAL s = score[a];
                    int t = id[a];
                    score[a] = score[b];
                    id[a] = id[b];
                    score[b] = s;
                    id[b] = t;
                }
            }
            __syncthreads();
        }
}

// Let the scores of a tile enter the sorted lists of `n` entries. A block per query; n + 512 <= ENTRIES.
// `scale` multiplies the scores of an item (NaN removes it); `names` gives the ids of the columns.
extern "C" __global__ void __launch_bounds__(SELECT_THREADS) select_best(
    int width, int n, int first, const REAL *scores, const REAL *scale, int has_scale, const int *names, int has_names,
    REAL *best, int *best_ids
) {
    __shared__ REAL score[ENTRIES];
    __shared__ int id[ENTRIES];
    __shared__ int newcomers;
    const int last_id = 0x7fffffff;
    long long query = blockIdx.x;
    scores += query * width;
    best += query * n;
    best_ids += query * n;
    for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
        score[i] = best[i];
        id[i] = best_ids[i] < 0 ? last_id : best_ids[i];
    }
    if (threadIdx.x == 0) newcomers = 0;
    __syncthreads();
    REAL low = score[n - 1];
    int low_id = id[n - 1];
    for (int base = 0; base < width; base += EACH * SELECT_THREADS) {
        for (int e = 0; e < EACH; e++) {
            int j = base + e * SELECT_THREADS + threadIdx.x;
            if (j >= width) continue;
            REAL v = scores[j];
            if (has_scale) v *= scale[first + j];
            int item = has_names ? names[first + j] : first + j;
            if (v > -infinity() && better(v, item, low, low_id)) { // false for NaN
                int to = n + atomicAdd(&newcomers, 1);
                score[to] = v;
                id[to] = item;
            }
        }
        __syncthreads();
        int count = newcomers;
        bool full = n + count + EACH * SELECT_THREADS > ENTRIES;
        bool last = base + EACH * SELECT_THREADS >= width;
        __syncthreads();
        if (full || (last && count > 0)) {
            int size = 2;
            while (size < n + count) size *= 2;
            for (int i = n + count + threadIdx.x; i < size; i += SELECT_THREADS) {
                score[i] = -infinity();
                id[i] = last_id;
            }
            if (threadIdx.x == 0) newcomers = 0;
            __syncthreads();
            sort_entries(score, id, size);
            low = score[n - 1];
            low_id = id[n - 1];
            __syncthreads();
        }
    }
    for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
        best[i] = score[i];
        best_ids[i] = id[i] == last_id ? -1 : id[i];
    }
}
