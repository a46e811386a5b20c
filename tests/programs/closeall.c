/* closeall FILE: programs that close every descriptor they do not know, as daemons do, and then go
 * on: numbers start again at 3, and reads work. */
#include "hostile.h"

static void use_numbers(const char *path)
{
    for (int want = 3; want < 8; want++)
        CHECK(open(path, O_RDONLY) == want);
    for (int fd = 3; fd < 8; fd++)
        CHECK(rest_ok(fd, 0) && lseek(fd, 100, SEEK_SET) == 100 && rest_ok(fd, 100));
}

static int numbers(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 3; /* `.`, `..` and the directory itself */
}

int main(int argc, char **argv)
{
    if (argc > 2) { /* after exec: what was marked close-on-exec is gone */
        printf("after exec %d descriptors\n", numbers());
        load_reference(argv[1]);
        use_numbers(argv[1]);
        return 0;
    }
    load_reference(argv[1]);
    use_numbers(argv[1]);
    closefrom(3);
    printf("closefrom leaves %d\n", numbers());
    use_numbers(argv[1]);
    CHECK(close_range(3, ~0u, 0) == 0);
    printf("close_range leaves %d\n", numbers());
    use_numbers(argv[1]);
    CHECK(syscall(SYS_close_range, 4, 6, 0) == 0);
    CHECK(open(argv[1], O_RDONLY) == 4 && rest_ok(4, 0) && rest_ok(3, length) && pread(5, &argc, 1, 0) == -1 && errno == EBADF);
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    printf("a loop of close leaves %d\n", numbers());
    use_numbers(argv[1]);
    DIR *d = opendir("/proc/self/fd"); /* closes what it finds, itself excepted */
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (atoi(e->d_name) > 2 && atoi(e->d_name) != dirfd(d))
            CHECK(close(atoi(e->d_name)) == 0);
    closedir(d);
    printf("by /proc/self/fd leaves %d\n", numbers());
    use_numbers(argv[1]);
    pid_t child = fork();
    if (child == 0) { /* the daemon's way */
        setsid();
        CHECK(close_range(0, ~0u, 0) == 0);
        CHECK(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2);
        use_numbers(argv[1]);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("daemon %d\n", status);
    child = fork();
    if (child == 0) {
        CHECK(close_range(5, ~0u, CLOSE_RANGE_UNSHARE) == 0 && rest_ok(3, length) && pread(5, &status, 1, 0) == -1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("unshared %d, ours still there %d\n", status, pread_ok(6, 0, 8192));
    CHECK(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
    printf("before exec %d\n", numbers());
    fflush(stdout);
    execl("/proc/self/exe", argv[0], argv[1], "again", NULL);
    return 9;
}
