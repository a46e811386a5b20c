/* FILE FILE: what the library closes in a descriptor table of its own is none of the program's descriptors of the same number. The fetcher opens the
 * files one by one, and what it needs to know of the disk below the first one before the others. */
#include "check.h"

enum { FILES = 40, BLOCK = 4096 };

int main(int argc, char **argv)
{
    int files[FILES];
    char name[64], buf[BLOCK];
    CHECK(argc == 3);
    /* Every number that the fetcher may take is a declared file's. */
    int from = open(argv[1], O_RDONLY);
    CHECK(from >= 0);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "number.%d", i);
        int out = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(out >= 0 && pread(from, buf, BLOCK, i * BLOCK) == BLOCK && pwrite(out, buf, BLOCK, 0) == BLOCK);
        files[i] = out;
    }
    CHECK(close(from) == 0);
    outrider_client *client = outrider_client_new(0, 0);
    CHECK(client != 0);
    struct outrider_access list[FILES];
    for (int i = 0; i < FILES; i++) {
        make_cold(files[i]);
        CHECK(outrider_region_add(client, files[i], 0, 0) == 0);
        list[i] = (struct outrider_access){files[i], 0, 0, BLOCK};
    }
    uint64_t s = 0;
    CHECK(outrider_request(client, list, FILES, OUTRIDER_DONE) == FILES && outrider_settle(60000) == 0);
    for (int i = 0; i < FILES; i++) {
        CHECK(pread(files[i], buf, BLOCK, 0) == BLOCK);
        s = sum(s, buf, BLOCK);
    }
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.diverged_reads == 0);
    /* None of them was forgotten: each can be named again, and is asked for. */
    for (int i = 0; i < FILES; i++)
        FAILS(outrider_region_add(client, files[i], 0, BLOCK), EEXIST);
    printf("%llx\n", (unsigned long long)s);
    return 0;
}
