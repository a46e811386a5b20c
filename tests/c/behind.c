/* FILE ENTRIES: declares so many random pages of FILE's first half and reads them in steps. For each page read it writes one, into the second half from its
 * beginning on, as a blur does with its second copy. Says whether all that was written is there at the end. */
#include "check.h"

enum { STEP = 64, PAGE = 4096 };

int main(int argc, char **argv)
{
    int fd;
    CHECK(argc == 3 && (fd = open(argv[1], O_RDWR)) >= 0);
    size_t n = strtoul(argv[2], 0, 10);
    struct outrider_range *list = malloc(n * sizeof *list);
    uint64_t half = size_of(fd) / PAGE / 2;
    CHECK(n <= half);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){rnd() % half * PAGE, PAGE};
    make_cold(fd);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    static char buf[PAGE], again[PAGE];
    for (size_t i = 0; i < n; i++) {
        if (i % STEP == 0)
            CHECK(outrider_settle(60000) == 0);
        CHECK(pread(fd, buf, PAGE, (off_t)list[i].offset) == PAGE);
        memset(buf, (int)(i % 251), PAGE / 2);
        CHECK(pwrite(fd, buf, PAGE, (off_t)((half + i) * PAGE)) == PAGE);
    }
    for (size_t i = 0; i < n; i++) {
        CHECK(pread(fd, buf, PAGE, (off_t)list[i].offset) == PAGE);
        memset(buf, (int)(i % 251), PAGE / 2);
        CHECK(pread(fd, again, PAGE, (off_t)((half + i) * PAGE)) == PAGE);
        CHECK(memcmp(buf, again, PAGE) == 0);
    }
    puts("all there");
    return 0;
}
