/* DIR N: a list of N files of a page each, f0 and so on, of which every second one is closed, and declared by itself when it was opened anew. */
#include "check.h"

static int *fds;
static size_t files, told;

static int open_one(const char *dir, size_t i)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/f%zu", dir, i);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    make_cold(fd);
    return fd;
}

static size_t more(void *ctx, struct outrider_access *entries, size_t room)
{
    (void)ctx;
    size_t n = 0;
    for (; n < room && told < files; n++)
        entries[n] = (struct outrider_access){fds[told++], 0, 0, 4096};
    return n;
}

int main(int argc, char **argv)
{
    char page[4096];
    uint64_t all = 0;
    CHECK(argc == 3 && (files = atol(argv[2])) > 1 && (fds = calloc(files, sizeof *fds)));
    for (size_t i = 0; i < files; i++)
        fds[i] = open_one(argv[1], i);
    CHECK(outrider_pull(fds[0], more, 0) == 0);
    CHECK(outrider_settle(300000) == 0);
    for (size_t i = 0; i < files; i++) {
        CHECK(pread(fds[i], page, sizeof page, 0) == sizeof page);
        all = sum(all, page, sizeof page);
    }
    for (size_t i = 1; i < files; i += 2)
        CHECK(close(fds[i]) == 0);
    for (size_t i = 1; i < files; i += 2) {
        struct outrider_range whole = {0, 4096};
        fds[i] = open_one(argv[1], i);
        CHECK(outrider_declare(fds[i], &whole, 1) == 1);
    }
    CHECK(outrider_settle(300000) == 0);
    for (size_t i = 1; i < files; i += 2) {
        CHECK(pread(fds[i], page, sizeof page, 0) == sizeof page);
        all = sum(all, page, sizeof page);
    }
    CHECK(outrider_settle(300000) == 0);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    CHECK(stats.declared_bytes == (files + files / 2) * 4096);
    CHECK(stats.fetched_bytes + stats.cached_bytes >= files / 4 * 4096);
    printf("%016llx\n", (unsigned long long)all);
    return 0;
}
