/* copies FILE: children with a copy of the memory, made in all the ways but fork(3): _Fork(3), clone(2), and fork(2), clone(2) and clone3(2) by syscall(2). Where
 * memory of a library's was in the parent may be a child's own: what it has there it finds again, also after giving up privileges. And a child that a handler of a
 * signal makes goes on in the middle of what its parent did, a read perhaps. What the C library doesn't have is left out. */
#include "hostile.h"
#include <linux/sched.h>
#include <sys/prctl.h>

extern pid_t _Fork(void) __attribute__((weak));

enum { FORK, CLONE, CALLED_FORK, CALLED_CLONE, CALLED_CLONE3, WAYS };

static char stack[64 << 10] __attribute__((aligned(16)));

static int calls(void *f)
{
    ((void (*)(void))f)();
    return 98;
}

/* Makes a child that calls f, if there is one, or else returns. -1: there is no such way. */
static pid_t make(int way, void (*f)(void))
{
    pid_t child = -1;
    struct clone_args args = { .exit_signal = SIGCHLD };
    switch (way) {
    case FORK:
        child = _Fork ? _Fork() : -1;
        break;
    case CLONE:
        return f ? clone(calls, stack + sizeof stack, SIGCHLD, (void *)f) : -1;
    case CALLED_FORK:
#ifdef SYS_fork
        child = syscall(SYS_fork);
#endif
        break;
    case CALLED_CLONE:
        child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        break;
    case CALLED_CLONE3:
        child = syscall(SYS_clone3, &args, sizeof args);
    }
    if (child == 0 && f)
        f();
    return child;
}

/* Fills what holes there are, gives up privileges, which ends all following, and looks at them again. */
static void fills(void)
{
    enum { PIECES = 256, PIECE = 64 << 10 };
    static unsigned char *at[PIECES];
    for (int i = 0; i < PIECES; i++) {
        at[i] = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at[i] != MAP_FAILED);
        memset(at[i], i | 1, PIECE);
    }
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    for (int i = 0; i < PIECES; i++)
        for (int j = 0; j < PIECE; j += 512)
            CHECK(at[i][j] == (i | 1));
    _exit(0);
}

static volatile sig_atomic_t is_child, made;
static int way;

static void on_timer(int signal)
{
    int status, error = errno;
    pid_t child = is_child ? -1 : make(way, NULL);
    if (child == 0)
        is_child = 1;
    else if (child > 0) {
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        made = made + 1;
    }
    errno = error;
}

static void interrupted(const char *path)
{
    enum { TIMES = 60, READS = 200 };
    static unsigned char buffer[512];
    int fd = open(path, O_RDONLY);
    CHECK(signal(SIGALRM, on_timer) != SIG_ERR);
    for (int i = 0; i < TIMES && !is_child; i++) {
        /* Somewhere in the middle. */
        struct itimerval once = { { 0, 0 }, { 0, 20 + i } };
        int before = made;
        CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
        for (int at = 0; (at < READS || made == before) && !is_child; at++)
            CHECK(pread(fd, buffer, sizeof buffer, at % READS * sizeof buffer) == sizeof buffer
                && memcmp(buffer, reference + at % READS * sizeof buffer, sizeof buffer) == 0);
    }
    if (is_child)
        _exit(0);
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
    load_reference(argv[1]);
    int fd = open(argv[1], O_RDONLY), status;
    unsigned char buf[4096];
    for (int i = 0; i < 300; i++)
        CHECK(read(fd, buf, sizeof buf) == sizeof buf);
    for (way = 0; way < WAYS; way++) {
        pid_t child = make(way, fills);
        if (child < 0)
            continue;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        if (way != CLONE)
            interrupted(argv[1]);
    }
    CHECK(rest_ok(fd, 300 * sizeof buf));
    printf("done\n");
    return 0;
}
