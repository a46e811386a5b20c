/* FILE: a list of a million entries costs little memory, and once it was fetched nothing runs until the program reads. */
#include "check.h"
#include <dirent.h>
#include <malloc.h>

/* Times that our threads went to sleep of their own accord, and processor time in ticks. */
static void threads(long *sleeps, long *ticks, int *count)
{
    DIR *d = opendir("/proc/self/task");
    *sleeps = *ticks = 0;
    *count = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[600], line[512];
        long user, system;
        if (e->d_name[0] == '.' || atoi(e->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = fopen(path, "r");
        CHECK(f);
        long n;
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &n) == 1)
                *sleeps += n;
        fclose(f);
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
        CHECK((f = fopen(path, "r")) && fgets(line, sizeof line, f));
        fclose(f);
        CHECK(sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system) == 2);
        *ticks += user + system;
        ++*count;
    }
    closedir(d);
}

int main(int argc, char **argv)
{
    int fd;
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    size_t n = 1000000, blocks = 2000;
    CHECK(size_of(fd) >= blocks * 4096);
    struct outrider_range *list = malloc(n * sizeof *list), one = {0, 4096};
    for (size_t i = 0; i < n; i++)
        list[i] = (struct outrider_range){rnd() % blocks * 4096, 4096};
    make_cold(fd);
    /* What there is once, for any list. */
    CHECK(outrider_declare(fd, &one, 1) == 1 && outrider_settle(60000) == 0);
    struct mallinfo2 before = mallinfo2();
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n && outrider_settle(60000) == 0);
    struct mallinfo2 after = mallinfo2();
    long long grown = (long long)(after.uordblks + after.hblkhd) - (long long)(before.uordblks + before.hblkhd);
    CHECK(grown <= 24 * (long long)n + (1 << 20));
    long sleeps[2], ticks[2];
    int count;
    threads(&sleeps[0], &ticks[0], &count);
    CHECK(count >= 1 && count <= 4);
    for (int i = 0; i < 10; i++)
        usleep(50000);
    threads(&sleeps[1], &ticks[1], &count);
    CHECK(sleeps[1] - sleeps[0] <= 4 && ticks[1] - ticks[0] <= 2);
    /* It follows the program again when that goes on. */
    char buf[4096];
    for (size_t i = 0; i < 5000; i++)
        CHECK(pread(fd, buf, 4096, list[i].offset) == 4096);
    CHECK(outrider_settle(60000) == 0);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    CHECK(stats.diverged_reads == 0 && stats.fetched_bytes <= (blocks + 64) * 4096 + stats.evicted_bytes);
    puts("asleep");
    return 0;
}
