/* FILE: fork, exec, vfork, signals that interrupt and jump away, and cancelled threads, while a list is fetched and followed. */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/time.h>
#include <sys/wait.h>

static int fd;
static uint64_t size;
static struct outrider_range *list;
static size_t n, place;
static sigjmp_buf back;
static volatile sig_atomic_t jumps, handled;
static outrider_client *client;

static uint64_t read_some(size_t count)
{
    char buf[4096];
    uint64_t s = 0;
    for (size_t i = 0; i < count; i++) {
        struct outrider_range r = list[place++ % n];
        CHECK(pread(fd, buf, r.length, r.offset) == (ssize_t)r.length);
        s = sum(s, buf, r.length);
    }
    return s;
}

static void tick(int signal)
{
    char c;
    (void)signal;
    int e = errno;
    CHECK(pread(fd, &c, 1, rnd() % size) == 1);
    handled++;
    errno = e;
    if (jumps)
        siglongjmp(back, 1);
}

static void *endless(void *arg)
{
    (void)arg;
    char buf[4096];
    for (uint64_t i = 0;; i++)
        if (pread(fd, buf, 4096, i * 4096 * 17 % (size - 4096)) < 0)
            return 0;
    return 0;
}

static void wait_for(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void more(outrider_client *c, void *ctx, const struct outrider_position *at)
{
    (void)ctx;
    struct outrider_access a[16];
    for (int i = 0; i < 16; i++)
        a[i] = (struct outrider_access){at->fd, 0, (at->offset + (i + 1) * 4096 * 17) % (size - 4096), 4096};
    CHECK(outrider_request(c, a, 16, OUTRIDER_APPEND | OUTRIDER_DONE) == 16);
    usleep(10); /* a cancellation point */
}

int main(int argc, char **argv)
{
    if (argc == 3) { /* after exec: a program that has declared nothing */
        struct outrider_stats stats;
        CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.declared_bytes == 0);
        CHECK((fd = open(argv[1], O_RDONLY)) >= 0);
        struct outrider_range r = {0, 4096};
        CHECK(outrider_declare(fd, &r, 1) == 1 && outrider_settle(60000) == 0);
        _exit(0);
    }
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    size = size_of(fd);
    list = shuffled(size, 4096, &n);
    uint64_t s = 0;
    char *self[] = {argv[0], argv[1], "again", 0};

    make_cold(fd);
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
    for (int i = 0; i < 20; i++) {
        s = s * 31 + read_some(20);
        pid_t pid = i % 3 == 0 ? vfork() : fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            if (i % 3 == 0) {
                close(fd);
                execv(argv[0], self);
                _exit(9);
            }
            /* The child reads on, has declared nothing, and may. */
            struct outrider_stats stats;
            CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.declared_bytes == 0);
            CHECK(outrider_settle(0) == 0);
            read_some(20);
            CHECK(outrider_declare(fd, list, 100) == 100 && outrider_settle(60000) == 0);
            read_some(20);
            if (i % 3 == 1) {
                /* Another program takes the process's place while a list is fetched. */
                make_cold(fd);
                CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
                read_some(20);
                execv(argv[0], self);
                _exit(9);
            }
            _exit(0);
        }
        wait_for(pid);
    }
    pid_t pid;
    extern char **environ;
    CHECK(posix_spawn(&pid, argv[0], 0, 0, self, environ) == 0);
    wait_for(pid);
    struct outrider_stats stats;
    CHECK(outrider_stats(&stats, sizeof stats) == 0 && stats.declared_bytes == n * 4096);

    /* A client of the parent is none of the child's, also where the child makes one. */
    CHECK(outrider_declare(fd, 0, 0) == 0 && (client = outrider_client_new(more, 0)) != 0);
    CHECK(outrider_region_add(client, fd, 0, 0) == 0);
    CHECK((pid = fork()) >= 0);
    if (pid == 0) {
        FAILS(outrider_region_add(client, fd, 0, 0), EINVAL);
        outrider_client *own = outrider_client_new(more, 0);
        CHECK(own && own != client && outrider_region_add(own, fd, 0, 0) == 0);
        FAILS(outrider_client_free(client), EINVAL);
        read_some(50);
        CHECK(outrider_client_free(own) == 0);
        _exit(0);
    }
    wait_for(pid);

    /* Signal handlers that read what was declared, between and out of reads of the same. */
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART | SA_NODEFER};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, 0) == 0 && setitimer(ITIMER_REAL, &often, 0) == 0);
    while (handled < 200)
        read_some(1);
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    CHECK(outrider_client_free(client) == 0 && outrider_declare(fd, list, n) == (ssize_t)n);
    handled = 0;
    jumps = 1;
    if (sigsetjmp(back, 1) == 0)
        CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
    while (handled < 200)
        read_some(1);
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    jumps = 0;
    CHECK(outrider_declare(fd, list, n) == (ssize_t)n && outrider_settle(60000) == 0);

    /* Threads that are cancelled in reads and callbacks; the client can be freed nevertheless. */
    CHECK(outrider_declare(fd, 0, 0) == 0);
    for (int i = 0; i < 50; i++) {
        CHECK((client = outrider_client_new(more, 0)) != 0 && outrider_region_add(client, fd, 0, 0) == 0);
        pthread_t thread;
        CHECK(!pthread_create(&thread, 0, endless, 0));
        usleep(i * 20);
        CHECK(!pthread_cancel(thread) && !pthread_join(thread, 0));
        CHECK(outrider_client_free(client) == 0);
    }
    place = 0;
    s = s * 31 + read_some(n);
    printf("%llx\n", (unsigned long long)s);
    return 0;
}
