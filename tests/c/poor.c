/* FILE: without the memory or the right to prefetch, calls succeed or say so, and reads are right. */
#include "check.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int fd;
static struct outrider_range *list;
static size_t n;

static void use(void)
{
    char buf[4096];
    ssize_t got = outrider_declare(fd, list, n);
    CHECK(got == (ssize_t)n || (got == -1 && errno == ENOMEM));
    CHECK(outrider_settle(60000) == 0);
    for (size_t i = 0; i < n; i++)
        CHECK(pread(fd, buf, 4096, list[i].offset) == 4096);
    outrider_client *client = outrider_client_new(0, 0);
    CHECK(client || errno == ENOMEM);
}

static void under(int resource, rlim_t limit)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct rlimit r = {limit, limit};
        CHECK(setrlimit(resource, &r) == 0);
        use();
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    list = shuffled(size_of(fd), 4096, &n);
    /* What the program has now, and little more. */
    FILE *f = fopen("/proc/self/statm", "r");
    long pages;
    CHECK(f && fscanf(f, "%ld", &pages) == 1 && fclose(f) == 0);
    for (rlim_t more = 0; more <= 16 << 20; more = more ? more * 2 : 64 << 10) {
        make_cold(fd);
        under(RLIMIT_AS, pages * 4096 + more);
    }
    make_cold(fd);
    under(RLIMIT_NOFILE, fd + 1);
    make_cold(fd);
    under(RLIMIT_NPROC, 0);
    make_cold(fd);
    under(RLIMIT_STACK, 64 << 10);
    use();
    puts("rich again");
    return 0;
}
