/* FILE BLOCK TIMES [PACE]: reads the whole file in an order without pattern, and then so again, by one list. With a pace, what is wanted has
 * been asked for before each so many reads: none of them is made before the fetcher came to it. Prints a sum. */
#include "check.h"

int main(int argc, char **argv)
{
    int fd;
    CHECK((argc == 4 || argc == 5) && (fd = open(argv[1], O_RDONLY)) >= 0);
    uint64_t block = strtoull(argv[2], 0, 0);
    size_t n, times = atoi(argv[3]), pace = argc == 5 ? atoi(argv[4]) : 0;
    make_cold(fd);
    struct outrider_range *list = shuffled(size_of(fd), block, &n);
    list = realloc(list, n * times * sizeof *list);
    CHECK(list);
    for (size_t i = n; i < n * times; i++)
        list[i] = list[i - n];
    n *= times;
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    char *buf = malloc(block);
    uint64_t s = 0;
    for (size_t i = 0; i < n; i++) {
        if (pace && i % pace == 0)
            CHECK(outrider_settle(60000) == 0);
        CHECK(pread(fd, buf, block, list[i].offset) == (ssize_t)block);
        s = sum(s, buf, block);
    }
    printf("%llx\n", (unsigned long long)s);
    CHECK(outrider_settle(60000) == 0);
    return 0;
}
