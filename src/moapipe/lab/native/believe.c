/* A fault to plant on purpose: an OpenMP runtime that is loaded after this library believes that BELIEVED_CPUS CPUs may be used,
   whatever the truth is. It stands for a mask that was narrowed after the runtime started, a CPU quota, a container. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *mask)
{
    const char *text = getenv("BELIEVED_CPUS");
    int count = text ? atoi(text) : 0;
    (void)thread;
    memset(mask, 0, bytes);
    if (count <= 0)
        return syscall(SYS_sched_getaffinity, 0, bytes, mask) < 0;
    for (int i = 0; i < count; ++i)
        CPU_SET_S((size_t)i, bytes, mask);
    return 0;
}
