/* FILE BLOCK PART: declares a part (per cent) of the file's blocks in an order without pattern, waits until it was asked for, and
 * expects it in the cache and nothing else. Then reads it in that order and prints a sum. */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    int fd = open(argv[1], O_RDONLY);
    CHECK(fd >= 0);
    uint64_t block = strtoull(argv[2], 0, 0);
    make_cold(fd);
    int was_cold = cached_pages(fd, 0, size_of(fd)) == 0;
    size_t n;
    struct outrider_range *list = shuffled(size_of(fd), block, &n);
    size_t taken = n * atoi(argv[3]) / 100;
    CHECK(outrider_declare(fd, list, taken) == (ssize_t)taken);
    CHECK(outrider_settle(60000) == 0);
    long wanted = 0, present = 0;
    for (size_t i = 0; i < taken; i++) {
        present += cached_pages(fd, list[i].offset, block);
        wanted += block / 4096;
    }
    /* A kernel that reclaims ahead of need may have taken a page or two. */
    if (cached_pages(fd, 0, 4096) >= 0)
        CHECK(present >= wanted - wanted / 64);
    char *buf = malloc(block);
    uint64_t s = 0;
    for (size_t i = 0; i < taken; i++) {
        CHECK(pread(fd, buf, block, list[i].offset) == (ssize_t)block);
        s = sum(s, buf, block);
    }
    printf("%llx\n", (unsigned long long)s);
    CHECK(outrider_settle(60000) == 0);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    CHECK(stats.declared_bytes == taken * block);
    CHECK(stats.diverged_reads == 0 && stats.failures == 0 && stats.callbacks == 0);
    if (was_cold) {
        CHECK(stats.cached_bytes + stats.fetched_bytes >= stats.declared_bytes);
        CHECK(stats.fetched_bytes - stats.infill_bytes <= stats.declared_bytes + stats.evicted_bytes + stats.dropped_bytes);
        CHECK(stats.used_bytes >= stats.fetched_bytes - stats.infill_bytes - stats.evicted_bytes - stats.fetched_bytes / 64);
    }
    return 0;
}
