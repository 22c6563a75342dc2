/* In: the text of a kernel for a GPU, behind this header. Out: it as a library for the processor, with counts of what it did.

   g++ -include shim.hpp -DREAL=double: threads of a block are fibers that run in turn and stop at barriers; blocks run one after
   another. Memory, the caller's and a team's, holds cells instead of numbers: every access is counted for the buffer that it falls in,
   and checked: it lies in a buffer, and no other thread of the same launch touches the element in a conflicting way without a barrier
   between them. That does not depend on the order in which threads run. What nobody stored is NaN: a team's memory, and a thread's
   registers. All threads of a block must wait at the same barrier of the text, all lanes of a warp meet at the same shuffle. What it cannot see: how warps diverge and how
   hardware orders its memory. */
#pragma once
#define EMULATED
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <ucontext.h>

#undef INFINITY
#define INFINITY REAL(HUGE_VAL)                                      /* a float beside a cell would make the choice a float */
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __syncthreads() shim::wait(__LINE__)
#define SHUFFLE(v, by, lanes) shim::shuffle(v, by, __LINE__)
#define SHARED(name, size) static shim::Shared name(#name, size); name.begin()
#define LENT(name) shim::Shared &name

struct dim3 { unsigned x = 1, y = 1, z = 1; };
static dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace shim {

enum Act : uint64_t { READ, WRITE, UPDATE };                         /* UPDATE is atomic */
enum Counter { LOADS, STORES, ATOMICS, RACES, FETCHES, COUNTERS };   /* a buffer's; an atomic is neither load nor store; a fetch loads several elements as one */
enum Whole { OUTSIDE, BARRIERS, DIVERGENT, LAUNCHES, MISPLACED, WHOLES };       /* the program's */

struct Stamp { uint64_t launch = 0, block = 0, phase = 0, thread = 0; };
constexpr uint64_t MANY = UINT64_MAX;

struct Buffer {
    char *first, *last;
    const char *name = "";
    int64_t counts[COUNTERS] = {};
    std::vector<Stamp> stamps[3];
};

static std::vector<Buffer> buffers;
static size_t given;                                                 /* of them the caller's; a team's follow */
static int64_t wholes[WHOLES];
static uint64_t call, launch, block, phase, thread;
static int order;                                                    /* 0 ascending, 1 descending */

inline bool conflict(const Stamp &s) {
    return s.launch == launch && (s.block != block || (s.phase == phase && s.thread != thread));
}

inline void mark(Stamp &s) {
    if (s.launch != launch) s = {launch, block, phase, thread};
    else if (s.block != block) s.block = MANY;
    else if (s.phase != phase) s.phase = phase, s.thread = thread;
    else if (s.thread != thread) s.thread = MANY;
}

/* Count and check one access; false: there is no such element. */
inline bool touch(const void *at, size_t size, Act act) {
    const char *p = static_cast<const char *>(at);
    for (Buffer &b : buffers) {
        if (p < b.first || p >= b.last) continue;
        const size_t i = (p - b.first) / size;
        b.counts[act]++;
        bool bad = false;
        for (uint64_t other = READ; other <= UPDATE; other++)
            if (other != act || act == WRITE) bad |= conflict(b.stamps[other][i]);
        b.counts[RACES] += bad;
        mark(b.stamps[act][i]);
        return true;
    }
    wholes[OUTSIDE]++;
    return false;
}

/* Count a fetch of elements that hardware loads as one, and check that the first lies at a multiple of their size. */
inline void fetch(const void *at, size_t size) {
    const char *p = static_cast<const char *>(at);
    wholes[MISPLACED] += reinterpret_cast<uintptr_t>(p) % size != 0;
    for (Buffer &b : buffers) if (p >= b.first && p < b.last) b.counts[FETCHES]++;
}

/* ---------------------------------------------------------------- threads */

enum State { READY, WAITING, SHUFFLING, DONE };
struct Fiber { ucontext_t context; State state; int line, turn; REAL given[2]; };
constexpr size_t WARP = 32;
static int64_t shuffles;                                             /* instructions of warps */
static std::vector<Fiber> fibers;
static std::vector<char> stacks;
static ucontext_t scheduler;
static void (*body)(void *);
static void *arguments;
constexpr size_t STACK = 256 * 1024, POISONED = 32 * 1024;            /* of a stack, the part where registers lie */

inline void leave(State s) {
    fibers[thread].state = s;
    swapcontext(&fibers[thread].context, &scheduler);
}

inline void wait(int line) {
    fibers[thread].line = line;
    leave(WAITING);
}

/* The value of the lane whose number differs from this one's in the bit `by`. Two places, so that who is first at the next does not
   overwrite what others still have to read. */
inline REAL shuffle(REAL v, int by, int line) {
    const size_t me = thread;
    fibers[me].line = line;
    fibers[me].turn ^= 1;
    fibers[me].given[fibers[me].turn] = v;
    leave(SHUFFLING);
    const size_t other = me ^ size_t(by);
    return other < fibers.size() ? fibers[other].given[fibers[me].turn] : REAL(NAN);
}

/* Let warps go on whose lanes have all come to the same shuffle. */
inline bool exchanged() {
    bool any = false;
    for (size_t first = 0; first < fibers.size(); first += WARP) {
        const size_t last = std::min(first + WARP, fibers.size());
        bool all = true;
        for (size_t t = first; t < last; t++) all &= fibers[t].state == SHUFFLING && fibers[t].line == fibers[first].line;
        if (!all) continue;
        shuffles++;
        for (size_t t = first; t < last; t++) fibers[t].state = READY;
        any = true;
    }
    return any;
}

/* Have all threads come to the same barrier? Some may have ended, or stand at another. */
inline bool together() {
    for (const Fiber &f : fibers) if (f.state != WAITING || f.line != fibers[0].line) return false;
    return true;
}

inline void enter() { body(arguments); leave(DONE); }

inline void run_block(unsigned threads) {
    fibers.resize(threads);
    if (stacks.size() < threads * STACK) stacks.resize(threads * STACK);
    for (unsigned t = 0; t < threads; t++) {
        getcontext(&fibers[t].context);
        std::memset(&stacks[(t + 1) * STACK - POISONED], 0xff, POISONED);
        fibers[t].context.uc_stack.ss_sp = &stacks[t * STACK];
        fibers[t].context.uc_stack.ss_size = STACK;
        fibers[t].context.uc_link = &scheduler;
        fibers[t].state = READY;
        fibers[t].turn = 0;
        makecontext(&fibers[t].context, enter, 0);
    }
    for (bool left = true; left; phase++) {
        do {
            for (unsigned k = 0; k < threads; k++) {
                thread = order ? threads - 1 - k : k;
                threadIdx.x = unsigned(thread);
                if (fibers[thread].state == READY) swapcontext(&scheduler, &fibers[thread].context);
            }
        } while (exchanged());
        left = false;
        for (const Fiber &f : fibers) left |= f.state != DONE;
        wholes[together() ? BARRIERS : DIVERGENT] += left;
        for (Fiber &f : fibers) if (f.state != DONE) f.state = READY;
    }
}

template <class Body> void run(unsigned blocks, unsigned threads, Body call) {
    if (!blocks) return;
    launch++;
    wholes[LAUNCHES]++;
    gridDim.x = blocks;
    blockDim.x = threads;
    body = [](void *f) { (*static_cast<Body *>(f))(); };
    arguments = &call;
    for (unsigned k = 0; k < blocks; k++) {
        block = blockIdx.x = order ? blocks - 1 - k : k;
        phase = 0;
        run_block(threads);
    }
}

}  // namespace shim

/* An element of memory. */
struct stored {
    REAL value;
    operator REAL() const {
        return shim::touch(this, sizeof *this, shim::READ) ? value : REAL(NAN);
    }
    stored &operator=(REAL v) {
        if (shim::touch(this, sizeof *this, shim::WRITE)) value = v;
        return *this;
    }
    stored &operator=(const stored &s) { return *this = REAL(s); }
};

/* An element of memory in bfloat16, the upper half of a float, which it is when it is read; stored values are rounded to nearest, ties
   to even. */
struct narrow {
    uint16_t held;
    operator REAL() const {
        if (!shim::touch(this, sizeof *this, shim::READ)) return REAL(NAN);
        const uint32_t bits = uint32_t(held) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    narrow &operator=(REAL v) {
        const float value = float(v);
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        bits = value != value ? bits | 1u << 22 : bits + 0x7fff + (bits >> 16 & 1);
        if (shim::touch(this, sizeof *this, shim::WRITE)) held = uint16_t(bits >> 16);
        return *this;
    }
    narrow &operator=(const narrow &s) { return *this = REAL(s); }
};

namespace shim {

/* What the threads of a block share: new, and undefined, for every block. */
struct Shared {
    const char *name;
    std::vector<stored> cells;
    uint64_t call = 0, launch = 0, block = 0;
    size_t place = 0;

    Shared(const char *n, size_t size) : name(n), cells(size) {}

    void begin() {
        if (call == shim::call && launch == shim::launch && block == shim::block) return;
        if (call != shim::call) {
            char *first = reinterpret_cast<char *>(cells.data());
            place = buffers.size();
            buffers.push_back({first, first + cells.size() * sizeof(stored), name});
        }
        call = shim::call, launch = shim::launch, block = shim::block;
        for (auto &s : buffers[place].stamps) s.assign(cells.size(), Stamp());
        std::memset(static_cast<void *>(cells.data()), 0xff, cells.size() * sizeof(stored));
    }

    stored &operator[](int64_t i) {
        static stored none;
        return i < 0 || i >= int64_t(cells.size()) ? none : cells[i];
    }
};

}  // namespace shim

constexpr size_t VECTOR = 16 / sizeof(REAL);
struct whole { REAL at[VECTOR]; };

template <class T> whole together(const T *first) {
    whole got;
    shim::fetch(first, VECTOR * sizeof *first);
    for (size_t i = 0; i < VECTOR; i++) got.at[i] = first[i];
    return got;
}

inline REAL atomicAdd(stored *at, REAL v) {
    if (!shim::touch(at, sizeof *at, shim::UPDATE)) return REAL(NAN);
    const REAL old = at->value;
    at->value = old + v;
    return old;
}

#define LAUNCH(grid, blocks, threads, ...) shim::run(blocks, threads, [&] { grid(__VA_ARGS__); })

/* ---------------------------------------------------------------- from outside */

extern "C" void shim_begin(int descending) {
    shim::order = descending;
    shim::call++;
    shim::buffers.clear();
    shim::shuffles = 0;
    std::fill_n(shim::wholes, shim::WHOLES, 0);
}

extern "C" void shim_buffer(void *at, int64_t elements, int64_t size) {
    shim::Buffer b{static_cast<char *>(at), static_cast<char *>(at) + elements * size};
    for (auto &s : b.stamps) s.resize(elements);
    shim::buffers.push_back(std::move(b));
    shim::given = shim::buffers.size();
}

/* The arrays that blocks shared: how many, and the k-th one's name and COUNTERS numbers. */
extern "C" int64_t shim_shared() { return int64_t(shim::buffers.size() - shim::given); }

extern "C" const char *shim_shared_array(int64_t k, int64_t *out) {
    const shim::Buffer &b = shim::buffers[shim::given + k];
    std::copy_n(b.counts, shim::COUNTERS, out);
    return b.name;
}

extern "C" int64_t shim_shuffles() { return shim::shuffles; }

/* COUNTERS numbers a buffer in the order of shim_buffer, then WHOLES numbers. */
extern "C" void shim_counts(int64_t *out) {
    for (size_t k = 0; k < shim::given; k++) out = std::copy_n(shim::buffers[k].counts, shim::COUNTERS, out);
    std::copy_n(shim::wholes, shim::WHOLES, out);
}
