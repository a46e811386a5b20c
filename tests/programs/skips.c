// skips FILE MEAN AHEAD: reads blocks of 8 KiB onward through FILE, one in MEAN (below 0: backwards, one in -MEAN), and hints each AHEAD reads before.
// Prints how many it read and a sum of their bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 8192 };

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int fd = open(argv[1], O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return 1;
    long mean = atol(argv[2]), ahead = atol(argv[3]), blocks = st.st_size / BLOCK, n = 0;
    int back = mean < 0;
    mean = labs(mean);
    long *order = malloc(sizeof *order * (size_t)blocks);
    uint64_t x = 88172645463325252u, sum = 0;
    for (long i = 0; i < blocks; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if (x % (uint64_t)mean == 0)
            order[n++] = back ? blocks - 1 - i : i;
    }
    static unsigned char block[BLOCK];
    long hinted = 0;
    for (long i = 0; i < n; i++) {
        for (; ahead > 0 && hinted < n && hinted <= i + ahead; hinted++)
            posix_fadvise(fd, order[hinted] * BLOCK, BLOCK, POSIX_FADV_WILLNEED);
        if (pread(fd, block, BLOCK, order[i] * BLOCK) != BLOCK)
            return 1;
        for (int k = 0; k < BLOCK; k += 64)
            sum = sum * 31 + block[k];
    }
    printf("%ld %lu\n", n, (unsigned long)sum);
    return 0;
}
