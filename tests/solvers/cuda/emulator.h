// Runs CUDA kernels on a CPU. Blocks run one after another; the threads of a block are fibers that run until they
// wait for each other. What is checked on the way:
// - a warp operation needs all 32 lanes, none of which may have returned;
// - threads must not wait for each other at different barriers (the launch ends with a message);
// - fibers run in ascending and descending order in turns, so that a missing barrier changes results.
// Shared memory keeps the last block's values, as on a device. No memory model: races within a warp go unseen.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
using std::min;
using std::sqrt;

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

enum State { READY, AT_BLOCK, AT_WARP, DONE };
const unsigned LANES = 32;
const size_t STACK = 1 << 17;

struct Fiber {
    ucontext_t first;
    jmp_buf at;
    bool started = false;
    State state;
    Index index;
    std::vector<char> stack;
};

static std::deque<Fiber> fibers; // they live on, so that the next block need not make them anew
static unsigned threads;          // of this launch; fibers beyond rest
static std::vector<long long> slots; // what lanes show each other
static unsigned current, alive;
static jmp_buf scheduler;
static void (*invoke)(void *, void **);
static void *kernel;
static void **arguments;

static void body() {
    for (;;) {
        invoke(kernel, arguments);
        fibers[current].state = DONE;
        if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1); // comes back for the next block
    }
}

static void wait(State where) {
    fibers[current].state = where;
    if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
}

static void resume() {
    if (_setjmp(scheduler)) return;
    Fiber &fiber = fibers[current];
    threadIdx = fiber.index;
    if (fiber.started) _longjmp(fiber.at, 1);
    fiber.started = true;
    setcontext(&fiber.first);
}

// Let those go on who have all arrived; null, or what is wrong.
static const char *release(bool &progress) {
    unsigned n = threads, live = 0, at_block = 0;
    for (unsigned warp = 0; warp < n; warp += LANES) {
        unsigned here = 0, done = 0;
        for (unsigned i = warp; i < std::min(n, warp + LANES); i++) {
            here += fibers[i].state == AT_WARP;
            done += fibers[i].state == DONE;
            at_block += fibers[i].state == AT_BLOCK;
        }
        live += LANES - done;
        if (here == 0) continue;
        if (done) return "a warp operation after some lanes have returned";
        if (here < LANES) continue;
        for (unsigned i = warp; i < warp + LANES; i++) fibers[i].state = READY;
        progress = true;
    }
    alive = live;
    if (live && at_block == live) {
        for (unsigned i = 0; i < n; i++)
            if (fibers[i].state == AT_BLOCK) fibers[i].state = READY;
        progress = true;
    }
    return 0;
}

static const char *run_block() {
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = fibers[i];
        fiber.index = {i % blockDim.x, i / blockDim.x, 0};
        fiber.state = READY;
        if (fiber.started) continue;
        fiber.stack.resize(STACK);
        getcontext(&fiber.first);
        fiber.first.uc_stack.ss_sp = fiber.stack.data();
        fiber.first.uc_stack.ss_size = STACK;
        fiber.first.uc_link = 0;
        makecontext(&fiber.first, body, 0);
    }
    for (unsigned round = 0;; round++) {
        static bool progress;
        progress = false;
        static unsigned i, n;
        n = threads;
        for (i = 0; i < n; i++) {
            current = (round + blockIdx.x) % 2 ? n - 1 - i : i;
            if (fibers[current].state != READY) continue;
            progress = true;
            resume();
        }
        if (const char *wrong = release(progress)) return wrong;
        if (!alive) return 0;
        if (!progress) return "threads wait for each other at different barriers";
    }
}

static const char *launch(void *function, unsigned blocks, unsigned x, unsigned y, void **args) {
    kernel = function;
    arguments = args;
    blockDim = {x, y, 1};
    gridDim = {blocks, 1, 1};
    if (x * y % LANES) return "the number of threads must be a multiple of 32";
    threads = x * y;
    if (fibers.size() < threads) fibers.resize(threads);
    if (slots.size() < threads) slots.resize(threads);
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx = {block, 0, 0};
        if (const char *wrong = run_block()) {
            fibers.clear(); // some wait in the middle of a kernel
            return wrong;
        }
    }
    return 0;
}

template <class... A, size_t... I> void unpack(void (*f)(A...), void **args, std::index_sequence<I...>) {
    f(*(A *)args[I]...);
}

template <class... A>
const char *start(void (*f)(A...), unsigned blocks, unsigned x, unsigned y, void **args) {
    invoke = [](void *f, void **args) { unpack((void (*)(A...))f, args, std::index_sequence_for<A...>()); };
    return launch((void *)f, blocks, x, y, args);
}

template <class T> T exchange(unsigned mask, T value, unsigned source) {
    unsigned me = current, warp = me / LANES * LANES;
    if (mask != 0xffffffffu) std::abort(); // only whole warps are emulated
    std::memcpy(&slots[me], &value, sizeof value);
    wait(AT_WARP);
    std::memcpy(&value, &slots[warp + source % LANES], sizeof value);
    wait(AT_WARP);
    return value;
}

} // namespace emulator

static void __syncthreads() { emulator::wait(emulator::AT_BLOCK); }
template <class T> T __shfl_sync(unsigned mask, T value, int lane) { return emulator::exchange(mask, value, lane); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return emulator::exchange(mask, value, emulator::current % emulator::LANES ^ bits);
}
static int __any_sync(unsigned mask, int value) {
    int any = 0;
    for (unsigned lane = 0; lane < emulator::LANES; lane++) any |= emulator::exchange(mask, value, lane);
    return any;
}
static int atomicAdd(int *address, int value) { // fibers do not interrupt each other
    int before = *address;
    *address += value;
    return before;
}

// What Python calls for a kernel: null, or what went wrong.
#define EMULATE(name) \
    extern "C" const char *launch_##name(unsigned blocks, unsigned x, unsigned y, void **args) { \
        return emulator::start(name, blocks, x, y, args); \
    }
