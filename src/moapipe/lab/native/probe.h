/* What a process can see of itself while it measures: times, its threads, the clock. Shared by the native programs. */
#ifndef MOAPIPE_PROBE_H
#define MOAPIPE_PROBE_H
#pragma GCC diagnostic ignored "-Wunused-function"      /* each program uses a part of these */

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? -1.0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double wall(void) { return seconds_of(CLOCK_MONOTONIC); }
static double process_seconds(void) { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

/* Clock rate in Hz from a chain of dependent additions, a cycle each on every processor we know; the fastest of three, so that an
   interrupt does not show as a slow clock. About 50 microseconds. */
static double clock_rate(void)
{
    enum { STEPS = 4000, UNROLL = 16 };
    double best = 1e300;
    for (int trial = 0; trial < 3; ++trial) {
        uint64_t x = 1, y = (uint64_t)trial + 3;
        double begin = wall();
        for (int i = 0; i < STEPS; ++i) {
#define STEP __asm__ volatile("" : "+r"(x), "+r"(y)); x += y;
            STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP
#undef STEP
        }
        __asm__ volatile("" : : "r"(x));
        double t = wall() - begin;
        best = t < best ? t : best;
    }
    return STEPS * UNROLL / best;
}

/* CPU time of one thread by its kernel clock, exact at the moment of reading. */
static double thread_seconds(int id) { return seconds_of((clockid_t)(~(unsigned)id << 3 | 6)); }

enum { SEEN_THREADS = 1024, SEEN_CPUS = 4096 };
struct seen {
    int count, id[SEEN_THREADS], cpu[SEEN_THREADS];
    double used[SEEN_THREADS];
    double wait;
    long involuntary, voluntary;
};

/* The `field`th word (from 0) after the command name in /proc/self/task/ID/FILE, or -1. */
static double task_number(int id, const char *name, int field)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", id, name);
    int file = open(path, O_RDONLY);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return -1;
    text[length] = 0;
    char *at = strrchr(text, ')');
    at = at ? at + 2 : text;
    for (int i = 0; i < field && at; ++i) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at ? strtod(at, NULL) : -1;
}

static void look(struct seen *s)
{
    struct rusage usage;
    DIR *tasks = opendir("/proc/self/task");
    s->count = 0;
    s->wait = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        int id = atoi(entry->d_name);
        if (id <= 0 || s->count == SEEN_THREADS)
            continue;
        double waited = task_number(id, "schedstat", 1), ran = task_number(id, "schedstat", 0);
        s->wait = waited < 0 || ran <= 0 || s->wait < 0 ? -1 : s->wait + 1e-9 * waited;
        s->id[s->count] = id;
        s->cpu[s->count] = (int)task_number(id, "stat", 36);
        s->used[s->count++] = thread_seconds(id);
    }
    if (tasks)
        closedir(tasks);
    getrusage(RUSAGE_SELF, &usage);
    s->involuntary = usage.ru_nivcsw;
    s->voluntary = usage.ru_nvcsw;
}

/* Only where the threads are: the look in the middle of a sample, a few microseconds a thread, outside of the timed halves. */
static void peek(struct seen *s)
{
    DIR *tasks = opendir("/proc/self/task");
    s->count = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        int id = atoi(entry->d_name);
        if (id > 0 && s->count < SEEN_THREADS) {
            s->id[s->count] = id;
            s->cpu[s->count++] = (int)task_number(id, "stat", 36);
        }
    }
    if (tasks)
        closedir(tasks);
}

static int place_of(const struct seen *s, int id)
{
    for (int i = 0; i < s->count; ++i)
        if (s->id[i] == id)
            return s->cpu[i];
    return -1;
}

/* Add the CPUs that a thread may run on to `all`; gives how many they are. */
static int mask_of(int id, unsigned long *all)
{
    enum { BITS = 8 * sizeof(unsigned long), WORDS = SEEN_CPUS / BITS };
    unsigned long mask[WORDS] = {0};
    int count = 0;
    long bytes = syscall(SYS_sched_getaffinity, id, sizeof mask, mask);
    for (int w = 0; w < WORDS && (long)(w * sizeof *mask) < bytes; ++w) {
        all[w] |= mask[w];
        count += __builtin_popcountl(mask[w]);
    }
    return count;
}

/* A set of CPUs as the kernel writes it, `0-3,8`. */
static void write_set(const unsigned long *set, char *text, size_t room)
{
    enum { BITS = 8 * sizeof(unsigned long) };
    size_t length = 0;
    text[0] = 0;
    for (int c = 0; c < SEEN_CPUS && length + 16 < room; ++c) {
        if (!(set[c / BITS] >> c % BITS & 1))
            continue;
        int first = c;
        while (c + 1 < SEEN_CPUS && set[(c + 1) / BITS] >> (c + 1) % BITS & 1)
            ++c;
        length += (size_t)snprintf(text + length, room - length, first == c ? "%s%d" : "%s%d-%d", length ? "," : "", first, c);
    }
}

static void report(const struct seen *before, const struct seen *middle, const struct seen *after, double start, double seconds, double cpu, double clock)
{
    static char cpus[40 * SEEN_THREADS], masks[8 * SEEN_CPUS];
    static unsigned long all[SEEN_CPUS / 8 / sizeof(unsigned long)];
    size_t length = 0;
    int active = 0, widest = 0;
    memset(all, 0, sizeof all);
    for (int i = 0; i < after->count; ++i) {
        int id = after->id[i], width = mask_of(id, all);
        double used = after->used[i];
        for (int j = 0; j < before->count; ++j)
            used -= before->id[j] == id ? before->used[j] : 0;
        if (used > 0.1 * seconds) {
            ++active;
            length += (size_t)snprintf(cpus + length, sizeof cpus - length, "%s%d/%d/%d", length ? "," : "", place_of(before, id), place_of(middle, id), after->cpu[i]);
            widest = width > widest ? width : widest;
        }
    }
    write_set(all, masks, sizeof masks);
    double wait = before->wait < 0 || after->wait < 0 ? -1 : after->wait - before->wait;
    printf("sample %.9f %.9g %.9g %.9g %ld %ld %d %d %.6g %s %s %d\n", start, seconds, cpu, wait,
           after->involuntary - before->involuntary, after->voluntary - before->voluntary, after->count, active, clock, length ? cpus : "-", *masks ? masks : "-", widest);
}

/* How many different OpenMP runtimes this process has loaded: two have a team of threads each. */
static int runtimes(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char text[4096], known[8][512];
    int count = 0;
    while (maps && fgets(text, sizeof text, maps)) {
        char *path = strchr(text, '/');
        char *name = path ? strrchr(path, '/') + 1 : NULL;
        if (!name || (strncmp(name, "libgomp", 7) && strncmp(name, "libomp", 6) && strncmp(name, "libiomp", 7)))
            continue;
        path[strcspn(path, "\n")] = 0;
        int k = 0;
        while (k < count && strncmp(known[k], path, sizeof known[k] - 1))
            ++k;
        if (k == count && count < 8)
            snprintf(known[count++], sizeof known[0], "%s", path);
    }
    if (maps)
        fclose(maps);
    return count;
}

/* Where pages lie. `at` counts pages by memory node, for every page of a buffer (or every STRIDEth, where it has very many). */
enum { MOST_NODES = 256, PAGES_AT_ONCE = 512 };
static void count_pages(char *base, size_t bytes, long *at)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)base + page - 1) / page * page;
    size_t pages = (uintptr_t)base + bytes > first ? ((uintptr_t)base + bytes - first) / page : 0, stride = pages / 65536 + 1;
    for (size_t p = 0; p < pages;) {
        void *which[PAGES_AT_ONCE];
        int status[PAGES_AT_ONCE];
        unsigned long n = 0;
        for (; n < PAGES_AT_ONCE && p < pages; p += stride)
            which[n++] = (void *)(first + p * page);
        if (syscall(SYS_move_pages, 0, n, which, NULL, status, 0))
            return;
        for (unsigned long i = 0; i < n; ++i)
            if (status[i] >= 0 && status[i] < MOST_NODES)
                ++at[status[i]];
    }
}

static void write_pages(const long *at, char *text, size_t room)
{
    size_t length = 0;
    snprintf(text, room, "-");
    for (int n = 0; n < MOST_NODES && length + 32 < room; ++n)
        if (at[n])
            length += (size_t)snprintf(text + length, room - length, "%s%d:%ld", length ? "," : "", n, at[n]);
}

/* Ask the kernel for pages of `base` (or of the whole process, without one) by interleaving or on one node; 0 when it agrees. */
static long ask_memory(const char *policy, const char *nodes, void *base, size_t bytes)
{
    enum { PREFERRED_DEFAULT = 0, BIND = 2, INTERLEAVE = 3 };
    unsigned long mask[MOST_NODES / 8 / sizeof(unsigned long)] = {0};
    int mode = !strcmp(policy, "interleave") ? INTERLEAVE : !strcmp(policy, "bind") ? BIND : PREFERRED_DEFAULT;
    for (const char *at = nodes; mode && at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        int n = atoi(at);
        if (n >= 0 && n < MOST_NODES)
            mask[n / (8 * sizeof *mask)] |= 1ul << n % (8 * sizeof *mask);
    }
    if (base)
        return mode ? syscall(SYS_mbind, base, bytes, mode, mask, MOST_NODES, 0) : 0;
    return syscall(SYS_set_mempolicy, mode, mode ? mask : NULL, mode ? MOST_NODES : 0);
}

/* Return when this process's other threads have stopped spinning, at most half a second later: the next participant must not find
   them on its CPUs. */
static void settle(void)
{
    struct timespec pause = {0, 200000};
    double begin = wall(), used;
    do {
        used = process_seconds();
        nanosleep(&pause, NULL);
    } while (process_seconds() - used > 4e-5 && wall() - begin < 0.5);
}

#endif
