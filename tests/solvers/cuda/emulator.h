// Runs CUDA kernels on a CPU. Blocks run one after another; the threads of a block are fibers that run until they
// wait for each other. What is checked on the way:
// - a warp operation needs all 32 lanes, none of which may have returned;
// - threads must not wait for each other at different barriers (the launch ends with a message);
// - warps, and the fibers of a warp, run in ascending and descending order in turns, each until it waits, so that a
//   missing barrier changes results.
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
const size_t APART = 208; // by what stacks begin apart within a page: else all contend for a few lines of the cache

struct Fiber {
    ucontext_t first;
    jmp_buf at;
    bool started = false;
    State state;
    unsigned turn; // which half of the slots it shows its next value in
    Index index;
    std::vector<char> stack;
};

static std::deque<Fiber> fibers; // they live on, so that the next block need not make them anew
static unsigned threads;          // of this launch; fibers beyond rest
static std::vector<long long> slots; // what lanes show each other
static unsigned current;
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

// Run the 32 threads from here on until some wait for the block or all have returned; null, or what is wrong.
static const char *run_warp(unsigned warp, bool descending, bool &progress) {
    for (;; descending = !descending) {
        unsigned ran = 0, here = 0, done = 0;
        for (unsigned i = 0; i < LANES; i++) {
            current = warp + (descending ? LANES - 1 - i : i);
            if (fibers[current].state != READY) continue;
            ran++;
            resume();
        }
        if (!ran) return 0;
        progress = true;
        for (unsigned i = warp; i < warp + LANES; i++) {
            here += fibers[i].state == AT_WARP;
            done += fibers[i].state == DONE;
        }
        if (here && done) return "a warp operation after some lanes have returned";
        if (here < LANES) return 0;
        for (unsigned i = warp; i < warp + LANES; i++) fibers[i].state = READY;
    }
}

// Let all go on if all who are left wait for the block; whether any is left.
static bool release() {
    unsigned live = 0, waiting = 0;
    for (unsigned i = 0; i < threads; i++) {
        live += fibers[i].state != DONE;
        waiting += fibers[i].state == AT_BLOCK;
    }
    for (unsigned i = 0; waiting == live && i < threads; i++)
        if (fibers[i].state == AT_BLOCK) fibers[i].state = READY;
    return live;
}

static const char *run_block() {
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = fibers[i];
        fiber.index = {i % blockDim.x, i / blockDim.x, 0};
        fiber.state = READY;
        fiber.turn = 0;
        if (fiber.started) continue;
        fiber.stack.resize(STACK);
        getcontext(&fiber.first);
        fiber.first.uc_stack.ss_sp = fiber.stack.data();
        fiber.first.uc_stack.ss_size = STACK - i % 64 * APART;
        fiber.first.uc_link = 0;
        makecontext(&fiber.first, body, 0);
    }
    for (unsigned round = 0;; round++) {
        bool descending = (round + blockIdx.x) % 2, progress = false;
        for (unsigned i = 0; i < threads; i += LANES)
            if (const char *wrong = run_warp(descending ? threads - LANES - i : i, descending, progress)) return wrong;
        if (!release()) return 0;
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
    if (slots.size() < 2 * threads) slots.resize(2 * threads);
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

// The values of all lanes of a warp. They stay until the next but one is shown, which no lane does before all have
// come to the next one, and so have read these.
template <class T> const long long *show(unsigned mask, T value) {
    if (mask != 0xffffffffu) std::abort(); // only whole warps are emulated
    unsigned me = current, half = fibers[me].turn * threads;
    fibers[me].turn ^= 1;
    std::memcpy(&slots[half + me], &value, sizeof value);
    wait(AT_WARP);
    return &slots[half + me / LANES * LANES];
}

template <class T> T exchange(unsigned mask, T value, unsigned source) {
    std::memcpy(&value, show(mask, value) + source % LANES, sizeof value);
    return value;
}

} // namespace emulator

static void __syncthreads() { emulator::wait(emulator::AT_BLOCK); }
template <class T> T __shfl_sync(unsigned mask, T value, int lane) { return emulator::exchange(mask, value, lane); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return emulator::exchange(mask, value, emulator::current % emulator::LANES ^ bits);
}
static int __any_sync(unsigned mask, int value) {
    const long long *lanes = emulator::show(mask, (long long)value);
    return std::any_of(lanes, lanes + emulator::LANES, [](long long lane) { return lane != 0; });
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
