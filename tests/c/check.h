/* What the test programs share. A failed check says where and ends the program with 1. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "outrider.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno));     \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* The call fails with this errno. */
#define FAILS(call, number)                                                                                            \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        CHECK((long)(call) == -1);                                                                                     \
        CHECK(errno == (number));                                                                                      \
    } while (0)

static inline uint64_t rnd(void)
{
    static uint64_t seed = 88172645463325252ull;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

/* Pages of a range that are cached; -1 where the kernel has no cachestat. */
static inline long cached_pages(int fd, uint64_t offset, uint64_t length)
{
    uint64_t range[2] = {offset, length}, stat[5] = {0};
    return syscall(451, fd, range, stat, 0) ? -1 : (long)stat[0];
}

/* Drops the file from the cache. */
static inline void make_cold(int fd)
{
    fdatasync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static inline uint64_t size_of(int fd)
{
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    return st.st_size;
}

/* A number that depends on every byte and its place. */
static inline uint64_t sum(uint64_t so_far, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++)
        so_far = so_far * 1099511628211ull + p[i];
    return so_far;
}

/* What a signal handler does that reads: a block somewhere in the file, which is as in `truth`. errno stays. */
static inline void read_somewhere(int fd, const char *truth, uint64_t size, volatile unsigned *seed)
{
    char buf[4096];
    int e = errno;
    *seed = *seed * 1103515245 + 12345;
    uint64_t at = (uint64_t)*seed % (size / sizeof buf) * sizeof buf;
    CHECK(pread(fd, buf, sizeof buf, at) == sizeof buf && !memcmp(buf, truth + at, sizeof buf));
    errno = e;
}

/* Blocks of a file in an order without pattern. */
static inline struct outrider_range *shuffled(uint64_t size, uint64_t block, size_t *n)
{
    *n = size / block;
    struct outrider_range *list = (struct outrider_range *)malloc(*n * sizeof *list);
    CHECK(list);
    for (size_t i = 0; i < *n; i++)
        list[i].offset = i * block, list[i].length = block;
    for (size_t i = *n - 1; i > 0; i--) {
        size_t j = rnd() % (i + 1);
        struct outrider_range t = list[i];
        list[i] = list[j];
        list[j] = t;
    }
    return list;
}

#endif
