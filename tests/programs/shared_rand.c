/* shared_rand FILE THREADS one|each taken|parts: reads all 16 KiB blocks of FILE once, in a random order, by THREADS threads
 * through one descriptor or one each. The threads take the next block of the order in turn, or each has a part of the order.
 * Prints a checksum that does not depend on who was first. */
#include "hostile.h"
#include <stdatomic.h>

enum { BLOCK = 16384 };
static const char *path;
static int shared = -1, parts, threads;
static long blocks, *order;
static atomic_long next, sum;

static void *reader(void *arg)
{
    long me = (long)arg;
    int fd = shared >= 0 ? shared : open(path, O_RDONLY);
    unsigned char buf[BLOCK];
    CHECK(fd >= 0);
    for (long i = me * blocks / threads;; i++) {
        long at = parts ? i : atomic_fetch_add(&next, 1);
        if (at >= (parts ? (me + 1) * blocks / threads : blocks))
            break;
        CHECK(pread(fd, buf, BLOCK, order[at] * BLOCK) == BLOCK);
        long s = 0;
        for (int k = 0; k < BLOCK; k += 61)
            s = s * 31 + buf[k];
        atomic_fetch_add(&sum, s * (order[at] + 1));
    }
    if (shared < 0)
        close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    path = argv[1];
    threads = atoi(argv[2]);
    parts = !strcmp(argv[4], "parts");
    int fd = open(path, O_RDONLY);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    if (!strcmp(argv[3], "one"))
        shared = fd;
    blocks = st.st_size / BLOCK;
    order = malloc(blocks * sizeof *order);
    uint64_t state = 5;
    for (long i = 0; i < blocks; i++) {
        long j = mix(&state) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    pthread_t t[64];
    for (long i = 0; i < threads; i++)
        CHECK(pthread_create(&t[i], NULL, reader, (void *)i) == 0);
    for (long i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    printf("sum %lx\n", (long)sum);
    return 0;
}
