// Virtual nanoseconds of a loop that makes no system call, and of idle time.
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int main(void) {
    // The shortest of several: no timer interrupt fell into it.
    int64_t best = INT64_MAX;
    for (int round = 0; round < 20; round++) {
        int64_t start = now();
        for (volatile int i = 0; i < 10000; i++) {
        }
        int64_t took = now() - start;
        if (took < best) best = took;
    }
    printf("@ count loop_10000 %ld ns\n", (long)best);
    if (best < 10000 || best > 200000) {
        printf("ten thousand rounds took %ld ns, which is no count of instructions\n", (long)best);
        return 1;
    }
    struct timespec second = {1, 0};
    int64_t start = now();
    nanosleep(&second, NULL);
    int64_t slept = now() - start;
    if (slept < 1000000000 || slept > 1020000000) {
        printf("a second of sleep took %ld ns\n", (long)slept);
        return 1;
    }
    return 0;
}
