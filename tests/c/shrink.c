/* FILE ENTRIES BALLAST: declares so many random pages and reads them in steps; after a third of them it takes BALLAST bytes of memory for itself.
 * Prints how many pages of the last third it had to read itself, though what is wanted had been asked for before each step. */
#include "check.h"
#include <sys/mman.h>

enum { STEP = 64 };

/* How many of these pages are not cached; `map` is the whole file, of which nothing is touched. */
static size_t missing(char *map, const struct outrider_range *list, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char here = 0;
        CHECK(mincore(map + list[i].offset, 4096, &here) == 0);
        out += !(here & 1);
    }
    return out;
}

int main(int argc, char **argv)
{
    int fd;
    CHECK(argc == 4 && (fd = open(argv[1], O_RDONLY)) >= 0);
    size_t n = strtoul(argv[2], 0, 10), ballast = strtoul(argv[3], 0, 10), missed = 0;
    struct outrider_range *list = malloc(n * sizeof *list);
    uint64_t pages = size_of(fd) / 4096;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){rnd() % pages * 4096, 4096};
    char *map = mmap(0, pages * 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    make_cold(fd);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    int taken = 0;
    for (size_t i = 0; i + STEP <= n; i += STEP) {
        if (!taken && i > n / 3) {
            CHECK(mmap(0, ballast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) != MAP_FAILED);
            taken = 1;
        }
        CHECK(outrider_settle(60000) == 0);
        if (i > n / 3 * 2)
            missed += missing(map, list + i, STEP);
        for (size_t k = i; k < i + STEP; k++) {
            char buf[4096];
            CHECK(pread(fd, buf, sizeof buf, list[k].offset) == sizeof buf);
        }
    }
    printf("%zu\n", missed);
    return 0;
}
