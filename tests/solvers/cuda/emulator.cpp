// A kernel on a CPU: the threads of a block take turns, from one barrier to the next; blocks follow each other.
// It shows what a kernel computes, and barriers that only some threads reach; and races, where the order of the
// threads, backwards or not, makes a difference.
#include <cmath>
#include <csetjmp>
#include <cstddef>
#include <cstring>
#include <ucontext.h>
#include <utility>

#define __device__
#define __global__
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

struct Place { unsigned x; };
static Place threadIdx, blockIdx, gridDim;
using std::sqrt;
static int min(int a, int b) { return a < b ? a : b; }

constexpr int MOST = 256, STACK = 1 << 16;
alignas(64) static char stacks[MOST][STACK];
static jmp_buf threads[MOST], scheduler;
static ucontext_t nowhere, fresh;
static bool started[MOST], ended[MOST];
static double slots[MOST];
static void** arguments;

static void barrier() {
    const unsigned t = threadIdx.x;
    if (!_setjmp(threads[t])) _longjmp(scheduler, 1);
    threadIdx.x = t;
}
static void __syncthreads() { barrier(); }
static void __syncwarp() { barrier(); }
template <typename T> static T from(unsigned thread, T value) {
    slots[threadIdx.x] = value;
    barrier();
    value = T(slots[thread]);
    barrier();
    return value;
}
template <typename T> static T __shfl_xor_sync(unsigned, T value, int mask) { return from(threadIdx.x ^ mask, value); }
template <typename T> static T __shfl_sync(unsigned, T value, int lane) {
    return from(threadIdx.x / 32 * 32 + lane, value);
}
static int atomicAdd(int* to, int by) { return (*to += by) - by; }

#include SOURCE

template <typename... Given, std::size_t... at>
static void call(void (*kernel)(Given...), std::index_sequence<at...>) {
    kernel(*static_cast<Given*>(arguments[at])...);
}
template <typename... Given> static void call(void (*kernel)(Given...)) {
    call(kernel, std::index_sequence_for<Given...>());
}

static void enter() {
    call(KERNEL);
    ended[threadIdx.x] = true;
    _longjmp(scheduler, 1);
}

// 0, or 1 where some threads ended before a barrier that others wait at.
extern "C" int launch(int blocks, int count, int backwards, void** given) {
    arguments = given, gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
        std::memset(started, 0, sizeof started), std::memset(ended, 0, sizeof ended);
        for (volatile int gone = 0; gone < count;) {
            if (gone) return 1;
            for (volatile int turn = 0; turn < count; turn = turn + 1) {
                const int t = backwards ? count - 1 - turn : turn;
                threadIdx.x = t;
                if (!_setjmp(scheduler)) {
                    if (started[t]) _longjmp(threads[t], 1);
                    started[t] = true;
                    getcontext(&fresh);
                    fresh.uc_stack.ss_sp = stacks[t], fresh.uc_stack.ss_size = STACK, fresh.uc_link = nullptr;
                    makecontext(&fresh, enter, 0);
                    swapcontext(&nowhere, &fresh);
                }
                gone = gone + ended[t];
            }
        }
    }
    return 0;
}
