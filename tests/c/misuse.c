/* FILE: every errno that outrider.h promises, and that nothing changed after it. LP1, LP8. */
#include "check.h"
#include <pthread.h>

static size_t none(void *ctx, struct outrider_access *entries, size_t room)
{
    (void)entries;
    CHECK(room > 0);
    ++*(int *)ctx;
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    int fd = open(argv[1], O_RDONLY), again = open(argv[1], O_RDONLY), pipes[2];
    char *copy = 0;
    CHECK(fd >= 0 && again >= 0 && pipe(pipes) == 0 && asprintf(&copy, "%s.w", argv[1]) > 0);
    int only = open(copy, O_WRONLY | O_CREAT, 0600), dir = open("/", O_RDONLY), path = open(argv[1], O_PATH);
    CHECK(only >= 0 && dir >= 0 && path >= 0);
    struct outrider_range range = {0, 4096};
    struct outrider_access access = {fd, 0, 0, 4096};
    struct outrider_stats stats;

    CHECK(outrider_version() == OUTRIDER_VERSION);
    FAILS(outrider_stats(0, 8), EINVAL);
    FAILS(outrider_stats(&stats, 0), EINVAL);
    char part[4096];
    memset(part, 1, sizeof part);
    CHECK(outrider_stats((struct outrider_stats *)part, sizeof part) == 0 && part[4095] == 0 && part[0] == 0);
    CHECK(outrider_settle(0) == 0 && outrider_settle(-1) == 0);

    FAILS(outrider_declare(-1, &range, 1), EBADF);
    FAILS(outrider_declare(987654, &range, 1), EBADF);
    FAILS(outrider_declare(only, &range, 1), EBADF);
    FAILS(outrider_declare(path, &range, 1), EBADF);
    FAILS(outrider_declare(fd, 0, 1), EINVAL);
    FAILS(outrider_declare(pipes[0], &range, 1), ESPIPE);
    FAILS(outrider_declare(dir, &range, 1), ESPIPE);
    CHECK(outrider_declare(fd, 0, 0) == 0 && outrider_declare(fd, &range, 1) == 1);
    /* Another descriptor of the same file replaces the list. */
    CHECK(outrider_declare(again, &range, 1) == 1 && outrider_declare(fd, 0, 0) == 0);

    int calls = 0;
    FAILS(outrider_pull(-1, none, &calls), EBADF);
    FAILS(outrider_pull(only, none, &calls), EBADF);
    FAILS(outrider_pull(pipes[0], none, &calls), ESPIPE);
    CHECK(outrider_pull(fd, none, &calls) == 0 && calls == 1 && outrider_pull(fd, 0, 0) == 0);

    FAILS(outrider_client_free(0), EINVAL);
    FAILS(outrider_client_free((outrider_client *)&stats), EINVAL);
    FAILS(outrider_region_add(0, fd, 0, 0), EINVAL);
    FAILS(outrider_region_remove(0, fd, 0), EINVAL);
    FAILS(outrider_request(0, &access, 1, 0), EINVAL);
    FAILS(outrider_ignore(0, 1), EINVAL);

    outrider_client *a = outrider_client_new(0, 0), *b = outrider_client_new(0, 0);
    CHECK(a && b && a != b);
    FAILS(outrider_region_add(a, -1, 0, 1), EBADF);
    FAILS(outrider_region_add(a, only, 0, 1), EBADF);
    FAILS(outrider_region_add(a, pipes[0], 0, 1), ESPIPE);
    FAILS(outrider_region_add(a, fd, 1ull << 63, 1), EINVAL);
    FAILS(outrider_region_add(a, fd, (1ull << 63) - 1, 1), EINVAL);
    FAILS(outrider_region_add(a, fd, 1, ~0ull), EINVAL);
    CHECK(outrider_region_add(a, fd, 4096, 4096) == 0);
    FAILS(outrider_region_add(a, fd, 4096, 1), EEXIST);
    FAILS(outrider_region_add(b, again, 8191, 1), EEXIST);
    FAILS(outrider_region_add(b, fd, 0, 0), EEXIST);
    CHECK(outrider_region_add(b, again, 0, 4096) == 0 && outrider_region_add(b, fd, 8192, 0) == 0);
    FAILS(outrider_declare(fd, &range, 1), EBUSY);
    FAILS(outrider_pull(fd, none, &calls), EBUSY);
    FAILS(outrider_region_remove(a, fd, 0), ENOENT);
    FAILS(outrider_region_remove(b, fd, 4096), ENOENT);
    FAILS(outrider_region_remove(a, -1, 4096), EBADF);
    FAILS(outrider_request(a, 0, 1, 0), EINVAL);
    FAILS(outrider_request(a, &access, 1, 3), EINVAL);
    FAILS(outrider_request(a, &access, 1, 32), EINVAL);
    access.flags = 2;
    FAILS(outrider_request(a, &access, 1, 0), EINVAL);
    FAILS(outrider_ignore(a, 0), EINVAL);
    /* Taken and left out: outside the region, behind the end, not open. */
    struct outrider_access odd[] = {{fd, 0, 0, 4096},   {fd, 0, 4096, 4096},     {fd, 0, 1ull << 62, 1},
                                    {-1, 0, 4096, 1},   {only, 0, 4096, 1},      {pipes[0], 0, 4096, 1},
                                    {fd, 0, 4096, 0},   {fd, 0, 8000, 4096}};
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    uint64_t before = stats.declared_bytes;
    CHECK(outrider_request(a, odd, 8, OUTRIDER_SET | OUTRIDER_DONE) == 8);
    CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.declared_bytes == before + 4096);
    CHECK(outrider_region_remove(b, fd, 0) == 0 && outrider_region_remove(a, again, 4096) == 0);
    CHECK(outrider_client_free(a) == 0 && outrider_client_free(b) == 0);
    FAILS(outrider_request(a, &access, 1, 0), EINVAL);
    FAILS(outrider_client_free(b), EINVAL);
    CHECK(outrider_declare(fd, &range, 1) == 1);
    FAILS(outrider_reading(-1, 0, 1), EBADF);
    CHECK(outrider_reading(fd, 0, 4096) == 0);

    /* 256 clients, 4096 regions. */
    outrider_client *all[256];
    CHECK(outrider_declare(fd, 0, 0) == 0);
    for (int i = 0; i < 256; i++)
        CHECK((all[i] = outrider_client_new(0, 0)) != 0);
    CHECK(!outrider_client_new(0, 0) && errno == ENOSPC);
    for (int i = 0; i < 4096; i++)
        CHECK(outrider_region_add(all[i % 256], fd, i * 10, 10) == 0);
    FAILS(outrider_region_add(all[0], fd, 1 << 20, 10), ENOSPC);
    for (int i = 0; i < 256; i++)
        CHECK(outrider_client_free(all[i]) == 0);
    CHECK((a = outrider_client_new(0, 0)) && outrider_region_add(a, fd, 0, 0) == 0);

    /* The list that one holds is bounded; what was read makes room. */
    size_t n = OUTRIDER_LIST_MAX + 10;
    struct outrider_access *list = malloc(n * sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_access){fd, 0, i % 2000 * 4096, 4096};
    CHECK(outrider_request(a, list, n, OUTRIDER_SET) == OUTRIDER_LIST_MAX);
    CHECK(outrider_request(a, list, 1, OUTRIDER_APPEND) == 0);
    char page[4096];
    CHECK(pread(fd, page, 4096, 0) == 4096);
    CHECK(outrider_request(a, list, n, OUTRIDER_APPEND | OUTRIDER_DONE) == 1);
    CHECK(outrider_client_free(a) == 0);
    struct outrider_range *ranges = malloc(n * sizeof *ranges);
    for (size_t i = 0; i < n; i++)
        ranges[i] = (struct outrider_range){i % 2000 * 4096, 4096};
    CHECK(outrider_declare(fd, ranges, n) == OUTRIDER_LIST_MAX);
    CHECK(unlink(copy) == 0);
    puts("every error as promised");
    return 0;
}
