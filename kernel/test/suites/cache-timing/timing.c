// Costs in virtual time, one nanosecond an instruction.
//
//   timing lookup FILE              a look-up of 2 MB: by READAHEAD_INFO, in the mapped bitmap, and by mincore
//   timing insert FILE none|known   a cold read of the file and its eviction, in nanoseconds a page; `known`: the module keeps its bitmap
//   timing shared FILE MODE MB      threads that share a file read it in random order, MB of it: Figure 5 and Table 3 of CrossPrefetch
#include "outrider_test.h"

#include <pthread.h>
#include <sys/uio.h>

#define RANGE (2ull << 20)
#define THREADS 4
#define READ (16ull << 10)

static void drop(int fd) {
    fsync(fd);
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) die("fadvise");
}

static uint64_t size_of(int fd) {
    struct stat stat;
    if (fstat(fd, &stat)) die("fstat");
    return stat.st_size;
}

static void read_all(int fd) {
    static char buffer[128 << 10];
    uint64_t at = 0;
    for (ssize_t n; (n = pread(fd, buffer, sizeof buffer, at)) > 0;) at += n;
}

// The least of several rounds, into which no timer interrupt fell; each of a few times, so that looking at the clock counts little.
#define TIMES 16
#define LEAST(best, code)                                        \
    do {                                                         \
        best = INT64_MAX;                                        \
        for (int round_ = 0; round_ < 9; round_++) {             \
            int64_t start_ = now_ns();                           \
            for (int time_ = 0; time_ < TIMES; time_++) code;    \
            int64_t took_ = (now_ns() - start_) / TIMES;         \
            if (took_ < best) best = took_;                      \
        }                                                        \
    } while (0)

static int lookup(const char *path) {
    int fd = open(path, O_RDONLY), device = open_device();
    read_all(fd);
    uint64_t size = size_of(fd), words[RANGE / PAGE / 64], at = 4 << 20;
    static unsigned char bytes[RANGE / PAGE];
    struct outrider_readahead_info info;
    int64_t call, mapped_call, with_mapping, with_bits;

    // The call leaves what it was asked as it is.
    info = info_of(fd, at, RANGE, OUTRIDER_LOOK);
    info.bitmap = (uintptr_t)words;
    info.bitmap_offset = at;
    info.bitmap_bytes = sizeof words;
    LEAST(call, if (ioctl(device, OUTRIDER_READAHEAD_INFO, &info)) die("READAHEAD_INFO"));
    if (info.missing || info.bitmap_written != sizeof words || words[0] != ~0ull) die("the file is not cached");
    // What any call of a device costs.
    int64_t empty_call;
    LEAST(empty_call, if (ioctl(device, OUTRIDER_VERSION) != OUTRIDER_ABI) die("VERSION"));

    struct outrider_bitmap request = {.size = sizeof request, .fd = fd};
    int handle = ioctl(device, OUTRIDER_BITMAP, &request);
    volatile uint64_t *bits = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, handle, 0);
    if (bits == MAP_FAILED) die("mapping of the bitmap");
    uint64_t set = 0;
    LEAST(with_bits, {
        set = 0;
        for (unsigned i = 0; i < RANGE / PAGE / 64; i++) set += __builtin_popcountll(bits[at / PAGE / 64 + i]);
    });
    if (set != RANGE / PAGE) die("%llu bits set", (unsigned long long)set);

    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    LEAST(mapped_call, if (mincore((char *)map + at, RANGE, bytes)) die("mincore"));
    munmap(map, size);
    LEAST(with_mapping, {
        map = mmap(NULL, RANGE, PROT_READ, MAP_SHARED, fd, at);
        if (mincore(map, RANGE, bytes)) die("mincore");
        munmap(map, RANGE);
    });
    printf("@ figure lookup_2M_call %lld ns\n@ figure lookup_2M_mapped_bitmap %lld ns\n", (long long)call, (long long)with_bits);
    printf("@ figure empty_call %lld ns\n", (long long)empty_call);
    printf("@ figure lookup_2M_mincore %lld ns\n@ figure lookup_2M_mmap_mincore_munmap %lld ns\n", (long long)mapped_call, (long long)with_mapping);
    printf("@ figure lookup_2M_mincore_to_call %.1f x\n@ figure lookup_2M_mincore_to_mapped_bitmap %.1f x\n", (double)with_mapping / call,
           (double)with_mapping / with_bits);
    if (with_mapping < 100 * with_bits || with_mapping < 100 * call)
        die("a look-up costs %lld ns by mincore, %lld in the mapped bitmap, %lld by the call", (long long)with_mapping, (long long)with_bits,
            (long long)call);
    return 0;
}

static int insert(const char *path, int known) {
    int fd = open(path, O_RDONLY), device = known ? open_device() : -1;
    uint64_t pages = size_of(fd) / PAGE;
    int64_t best_read = INT64_MAX, best_drop = INT64_MAX;
    for (int round = 0; round < 4; round++) {
        drop(fd);
        if (known) {
            struct outrider_readahead_info info = info_of(fd, 0, 0, OUTRIDER_LOOK);
            if (ioctl(device, OUTRIDER_READAHEAD_INFO, &info)) die("READAHEAD_INFO");
            if (info.cached) die("%llu pages are still cached", (unsigned long long)info.cached);
        }
        int64_t start = now_ns();
        read_all(fd);
        int64_t took = now_ns() - start;
        if (took < best_read) best_read = took;
        start = now_ns();
        drop(fd);
        took = now_ns() - start;
        if (took < best_drop) best_drop = took;
    }
    printf("%lld %lld %llu\n", (long long)best_read, (long long)best_drop, (unsigned long long)pages);
    return 0;
}

static int shared_fd, device_fd, fetching;
static uint32_t *order;
static uint64_t reads, hits;
static uint64_t fetched, calls;

// Each thread has every fourth place of one random order, so the ranges don't overlap. A read that the cache can't serve at once is a miss.
static void *reader(void *argument) {
    static __thread char buffer[READ];
    struct iovec part = {buffer, READ};
    uint64_t found = 0;
    for (uint64_t i = (uintptr_t)argument; i < reads; i += THREADS) {
        off_t at = order[i] * READ;
        if (preadv2(shared_fd, &part, 1, at, RWF_NOWAIT) == READ) found++;
        else if (pread(shared_fd, buffer, READ, at) != READ) die("pread");
    }
    __atomic_fetch_add(&hits, found, __ATOMIC_RELAXED);
    return NULL;
}

// The runtime's background worker, as in the paper: once the file proves to be read all over it is asked for in large pieces, and each call fetches what of
// its piece is missing.
static void *worker(void *argument) {
    (void)argument;
    uint64_t size = size_of(shared_fd);
    for (uint64_t at = 0; at < size;) {
        struct outrider_readahead_info info = info_of(shared_fd, at, 2 << 20, 0);
        if (ioctl(device_fd, OUTRIDER_READAHEAD_INFO, &info)) die("READAHEAD_INFO");
        fetched += info.issued;
        calls++;
        if (info.next <= at) break;
        at = info.next;
        sched_yield();
    }
    return NULL;
}

static int shared(const char *path, const char *mode, uint64_t megabytes) {
    fetching = !strcmp(mode, "info");
    shared_fd = open(path, O_RDONLY);
    uint64_t places = size_of(shared_fd) / READ, state = 20240427;
    reads = megabytes * (1 << 20) / READ;
    order = calloc(places, sizeof *order);
    for (uint64_t i = 0; i < places; i++) order[i] = i;
    for (uint64_t i = places - 1; i > 0; i--) {
        uint64_t j = random_u64(&state) % (i + 1);
        uint32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    if (reads > places) die("the file has %llu places", (unsigned long long)places);
    drop(shared_fd);
    if (fetching) device_fd = open_device();
    if (!strcmp(mode, "app-only")) posix_fadvise(shared_fd, 0, 0, POSIX_FADV_RANDOM);
    pthread_t threads[THREADS], background;
    int64_t start = now_ns();
    if (fetching) pthread_create(&background, NULL, worker, NULL);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, reader, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int64_t took = now_ns() - start;
    if (fetching) pthread_join(background, NULL);
    printf("%lld %llu %llu %llu\n", (long long)took, (unsigned long long)(100 * (reads - hits) / reads), (unsigned long long)fetched,
           (unsigned long long)calls);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "lookup")) return lookup(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "insert")) return insert(argv[2], !strcmp(argv[3], "known"));
    if (argc == 5 && !strcmp(argv[1], "shared")) return shared(argv[2], argv[3], atoll(argv[4]));
    die("usage: timing lookup FILE | insert FILE none|known | shared FILE stock|app-only|info MB");
}
