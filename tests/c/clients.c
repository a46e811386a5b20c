/* A client whose callback extends its list as it is read, on FILE; prints what the callback saw. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "outrider.h"

#define BLOCK 4096
#define STEP 64

static uint64_t blocks, next, calls, bad;
static int file;

static uint64_t order(uint64_t i) { return i * 37 % blocks * BLOCK; }

static void more(outrider_client *client, void *ctx, const struct outrider_position *at)
{
    char c;
    calls++;
    if (ctx != &next || at->fd != file)
        bad++;
    /* Reads of the callback's own are no progress. */
    if (pread(file, &c, 1, 0) != 1)
        bad++;
    if (outrider_region_add(client, file, 0, 1) != -1 || errno != EDEADLK)
        bad++;
    if (outrider_settle(0) != -1 || errno != EDEADLK)
        bad++;
    struct outrider_access list[STEP];
    size_t n = 0;
    while (n < STEP && next < blocks) {
        list[n] = (struct outrider_access){file, n % 16 == 0 ? OUTRIDER_MARKED : 0, order(next), BLOCK};
        n++;
        next++;
    }
    if (outrider_request(client, list, n, OUTRIDER_APPEND | OUTRIDER_DONE) != (ssize_t)n)
        bad++;
    errno = ERANGE;
}

int main(int argc, char **argv)
{
    struct stat st;
    if (argc < 2 || (file = open(argv[1], O_RDONLY)) < 0 || fstat(file, &st))
        return 2;
    blocks = st.st_size / BLOCK;
    while (blocks % 37 == 0)
        blocks--;
    outrider_client *client = outrider_client_new(more, &next);
    if (!client || outrider_region_add(client, file, 0, 0))
        return 1;
    char buf[BLOCK];
    uint64_t sum = 0;
    for (uint64_t i = 0; i < blocks; i++) {
        errno = 7;
        if (pread(file, buf, BLOCK, order(i)) != BLOCK || errno != 7)
            return 1;
        for (int k = 0; k < BLOCK; k += 64)
            sum = sum * 31 + (unsigned char)buf[k];
    }
    struct outrider_stats s;
    outrider_stats(&s, sizeof s);
    printf("sum %llx\n", (unsigned long long)sum);
    fprintf(stderr, "calls %llu bad %llu diverged %llu declared %llu callbacks %llu\n", (unsigned long long)calls,
            (unsigned long long)bad, (unsigned long long)s.diverged_reads, (unsigned long long)s.declared_bytes,
            (unsigned long long)s.callbacks);
    if (bad || s.diverged_reads != 1 || s.callbacks != calls || s.declared_bytes != blocks * BLOCK)
        return 1;
    if (outrider_client_free(client) || outrider_client_free(client) != -1 || errno != EINVAL)
        return 1;
    return 0;
}
