/* The probe as a library, so that PyTorch's process is looked at by the same code as a kernel's. No OpenMP is linked here. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "probe.h"

static struct seen before, after;

void probe_before(void) { look(&before); }

/* Print the line of a sample that began at `start`, lasted `seconds` and took `cpu` seconds of CPU time. */
void probe_after(double start, double seconds, double cpu)
{
    look(&after);
    report(&before, &after, start, seconds, cpu, clock_rate());
    fflush(stdout);
}

/* Wait until the other threads of the process have gone quiet; gives its CPU seconds. */
double probe_settle(void)
{
    settle();
    return process_seconds();
}
