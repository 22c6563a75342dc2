/* Measures what one machine can do, with the vector types and functions that generated kernels use (written in front of this
   text, for one element type and instruction set). Usage: calibrate THREADS L1 L2 L3 MEMORY, working sets in bytes a thread, 0 to
   leave one out. Prints `name value` lines: operations in elements a second, register tiles of two depths a second, bandwidths in bytes that move a second, times in s.
   A neighbour can only make a figure worse, so each is the best of at least ROUNDS, and of as many more as it takes until the two
   best agree. Figures that have not agreed after LIMIT seconds are listed on lines `unstable name`. */
#include <stdio.h>
#define select select_files /* the system's select(2) has the name of a vector function */
#include <stdlib.h>
#undef select
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

enum { ROUNDS = 16, V = sizeof(vec) / sizeof(real) };
static const double AGREE = 0.97, LIMIT = 2.0;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

struct best {
    double first, second, since;
    int rounds, stable;
};

static struct best nothing(void) { return (struct best){0, 0, now(), 0, 0}; }

/* Count a round's rate; 1 if another round is wanted. */
static int more(struct best *b, double got) {
    if (got > b->first) {
        b->second = b->first;
        b->first = got;
    } else if (got > b->second) {
        b->second = got;
    }
    b->stable = b->second >= AGREE * b->first;
    return ++b->rounds < ROUNDS || (!b->stable && now() - b->since < LIMIT);
}

static void tell(const char *level, const char *name, struct best b, int inverse) {
    printf("%s%s%s %.6e\n", level, *level ? "_" : "", name, inverse ? 1 / b.first : b.first);
    if (!b.stable) printf("unstable %s%s%s\n", level, *level ? "_" : "", name);
}

/* Keeps values alive, and the compiler from knowing them. */
#if defined(__x86_64__)
#define KEEP(x) __asm__ volatile("" : "+v"(x))
#else
#define KEEP(x) __asm__ volatile("" : "+w"(x))
#endif

/* Arrays of vectors become registers only where every index is a constant. */
#define UNROLL _Pragma("GCC unroll 64")

/* n steps of `step` on enough independent accumulators to hide its latency. They start at 2 and more: 1 is what x and y map to
   itself, and the compiler would see that. */
#define REGISTER_LOOP(name, step) \
    static double name(long n) { \
        vec a[ACCUMULATORS], x = splat((real)0.999), y = splat((real)1e-3); \
        UNROLL for (int j = 0; j < ACCUMULATORS; j++) a[j] = splat((real)(j + 2)); \
        for (long i = 0; i < n; i++) { \
            UNROLL for (int j = 0; j < ACCUMULATORS; j += 2) { step(j) } \
            KEEP(a[0]); \
        } \
        vec s = a[0]; \
        UNROLL for (int j = 1; j < ACCUMULATORS; j++) s += a[j]; \
        KEEP(s); \
        return (double)n * ACCUMULATORS * V; \
    }

#define FMA_PAIR(j) a[j] = a[j] * x + y; a[j + 1] = a[j + 1] * x + y;
#define ADD_AND_MAX(j) a[j] = a[j] + y; a[j + 1] = vmax(a[j + 1], x);
REGISTER_LOOP(fma_loop, FMA_PAIR)
REGISTER_LOOP(vector_loop, ADD_AND_MAX)

/* Register tiles as the emitter writes them: MR rows by NV vectors, `depth` steps each of NV loads, MR broadcasts and MR·NV
   multiply-adds, the result added to a block of C. A panel of B stays in L1 while panels of A come from L2, one after the other.
   n passes over panels that fill TILE_BYTES; gives the number of tiles. */
enum { SHALLOW = 32, DEEP = 256 };
#define TILE(step) UNROLL for (int r = 0; r < MR; r++) UNROLL for (int j = 0; j < NV; j++) { step; }

static double tiles(long n, long depth) {
    const long panels = TILE_BYTES / (MR * depth * (long)sizeof(real));
    real *a = aligned_alloc(64, TILE_BYTES), *b = aligned_alloc(64, sizeof(real) * NV * V * DEEP), *c = aligned_alloc(64, sizeof(real) * panels * MR * NV * V);
    for (long i = 0; i < panels * MR * depth; i++) a[i] = (real)1e-3;
    for (long i = 0; i < NV * V * DEEP; i++) b[i] = (real)1e-3;
    for (long i = 0; i < panels * MR * NV * V; i++) c[i] = 0;
    for (long pass = 0; pass < n; pass++)
        for (long p = 0; p < panels; p++) {
            const real *row = a + p * MR * depth;
            real *to = c + p * MR * NV * V;
            vec t[MR][NV];
            TILE(t[r][j] = splat(0))
            for (long k = 0; k < depth; k++) { TILE(t[r][j] = t[r][j] + row[k * MR + r] * load(b + (k * NV + j) * V)) }
            TILE(store(to + (r * NV + j) * V, load(to + (r * NV + j) * V) + t[r][j]))
            __asm__ volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
        }
    free(a), free(b), free(c);
    return (double)n * panels;
}

static double shallow_tiles(long n) { return tiles(n, SHALLOW); }
static double deep_tiles(long n) { return tiles(n, DEEP); }

static double exp_loop(long n) {
    enum { N = 1024 };
    real x[N] __attribute__((aligned(64)));
    for (int i = 0; i < N; i++) x[i] = (real)(-i * 0.01);
    vec s[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (long r = 0; r < n; r++) {
        for (int i = 0; i < N; i += 4 * V)
            for (int k = 0; k < 4; k++) s[k] += vexp2(load(x + i + k * V));
        KEEP(s[0]);
    }
    vec all = s[0] + s[1] + s[2] + s[3];
    KEEP(all);
    return (double)n * N;
}

/* From the first thread's start to the last one's end: a late thread must not make the others look fast. */
enum { MOST = 1024 };
static double began[MOST], ended[MOST];

static double elapsed(int threads) {
    double first = began[0], last = ended[0];
    for (int t = 1; t < threads; t++) {
        if (began[t] < first) first = began[t];
        if (ended[t] > last) last = ended[t];
    }
    return last - first;
}

static struct best rate(double (*loop)(long), long n, int threads) {
    struct best best = nothing();
    double work;
    do {
        work = 0;
#pragma omp parallel num_threads(threads) reduction(+ : work)
        {
            const int t = omp_get_thread_num();
#pragma omp barrier
            began[t] = now();
            work = loop(n);
            ended[t] = now();
        }
    } while (more(&best, work / elapsed(threads)));
    return best;
}

/* Folds of `depth` steps, each waiting for the last: a vector of dot products, and a sum of numbers. */
enum { SHORT = 64, LONG = 256 };
#define FOLD_LOOP(name, type, lanes, step) \
    static double name(long n, long depth) { \
        real x[LONG * lanes] __attribute__((aligned(64))), y[LONG]; \
        for (int i = 0; i < LONG * lanes; i++) x[i] = (real)1e-3; \
        for (int i = 0; i < LONG; i++) y[i] = (real)1e-3; \
        __asm__ volatile("" : : "r"(x), "r"(y) : "memory"); \
        for (long i = 0; i < n * (LONG / depth); i++) { \
            type s = {0}; \
            for (long k = 0; k < depth; k++) s = step; \
            KEEP(s); \
        } \
        return (double)n * (LONG / depth); \
    }
FOLD_LOOP(chain, vec, V, s + splat(y[k]) * load(x + k * V))
FOLD_LOOP(link, real, 1, s + x[k] * y[k])
static double short_chain(long n) { return chain(n, SHORT); }
static double long_chain(long n) { return chain(n, LONG); }
static double short_link(long n) { return link(n, SHORT); }
static double long_link(long n) { return link(n, LONG); }

/* Vectors whose lanes become one number. */
static double lanes_loop(long n) {
    enum { N = 64 };
    real x[N * V] __attribute__((aligned(64))), y[N];
    for (int i = 0; i < N * V; i++) x[i] = (real)1e-3;
    for (long r = 0; r < n; r++) {
        for (int i = 0; i < N; i++) y[i] = fold_sum(load(x + i * V));
        __asm__ volatile("" : : "r"(x), "r"(y) : "memory");
    }
    return (double)n * N;
}

enum Way { READ, COPY, STREAM, COLUMN };

static void move(enum Way way, const real *a, real *b, long n) {
    switch (way) {
    case READ: {
        vec s[8];
        for (int k = 0; k < 8; k++) s[k] = splat(0);
        for (long i = 0; i < n; i += 8 * V)
            UNROLL
            for (int k = 0; k < 8; k++) s[k] += load(a + i + k * V);
        for (int k = 1; k < 8; k++) s[0] += s[k];
        KEEP(s[0]);
        break;
    }
    case COLUMN: { /* the first columns of a matrix with rows of a page, so many that as many lines are asked for as there are */
        enum { LINES = 4096 / 64, PAGE = 4096 / sizeof(real) };
        real s[4] = {0, 0, 0, 0};
        for (long c = 0; c < LINES; c++)
            for (long i = c; i < n; i += 4 * PAGE)
                for (int k = 0; k < 4; k++) s[k] += i + k * PAGE < n ? a[i + k * PAGE] : 0;
        s[0] += s[1] + s[2] + s[3];
        KEEP(s[0]);
        break;
    }
    case COPY:
        for (long i = 0; i < n; i += 8 * V)
            for (int k = 0; k < 8; k++) store(b + i + k * V, load(a + i + k * V));
        break;
    case STREAM:
        for (long i = 0; i < n; i += 8 * V)
            for (int k = 0; k < 8; k++) stream(b + i + k * V, load(a + i + k * V));
        fence();
        break;
    }
}

/* The same loops as a participant of a bench: n elements, in contiguous shares; elements beyond the last whole block are left out of
   reading. What the memory gives at that moment. */
static void share(enum Way way, const real *from, real *to, int64_t n, int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    {
        const int64_t block = 8 * V, blocks = n / block, t = omp_get_thread_num();
        const int64_t first = blocks * t / threads * block, end = blocks * (t + 1) / threads * block;
        move(way, from + first, way == READ ? to : to + first, end - first);
    }
    if (way != READ)
        for (int64_t i = n / (8 * V) * (8 * V); i < n; i++) to[i] = from[i];
}

void yardstick_copy(const real *from, real *to, real *work, int64_t n, int64_t threads) { (void)work, share(COPY, from, to, n, threads); }
void yardstick_stream(const real *from, real *to, real *work, int64_t n, int64_t threads) { (void)work, share(STREAM, from, to, n, threads); }
void yardstick_read(const real *from, real *work, int64_t n, int64_t threads) { share(READ, from, work, n, threads); }

/* On large pages where the system offers them, as the driver's buffers are; first touched by the thread that asks. */
static real *pages(long n) {
    const size_t huge = (size_t)2 << 20, bytes = (n * sizeof(real) + huge - 1) / huge * huge;
    real *a = aligned_alloc(huge, bytes);
    if (a == NULL) exit(fprintf(stderr, "calibrate: no memory for %zu bytes\n", bytes));
    madvise(a, bytes, MADV_HUGEPAGE);
    for (long i = 0; i < n; i++) a[i] = (real)i;
    return a;
}

/* Bytes that move a second. `bytes` is what one thread works on: one array to read, or two halves to copy. */
static struct best bandwidth(enum Way way, long bytes, int nearest, int threads) {
    const int reads = way == READ || way == COLUMN;
    const long block = 8 * V, n = bytes / (reads ? 1 : 2) / (long)sizeof(real) / block * block;
    const double each = reads ? 1 : way == COPY && !nearest ? 3 : 2;
    long repeats = 1 + (32L << 20) / (n * (long)sizeof(real));
    struct best best = nothing();
    int again = 1;
    if (n == 0) return best;
#pragma omp parallel num_threads(threads) shared(best, again)
    {
        const int t = omp_get_thread_num();
        real *a = pages(n), *b = pages(n + 64 * V) + 64 * V / 2; /* half a page further: equal indices do not meet in one cache set */
        while (again) {
#pragma omp barrier
            began[t] = now();
            for (long k = 0; k < repeats; k++) {
                move(way, a, b, n);
                __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
            }
            ended[t] = now();
#pragma omp barrier
#pragma omp master
            again = more(&best, each * threads * repeats * n * sizeof(real) / elapsed(threads));
#pragma omp barrier
        }
        free(a);
        free(b - 64 * V / 2);
    }
    return best;
}

/* Parallel regions started and joined in a second. */
static struct best region(int threads) {
    const int n = 500;
    struct best best = nothing();
    double start;
    do {
        start = now();
        for (int i = 0; i < n; i++) {
#pragma omp parallel num_threads(threads)
            __asm__ volatile("" : : : "memory");
        }
    } while (more(&best, n / (now() - start)));
    return best;
}

/* Clock rate in Hz from a chain of dependent multiplications, 3 cycles each on x86 (additions, 1 cycle, elsewhere). */
static struct best clock_rate(void) {
    const long n = 1000000;
#if defined(__x86_64__)
    const double cycles = 12.0 * n;
#else
    const double cycles = 4.0 * n;
#endif
    struct best best = nothing();
    double start;
    do {
        uint64_t x = 3;
        start = now();
        for (long i = 0; i < n; i++) {
#if defined(__x86_64__)
            __asm__ volatile("imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0" : "+r"(x));
#else
            __asm__ volatile("add %0, %0, %0\n\tadd %0, %0, %0\n\tadd %0, %0, %0\n\tadd %0, %0, %0" : "+r"(x));
#endif
        }
    } while (more(&best, cycles / (now() - start)));
    return best;
}

int main(int count, char **words) {
    static const char *LEVEL[] = {"L1", "L2", "L3", "memory"}, *WAY[] = {"read", "copy", "stream", "column"};
    if (count != 6) return fprintf(stderr, "usage: calibrate THREADS L1 L2 L3 MEMORY\n"), 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int threads = atoi(words[1]);
    if (threads < 1 || threads > MOST) return fprintf(stderr, "calibrate: 1 to %d threads\n", MOST), 2;
    tell("", "clock", clock_rate(), 0);
    tell("", "fma", rate(fma_loop, 400000, threads), 0);
    tell("", "shallow", rate(shallow_tiles, 200, threads), 0);
    tell("", "deep", rate(deep_tiles, 200, threads), 0);
    tell("", "vector", rate(vector_loop, 400000, threads), 0);
    tell("", "exp", rate(exp_loop, 4000, threads), 0);
    tell("", "short_chain", rate(short_chain, 1600, threads), 0);
    tell("", "long_chain", rate(long_chain, 1600, threads), 0);
    tell("", "short_link", rate(short_link, 3200, threads), 0);
    tell("", "long_link", rate(long_link, 3200, threads), 0);
    tell("", "lanes", rate(lanes_loop, 4000, threads), 0);
    tell("", "region", region(threads), 1);
    for (int l = 0; l < 4; l++)
        for (int w = READ; w <= COLUMN; w++)
            if (atol(words[2 + l]) > 0) tell(LEVEL[l], WAY[w], bandwidth(w, atol(words[2 + l]), l == 0, threads), 0);
    return 0;
}
