// answers FILE [LIMIT]: CP7, what READAHEAD_INFO answers and does, number by number. LIMIT: bytes of the memory group in which this runs.
#include "outrider_test.h"

#define PAGES 2501ull

#define EXPECT(what, is, should)                                                                                                           \
    do {                                                                                                                                   \
        unsigned long long is_ = (is), should_ = (should);                                                                                 \
        if (is_ != should_) die("line %d: %s is %llu, not %llu", __LINE__, what, is_, should_);                                            \
    } while (0)

static int device;

static struct outrider_readahead_info ask(struct outrider_readahead_info info) {
    if (ioctl(device, OUTRIDER_READAHEAD_INFO, &info)) die("READAHEAD_INFO");
    return info;
}

static void drop(int fd) {
    if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) die("fadvise");
}

// Bytes that the module says it has taken.
static uint64_t booked(void) {
    char books[256] = "", *bytes;
    int state = open("/sys/kernel/debug/outrider_cache/state", O_RDONLY);
    if (state < 0 || read(state, books, sizeof books - 1) < 0 || !(bytes = strstr(books, "bytes "))) die("state");
    close(state);
    return strtoull(bytes + strlen("bytes "), NULL, 10);
}

int main(int argc, char **argv) {
    if (argc < 2) die("usage: answers FILE [LIMIT]");
    uint64_t limit = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, size = (limit ? 2 * limit : PAGES * PAGE) - 100;
    device = open_device();
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    static char block[1 << 16];
    for (uint64_t at = 0; at < size; at += sizeof block) {
        if (pwrite(fd, block, size - at < sizeof block ? size - at : sizeof block, at) < 0) die("pwrite");
        // A group whose pages are all dirty is out of memory.
        if (at % (1 << 22) == 0) drop(fd);
    }
    drop(fd);

    struct outrider_readahead_info info = ask(info_of(fd, 0, 0, OUTRIDER_LOOK | OUTRIDER_MEMORY)), before;
    EXPECT("cached", info.cached, 0);
    EXPECT("missing", info.missing, (size + PAGE - 1) / PAGE * PAGE);
    EXPECT("issued by a look", info.issued, 0);
    if (!info.free || !info.available) die("no free and available memory");
    if (limit) {
        // More than half of what the group may have would push out its own.
        EXPECT("group limit", info.group_limit, limit);
        if (!info.group_used || info.group_used > limit) die("the group uses %llu", info.group_used);
        info = ask(info_of(fd, 0, 0, 0));
        EXPECT("issued", info.issued, limit / 2);
        EXPECT("next", info.next, limit / 2);
        return 0;
    }
    EXPECT("group limit", info.group_limit, ~0ull);

    // A budget ends the call, and `next` says where.
    before = info;
    info = info_of(fd, 10 * PAGE + 5, 0, 0);
    info.budget = 300 * PAGE;
    info = ask(info);
    EXPECT("issued within the budget", info.issued, 300 * PAGE);
    EXPECT("next", info.next, 310 * PAGE);
    EXPECT("misses", info.misses, before.misses + PAGES - 10);
    EXPECT("hits", info.hits, before.hits);
    // One call for the rest: far over the device's readahead, and not over the end of the file.
    before = info;
    info = ask(info_of(fd, 0, 1ull << 40, 0));
    EXPECT("missing", info.missing, (PAGES - 300) * PAGE);
    EXPECT("issued", info.issued, (PAGES - 300) * PAGE);
    EXPECT("next", info.next, PAGES * PAGE);
    EXPECT("cached", info.cached, PAGES);
    EXPECT("hits", info.hits, before.hits + 300);
    // Nothing twice.
    info = ask(info_of(fd, 0, 0, 0));
    EXPECT("missing", info.missing, 0);
    EXPECT("issued", info.issued, 0);
    verify(device, fd, argv[1], NULL);
    // A hole in the middle, and a slice of the bitmap around it.
    before = ask(info_of(fd, 0, 0, OUTRIDER_LOOK));
    if (posix_fadvise(fd, 1000 * PAGE, 20 * PAGE, POSIX_FADV_DONTNEED)) die("fadvise");
    uint64_t words[2];
    info = info_of(fd, 990 * PAGE, 40 * PAGE, OUTRIDER_LOOK);
    info.bitmap = (uintptr_t)words;
    info.bitmap_bytes = sizeof words;
    info.bitmap_offset = 1001 * PAGE;
    info = ask(info);
    EXPECT("missing", info.missing, 20 * PAGE);
    EXPECT("removed", info.removed, before.removed + 20);
    EXPECT("inserted", info.inserted, before.inserted);
    EXPECT("start of the bits", info.bitmap_start, 960 * PAGE);
    EXPECT("bytes of bits", info.bitmap_written, sizeof words);
    for (uint64_t page = 960; page < 960 + 128; page++) EXPECT("bit", BIT(words, page - 960), page < 1000 || page >= 1020);
    // Any number of words, from any on, are those of the whole; the one behind them stays as it was.
    uint64_t all[PAGES / 64 + 1], some[PAGES / 64 + 2];
    info = info_of(fd, 0, 0, OUTRIDER_LOOK);
    info.bitmap = (uintptr_t)all;
    info.bitmap_bytes = sizeof all;
    EXPECT("bytes of all bits", ask(info).bitmap_written, sizeof all);
    for (unsigned from = 0; from < PAGES / 64 + 1; from += 7)
        for (unsigned count = 0; count <= PAGES / 64 + 1 - from; count++) {
            some[count] = 0x5a5a;
            info.bitmap = (uintptr_t)some;
            info.bitmap_bytes = count * 8;
            info.bitmap_offset = from * 64 * PAGE;
            EXPECT("bytes of some bits", ask(info).bitmap_written, count * 8);
            EXPECT("difference of some bits", memcmp(some, all + from, count * 8), 0);
            EXPECT("the word behind them", some[count], 0x5a5a);
        }
    // Who reads it.
    uint32_t readers = info.readers;
    int more[] = {open(argv[1], O_RDONLY), open(argv[1], O_RDONLY)};
    EXPECT("readers", ask(info_of(more[1], 0, 0, OUTRIDER_LOOK)).readers, readers + 2);
    close(more[0]);
    EXPECT("readers", ask(info_of(more[1], 0, 0, OUTRIDER_LOOK)).readers, readers + 1);
    // What it costs: a 32768th of a file that is cached all over, and some hundred bytes.
    const uint64_t huge = 4ull << 30;
    uint64_t before_huge = booked(), taken;
    if (ftruncate(fd, 0) || ftruncate(fd, huge)) die("ftruncate");
    ask(info_of(fd, 0, 0, OUTRIDER_LOOK));
    for (uint64_t at = 0; at < huge; at += 64 << 20)
        if (pread(fd, block, 1, at) != 1) die("pread");
    taken = booked() - before_huge;
    if (taken > huge / 32768 + 1024 || taken < huge / 32768 - PAGE) die("a file of %llu bytes takes %llu", (unsigned long long)huge, (unsigned long long)taken);
    return 0;
}
