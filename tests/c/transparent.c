/* FILE: what a program that declares must not notice: locks, descriptors, positions, reused numbers. */
#include "check.h"
#include <dirent.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

static int numbers(char *out, size_t room)
{
    DIR *d = opendir("/proc/self/fd");
    int count = 0;
    out[0] = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d)) {
            strncat(out, e->d_name, room - strlen(out) - 2);
            strcat(out, " ");
            count++;
        }
    closedir(d);
    return count;
}

/* Whether another process finds the file locked, by POSIX and by flock. */
static int locked(const char *path)
{
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(path, O_RDWR), found = 0;
        struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        found |= fcntl(fd, F_SETLK, &l) ? 1 : 0;
        found |= flock(fd, LOCK_EX | LOCK_NB) ? 2 : 0;
        _exit(found);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    int fd = open(argv[1], O_RDWR), flocked = open(argv[1], O_RDONLY);
    CHECK(fd >= 0 && flocked >= 0);
    char before[4000], after[4000];
    numbers(before, sizeof before);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &l) == 0 && flock(flocked, LOCK_EX) == 0);
    make_cold(fd);
    size_t n;
    struct outrider_range *list = shuffled(size_of(fd), 16384, &n);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n && outrider_settle(60000) == 0);
    CHECK(locked(argv[1]) == 3);
    /* Taken back: the fetcher closes what it had, and no lock goes with it. */
    CHECK(outrider_declare(fd, 0, 0) == 0 && outrider_settle(60000) == 0);
    CHECK(locked(argv[1]) == 3);
    numbers(after, sizeof after);
    CHECK(!strcmp(before, after));
    /* The program's own close ends them, at once. */
    for (int i = 0; i < 50; i++) {
        make_cold(fd);
        CHECK(outrider_declare(flocked, list, 100) == 100);
        CHECK(close(flocked) == 0 && (locked(argv[1]) & 2) == 0);
        CHECK((flocked = open(argv[1], O_RDONLY)) >= 0 && flock(flocked, LOCK_EX) == 0);
        CHECK(fcntl(fd, F_SETLK, &l) == 0);
    }

    /* A position of its own, read by every call there is. */
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    char a[100], b[100];
    CHECK(lseek(fd, 12345, SEEK_SET) == 12345 && read(fd, a, 100) == 100 && lseek(fd, 0, SEEK_CUR) == 12445);
    CHECK(pread(fd, b, 100, 12345) == 100 && !memcmp(a, b, 100));
    errno = 99;
    CHECK(read(fd, a, 1) == 1 && errno == 99);
    FAILS(pread(fd, a, 1, -1), EINVAL);
    void *volatile nowhere = (void *)8;
    FAILS(read(fd, nowhere, 100), EFAULT);

    /* A number that is another file now. */
    char *name = 0;
    CHECK(asprintf(&name, "%s.other", argv[1]) > 0);
    int other = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(other >= 0 && write(other, "something else", 14) == 14);
    CHECK(dup2(other, fd) == fd && pread(fd, a, 14, 0) == 14 && !memcmp(a, "something else", 14));
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0);
    uint64_t diverged = stats.diverged_reads;
    for (int i = 0; i < 100; i++)
        CHECK(pread(fd, a, 1, i % 14) == 1);
    CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.diverged_reads == diverged);
    CHECK(close(fd) == 0);

    /* O_DIRECT goes around the cache: declared or not, it reads what it reads. */
    int direct = open(argv[1], O_RDONLY | O_DIRECT);
    if (direct >= 0) {
        char *aligned;
        CHECK(posix_memalign((void **)&aligned, 4096, 16384) == 0);
        CHECK(outrider_declare(direct, list, n) == (ssize_t)n);
        for (size_t i = 0; i < 50 && i < n; i++)
            CHECK(pread(direct, aligned, 16384, list[i].offset) == 16384);
    }
    /* A file that shrinks and grows while it is fetched. */
    CHECK(ftruncate(other, 64 << 20) == 0);
    struct outrider_range *sparse = shuffled(64 << 20, 4096, &n);
    CHECK(outrider_declare(other, sparse, n) == (ssize_t)n);
    CHECK(ftruncate(other, 5000) == 0 && pread(other, a, 100, 4990) == 10 && pread(other, a, 100, 1 << 20) == 0);
    CHECK(ftruncate(other, 1 << 20) == 0 && pread(other, a, 100, 500000) == 100 && a[99] == 0);
    CHECK(unlink(name) == 0);
    puts("nothing noticed");
    return 0;
}
