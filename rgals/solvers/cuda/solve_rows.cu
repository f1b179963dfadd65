// Half-steps row by row: a block of threads solves one row at a time, from its positives to its factors.
//
// `rgals.kernels.row` states the systems. In the rotated basis, scaled by D^-1/2 with D = scale d + ridge, the
// system of a row is (I + X^T M X) x = b, p = D^-1/2 x. The rows of X are x_k = D^-1/2 f_k, M is diagonal with the
// weights m_k, and b = D^-1/2 linear s + sum_k l_k x_k. PRIMAL rows are solved like this. DUAL rows, which have
// n <= K positives and no negative weight, are solved by (I + Y Y^T) z = w - Y c, x = c + Y^T z, which loses no
// digits to cancellation. Here Y = M^1/2 X, w_k = l_k / sqrt(m_k), and c is b without the positives that have a
// weight.
//
// Either matrix is factorised as L L^T in tiles, from left to right. A tile is summed over the positives (or over
// the factors) in registers, 4 x 4 numbers per thread. The products of the tiles to its left are subtracted there.
// Then it is factorised, if it is on the diagonal, or solved with the diagonal tile. The right-hand side is
// treated as one more row. For sums of inverses the rows of the identity are too: they become those of L^-T.
//
// Macros given when compiled: REAL (float or double), TILE, and K, a multiple of 4 whose last factors may be zero.

typedef long long Index;

#define TILES ((K + TILE - 1) / TILE)
#define SIZE (TILES * TILE)
#define THREADS (TILE * TILE / 16)
#define STEP (TILE / 2)     // positives (or factors) staged in shared memory at once
#define PITCH (TILE + 4)    // distance between columns of the corner, padded against bank conflicts
#define SUB (THREADS / TILE)  // threads that share a row of a tile; they are neighbours
#define WIDTH (K < THREADS ? (K + 31) / 32 * 32 : THREADS)  // threads side by side on the factors of a positive
#define GROUPS (THREADS / WIDTH)
#define ALL 0xffffffffu

enum { DIAGONAL = 1, DUAL = 2, PRIMAL = 3 };
enum { EVERY, WEIGHTLESS, SOLVED };  // coefficients of `add_positives`: l; l where m = 0; z sqrt(m)

struct __align__(16) Four { REAL at[4]; };

struct Positive { int column; REAL weight, linear; };

struct Row {
    const int* columns;
    const REAL *values, *terms, *col_terms;  // values and col_terms may be null: ones
    int n;

    __device__ Positive operator[](int i) const {
        Positive p = {columns[i], 0, 0};
        REAL v = values ? values[i] : REAL(1);
        if (col_terms) {
            const REAL* of = col_terms + 4 * (Index)p.column;
            p.weight = v * terms[0] * of[0] + terms[1] * of[1];
            p.linear = v * terms[2] * of[2] + terms[3] * of[3];
        } else {
            p.weight = v * terms[0] + terms[1];
            p.linear = v * terms[2] + terms[3];
        }
        return p;
    }
};

struct Shared {
    alignas(16) REAL corner[TILE * PITCH];  // the tile of L on the diagonal, column by column
    struct { Four left[STEP * TILE / 4], right[STEP * TILE / 4]; } staged;
    Four passed[2][TILE / 4];  // a column passed from the threads that hold it to all others, and the one before
    REAL root[SIZE], b[SIZE], pivot[SIZE];  // D^-1/2; the right-hand side, then the solution; 1 / diagonal of L
    double partial[THREADS / 32];
    int row, bad;  // the row that the block solves; the first pivot that is not positive, from 1, or 0
};

// The sum over all threads of the block; every thread gets it.
__device__ double block_sum(double x, double* partial) {
    for (int over = 16; over; over /= 2) x += __shfl_xor_sync(ALL, x, over);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < THREADS / 32; i++) x += partial[i];
    __syncthreads();
    return x;
}

// sum += D^-1/2 sum_i coefficient_i f_i with the coefficients `what`; `z` is read for SOLVED. Uses the staging area.
__device__ void add_positives(REAL* sum, const Row& row, const REAL* fixed, Shared& s, int what, const REAL* z) {
    const int lane = threadIdx.x % WIDTH, group = threadIdx.x / WIDTH;
    for (int first = 0; first < K; first += WIDTH) {
        const int k = first + lane;
        REAL total = 0;
        if (k < K && group < GROUPS) {
#pragma unroll 4
            for (int i = group; i < row.n; i += GROUPS) {
                const Positive p = row[i];
                REAL coefficient = p.linear;
                if (what == WEIGHTLESS && p.weight > 0) coefficient = 0;
                if (what == SOLVED) coefficient = z[i] * sqrt(p.weight);
                total += coefficient * fixed[(Index)p.column * K + k];
            }
        }
        REAL* parts = (REAL*)s.staged.left;
        parts[threadIdx.x] = total;
        __syncthreads();
        if (group == 0 && k < K) {
            for (int other = 1; other < GROUPS; other++) total += parts[other * WIDTH + lane];
            sum[k] += total * s.root[k];
        }
        __syncthreads();
    }
}

// The right-hand side of the dual: b_i = w_i - y_i . c.
__device__ void dual_right_side(const Row& row, const REAL* fixed, Shared& s, const REAL* c) {
    const int lane = threadIdx.x % 32;
    for (int first = 0; first < SIZE; first += THREADS / 32) {
        const int i = first + threadIdx.x / 32;
        const Positive p = i < row.n ? row[i] : Positive{0, 0, 0};
        REAL total = 0;
        for (int k = lane; p.weight > 0 && k < K; k += 32) total += fixed[(Index)p.column * K + k] * s.root[k] * c[k];
        for (int over = 16; over; over /= 2) total += __shfl_xor_sync(ALL, total, over);
        if (lane == 0 && i < SIZE) s.b[i] = p.weight > 0 ? p.linear / sqrt(p.weight) - sqrt(p.weight) * total : REAL(0);
    }
    __syncthreads();
}

// Four factors of a positive, from k on, scaled by D^-1/2 and `by`.
__device__ Four scaled(const REAL* fixed, const Positive& p, int k, const REAL* root, REAL by) {
    Four x = {{0, 0, 0, 0}};
    if (k < K) {
        x = *(const Four*)(fixed + (Index)p.column * K + k);
#pragma unroll
        for (int e = 0; e < 4; e++) x.at[e] *= root[k + e] * by;
    }
    return x;
}

// Stage positives from t on for tile (i, j) of the primal, the sum of m x x^T.
__device__ void stage_primal(const Row& row, const REAL* fixed, int i, int j, int t, Shared& s) {
    for (int e = threadIdx.x; e < STEP * TILE / 4; e += THREADS) {
        const int at = t + e / (TILE / 4), k = 4 * (e % (TILE / 4));
        const Positive p = at < row.n ? row[at] : Positive{0, 0, 0};
        Four x = scaled(fixed, p, j * TILE + k, s.root, 1);
        s.staged.right[e] = x;
        if (i != j) x = scaled(fixed, p, i * TILE + k, s.root, 1);
#pragma unroll
        for (int f = 0; f < 4; f++) x.at[f] *= p.weight;
        s.staged.left[e] = x;
    }
}

// Stage factors from t on for tile (i, j) of the dual, the sum of y y^T.
__device__ void stage_dual(const Row& row, const REAL* fixed, int i, int j, int t, Shared& s) {
    for (int e = threadIdx.x; e < STEP * TILE / 4; e += THREADS) {
        const int at = e / (STEP / 4), k = 4 * (e % (STEP / 4));
        for (int which = 0; which < 2; which++) {
            REAL* to = (REAL*)(which ? s.staged.right : s.staged.left);
            const int place = (which ? j : i) * TILE + at;
            const Positive p = place < row.n ? row[place] : Positive{0, 0, 0};
            const Four y = scaled(fixed, p, t + k, s.root, sqrt(p.weight));
#pragma unroll
            for (int f = 0; f < 4; f++) to[(k + f) * TILE + at] = y.at[f];
        }
    }
}

// Stage columns from t on of tile rows i (times `sign`) and j of L, which are stored column by column.
__device__ void stage_factor(const REAL* tiles, int i, int j, int t, REAL sign, Shared& s) {
    const Index at = (t / TILE) * (TILE * TILE) + t % TILE * TILE;
    const Four* left = (const Four*)(tiles + (Index)i * TILES * TILE * TILE + at);
    const Four* right = (const Four*)(tiles + (Index)j * TILES * TILE * TILE + at);
    for (int e = threadIdx.x; e < STEP * TILE / 4; e += THREADS) {
        Four x = left[e];
        for (int f = 0; f < 4; f++) x.at[f] *= sign;
        s.staged.left[e] = x;
        s.staged.right[e] = right[e];
    }
}

// The thread's 4 x 4 numbers of left^T right.
__device__ void add_products(REAL sum[4][4], const Shared& s) {
    const int i = threadIdx.x / (TILE / 4), j = threadIdx.x % (TILE / 4);
#pragma unroll 8
    for (int t = 0; t < STEP; t++) {
        const Four a = s.staged.left[t * (TILE / 4) + i], b = s.staged.right[t * (TILE / 4) + j];
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int f = 0; f < 4; f++) sum[e][f] += a.at[e] * b.at[f];
    }
}

// The row and column of the tile where the thread's 4 x 4 numbers begin.
#define TOP (4 * (int)(threadIdx.x / (TILE / 4)))
#define LEFT (4 * (int)(threadIdx.x % (TILE / 4)))

// Factorise a tile on the diagonal, which is in registers, and solve b with it. L goes to the corner.
// `size`: rows of the tile that belong to the matrix; the others are those of the identity.
__device__ void factor_corner(REAL A[4][4], Shared& s, int first, int size) {
    REAL* b = s.b + first;
    for (int block = 0; block < size; block += 4)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = block + e;
            Four* passed = s.passed[e % 2];
            if (LEFT == block) passed[TOP / 4] = {{A[0][e], A[1][e], A[2][e], A[3][e]}};
            __syncthreads();
            const REAL* column = (const REAL*)passed;
            const REAL pivot = column[c], inverse = 1 / pivot;
            if (LEFT >= block && TOP >= LEFT) {
                const Four x = passed[TOP / 4], y = passed[LEFT / 4];
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    const REAL v = x.at[g] * inverse;
#pragma unroll
                    for (int f = 0; f < 4; f++)
                        if (LEFT > block || f > e) A[g][f] -= v * y.at[f];
                }
            }
            if (threadIdx.x > c && threadIdx.x < TILE) b[threadIdx.x] -= b[c] * column[threadIdx.x] * inverse;
            if (threadIdx.x == 0) {
                if (!(pivot > 0) && !s.bad) s.bad = first + c + 1;
                s.pivot[first + c] = 1 / sqrt(pivot);
            }
        }
    for (int c = (size + 3) / 4 * 4 + threadIdx.x; c < TILE; c += THREADS) s.pivot[first + c] = 1;
    __syncthreads();
    if (threadIdx.x < TILE) b[threadIdx.x] *= s.pivot[first + threadIdx.x];
#pragma unroll
    for (int f = 0; f < 4; f++) {
        Four x;
#pragma unroll
        for (int g = 0; g < 4; g++) x.at[g] = TOP + g >= LEFT + f ? A[g][f] * s.pivot[first + LEFT + f] : REAL(0);
        *(Four*)(s.corner + (LEFT + f) * PITCH + TOP) = x;
    }
    __syncthreads();
}

// P = P L^-T for a tile P in registers, with L in the corner.
__device__ void solve_panel(REAL P[4][4], Shared& s, int first, int size) {
    for (int block = 0; block < size; block += 4)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int c = block + e;
            const REAL pivot = s.pivot[first + c];
            Four* passed = s.passed[e % 2];
            if (LEFT == block) {
#pragma unroll
                for (int g = 0; g < 4; g++) P[g][e] *= pivot;
                passed[TOP / 4] = {{P[0][e], P[1][e], P[2][e], P[3][e]}};
            }
            __syncthreads();
            if (LEFT >= block) {
                const Four x = passed[TOP / 4], y = *(const Four*)(s.corner + c * PITCH + LEFT);
#pragma unroll
                for (int g = 0; g < 4; g++)
#pragma unroll
                    for (int f = 0; f < 4; f++)
                        if (LEFT > block || f > e) P[g][f] -= x.at[g] * y.at[f];
            }
        }
}

// Factorise the row's matrix of `dim` rows as L L^T, and b = L^-1 b. With `inverse` L^-T is computed below L. L is
// left in `tiles` if it has several, and its last diagonal tile in the corner.
__device__ void factor(const Row& row, int kind, int dim, const REAL* fixed, REAL* tiles, bool inverse, Shared& s) {
    const int count = (dim + TILE - 1) / TILE, length = kind == PRIMAL ? row.n : K;
    for (int j = 0; j < count; j++) {
        const int size = min(TILE, dim - j * TILE), rows = count + (inverse ? j + 1 : 0);
        for (int i = j; i < rows; i++) {
            const bool identity = i >= count;  // a tile row of the identity, which becomes one of L^-T
            REAL sum[4][4] = {};
            if (!identity) {
                for (int t = 0; t < length; t += STEP) {
                    if (kind == DUAL) stage_dual(row, fixed, i, j, t, s);
                    else stage_primal(row, fixed, i, j, t, s);
                    __syncthreads();
                    add_products(sum, s);
                    __syncthreads();
                }
            }
            for (int t = identity ? (i - count) * TILE : 0; t < j * TILE; t += STEP) {
                stage_factor(tiles, i, j, t, -1, s);
                __syncthreads();
                add_products(sum, s);
                __syncthreads();
            }
            if (TOP == LEFT && (i == j || i - count == j))
#pragma unroll
                for (int e = 0; e < 4; e++) sum[e][e] += 1;
            REAL* tile = tiles + ((Index)i * TILES + j) * TILE * TILE;
            if (i == j) {
                factor_corner(sum, s, j * TILE, size);
                if (count > 1 || inverse)
                    for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) tile[e] = s.corner[e / TILE * PITCH + e % TILE];
            } else {
                solve_panel(sum, s, j * TILE, size);
#pragma unroll
                for (int f = 0; f < 4; f++)
                    *(Four*)(tile + (LEFT + f) * TILE + TOP) = {{sum[0][f], sum[1][f], sum[2][f], sum[3][f]}};
            }
            __syncthreads();
            if (!identity && i > j) {
                const int r = threadIdx.x / SUB, sub = threadIdx.x % SUB;
                REAL total = 0;
                for (int c = sub; c < TILE; c += SUB) total += tile[c * TILE + r] * s.b[j * TILE + c];
                for (int over = SUB / 2; over; over /= 2) total += __shfl_xor_sync(ALL, total, over);
                if (sub == 0) s.b[i * TILE + r] -= total;
            }
        }
    }
    __syncthreads();
}

// b = L^-T b, the backward substitution.
__device__ void solve_back(int dim, const REAL* tiles, Shared& s) {
    const int r = threadIdx.x / SUB, sub = threadIdx.x % SUB, count = (dim + TILE - 1) / TILE;
    for (int j = count - 1; j >= 0; j--) {
        REAL* b = s.b + j * TILE;
        if (j < count - 1) {
            REAL total = 0;  // column r of the tiles below the corner, times the solved part of b
            for (int i = j + 1; i < count; i++) {
                const REAL* tile = tiles + (((Index)i * TILES + j) * TILE + r) * TILE;
                for (int y = sub; y < TILE; y += SUB) total += tile[y] * s.b[i * TILE + y];
            }
            for (int over = SUB / 2; over; over /= 2) total += __shfl_xor_sync(ALL, total, over);
            const REAL* corner = tiles + ((Index)j * TILES + j) * TILE * TILE;
            for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) s.corner[e / TILE * PITCH + e % TILE] = corner[e];
            if (sub == 0) b[r] -= total;
            __syncthreads();
        }
        // Every warp does the same work, so that none has to wait for another. A lane holds every 32nd number.
        const int lane = threadIdx.x % 32;
        REAL x[TILE / 32];
#pragma unroll
        for (int h = 0; h < TILE / 32; h++) x[h] = b[h * 32 + lane];
#pragma unroll
        for (int h = TILE / 32 - 1; h >= 0; h--)
            for (int c = 31; c >= 0; c--) {
                const int at = h * 32 + c;
                const REAL solved = __shfl_sync(ALL, x[h], c) * s.pivot[j * TILE + at];
#pragma unroll
                for (int g = 0; g <= h; g++)
                    if (g * 32 + lane < at) x[g] -= s.corner[(g * 32 + lane) * PITCH + at] * solved;
            }
        __syncthreads();
        if (threadIdx.x < 32)
#pragma unroll
            for (int h = 0; h < TILE / 32; h++) b[h * 32 + lane] = x[h] * s.pivot[j * TILE + h * 32 + lane];
        __syncthreads();
    }
}

// total += scale^2 A^-1 = scale^2 D^-1/2 L^-T L^-1 D^-1/2, only tiles on and below the diagonal.
__device__ void add_inverse(double* total, double scale, int kind, const REAL* tiles, Shared& s) {
    if (kind == DIAGONAL) {
        for (int k = threadIdx.x; k < K; k += THREADS) total[(Index)k * SIZE + k] += scale * s.root[k] * scale * s.root[k];
        return;
    }
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j <= i; j++) {
            REAL sum[4][4] = {};
            for (int t = i * TILE; t < SIZE; t += STEP) {
                stage_factor(tiles, TILES + i, TILES + j, t, 1, s);
                __syncthreads();
                add_products(sum, s);
                __syncthreads();
            }
            for (int e = 0; e < 4; e++)
                for (int f = 0; f < 4; f++) {
                    const int y = i * TILE + 4 * (threadIdx.x / (TILE / 4)) + e;
                    const int x = j * TILE + 4 * (threadIdx.x % (TILE / 4)) + f;
                    total[(Index)y * SIZE + x] += scale * s.root[y] * scale * s.root[x] * sum[e][f];
                }
        }
}

// Solve all rows.
// order: the rows, longest first. d, s_term: (K,). out (n_rows, K): p. value (n_rows,): b . p. info (n_rows,): the
// first pivot that is not positive, from 1, or 0. tiles: work space, (TILES, TILES, TILE, TILE) per block of
// threads, twice that with `inverses`. inverses (blocks, SIZE, SIZE), or null: each block adds up the inverses of
// its rows there, and has always the same rows, so that the sums have the same bits. Without it blocks take rows
// from the queue.
extern "C" __global__ void __launch_bounds__(THREADS, 4) solve_rows(
    const int* order, int n_rows, const signed char* kinds, const Index* indptr, const int* indices,
    const REAL* values, const REAL* row_terms, const REAL* col_terms, const double* scale, const double* linear,
    const double* ridge, const REAL* fixed, const REAL* d, const REAL* s_term, REAL* out, double* value, int* info,
    REAL* tiles, double* inverses, int* queue
) {
    __shared__ Shared s;
    if (tiles) tiles += (Index)blockIdx.x * TILES * SIZE * TILE * (inverses ? 2 : 1);
    if (inverses) inverses += (Index)blockIdx.x * SIZE * SIZE;
    for (int turn = blockIdx.x;; turn += gridDim.x) {
        if (threadIdx.x == 0) {
            s.row = inverses ? turn : atomicAdd(queue, 1);
            s.bad = 0;
        }
        __syncthreads();
        if (s.row >= n_rows) return;
        const int r = order[s.row];
        const Index first = indptr[r];
        const Row row = {
            indices + first, values ? values + first : values, row_terms + 4 * (Index)r, col_terms,
            (int)(indptr[r + 1] - first)};
        const int kind = kinds[r] == DUAL && inverses ? PRIMAL : kinds[r];
        REAL* x = out + (Index)r * K;
        for (int k = threadIdx.x; k < SIZE; k += THREADS) {
            s.root[k] = k < K ? 1 / sqrt((REAL)scale[r] * d[k] + (REAL)ridge[r]) : REAL(1);
            s.b[k] = k < K ? (REAL)linear[r] * s_term[k] * s.root[k] : REAL(0);
            if (kind == DUAL && k < K) x[k] = s.b[k];
        }
        __syncthreads();
        double own = 0;  // this thread's part of b . p
        if (kind == DUAL) {
            add_positives(x, row, fixed, s, WEIGHTLESS, 0);
            dual_right_side(row, fixed, s, x);
            factor(row, kind, row.n, fixed, tiles, false, s);
            solve_back(row.n, tiles, s);
            // x to the solution, and b, which takes z's place, to that of the primal.
            add_positives(x, row, fixed, s, SOLVED, s.b);
            for (int k = threadIdx.x; k < SIZE; k += THREADS)
                s.b[k] = k < K ? (REAL)linear[r] * s_term[k] * s.root[k] : REAL(0);
            __syncthreads();
            add_positives(s.b, row, fixed, s, EVERY, 0);
            for (int k = threadIdx.x; k < K; k += THREADS) own += (double)s.b[k] * x[k];
            for (int k = threadIdx.x; k < K; k += THREADS) x[k] *= s.root[k];
        } else {
            add_positives(s.b, row, fixed, s, EVERY, 0);
            if (kind == PRIMAL) factor(row, kind, K, fixed, tiles, inverses != 0, s);
            for (int k = threadIdx.x; k < K; k += THREADS) own += (double)s.b[k] * s.b[k];  // |L^-1 b|^2
            __syncthreads();
            if (kind == PRIMAL) solve_back(K, tiles, s);
            for (int k = threadIdx.x; k < K; k += THREADS) x[k] = s.b[k] * s.root[k];
            if (inverses) add_inverse(inverses, scale[r], kind, tiles, s);
        }
        own = block_sum(own, s.partial);
        if (threadIdx.x == 0) {
            value[r] = own;
            info[r] = s.bad;
        }
        __syncthreads();
    }
}
