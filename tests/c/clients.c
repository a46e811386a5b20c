/* FILE: a client whose callback extends its list as it is read. LP1, LP2. Prints a sum of what was read. */
#include "check.h"

#define BLOCK 4096
#define STEP 64

static uint64_t blocks, next, calls, place;
static int file, second;

static uint64_t order(uint64_t i) { return i * 37 % blocks * BLOCK; }

static void more(outrider_client *client, void *ctx, const struct outrider_position *at)
{
    char c;
    calls++;
    CHECK(ctx == &next && at->fd == file && (second || at->offset == order(place)));
    /* Marked are the first of 16: the latest is at or before the place of the program. */
    if (at->mark_fd != -1 && !second)
        CHECK(at->mark_fd == file && at->mark_offset == order(place / 16 * 16));
    /* Reads of the callback's own are no progress. */
    CHECK(pread(file, &c, 1, 0) == 1);
    struct outrider_range range = {0, 1};
    struct outrider_access access = {file, 0, 0, 1};
    FAILS(outrider_region_add(client, file, 0, 1), EDEADLK);
    FAILS(outrider_region_remove(client, file, 0), EDEADLK);
    FAILS(outrider_settle(0), EDEADLK);
    FAILS(outrider_declare(file, &range, 1), EDEADLK);
    FAILS(outrider_pull(file, 0, 0), EDEADLK);
    FAILS(outrider_ignore(client, 1), EDEADLK);
    FAILS(outrider_client_free(client), EDEADLK);
    CHECK(!outrider_client_new(0, 0) && errno == EDEADLK);
    FAILS(outrider_request((outrider_client *)((char *)client + 4), &access, 1, 0), EDEADLK);
    struct outrider_access list[STEP];
    size_t n = 0;
    while (n < STEP && next < blocks) {
        list[n] = (struct outrider_access){file, next % 16 == 0 ? OUTRIDER_MARKED : 0, order(next), BLOCK};
        n++;
        next++;
    }
    CHECK(outrider_request(client, list, n, OUTRIDER_APPEND | OUTRIDER_DONE) == (ssize_t)n);
    errno = ERANGE;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (file = open(argv[1], O_RDONLY)) >= 0);
    blocks = size_of(file) / BLOCK;
    while (blocks % 37 == 0 || blocks % STEP)
        blocks--;
    outrider_client *client = outrider_client_new(more, &next);
    CHECK(client && outrider_region_add(client, file, 0, 0) == 0);
    char buf[BLOCK];
    uint64_t s = 0;
    for (place = 0; place < blocks; place++) {
        errno = 7;
        CHECK(pread(file, buf, BLOCK, order(place)) == BLOCK && errno == 7);
        s = sum(s, buf, BLOCK);
    }
    printf("%llx\n", (unsigned long long)s);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    /* Only the very first read found no list. */
    CHECK(stats.diverged_reads == 1 && stats.callbacks == calls && stats.declared_bytes == blocks * BLOCK);
    CHECK(calls >= blocks / STEP);

    /* Reads that are ignored are neither progress nor outside the list; those outside call back. */
    uint64_t before = calls;
    CHECK(outrider_ignore(client, 1) == 0 && outrider_ignore(client, 1) == 0);
    CHECK(pread(file, buf, 1, 5) == 1 && outrider_ignore(client, 0) == 0 && pread(file, buf, 1, 5) == 1);
    CHECK(outrider_ignore(client, 0) == 0 && calls == before);
    FAILS(outrider_ignore(client, 0), EINVAL);
    place = 0;
    second = 1;
    next = blocks;
    CHECK(pread(file, buf, BLOCK, order(0)) == BLOCK && calls == before + 1);

    /* A list that is replaced, and one that is replaced from its mark on. */
    struct outrider_access list[8];
    for (int i = 0; i < 8; i++)
        list[i] = (struct outrider_access){file, i == 2 ? OUTRIDER_MARKED : 0, i * BLOCK, BLOCK};
    CHECK(outrider_request(client, list, 8, OUTRIDER_SET | OUTRIDER_DONE) == 8);
    before = calls;
    /* More is asked for when half of it is read, once. */
    for (int i = 0; i < 3; i++)
        CHECK(pread(file, buf, BLOCK, i * BLOCK) == BLOCK);
    CHECK(calls == before);
    for (int i = 0; i < 8; i++)
        list[i].offset = (100 + i) * BLOCK;
    CHECK(outrider_request(client, list, 8, OUTRIDER_SET_FROM_MARK | OUTRIDER_DONE) == 8);
    for (int i = 0; i < 3; i++)
        CHECK(pread(file, buf, BLOCK, (100 + i) * BLOCK) == BLOCK);
    CHECK(calls == before);
    CHECK(pread(file, buf, BLOCK, 103 * BLOCK) == BLOCK && calls == before + 1);
    CHECK(pread(file, buf, BLOCK, 104 * BLOCK) == BLOCK && calls == before + 1);

    CHECK(outrider_client_free(client) == 0);
    FAILS(outrider_client_free(client), EINVAL);
    return 0;
}
