/* Declares a shuffled list of a file's blocks, waits until it was asked for, and says what of it is cached. Then reads it in that
 * order and prints a sum of what was read. FILE BLOCK PART%: blocks of so many bytes, so much of the file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "outrider.h"

struct cachestat_range { uint64_t off, len; };
struct cachestat { uint64_t cached, dirty, writeback, evicted, recently; };

static uint64_t cached(int fd, uint64_t offset, uint64_t length)
{
    struct cachestat_range r = {offset, length};
    struct cachestat s = {0};
    if (syscall(451, fd, &r, &s, 0) != 0)
        return ~0ull;
    return s.cached;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int fd = open(argv[1], O_RDONLY);
    uint64_t block = strtoull(argv[2], 0, 0);
    unsigned part = atoi(argv[3]);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return 2;
    size_t n = st.st_size / block, taken = n * part / 100;
    struct outrider_range *list = malloc(n * sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){i * block, block};
    uint64_t seed = 42;
    for (size_t i = n - 1; i > 0; i--) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        size_t j = (seed >> 33) % (i + 1);
        struct outrider_range t = list[i];
        list[i] = list[j];
        list[j] = t;
    }
    ssize_t got = outrider_declare(fd, list, taken);
    if (got != (ssize_t)taken) {
        printf("declare: %zd %s\n", got, strerror(errno));
        return 1;
    }
    if (outrider_settle(60000)) {
        printf("settle: %s\n", strerror(errno));
        return 1;
    }
    uint64_t present = 0, pages = 0;
    for (size_t i = 0; i < taken; i++) {
        present += cached(fd, list[i].offset, list[i].length);
        pages += (block + 4095) / 4096;
    }
    printf("cached %llu of %llu\n", (unsigned long long)present, (unsigned long long)pages);
    char *buf = malloc(block);
    uint64_t sum = 0;
    for (size_t i = 0; i < taken; i++) {
        if (pread(fd, buf, block, list[i].offset) != (ssize_t)block)
            return 1;
        for (size_t k = 0; k < block; k += 64)
            sum = sum * 31 + (unsigned char)buf[k];
    }
    printf("sum %llx\n", (unsigned long long)sum);
    outrider_settle(60000);
    struct outrider_stats s;
    outrider_stats(&s, sizeof s);
    printf("declared %llu cached %llu fetched %llu used %llu diverged %llu failures %llu\n",
           (unsigned long long)s.declared_bytes, (unsigned long long)s.cached_bytes,
           (unsigned long long)s.fetched_bytes, (unsigned long long)s.used_bytes,
           (unsigned long long)s.diverged_reads, (unsigned long long)s.failures);
    return 0;
}
