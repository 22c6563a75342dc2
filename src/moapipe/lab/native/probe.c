/* The probe as a library, so that PyTorch's process is looked at by the same code as a kernel's. No OpenMP is linked here. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "probe.h"

static struct seen before, middle, after;
static long pages[MOST_NODES];

void probe_before(void) { look(&before); middle.count = 0; }
void probe_middle(void) { peek(&middle); }

/* Print the line of a sample that began at `start`, lasted `seconds` and took `cpu` seconds of CPU time. */
void probe_after(double start, double seconds, double cpu)
{
    look(&after);
    report(&before, &middle, &after, start, seconds, cpu, clock_rate());
    fflush(stdout);
}

/* Wait until the other threads of the process have gone quiet; gives its CPU seconds. */
double probe_settle(void)
{
    settle();
    return process_seconds();
}

/* Memory policy of the whole process, before it makes its tensors; 0 when the kernel agrees. */
long probe_memory(const char *policy, const char *nodes) { return ask_memory(policy, nodes, NULL, 0); }

void probe_pages(void *base, size_t bytes) { count_pages(base, bytes, pages); }

/* How many OpenMP runtimes are loaded, and in `text` where the pages lie that were counted since the last time. */
int probe_placed(char *text, size_t room)
{
    write_pages(pages, text, room);
    memset(pages, 0, sizeof pages);
    return runtimes();
}
