/* What distance and company cost on a machine. CPUs and OpenMP environment are set by who starts it; one figure a line, `NAME VALUE`.

   locality barrier THREADS                  region: seconds of an empty parallel region, the median of as many as fit in a fifth of a
                                             second, at least five; the fifth of a second counts from the first, which starts the threads
   locality memory THREADS NODE BYTES        read: bytes a second that THREADS threads read together from pages on NODE;
                                             latency: seconds of one dependent load from there, by the first thread
   locality clock THREADS                    clock: Hz of the slowest of THREADS threads that all run a dependent chain
   locality canary THREADS BYTES             region and clock as above, of a fiftieth of a second; stall: the longest region; read: bytes
                                             a second that THREADS threads read together, each from its own pages, left out without
                                             room for BYTES; cpu: CPU seconds of all this                                       */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "probe.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void barrier(int threads, double budget)
{
    enum { MOST = 20000, LEAST = 5 };
    static double seconds[MOST];
    int count = 0;
#pragma omp parallel num_threads(threads)
    __asm__ volatile("" : : : "memory");
    double begin = wall();
    while (count < LEAST || (count < MOST && wall() - begin < budget)) {
        double t = wall();
#pragma omp parallel num_threads(threads)
        __asm__ volatile("" : : : "memory");
        seconds[count++] = wall() - t;
    }
    qsort(seconds, (size_t)count, sizeof *seconds, ascending);
    printf("region %.9g\nstall %.9g\n", seconds[count / 2], seconds[count - 1]);
}

static double reading(const uint64_t *buffer, size_t lines, int threads, int trials)
{
    double best = 1e300;
    for (int trial = 0; trial < trials; ++trial) {
        uint64_t sum = 0;
        double t = wall();
#pragma omp parallel for schedule(static) reduction(+ : sum) num_threads(threads)
        for (size_t i = 0; i < lines; ++i) {
            const uint64_t *x = buffer + i * 8;
            sum += x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
        }
        t = wall() - t;
        __asm__ volatile("" : : "r"(sum));
        best = t < best ? t : best;
    }
    return (double)lines * 64 / best;
}

static void own_pages(int threads, size_t bytes)
{
    size_t lines = bytes / 64;
    uint64_t *buffer = mmap(NULL, lines * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return;
    madvise(buffer, lines * 64, MADV_HUGEPAGE);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t i = 0; i < lines; ++i)
        buffer[i * 8] = i;
    printf("read %.9g\n", reading(buffer, lines, threads, 3));
}

/* Every line once, in an order that no prefetcher knows: i -> (i·a + c) mod n with n a power of two and a ≡ 1 mod 4 is one cycle
   (Knuth, The Art of Computer Programming 2, 3.2.1.2, theorem A). */
static void chain(uint64_t *buffer, size_t lines)
{
    for (size_t i = 0; i < lines; ++i)
        buffer[i * 8] = (i * 1664525 + 1013904223) & (lines - 1);
}

static double latency(const uint64_t *buffer, size_t lines)
{
    double best = 1e300;
    for (int trial = 0; trial < 3; ++trial) {
        size_t steps = lines < 200000 ? lines : 200000;
        uint64_t at = (uint64_t)trial;
        double t = wall();
        for (size_t i = 0; i < steps; ++i)
            at = buffer[at * 8];
        t = (wall() - t) / (double)steps;
        __asm__ volatile("" : : "r"(at));
        best = t < best ? t : best;
    }
    return best;
}

static int memory(int threads, const char *node, size_t bytes)
{
    size_t lines = 1;
    while (lines * 2 * 64 <= bytes)
        lines *= 2;
    bytes = lines * 64;
    uint64_t *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED || ask_memory("bind", node, buffer, bytes)) {
        fprintf(stderr, "no %zu bytes on memory node %s\n", bytes, node);
        return 1;
    }
    madvise(buffer, bytes, MADV_HUGEPAGE);
    chain(buffer, lines);
    printf("read %.9g\nlatency %.9g\n", reading(buffer, lines, threads, 5), latency(buffer, lines));
    return 0;
}

static void clocks(int threads)
{
    double slowest = 1e300;
#pragma omp parallel num_threads(threads) reduction(min : slowest)
    {
        double until = wall() + 0.02;
        double best = 0;
        while (wall() < until) {
            double rate = clock_rate();
            best = rate > best ? rate : best;
        }
        slowest = best;
    }
    printf("clock %.9g\n", slowest);
}

int main(int count, char **given)
{
    int threads = count > 2 ? atoi(given[2]) : 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    omp_set_dynamic(0);
    if (count == 3 && threads > 0 && !strcmp(given[1], "barrier"))
        return barrier(threads, 0.2), 0;
    if (count == 4 && threads > 0 && !strcmp(given[1], "canary")) {
        barrier(threads, 0.02);
        own_pages(threads, strtoull(given[3], NULL, 10));
        clocks(threads);
        return printf("cpu %.9g\n", process_seconds()), 0;
    }
    if (count == 3 && threads > 0 && !strcmp(given[1], "clock"))
        return clocks(threads), 0;
    if (count == 5 && threads > 0 && !strcmp(given[1], "memory"))
        return memory(threads, given[3], strtoull(given[4], NULL, 10));
    fprintf(stderr, "usage: locality barrier|memory|clock|canary THREADS [NODE] [BYTES]\n");
    return 2;
}
