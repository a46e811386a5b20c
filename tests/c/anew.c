/* FILE: a pulled list that is larger than memory over one half of a file, and then one over the other half, which has no use for what is held by then.
 * Prints a sum. With memory for less than a half the second half has to be fetched as the first was. */
#include "check.h"

#define PAGE 4096
#define TIMES 2
#define PACE 64

static struct outrider_range *order;
static size_t pages, given;
static int file;

/* Never at its end while it is read. */
static size_t next(void *half, struct outrider_access *entries, size_t room)
{
    size_t n = 0;
    for (; n < room && given < (TIMES + 2) * pages; n++, given++)
        entries[n] = (struct outrider_access){file, 0, *(uint64_t *)half + order[given % pages].offset, PAGE};
    return n;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (file = open(argv[1], O_RDONLY)) >= 0);
    make_cold(file);
    /* Nobody else brings the second half. */
    CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM) == 0);
    uint64_t halves[2] = {0, size_of(file) / 2}, s = 0;
    order = shuffled(halves[1], PAGE, &pages);
    char buf[PAGE];
    struct outrider_stats before, after;
    for (int half = 0; half < 2; half++) {
        given = 0;
        CHECK(outrider_stats(&before, sizeof before) == 0);
        CHECK(outrider_pull(file, next, &halves[half]) == 0);
        for (size_t i = 0; i < TIMES * pages; i++) {
            if (i % PACE == 0)
                CHECK(outrider_settle(60000) == 0);
            CHECK(pread(file, buf, PAGE, halves[half] + order[i % pages].offset) == PAGE);
            s = sum(s, buf, PAGE);
        }
        CHECK(outrider_stats(&after, sizeof after) == 0);
        fprintf(stderr, "%llu\n", (unsigned long long)(after.fetched_bytes - before.fetched_bytes));
    }
    CHECK(outrider_pull(file, 0, 0) == 0);
    printf("%llx\n", (unsigned long long)s);
    return 0;
}
