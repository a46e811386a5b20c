/* near FILE BLOCK COUNT seq|random [BLOCKS]: goes through FILE in blocks of BLOCK bytes, in order or in random order, and reads COUNT
 * random pages of each, of BLOCKS blocks at most. Prints its time, µs, and a sum. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static unsigned long next_random(void)
{
    static unsigned long x = 88172645463325252ul;
    x ^= x << 13;
    x ^= x >> 7;
    return x ^= x << 17;
}

static long now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    struct stat st;
    int fd = argc > 4 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &st) < 0) {
        fprintf(stderr, "usage: near FILE BLOCK COUNT seq|random [BLOCKS]\n");
        return 2;
    }
    long block = atol(argv[2]), count = atol(argv[3]), most = argc > 5 ? atol(argv[5]) : 1 << 30;
    long n = block >= PAGE ? st.st_size / block : 0;
    long *order = malloc((n + 1) * sizeof *order);
    for (long i = 0; i < n; i++)
        order[i] = i;
    for (long i = n - 1; i > 0 && !strcmp(argv[4], "random"); i--) {
        long j = next_random() % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    static unsigned char page[PAGE];
    unsigned long sum = 0;
    long begun = now_us();
    for (long i = 0; i < n && i < most; i++)
        for (long k = 0; k < count; k++) {
            if (pread(fd, page, PAGE, order[i] * block + next_random() % (block / PAGE) * PAGE) != PAGE)
                return 1;
            sum += page[17];
        }
    printf("%ld %lu\n", now_us() - begun, sum);
    return 0;
}
