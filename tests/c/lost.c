/* FILE: declares its pages in an order without pattern; what was fetched by then is dropped from the cache after each fourth of the reads. */
#include "check.h"

int main(int argc, char **argv)
{
    int fd;
    size_t n;
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    struct outrider_range *list = shuffled(size_of(fd), 4096, &n);
    make_cold(fd);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    uint64_t s = 0;
    for (size_t i = 0; i < n; i++) {
        char buf[4096];
        if (i % (n / 4) == 0) {
            CHECK(outrider_settle(60000) == 0);
            make_cold(fd);
        }
        CHECK(pread(fd, buf, sizeof buf, list[i].offset) == sizeof buf);
        s = sum(s, buf, sizeof buf);
    }
    printf("%llx\n", (unsigned long long)s);
    return 0;
}
