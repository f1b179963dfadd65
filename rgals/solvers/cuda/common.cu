// Compiled together with the other sources of this folder, once for each precision and number of factors:
// REAL is float or double, K the number of factors, WIDE 1 for double.

#define FULL 0xffffffffu
#define WARP 32

// Numbers that a lane reads at once: 16 bytes where a row of factors divides evenly, so that a warp asks for whole
// lines.
#if K % 128 == 0 && !WIDE
#define VEC 4
#elif K % 64 == 0
#define VEC 2
#else
#define VEC 1
#endif
#define CHUNKS ((K + WARP * VEC - 1) / (WARP * VEC))
#define OWN (CHUNKS * VEC) // numbers of a row that a lane holds

// flags
#define VALUED 1      // the matrix stores values; all are 1 otherwise
#define COLUMNS 2     // coefficients differ between columns
#define UNWEIGHTED 4  // only positives with m = 0
#define SIGNED 8      // a second copy that carries the sign of m

struct alignas(sizeof(REAL) * VEC) Pack {
    REAL x[VEC];
};

// A row of K numbers, spread over the lanes of a warp: number (chunk * 32 + lane) * VEC + v in f[chunk * VEC + v].
__device__ inline void load_row(const REAL *row, int lane, REAL *f) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int j = (c * WARP + lane) * VEC;
        if (j < K) {
            Pack p = *(const Pack *)(row + j);
#pragma unroll
            for (int v = 0; v < VEC; v++) f[c * VEC + v] = p.x[v];
        } else {
#pragma unroll
            for (int v = 0; v < VEC; v++) f[c * VEC + v] = 0;
        }
    }
}

__device__ inline void store_row(REAL *row, int lane, const REAL *f) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int j = (c * WARP + lane) * VEC;
        if (j < K) {
            Pack p;
#pragma unroll
            for (int v = 0; v < VEC; v++) p.x[v] = f[c * VEC + v];
            *(Pack *)(row + j) = p;
        }
    }
}

// m and l of the stored entry `at` in column `col`: v U0 V0 + U1 V1 and v U2 V2 + U3 V3.
__device__ inline void coefficients(
    long long at, int col, const REAL *values, const REAL *terms, const REAL *col_terms, int flags, REAL *m, REAL *l
) {
    REAL v = flags & VALUED ? values[at] : (REAL)1;
    if (flags & COLUMNS) {
        const REAL *c = col_terms + 4 * (long long)col;
        *m = v * (terms[0] * c[0]) + terms[1] * c[1];
        *l = v * (terms[2] * c[2]) + terms[3] * c[3];
    } else {
        *m = v * terms[0] + terms[1];
        *l = v * terms[2] + terms[3];
    }
}

// Sums over a warp, in the same order in every run; every lane gets the result.
__device__ inline REAL warp_sum(REAL x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(FULL, x, step);
    return x;
}

__device__ inline double warp_sum_double(double x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(FULL, x, step);
    return x;
}

__device__ inline REAL infinity() { return (REAL)1 / (REAL)0; }
