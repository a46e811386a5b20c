// Calls of /dev/outrider, and the oracles against which its answers are held: mincore, and cachestat where there is one.
#ifndef OUTRIDER_TEST_H
#define OUTRIDER_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "outrider_uapi.h"
#include "random_u64.h"

#define PAGE 4096ull

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(" (errno %d: %s)\n", errno, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline int open_device(void) {
    int device = open("/dev/outrider", O_RDWR | O_CLOEXEC);
    if (device < 0) die("open /dev/outrider");
    int abi = ioctl(device, OUTRIDER_VERSION);
    if (abi != OUTRIDER_ABI) die("ABI %d instead of %d", abi, OUTRIDER_ABI);
    return device;
}

static inline struct outrider_readahead_info info_of(int fd, uint64_t offset, uint64_t length, uint32_t flags) {
    struct outrider_readahead_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    info.fd = fd;
    info.offset = offset;
    info.length = length;
    info.flags = flags;
    return info;
}

// All bits of a file as the module knows them, in `*words` (to be freed); the rest of its answer is returned.
static inline struct outrider_readahead_info look(int device, int fd, uint64_t size, uint64_t **words) {
    struct outrider_readahead_info info = info_of(fd, 0, 0, OUTRIDER_LOOK);
    size_t bytes = (size / PAGE / 64 + 2) * 8;
    *words = calloc(1, bytes);
    info.bitmap = (uintptr_t)*words;
    info.bitmap_bytes = bytes;
    if (ioctl(device, OUTRIDER_READAHEAD_INFO, &info)) die("READAHEAD_INFO of %llu bytes", (unsigned long long)size);
    return info;
}

// mincore of a whole file, a byte a page; to be freed.
static inline unsigned char *resident(int fd, uint64_t size) {
    uint64_t pages = (size + PAGE - 1) / PAGE;
    unsigned char *bytes = calloc(1, pages + 1);
    if (!pages) return bytes;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) die("mmap of %llu bytes", (unsigned long long)size);
    if (mincore(map, size, bytes)) die("mincore");
    munmap(map, size);
    return bytes;
}

// nr_cache of cachestat(2) for the first `length` bytes of a file, or all that is cached of it for 0; -1 where the kernel has none.
static inline int64_t cachestat_pages(int fd, uint64_t length) {
    struct {
        uint64_t offset, length;
    } range = {0, length};
    uint64_t stat[5];
    if (syscall(451, fd, &range, stat, 0)) return errno == ENOSYS ? -1 : (die("cachestat"), -1);
    return stat[0];
}

#define BIT(words, n) ((words)[(n) / 64] >> ((n) % 64) & 1)

// What a bitmap says against what mincore says: the number of bits that differ. A bit of several pages has to be set if, and only if, all are resident.
static inline uint64_t differences(const uint64_t *words, const unsigned char *bytes, uint64_t size, unsigned shift, uint64_t *first) {
    uint64_t pages = (size + PAGE - 1) / PAGE, wrong = 0;
    for (uint64_t bit = 0; bit << shift < pages; bit++) {
        int all = ((bit + 1) << shift) <= pages;
        for (uint64_t page = bit << shift; all && page < (bit + 1) << shift; page++) all = bytes[page] & 1;
        if (all != (int)BIT(words, bit) && wrong++ == 0) *first = bit;
    }
    return wrong;
}

// Reads a byte of each page that has its bit and is not resident: mincore leaves out what is in the cache without being up to date. (ext4 leaves such pages
// behind when it punches holes, any file system with blocks smaller than a page when it writes.)
static inline void read_not_up_to_date(int fd, const uint64_t *words, const unsigned char *bytes, uint64_t size) {
    char byte;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (uint64_t page = 0; page < (size + PAGE - 1) / PAGE; page++)
        if (BIT(words, page) && !(bytes[page] & 1) && pread(fd, &byte, 1, page * PAGE) != 1) die("read of page %llu", (unsigned long long)page);
}

// Holds a file's bitmap against mincore, cachestat and the kernel's count of the file's pages, while nothing reads or writes it. Reclaim may still take
// pages: then it looks again, until nothing changed between two looks. With `mapped` its mapping is held against them too.
static inline void verify(int device, int fd, const char *name, const uint64_t *mapped) {
    for (int attempt = 0;; attempt++) {
        struct stat stat;
        if (fstat(fd, &stat)) die("fstat %s", name);
        uint64_t *before, *after, first = 0, set = 0;
        look(device, fd, stat.st_size, &before);
        unsigned char *bytes = resident(fd, stat.st_size);
        // A large folio that could not be split when the file was cut off reaches beyond the file's end.
        uint64_t in_file = (stat.st_size + PAGE - 1) / PAGE;
        int64_t pages = in_file ? cachestat_pages(fd, in_file * PAGE) : -1, all = cachestat_pages(fd, 0);
        struct outrider_readahead_info info = look(device, fd, stat.st_size, &after);
        size_t words = (((stat.st_size + PAGE - 1) / PAGE >> info.shift) + 63) / 64 * 8;
        int stable = !memcmp(before, after, words);
        uint64_t wrong = differences(after, bytes, stat.st_size, info.shift, &first);
        for (uint64_t bit = 0; bit << info.shift < in_file; bit++) set += BIT(after, bit);
        int counts = info.shift || pages < 0 || (uint64_t)pages == set;
        int cached = info.shift || info.cached == (all < 0 ? set : (uint64_t)all);
        // Without cachestat nobody tells how much of a folio that holds the file's last page lies behind it: less than 2 MiB.
        if (all < 0 && in_file && BIT(after, in_file - 1)) cached |= info.cached > set && info.cached < set + 512;
        int same = !mapped || !memcmp(mapped, after, words);
        // If all of these were cached, everything agrees when it looks again. A page with a bit that was not cached would make one page more
        // than there are bits.
        if (wrong && stable && cached && !info.shift) read_not_up_to_date(fd, after, bytes, stat.st_size);
        // Readahead that began before the file was cut off may leave pages behind its end, which only cachestat tells apart.
        if (stable && !wrong && all < 0 && info.cached > set) posix_fadvise(fd, in_file * PAGE, 0, POSIX_FADV_DONTNEED);
        free(before);
        free(after);
        free(bytes);
        if (stable && !wrong && counts && cached && same) return;
        if (attempt < 40) {
            usleep(attempt * 2000);
            continue;
        }
        die("%s, %lld bytes: %llu of the bits differ from mincore, the first is %llu (shift %u); %llu set, %llu cached, cachestat %lld, %lld in the file; "
            "mapping %s; %s",
            name, (long long)stat.st_size, (unsigned long long)wrong, (unsigned long long)first, info.shift, (unsigned long long)set,
            (unsigned long long)info.cached, (long long)all, (long long)pages, same ? "same" : "differs", stable ? "stable" : "changing");
    }
}

#endif
