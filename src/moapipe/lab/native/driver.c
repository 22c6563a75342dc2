/* The measuring process of one built kernel. It never loads Python or PyTorch; while it waits for a command it sleeps.

   driver LIBRARY SYMBOL f32|f64 THREADS        CPU mask and OpenMP environment are set by who starts it

   It says `ready CPU`, then takes commands on standard input, a line each. The last line of every answer is `done CPU ...` or
   `error TEXT`, with CPU the process's CPU seconds so far:
     memory POLICY TOUCHERS NODES               of the buffers to come: first_touch, interleave or bind; touched first by all or one
     prepare INPUTS OUTPUTS WORK SIZES          then a line for each:
       input ELEMENTS PATH                      raw elements, read in parallel by the threads that will use them; `-`: any elements
       output ELEMENTS
       size VALUE
     placed                                     where their pages lie;  done CPU RUNTIMES LOCAL NODES
     warm SECONDS                               calls until SECONDS have passed, at least two;  done CPU CALLS FASTEST_CALL_SECONDS
     turn CALLS SAMPLES                         one call untimed, then a line for each sample:
       sample START SECONDS CPU WAIT INVOLUNTARY VOLUNTARY THREADS ACTIVE CLOCK CPUS MASK WIDEST

   SECONDS is the wall time of all CALLS, CPU the process's CPU time meanwhile, WAIT the time its threads were runnable without
   a CPU (-1: the kernel does not say), THREADS those that the process has, ACTIVE those that ran, CLOCK the clock rate in Hz
   after the sample, CPUS where the active threads were at its start, in its middle (-1: a single call) and at its end, `0/0/0,1/1/1`;
   MASK the CPUs that any thread may run on, `0-3`, WIDEST how many the least bound active one may. After `warm` and `turn` the
   process has gone quiet. RUNTIMES counts the OpenMP runtimes that are loaded, LOCAL is the share of pages on the memory node of the
   thread that owns them, NODES how many lie where, `0:512,1:16`.                                                               */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdarg.h>
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

enum { MAX_ARGUMENTS = 40, MAX_THREADS = 1024 };
typedef intptr_t word;

static word arguments[MAX_ARGUMENTS];
static int argument_count;
static void *function;
static int threads;
static size_t element;

static struct { void *base; size_t bytes; char *start; size_t used; } mapped[MAX_ARGUMENTS];
static char policy[32] = "first_touch", nodes[1024];
static int touchers;
static int mapped_count;

static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("error ");
    vprintf(format, list);
    putchar('\n');
    va_end(list);
    exit(1);
}

/* One function in every language: pointers and 64-bit integers only, so each argument is one machine word. */
#define L1(x) x(0)
#define L2(x) L1(x), x(1)
#define L3(x) L2(x), x(2)
#define L4(x) L3(x), x(3)
#define L5(x) L4(x), x(4)
#define L6(x) L5(x), x(5)
#define L7(x) L6(x), x(6)
#define L8(x) L7(x), x(7)
#define L9(x) L8(x), x(8)
#define L10(x) L9(x), x(9)
#define L11(x) L10(x), x(10)
#define L12(x) L11(x), x(11)
#define L13(x) L12(x), x(12)
#define L14(x) L13(x), x(13)
#define L15(x) L14(x), x(14)
#define L16(x) L15(x), x(15)
#define L17(x) L16(x), x(16)
#define L18(x) L17(x), x(17)
#define L19(x) L18(x), x(18)
#define L20(x) L19(x), x(19)
#define L21(x) L20(x), x(20)
#define L22(x) L21(x), x(21)
#define L23(x) L22(x), x(22)
#define L24(x) L23(x), x(23)
#define L25(x) L24(x), x(24)
#define L26(x) L25(x), x(25)
#define L27(x) L26(x), x(26)
#define L28(x) L27(x), x(27)
#define L29(x) L28(x), x(28)
#define L30(x) L29(x), x(29)
#define L31(x) L30(x), x(30)
#define L32(x) L31(x), x(31)
#define L33(x) L32(x), x(32)
#define L34(x) L33(x), x(33)
#define L35(x) L34(x), x(34)
#define L36(x) L35(x), x(35)
#define L37(x) L36(x), x(36)
#define L38(x) L37(x), x(37)
#define L39(x) L38(x), x(38)
#define L40(x) L39(x), x(39)
#define TYPE(k) word
#define VALUE(k) arguments[k]
#define CASE(n) case n: ((void (*)(L##n(TYPE)))function)(L##n(VALUE)); break;

static void call(void)
{
    switch (argument_count) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10)
        CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16) CASE(17) CASE(18) CASE(19) CASE(20)
        CASE(21) CASE(22) CASE(23) CASE(24) CASE(25) CASE(26) CASE(27) CASE(28) CASE(29) CASE(30)
        CASE(31) CASE(32) CASE(33) CASE(34) CASE(35) CASE(36) CASE(37) CASE(38) CASE(39) CASE(40)
        default: fail("%d arguments; the driver passes 1 to %d", argument_count, MAX_ARGUMENTS);
    }
}

/* Pages are first touched by the threads that compute, in contiguous shares, unless `memory` said otherwise; each buffer starts some cache lines further into its
   page than the one before, so that equal indices of two buffers do not fall on the same cache set. */
static void *allocate(size_t bytes)
{
    size_t huge = (size_t)2 << 20, shift = (size_t)(mapped_count * 17 % 64) * 64, length = bytes + shift + 64;
    length = length >= huge ? (length + huge - 1) / huge * huge + huge : (length + 4095) / 4096 * 4096;
    char *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        fail("no memory for %zu bytes", bytes);
    if (ask_memory(policy, nodes, base, length))
        fail("the kernel refuses memory by %s on nodes %s", policy, nodes);
    char *start = base;
    if (length >= huge) {
        start = (char *)(((uintptr_t)base + huge - 1) / huge * huge);
        madvise(base, length, MADV_HUGEPAGE);
    }
    start += shift;
    mapped[mapped_count].base = base;
    mapped[mapped_count].bytes = length;
    mapped[mapped_count].start = start;
    mapped[mapped_count++].used = bytes;
#pragma omp parallel for schedule(static) num_threads(touchers)
    for (size_t page = 0; page < (bytes + 4095) / 4096; ++page)
        memset(start + page * 4096, 0, page * 4096 + 4096 > bytes ? bytes - page * 4096 : 4096);
    return start;
}

static void load(char *to, size_t bytes, const char *path)
{
    const int any = !strcmp(path, "-");
    int file = any ? -1 : open(path, O_RDONLY), failed = file < 0 && !any;
    if (failed)
        fail("cannot open %s", path);
#pragma omp parallel for schedule(static) num_threads(threads) reduction(| : failed)
    for (size_t page = 0; page < (bytes + 4095) / 4096; ++page) {
        size_t want = page * 4096 + 4096 > bytes ? bytes - page * 4096 : 4096;
        if (any)
            memset(to + page * 4096, 1, want);
        else
            failed |= pread(file, to + page * 4096, want, (off_t)(page * 4096)) != (ssize_t)want;
    }
    if (!any)
        close(file);
    if (failed)
        fail("%s is shorter than %zu bytes", path, bytes);
}

static char *line(void)
{
    static char *text;
    static size_t room;
    ssize_t length = getline(&text, &room, stdin);
    if (length < 0)
        exit(0);
    if (length && text[length - 1] == '\n')
        text[length - 1] = 0;
    return text;
}

static void release(void)
{
    while (mapped_count)
        --mapped_count, munmap(mapped[mapped_count].base, mapped[mapped_count].bytes);
    argument_count = 0;
}

static void prepare(const char *text)
{
    int inputs, outputs, sizes, at;
    size_t work, elements;
    if (sscanf(text, "prepare %d %d %zu %d", &inputs, &outputs, &work, &sizes) != 4 || inputs + outputs + sizes + 2 > MAX_ARGUMENTS)
        fail("cannot prepare: %s", text);
    release();
    for (int i = 0; i < inputs; ++i) {
        const char *row = line();
        if (sscanf(row, "input %zu %n", &elements, &at) != 1)
            fail("expected an input, found: %s", row);
        char *buffer = allocate(elements * element);
        load(buffer, elements * element, row + at);
        arguments[argument_count++] = (word)buffer;
    }
    for (int i = 0; i < outputs; ++i) {
        const char *row = line();
        if (sscanf(row, "output %zu", &elements) != 1)
            fail("expected an output, found: %s", row);
        arguments[argument_count++] = (word)allocate(elements * element);
    }
    arguments[argument_count++] = (word)allocate(work * element);
    for (int i = 0; i < sizes; ++i) {
        const char *row = line();
        long long value;
        if (sscanf(row, "size %lld", &value) != 1)
            fail("expected a size, found: %s", row);
        arguments[argument_count++] = (word)value;
    }
    arguments[argument_count++] = threads;
    printf("done %.9f\n", process_seconds());
}

/* Whose a page is follows from the static schedule of `allocate`: threads own contiguous shares. */
static void placed(void)
{
    static char text[1 << 13];
    long at[MOST_NODES] = {0}, local = 0, all = 0;
    for (int m = 0; m < mapped_count; ++m) {
        size_t pages = (mapped[m].used + 4095) / 4096;
        char *start = mapped[m].start;
        count_pages(start, mapped[m].used, at);
#pragma omp parallel num_threads(threads) reduction(+ : local, all)
        {
            long mine[MOST_NODES] = {0};
            size_t t = (size_t)omp_get_thread_num(), n = (size_t)omp_get_num_threads(), each = pages / n, more = pages % n;
            size_t low = t * each + (t < more ? t : more), count = each + (t < more);
            unsigned cpu = 0, node = 0;
            syscall(SYS_getcpu, &cpu, &node, NULL);
            if (count)
                count_pages(start + low * 4096, count * 4096, mine);
            local += node < MOST_NODES ? mine[node] : 0;
            for (int k = 0; k < MOST_NODES; ++k)
                all += mine[k];
        }
    }
    settle();
    write_pages(at, text, sizeof text);
    printf("done %.9f %d %.6g %s\n", process_seconds(), runtimes(), all ? (double)local / (double)all : 1.0, text);
}

static void warm(double seconds)
{
    double begin = wall(), fastest = 1e300;
    long calls = 0;
    do {
        double t = wall();
        call();
        t = wall() - t;
        fastest = t < fastest ? t : fastest;
        ++calls;
    } while (calls < 2 || wall() - begin < seconds);
    settle();
    printf("done %.9f %ld %.9g\n", process_seconds(), calls, fastest);
}

static void turn(long calls, long samples)
{
    static struct seen before, middle, after;
    long half = calls / 2;
    call();
    for (long s = 0; s < samples; ++s) {
        look(&before);
        middle.count = 0;
        double cpu = process_seconds(), start = wall(), begin = start, seconds = 0;
        if (half) {
            for (long i = 0; i < half; ++i)
                call();
            seconds = wall() - begin;
            peek(&middle);
            begin = wall();
        }
        for (long i = half; i < calls; ++i)
            call();
        seconds += wall() - begin;
        cpu = process_seconds() - cpu;
        look(&after);
        report(&before, &middle, &after, start, seconds, cpu, clock_rate());
    }
    settle();
    printf("done %.9f\n", process_seconds());
}

int main(int count, char **given)
{
    if (count != 5)
        fail("usage: driver LIBRARY SYMBOL f32|f64 THREADS");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    threads = touchers = atoi(given[4]);
    element = strcmp(given[3], "f64") ? 4 : 8;
    void *library = dlopen(given[1], RTLD_NOW | RTLD_LOCAL);
    function = library ? dlsym(library, given[2]) : NULL;
    if (!function)
        fail("%s", dlerror());
    omp_set_dynamic(0);
    printf("ready %.9f\n", process_seconds());
    for (;;) {
        const char *command = line();
        double seconds;
        long calls, samples;
        char who[8];
        if (!strncmp(command, "prepare ", 8))
            prepare(command);
        else if (sscanf(command, "memory %31s %7s %1023s", policy, who, nodes) == 3) {
            touchers = strcmp(who, "one") ? threads : 1;
            printf("done %.9f\n", process_seconds());
        } else if (!strcmp(command, "placed"))
            placed();
        else if (sscanf(command, "warm %lf", &seconds) == 1)
            warm(seconds);
        else if (sscanf(command, "turn %ld %ld", &calls, &samples) == 2)
            turn(calls, samples);
        else
            fail("unknown command: %s", command);
    }
}
