/* FILE: functions of pulled lists that tell nothing of use, for ever, and one that does so for a while. */
#include "check.h"

static int fd;
static struct outrider_access useless;
static uint64_t told, useful_after;

static size_t more(void *ctx, struct outrider_access *entries, size_t room)
{
    CHECK(ctx == &useless && told < 1 << 20);
    for (size_t i = 0; i < room; i++)
        entries[i] = useless;
    if (told >= useful_after)
        entries[room / 2] = (struct outrider_access){fd, 0, 8192, 4096};
    told += room;
    return told > 1 << 18 ? 0 : room;
}

/* What the function has told in all when the list is declared and a byte was read. */
static uint64_t tells(struct outrider_access access, uint64_t useful)
{
    char c;
    useless = access;
    useful_after = useful;
    told = 0;
    CHECK(outrider_pull(fd, more, &useless) == 0);
    CHECK(pread(fd, &c, 1, 0) == 1);
    CHECK(outrider_settle(60000) == 0);
    uint64_t in_all = told;
    CHECK(outrider_pull(fd, 0, 0) == 0);
    return in_all;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    uint64_t size = size_of(fd);
    struct outrider_access all[] = {
        {fd, 0, 0, 0}, {fd, OUTRIDER_MARKED, 4096, 0}, {fd, 0, size, 4096}, {fd, 0, UINT64_MAX, UINT64_MAX}, {12345, 0, 0, 4096}, {-1, 0, 0, 4096},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(tells(all[i], UINT64_MAX) == 65536);
        /* After that many it is not asked; before, and with one among others, it is. */
        CHECK(tells(all[i], 65536) == 65536);
        CHECK(tells(all[i], 32768) > 1 << 18);
        CHECK(tells(all[i], 0) > 1 << 18);
    }
    puts("ended");
    return 0;
}
