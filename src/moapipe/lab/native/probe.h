/* What a process can see of itself while it measures: times, its threads, the clock. Shared by the native programs. */
#ifndef MOAPIPE_PROBE_H
#define MOAPIPE_PROBE_H

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

enum { SEEN_THREADS = 1024 };
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

static void report(const struct seen *before, const struct seen *after, double start, double seconds, double cpu, double clock)
{
    char cpus[8 * SEEN_THREADS] = "";
    size_t length = 0;
    int active = 0;
    for (int i = 0; i < after->count; ++i) {
        double used = after->used[i];
        for (int j = 0; j < before->count; ++j)
            used -= before->id[j] == after->id[i] ? before->used[j] : 0;
        if (used > 0.1 * seconds) {
            ++active;
            length += (size_t)snprintf(cpus + length, sizeof cpus - length, "%s%d", length ? "," : "", after->cpu[i]);
        }
    }
    double wait = before->wait < 0 || after->wait < 0 ? -1 : after->wait - before->wait;
    printf("sample %.9f %.9g %.9g %.9g %ld %ld %d %d %.6g %s\n", start, seconds, cpu, wait,
           after->involuntary - before->involuntary, after->voluntary - before->voluntary, after->count, active, clock, length ? cpus : "-");
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
