/* crowd DIR FILES THREADS PASSES ALONE: THREADS threads each read their part of the files DIR/0 … DIR/FILES-1, PASSES times, and leave the last
 * 64 KiB of each uncached, so that none is ever found to be all in memory. Half a second after that the file ALONE is read in order, slowly.
 * Prints a checksum that does not depend on who was first. */
#include "hostile.h"
#include <stdatomic.h>

enum { BLOCK = 65536 };
static const char *dir;
static int files, threads, passes;
static atomic_long sum;

static long read_all(const char *path, int pause)
{
    unsigned char buf[BLOCK];
    long total = 0, got;
    int fd = open(path, O_RDONLY);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    while ((got = read(fd, buf, BLOCK)) > 0) {
        for (long i = 0; i < got; i += 512)
            total += buf[i];
        if (pause)
            usleep(pause);
    }
    CHECK(got == 0);
    if (!pause)
        syscall(SYS_fadvise64, fd, st.st_size - BLOCK, BLOCK, POSIX_FADV_DONTNEED);
    close(fd);
    return total;
}

static void *reader(void *arg)
{
    char path[4096];
    for (int pass = 0; pass < passes; pass++)
        for (int i = (int)(long)arg; i < files; i += threads) {
            snprintf(path, sizeof path, "%s/%d", dir, i);
            sum += read_all(path, 0);
        }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t all[64];
    CHECK(argc == 6);
    dir = argv[1], files = atoi(argv[2]), threads = atoi(argv[3]), passes = atoi(argv[4]);
    CHECK(threads <= 64);
    for (long i = 0; i < threads; i++)
        CHECK(pthread_create(&all[i], NULL, reader, (void *)i) == 0);
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    usleep(500000);
    sum += read_all(argv[5], 2000);
    printf("%ld\n", (long)sum);
    return 0;
}
