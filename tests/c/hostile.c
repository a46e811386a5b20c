/* FILE: lists that are wrong in every way, while the file is read at random by several threads. What is read is right. B11. */
#include "check.h"
#include <pthread.h>

static int fd, other;
static unsigned char *truth;
static uint64_t size;

static void *reader(void *arg)
{
    char buf[9000];
    uint64_t seed = (uintptr_t)arg * 7919 + 1;
    for (int i = 0; i < 1000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t at = (seed >> 20) % size, n = 1 + (seed >> 10) % sizeof buf;
        ssize_t got = pread(seed & 1 << 9 ? fd : other, buf, n, at);
        CHECK(got == (ssize_t)(at + n > size ? size - at : n) && !memcmp(buf, truth + at, got));
    }
    return 0;
}

static size_t endless(void *ctx, struct outrider_access *entries, size_t room)
{
    (void)ctx;
    for (size_t i = 0; i < room; i++)
        entries[i] = (struct outrider_access){rnd() % 3 ? fd : (int)(rnd() % 70), 0, rnd() >> (rnd() % 64), rnd() >> (rnd() % 64)};
    return room;
}

static void scribble(outrider_client *client, void *ctx, const struct outrider_position *at)
{
    (void)ctx;
    struct outrider_access a[50];
    for (int i = 0; i < 50; i++)
        a[i] = (struct outrider_access){at->fd, i & 1, (at->offset + rnd()) >> (rnd() % 64), rnd() >> (rnd() % 64)};
    int hows[] = {OUTRIDER_SET, OUTRIDER_APPEND | OUTRIDER_DONE, OUTRIDER_SET_FROM_MARK | OUTRIDER_DONE, OUTRIDER_SET_FROM_MARK};
    CHECK(outrider_request(client, a, 50, hows[rnd() % 4]) == 50);
}

static void threads(void)
{
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], 0, reader, (void *)i));
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_join(t[i], 0));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0 && (other = dup(fd)) >= 0);
    size = size_of(fd);
    CHECK((truth = malloc(size)) && pread(fd, truth, size, 0) == (ssize_t)size);
    size_t n = 1000000;
    struct outrider_range *list = malloc(n * sizeof *list);
    make_cold(fd);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){4096, 4096};
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    threads();
    /* The one page was asked for a million times, and fetched once. */
    CHECK(outrider_settle(60000) == 0);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.fetched_bytes <= 1 << 20);

    make_cold(fd);
    n = 100000;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){rnd() >> (rnd() % 64), rnd() >> (rnd() % 64)};
    list[0] = (struct outrider_range){1ull << 63, 1ull << 63};
    list[1] = (struct outrider_range){~0ull, ~0ull};
    list[2] = (struct outrider_range){0, ~0ull};
    CHECK(outrider_declare(fd, list, n) > 0);
    threads();

    make_cold(fd);
    CHECK(outrider_pull(fd, endless, 0) == 0);
    threads();
    CHECK(outrider_pull(fd, 0, 0) == 0);

    make_cold(fd);
    outrider_client *client = outrider_client_new(scribble, 0);
    CHECK(client && outrider_region_add(client, other, 0, 0) == 0);
    threads();
    CHECK(outrider_client_free(client) == 0);

    /* Lists that change all the time, while they are read and fetched. */
    for (int i = 0; i < 200; i++) {
        size_t some = rnd() % 2000;
        char c;
        CHECK(outrider_declare(fd, list + rnd() % 90000, some) == (ssize_t)some);
        CHECK(pread(other, &c, 1, rnd() % size) == 1);
        if (i % 20 == 0)
            make_cold(fd);
    }
    /* A stale list: while it is fetched and followed, the file gets other bytes, and fewer. */
    unsigned char page[4096], now[4096];
    int stale = open("stale.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(stale >= 0 && unlink("stale.dat") == 0 && pwrite(stale, truth, size, 0) == (ssize_t)size);
    make_cold(stale);
    n = size / sizeof page;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){(i * 977 % n) * sizeof page, sizeof page};
    CHECK(outrider_declare(stale, list, n) == (ssize_t)n);
    memset(now, 'x', sizeof now);
    for (size_t i = 0; i < n; i++) {
        uint64_t at = list[i].offset, half = size / 2, left = i < n / 2 || at < half ? sizeof page : 0;
        if (i % 3 == 0 && left)
            CHECK(pwrite(stale, now, sizeof now, at) == sizeof now);
        if (i == n / 2)
            CHECK(ftruncate(stale, half) == 0);
        CHECK(pread(stale, page, sizeof page, at) == (ssize_t)left);
        CHECK(!memcmp(page, i % 3 == 0 ? now : truth + at, left));
    }
    CHECK(close(stale) == 0);
    puts("as it should be");
    return 0;
}
