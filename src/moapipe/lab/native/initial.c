/* In: nothing. Out: 1 where a target region runs on the host, 0 where it runs on a device, be that the host's processor under another name. */
#include <omp.h>

int moa_initial_device(void) {
    int initial = 1;
    #pragma omp target map(from: initial)
    initial = omp_is_initial_device();
    return initial;
}
