/* LISTED HINTED BYTES FIRST: declares all of one file, and gives a hint of so many bytes of another, or the other way round: FIRST is list or hint. Prints
 * how many pages of each are cached once no more is asked for, without having read any. */
#include "check.h"

static void declare(int fd)
{
    size_t n;
    struct outrider_range *list = shuffled(size_of(fd), 16384, &n);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    CHECK(outrider_settle(60000) == 0);
}

static void hint(int fd, uint64_t bytes)
{
    CHECK(posix_fadvise(fd, 0, bytes, POSIX_FADV_WILLNEED) == 0);
    /* Until no more comes for a second. */
    long before = 0;
    for (int calm = 0; calm < 10 && before < (long)(bytes / 4096); calm++) {
        usleep(100000);
        long now = cached_pages(fd, 0, bytes);
        calm = now == before ? calm : 0;
        before = now;
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    int listed = open(argv[1], O_RDONLY), hinted = open(argv[2], O_RDONLY);
    CHECK(listed >= 0 && hinted >= 0);
    uint64_t bytes = strtoull(argv[3], 0, 0);
    int list_first = !strcmp(argv[4], "list");
    make_cold(listed);
    make_cold(hinted);
    list_first ? declare(listed) : hint(hinted, bytes);
    /* The service looks at memory five times a second. */
    usleep(1000000);
    list_first ? hint(hinted, bytes) : declare(listed);
    printf("%ld %ld\n", cached_pages(listed, 0, size_of(listed)), cached_pages(hinted, 0, bytes));
    return 0;
}
