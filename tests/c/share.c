/* FILE ENTRIES: declares so many random pages, waits for the end of its input before that, and reads them. */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    int fd = open(argv[1], O_RDONLY);
    size_t n = strtoul(argv[2], 0, 10);
    CHECK(fd >= 0 && n > 0);
    struct outrider_range *list = malloc(n * sizeof *list);
    uint64_t pages = size_of(fd) / 4096;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){rnd() % pages * 4096, 4096};
    make_cold(fd);
    char buf[4096];
    CHECK(read(0, buf, 1) == 0);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    for (size_t i = 0; i < n; i++) {
        CHECK(pread(fd, buf, 4096, list[i].offset) == 4096);
        CHECK(!memcmp(buf, &list[i].offset, 8));
    }
    return 0;
}
