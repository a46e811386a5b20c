/*
 * graph_effects CASE DIR: functions whose graphs have effects, and what must not be seen of these having been made ahead. What a function sees, and what is in
 * DIR in the end, goes to standard output: it is the same on every engine. The graphs' reports go to standard error.
 */
#include <errno.h>
#include <fcntl.h>
#include <outrider_graph.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 4096, COUNT = 6 };

static char            blocks[COUNT][BLOCK] __attribute__((aligned(BLOCK)));
static const char     *names[COUNT] = {"0", "1", "2", "3", "4", "5"};
static int             file, other;
static outrider_graph *graph;

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                     \
            _exit(1);                                                                                                \
        }                                                                                                            \
    } while (0)

static void build(outrider_graph_next next, unsigned flags)
{
    CHECK((graph = outrider_graph_generator("effects", next, flags)) != NULL);
}

static void report(outrider_graph *of)
{
    char text[8192];
    outrider_graph_report(of, text, sizeof text);
    fputs(text, stderr);
}

/* What is made ahead has time to come back. */
static void a_moment(void)
{
    usleep(20000);
}

/* The first byte of each block of the file. */
static void show(int fd)
{
    for (int i = 0; i < 2 * COUNT; i++) {
        char b = 0;
        printf("%c", pread(fd, &b, 1, (off_t)i * BLOCK) != 1 ? '-' : b ? b : '0');
    }
    printf("\n");
}

static int next_name(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i >= COUNT)
        return OUTRIDER_END;
    op->kind = OUTRIDER_MKDIRAT;
    op->fd = AT_FDCWD;
    op->path = names[i];
    op->mode = 0755;
    return OUTRIDER_CALL;
}

static jmp_buf back;

/* Directories are made; after the second something happens that ends looking ahead, or lets one be made that could not be before. Each is made once. */
static void once(const char *how)
{
    if (strcmp(how, "removed") == 0)
        CHECK(mkdir(names[2], 0755) == 0);
    build(next_name, 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (volatile int i = 0; i < COUNT; i++) {
        printf("%d\n", mkdir(names[i], 0755));
        if (i != 1)
            continue;
        a_moment();
        if (strcmp(how, "removed") == 0) {
            CHECK(rmdir(names[2]) == 0);
        } else if (strcmp(how, "jump") == 0) {
            if (setjmp(back) == 0)
                longjmp(back, 1);
        } else if (strcmp(how, "close-range") == 0) {
            CHECK(close_range(500, 600, 0) == 0);
        } else if (strcmp(how, "closefrom") == 0) {
            closefrom(500);
        } else if (strcmp(how, "unshare") == 0) {
            CHECK(unshare(CLONE_FILES) == 0);
        } else if (strcmp(how, "fork") == 0) {
            fflush(stdout);
            pid_t child = fork();
            if (child != 0) {
                int status;
                CHECK(waitpid(child, &status, 0) == child);
                CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
                /* The child has gone on in this one's stead. */
                exit(0);
            }
        }
    }
    outrider_leave(scope);
    report(graph);
}

/* The function ends at the first that fails. */
static void stops(unsigned flags)
{
    CHECK(mkdir(names[2], 0755) == 0);
    build(next_name, flags);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (int i = 0; i < COUNT && mkdir(names[i], 0755) == 0; i++)
        a_moment();
    outrider_leave(scope);
    for (int i = 0; i < COUNT; i++)
        printf("%d\n", access(names[i], F_OK));
    report(graph);
}

/* Where the function writes: the last two at one place. */
static int next_write(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i >= COUNT)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PWRITE;
    op->fd = file;
    op->data = blocks[i];
    op->length = BLOCK;
    op->offset = (int64_t)(i == COUNT - 1 ? i - 1 : i) * BLOCK;
    return OUTRIDER_CALL;
}

/* Between the second and the third something else happens; or the last but one has other bytes. */
static void writes(const char *how)
{
    build(next_write, 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (int i = 0; i < COUNT; i++) {
        char changed[BLOCK];
        memset(changed, 'X', BLOCK);
        int         odd = strcmp(how, "bytes") == 0 && i == COUNT - 2;
        const void *data = odd ? changed : blocks[i];
        CHECK(pwrite(file, data, BLOCK, (off_t)(i == COUNT - 1 ? i - 1 : i) * BLOCK) == BLOCK);
        a_moment();
        if (i == 1 && strcmp(how, "truncate") == 0)
            CHECK(ftruncate(file, BLOCK) == 0);
        if (i == 1 && strcmp(how, "write") == 0)
            CHECK(pwrite(file, changed, BLOCK, 2 * BLOCK + 1000) == BLOCK);
    }
    outrider_leave(scope);
    show(file);
    report(graph);
}

static int next_look(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    op->fd = file;
    op->length = BLOCK;
    op->offset = BLOCK;
    if (i == 0) {
        op->kind = OUTRIDER_PWRITE;
        op->data = blocks[0];
        op->offset = 0;
    } else if (i == 1) {
        op->kind = OUTRIDER_PWRITE;
        op->data = blocks[1];
    } else if (i == 2) {
        op->kind = OUTRIDER_PREAD;
    } else {
        return OUTRIDER_END;
    }
    return OUTRIDER_CALL;
}

/* What was written with other bytes is read. */
static void looks(void)
{
    char b[BLOCK];
    build(next_look, 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    CHECK(pwrite(file, blocks[0], BLOCK, 0) == BLOCK);
    a_moment();
    memset(b, 'X', BLOCK);
    CHECK(pwrite(file, b, BLOCK, BLOCK) == BLOCK);
    a_moment();
    CHECK(pread(file, b, BLOCK, BLOCK) == BLOCK);
    printf("%c\n", b[0]);
    outrider_leave(scope);
    report(graph);
}

static volatile int at, came = -1;

static void too_long(int number)
{
    (void)number;
    if (came < 0)
        came = at;
}

/* A write beyond RLIMIT_FSIZE: the signal comes with that call. */
static void limited(void)
{
    struct rlimit limit = {(COUNT - 2) * BLOCK, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0 && signal(SIGXFSZ, too_long) != SIG_ERR);
    build(next_write, 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (at = 0; at < COUNT; at++) {
        ssize_t n = pwrite(file, blocks[at], BLOCK, (off_t)(at == COUNT - 1 ? at - 1 : at) * BLOCK);
        printf("%zd, signal at %d\n", n, came);
        a_moment();
    }
    outrider_leave(scope);
    report(graph);
}

static int next_sync(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    op->kind = i == 0 ? OUTRIDER_PWRITE : OUTRIDER_FSYNC;
    op->fd = i == 0 ? other : file;
    op->data = blocks[0];
    op->length = i == 0 ? BLOCK : 0;
    return i < 2 ? OUTRIDER_CALL : OUTRIDER_END;
}

/* Something is written to the file before fsync, of which the graph knows nothing. */
static void syncs(int stream)
{
    build(next_sync, 0);
    FILE           *f = stream ? fdopen(dup(file), "r+") : NULL;
    outrider_scope *scope = outrider_enter(graph, NULL);
    CHECK(pwrite(other, blocks[0], BLOCK, 0) == BLOCK);
    a_moment();
    if (stream)
        CHECK(fprintf(f, "committed") > 0 && fflush(f) == 0);
    else
        CHECK(pwrite(file, blocks[1], BLOCK, 0) == BLOCK);
    CHECK(fsync(file) == 0);
    outrider_leave(scope);
    report(graph);
}

static int next_at_position(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i >= 2 * COUNT)
        return OUTRIDER_END;
    op->kind = i % 2 ? OUTRIDER_WRITE : OUTRIDER_PREAD;
    op->fd = i % 2 ? file : other;
    op->data = i % 2 ? blocks[i / 2] : NULL;
    op->length = BLOCK;
    return OUTRIDER_CALL;
}

/* A position that the graph says is private is moved by the function itself. */
static void moves(void)
{
    build(next_at_position, OUTRIDER_PRIVATE_POSITIONS);
    outrider_scope *scope = outrider_enter(graph, NULL);
    CHECK(ftruncate(other, BLOCK) == 0);
    for (int i = 0; i < COUNT; i++) {
        char b[BLOCK];
        CHECK(pread(other, b, BLOCK, 0) == BLOCK);
        if (i == 3)
            lseek(file, 5 * BLOCK, SEEK_SET);
        CHECK(write(file, blocks[i], BLOCK) == BLOCK);
    }
    outrider_leave(scope);
    report(graph);
}

static int next_copy(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i >= 2 * COUNT)
        return OUTRIDER_END;
    op->kind = i % 2 ? OUTRIDER_PWRITE : OUTRIDER_PREAD;
    op->fd = i % 2 ? other : file;
    op->length = i % 2 ? 0 : BLOCK;
    op->linked = i % 2;
    op->offset = (int64_t)(i / 2) * BLOCK;
    return i % 2 ? OUTRIDER_CALL : OUTRIDER_LINK;
}

/* A copy; `changed`: of which one block is not what was read. */
static void copies(int changed)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(pwrite(file, blocks[i], BLOCK, (off_t)i * BLOCK) == BLOCK);
    build(next_copy, 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (int i = 0; i < COUNT; i++) {
        char b[BLOCK];
        CHECK(pread(file, b, BLOCK, (off_t)i * BLOCK) == BLOCK);
        b[10] ^= changed && i == 3;
        CHECK(pwrite(other, b, BLOCK, (off_t)i * BLOCK) == BLOCK);
    }
    outrider_leave(scope);
    show(other);
    report(graph);
}

static int next_around(void *ctx, uint64_t i, struct outrider_op *op)
{
    const int *depth = ctx;
    op->kind = OUTRIDER_PWRITE;
    op->fd = file;
    op->data = blocks[*depth];
    op->length = BLOCK;
    op->offset = i == 0 ? (int64_t)(1 + *depth) * BLOCK : 0;
    return i < 2 ? OUTRIDER_CALL : OUTRIDER_END;
}

/* Writes around a recursion that writes to the same place. */
static void recurse(int depth)
{
    outrider_scope *scope = outrider_enter(graph, &depth);
    CHECK(pwrite(file, blocks[depth], BLOCK, (off_t)(1 + depth) * BLOCK) == BLOCK);
    if (depth > 0)
        recurse(depth - 1);
    CHECK(pwrite(file, blocks[depth], BLOCK, 0) == BLOCK);
    outrider_leave(scope);
}

static int next_read(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    op->kind = OUTRIDER_PREAD;
    op->fd = file;
    op->length = BLOCK;
    op->offset = (int64_t)i * BLOCK;
    return i < COUNT ? OUTRIDER_CALL : OUTRIDER_END;
}

/* Another graph's reads between this one's writes. */
static void beside(void)
{
    build(next_write, 0);
    outrider_graph *reads = outrider_graph_generator("reads", next_read, OUTRIDER_PURE);
    outrider_scope *scope = outrider_enter(graph, NULL);
    CHECK(pwrite(file, blocks[0], BLOCK, 0) == BLOCK);
    outrider_scope *inner = outrider_enter(reads, NULL);
    char            b[BLOCK];
    CHECK(pread(file, b, BLOCK, 0) == BLOCK);
    CHECK(pread(file, b, BLOCK, BLOCK) == 0);
    outrider_leave(inner);
    for (int i = 1; i < COUNT; i++)
        CHECK(pwrite(file, blocks[i], BLOCK, (off_t)(i == COUNT - 1 ? i - 1 : i) * BLOCK) == BLOCK);
    outrider_leave(scope);
    report(graph);
}

static int sets_errno(void *ctx, uint64_t i, struct outrider_op *op)
{
    errno = ENOTTY;
    return next_read(ctx, i, op);
}

/* Calls through a scope that is named leave errno as the system calls do, and take what these take. */
static void plain(void)
{
    char b[BLOCK];
    build(sets_errno, OUTRIDER_PURE | OUTRIDER_AMONG);
    CHECK(ftruncate(file, COUNT * BLOCK) == 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (int i = 0; i < COUNT; i++) {
        errno = 0;
        printf("%zd", outrider_pread(scope, file, b, BLOCK, (off_t)i * BLOCK));
        printf(" %d\n", errno);
    }
    for (int n = 0; n >= -1; n--) {
        errno = 0;
        printf("%zd", outrider_readv(scope, file, NULL, n));
        printf(" %zd", outrider_preadv(scope, file, NULL, n, 0));
        printf(" %d\n", errno);
    }
    outrider_leave(scope);
    report(graph);
}

static void __attribute__((noinline)) leaves(void)
{
    outrider_enter(graph, NULL);
    CHECK(mkdir(names[0], 0755) == 0);
    usleep(1000);
    longjmp(back, 1);
}

/* One that is not left so, further down on the stack. */
static void __attribute__((noinline)) stays(void)
{
    volatile char room[4 * BLOCK];
    room[0] = 0;
    build(next_name, 0);
    outrider_scope *scope = outrider_enter(graph, NULL);
    for (int i = 0; i < COUNT; i++)
        printf("%d\n", mkdir(names[i], 0755) + room[0]);
    outrider_leave(scope);
    report(graph);
}

/* Functions are left by longjmp time and again, some with effects that nobody asks for any more. */
static void jumps(void)
{
    build(next_name, 0);
    for (volatile int i = 0; i < 200; i++) {
        /* The first has its graph switched off. */
        if (i % 100 == 0)
            build(next_name, 0);
        for (int k = 0; k < COUNT; k++)
            rmdir(names[k]);
        if (setjmp(back) == 0)
            leaves();
    }
    for (int k = 0; k < COUNT; k++)
        rmdir(names[k]);
    stays();
}

static int no_path(void *ctx, const uint64_t *epochs, size_t n, struct outrider_op *op)
{
    (void)ctx, (void)epochs, (void)n, (void)op;
    return 1;
}

/* A stub that forgets the path. */
static void forgets(void)
{
    outrider_builder *b = outrider_builder_new("effects");
    int               node = outrider_builder_call(b, "makes", OUTRIDER_MKDIRAT, no_path);
    CHECK(outrider_builder_edge(b, OUTRIDER_START, node, 0) == 0);
    CHECK(outrider_builder_edge(b, node, OUTRIDER_EXIT, 0) == 0);
    CHECK((graph = outrider_builder_build(b, 0, NULL, 0)) != NULL);
    outrider_scope *scope = outrider_enter(graph, NULL);
    printf("%d\n", mkdir(names[0], 0755));
    outrider_leave(scope);
    report(graph);
}

int main(int argc, char **argv)
{
    if (argc != 3 || chdir(argv[2]) != 0)
        return 2;
    const char *what = argv[1];
    CHECK((file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
    CHECK((other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
    for (int i = 0; i < COUNT; i++)
        memset(blocks[i], 'a' + i, BLOCK);
    if (strncmp(what, "once-", 5) == 0)
        once(what + 5);
    else if (strcmp(what, "stops") == 0)
        stops(OUTRIDER_STOPS);
    else if (strcmp(what, "fails") == 0)
        stops(0);
    else if (strncmp(what, "writes-", 7) == 0)
        writes(what + 7);
    else if (strcmp(what, "looks") == 0)
        looks();
    else if (strcmp(what, "limited") == 0)
        limited();
    else if (strcmp(what, "sync-stream") == 0)
        syncs(1);
    else if (strcmp(what, "sync-write") == 0)
        syncs(0);
    else if (strcmp(what, "moves") == 0)
        moves();
    else if (strcmp(what, "copies") == 0)
        copies(0);
    else if (strcmp(what, "copies-changed") == 0)
        copies(1);
    else if (strcmp(what, "recursion") == 0) {
        build(next_around, 0);
        recurse(3);
        report(graph);
    } else if (strcmp(what, "beside") == 0)
        beside();
    else if (strcmp(what, "plain") == 0)
        plain();
    else if (strcmp(what, "jumps") == 0)
        jumps();
    else if (strcmp(what, "forgets") == 0)
        forgets();
    else
        return 2;
    return 0;
}
