/*
 * interposed CASE FILE: ways to leave a scope, and signals, while the C library's calls are offered to it. FILE has 256 blocks of 4 KiB,
 * the i-th full of the byte i. Exits with 0 if every read gave what it should, and prints the graphs' reports.
 */
#include <errno.h>
#include <fcntl.h>
#include <outrider_graph.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 256 };

struct scan {
    int             fd;
    uint64_t        from, to;
    volatile int   *asked; /* how often the graph was asked */
};

static int            fd;
static volatile int   asked;
static outrider_graph *graph;

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                     \
            _exit(1);                                                                                                \
        }                                                                                                            \
    } while (0)

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct scan *s = ctx;
    (*s->asked)++;
    if (s->from + i >= s->to)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = s->fd;
    op->length = BLOCK;
    op->offset = (int64_t)(s->from + i) * BLOCK;
    return OUTRIDER_WEAK;
}

static int right(int file, uint64_t i)
{
    unsigned char b[BLOCK];
    ssize_t       n;
    while ((n = pread(file, b, BLOCK, (off_t)i * BLOCK)) < 0 && errno == EINTR)
        ;
    return n == BLOCK && b[0] == (unsigned char)i && b[BLOCK - 1] == (unsigned char)i && memcmp(b, b + 1, BLOCK - 1) == 0;
}

static void reads(uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++)
        CHECK(right(fd, i));
}

static void report(void)
{
    char text[4096];
    outrider_graph_report(graph, text, sizeof text);
    fputs(text, stdout);
}

static int ended(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* In the middle of a scope: a child goes on by itself, has scopes of its own, and disturbs nobody. */
static void forks(void)
{
    struct scan     s = {fd, 0, BLOCKS, &asked};
    outrider_scope *scope = outrider_enter(graph, &s);
    reads(0, 100);
    pid_t child = fork();
    if (child == 0) {
        reads(100, 120);
        outrider_leave(scope);
        struct scan     t = {fd, 0, 50, &asked};
        outrider_scope *own = outrider_enter(graph, &t);
        reads(0, 50);
        CHECK(close(fd) == 0);
        outrider_leave(own);
        _exit(0);
    }
    reads(100, 180);
    CHECK(ended(child) == 0);
    child = vfork();
    if (child == 0) {
        /* What a program does before exec: none of it is the parent's. */
        close(fd);
        dup2(2, 1);
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(ended(child) == 0);
    reads(180, BLOCKS);
    outrider_leave(scope);
    report();
}

static void *leaves_open(void *how)
{
    struct scan *s = malloc(sizeof *s);
    *s = (struct scan){fd, 0, BLOCKS, &asked};
    outrider_enter(graph, s);
    reads(0, 40);
    if (how != NULL)
        pthread_exit(NULL);
    return s;
}

/* A thread ends and leaves its scope open. */
static void exits(void)
{
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, leaves_open, i % 2 ? &fd : NULL) == 0);
        CHECK(pthread_join(t, NULL) == 0);
    }
    struct scan     s = {fd, 0, BLOCKS, &asked};
    outrider_scope *scope = outrider_enter(graph, &s);
    reads(0, BLOCKS);
    outrider_leave(scope);
    report();
}

static jmp_buf         out;
static outrider_scope *jumped;

static void __attribute__((noinline)) jumps_out(void)
{
    struct scan s = {fd, 0, BLOCKS, &asked};
    jumped = outrider_enter(graph, &s);
    reads(0, 40);
    longjmp(out, 1);
}

static void __attribute__((noinline)) overwrite_the_stack(void)
{
    volatile char junk[4096];
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (char)0xa5;
}

/* A function is left by longjmp, and with it the context on its stack: the graph is asked for nothing more. */
static void jumps(void)
{
    if (setjmp(out) == 0)
        jumps_out();
    overwrite_the_stack();
    int then = asked;
    reads(40, BLOCKS);
    CHECK(asked == then);
    struct scan     s = {fd, 0, BLOCKS, &asked};
    outrider_scope *scope = outrider_enter(graph, &s);
    reads(0, BLOCKS);
    outrider_leave(scope);
    CHECK(asked > then);
    outrider_leave(jumped);
    report();
}

/* The program's own allocator, which must not be needed in a handler. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void  __libc_free(void *);
static __thread volatile int in_handler;

static void not_in_a_handler(void)
{
    if (in_handler) {
        static const char text[] = "allocated in a handler\n";
        if (write(2, text, sizeof text - 1) < 0)
            _exit(4);
        _exit(3);
    }
}

void *malloc(size_t n)
{
    not_in_a_handler();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t m)
{
    not_in_a_handler();
    return __libc_calloc(n, m);
}

void *realloc(void *p, size_t n)
{
    not_in_a_handler();
    return __libc_realloc(p, n);
}

void free(void *p)
{
    not_in_a_handler();
    __libc_free(p);
}

static volatile sig_atomic_t signals, armed;
static sigjmp_buf            back;
static int                   other;

static void handler(int number)
{
    int error = errno;
    (void)number;
    in_handler = 1;
    signals++;
    CHECK(right(other, (uint64_t)signals % BLOCKS));
    CHECK(right(fd, (uint64_t)signals % BLOCKS));
    in_handler = 0;
    errno = error;
    if (armed && signals % 7 == 0) {
        armed = 0;
        siglongjmp(back, 1);
    }
}

/* A storm of signals, whose handlers read by themselves; `leave`: some leave by siglongjmp. */
static void storm(int leave)
{
    struct sigaction a = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &a, NULL) == 0);
    struct itimerval t = {{0, 150}, {0, 150}};
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    static outrider_scope *volatile scope;
    static struct scan s;
    for (volatile int round = 0; round < 200 && signals < 4000; round++) {
        s = (struct scan){fd, 0, BLOCKS, &asked};
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        scope = outrider_enter(graph, &s);
        if (sigsetjmp(back, 1) == 0) {
            armed = leave;
            reads(0, BLOCKS);
        } else {
            reads(0, BLOCKS);
        }
        armed = 0;
        outrider_leave(scope);
    }
    memset(&t, 0, sizeof t);
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    CHECK(signals > 10);
    report();
}

/* Many scopes of one thread, each bound to a descriptor, in an order that no stack has; closing unbinds. */
static void bound(void)
{
    enum { SCOPES = 8 };
    struct scan     s[SCOPES];
    outrider_scope *scopes[SCOPES];
    int             fds[SCOPES];
    char            path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (int i = 0; i < SCOPES; i++) {
        fds[i] = open(path, O_RDONLY);
        s[i] = (struct scan){fds[i], 0, BLOCKS, &asked};
        scopes[i] = outrider_enter(graph, &s[i]);
        CHECK(outrider_bind(scopes[i], fds[i]) == 0);
    }
    for (uint64_t block = 0; block < BLOCKS; block++) {
        for (int i = 0; i < SCOPES; i++)
            CHECK(fds[(i * 3) % SCOPES] < 0 || right(fds[(i * 3) % SCOPES], block));
        if (block % 60 == 59) {
            int gone = (int)(block / 60);
            CHECK(close(fds[gone]) == 0);
            /* The same number, for a file in which the blocks are others. */
            int zero = open("/dev/zero", O_RDONLY);
            CHECK(zero == fds[gone]);
            unsigned char b[BLOCK];
            CHECK(pread(zero, b, BLOCK, (off_t)(block + 1) * BLOCK) == BLOCK && b[0] == 0);
            fds[gone] = -1;
            outrider_leave(scopes[gone]);
            scopes[gone] = NULL;
        }
    }
    for (int i = 0; i < SCOPES; i++)
        outrider_leave(scopes[i]);
    report();
}

int main(int argc, char **argv)
{
    if (argc != 3 || (fd = open(argv[2], O_RDONLY)) < 0 || (other = open(argv[2], O_RDONLY)) < 0)
        return 2;
    graph = outrider_graph_generator("scan", next, OUTRIDER_PURE);
    if (strcmp(argv[1], "forks") == 0)
        forks();
    else if (strcmp(argv[1], "exits") == 0)
        exits();
    else if (strcmp(argv[1], "jumps") == 0)
        jumps();
    else if (strcmp(argv[1], "storm") == 0)
        storm(0);
    else if (strcmp(argv[1], "storm-out") == 0)
        storm(1);
    else if (strcmp(argv[1], "bound") == 0)
        bound();
    else
        return 2;
    return 0;
}
