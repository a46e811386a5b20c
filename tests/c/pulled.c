/* FILE FILE: a list that is pulled from a function, over two files; read by every call that reads. */
#include "check.h"
#include <sys/uio.h>

static int files[2];
static uint64_t next, blocks;
static int ended;

static struct outrider_access item(uint64_t i)
{
    return (struct outrider_access){files[i % 2], 0, i * 31 % blocks * 4096, 4096};
}

static size_t more(void *ctx, struct outrider_access *entries, size_t room)
{
    CHECK(ctx == files && !ended);
    char c;
    CHECK(pread(files[1], &c, 1, 77) == 1);
    FAILS(outrider_settle(0), EDEADLK);
    size_t n = 0;
    while (n < room && next < 3 * blocks)
        entries[n++] = item(next++);
    ended = n == 0;
    return n;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 && (files[0] = open(argv[1], O_RDONLY)) >= 0 && (files[1] = open(argv[2], O_RDONLY)) >= 0);
    blocks = size_of(files[0]) / 4096;
    CHECK(size_of(files[1]) / 4096 >= blocks);
    while (blocks % 31 == 0)
        blocks--;
    make_cold(files[0]);
    make_cold(files[1]);
    CHECK(outrider_pull(files[0], more, files) == 0 && next > 0);
    char buf[4096];
    uint64_t s = 0;
    FILE *streams[2] = {fdopen(dup(files[0]), "r"), fdopen(dup(files[1]), "r")};
    CHECK(streams[0] && streams[1]);
    for (uint64_t i = 0; i < 3 * blocks; i++) {
        struct outrider_access a = item(i);
        struct iovec parts[2] = {{buf, 1000}, {buf + 1000, 3096}};
        switch (i % 6) {
        case 0:
            CHECK(pread(a.fd, buf, 4096, a.offset) == 4096);
            break;
        case 1:
            CHECK(preadv(a.fd, parts, 2, a.offset) == 4096);
            break;
        case 2:
            CHECK(lseek(a.fd, a.offset, SEEK_SET) >= 0 && read(a.fd, buf, 4096) == 4096);
            break;
        case 3:
            CHECK(lseek(a.fd, a.offset, SEEK_SET) >= 0 && readv(a.fd, parts, 2) == 4096);
            break;
        case 4:
            CHECK(preadv2(a.fd, parts, 2, a.offset, 0) == 4096);
            break;
        default:
            CHECK(!fseek(streams[i % 2], a.offset, SEEK_SET) && fread(buf, 1, 4096, streams[i % 2]) == 4096);
        }
        s = sum(s, buf, 4096);
    }
    printf("%llx\n", (unsigned long long)s);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    CHECK(ended && stats.declared_bytes == 3 * blocks * 4096 && stats.diverged_reads == 0);
    return 0;
}
