/* parallel_seq FILE THREADS one|each PASSES: THREADS threads each read a part of FILE in order, 16 KiB at a time, PASSES times,
 * through one descriptor or one each. Prints a checksum that does not depend on who was first. */
#include "hostile.h"
#include <stdatomic.h>

enum { BLOCK = 16384 };
static const char *path;
static int shared = -1, threads, passes;
static long blocks;
static atomic_long sum;

static void *reader(void *arg)
{
    long me = (long)arg;
    int fd = shared >= 0 ? shared : open(path, O_RDONLY);
    unsigned char buf[BLOCK];
    CHECK(fd >= 0);
    for (int pass = 0; pass < passes; pass++)
        for (long i = me * blocks / threads; i < (me + 1) * blocks / threads; i++) {
            CHECK(pread(fd, buf, BLOCK, i * BLOCK) == BLOCK);
            long s = 0;
            for (int k = 0; k < BLOCK; k += 61)
                s = s * 31 + buf[k];
            atomic_fetch_add(&sum, s * (i + 1));
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
    passes = atoi(argv[4]);
    int fd = open(path, O_RDONLY);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    if (!strcmp(argv[3], "one"))
        shared = fd;
    blocks = st.st_size / BLOCK;
    pthread_t t[64];
    for (long i = 0; i < threads; i++)
        CHECK(pthread_create(&t[i], NULL, reader, (void *)i) == 0);
    for (long i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    printf("sum %lx\n", (long)sum);
    return 0;
}
