/*
 * The C interface of foreaction graphs: a B+-tree's bulk load and scan, a linked copy, a graph that is refused, one that is wrong, and
 * scopes that are left by longjmp and pthread_exit. Prints one line for each; ends with 1 if a result is not that of the bare calls. Usage: graph DIRECTORY
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "outrider_graph.h"

#define PAGE 8192
#define LEAVES 300

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The leaves of a tree lie in its file in an order that the inner nodes know. */
struct tree {
    int      fd;
    uint32_t leaf[LEAVES];
    char    *pages;
};

static void fill(struct tree *t)
{
    for (uint32_t i = 0; i < LEAVES; i++) {
        t->leaf[i] = i * 7 % LEAVES;
        for (uint32_t j = 0; j < PAGE / 8; j++)
            ((uint64_t *)(t->pages + (size_t)i * PAGE))[j] = (uint64_t)i * 1000 + j;
    }
}

static int load(void *ctx, uint64_t i, struct outrider_op *op)
{
    struct tree *t = ctx;
    if (i == LEAVES)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PWRITE;
    op->fd = t->fd;
    op->data = t->pages + i * PAGE;
    op->length = PAGE;
    op->offset = (int64_t)t->leaf[i] * PAGE;
    return OUTRIDER_CALL;
}

static int scan(void *ctx, uint64_t i, struct outrider_op *op)
{
    struct tree *t = ctx;
    if (i == LEAVES)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = t->fd;
    op->length = PAGE;
    op->offset = (int64_t)t->leaf[i] * PAGE;
    return OUTRIDER_WEAK;
}

static void report(const outrider_graph *g)
{
    char text[4096];
    outrider_graph_report(g, text, sizeof text);
    fputs(text, stdout);
}

static void tree(const char *dir)
{
    static struct tree t;
    char               path[4096], page[PAGE];
    snprintf(path, sizeof path, "%s/tree", dir);
    t.pages = malloc((size_t)LEAVES * PAGE);
    t.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(t.pages != NULL && t.fd >= 0);
    fill(&t);
    outrider_graph *g = outrider_graph_generator("load", load, 0);
    outrider_scope *s = outrider_enter(g, &t);
    CHECK(s != NULL);
    for (int i = 0; i < LEAVES; i++)
        CHECK(outrider_pwrite(s, t.fd, t.pages + (size_t)i * PAGE, PAGE, (off_t)t.leaf[i] * PAGE) == PAGE);
    outrider_leave(s);
    report(g);
    outrider_graph_free(g);
    for (int i = 0; i < LEAVES; i++) {
        CHECK(pread(t.fd, page, PAGE, (off_t)t.leaf[i] * PAGE) == PAGE);
        CHECK(memcmp(page, t.pages + (size_t)i * PAGE, PAGE) == 0);
    }
    g = outrider_graph_generator("scan", scan, OUTRIDER_PURE);
    for (int stop = 1; stop <= LEAVES; stop += 99) {
        s = outrider_enter(g, &t);
        for (int i = 0; i < stop; i++) {
            CHECK(outrider_pread(s, t.fd, page, PAGE, (off_t)t.leaf[i] * PAGE) == PAGE);
            CHECK(memcmp(page, t.pages + (size_t)i * PAGE, PAGE) == 0);
        }
        outrider_leave(s);
    }
    report(g);
    outrider_graph_free(g);
    close(t.fd);
    free(t.pages);
}

struct copy {
    int      from, to;
    uint64_t blocks;
    uint64_t told;    /* calls of the write's node */
    off_t    written; /* bytes, as it was told */
};

static int copy_read(void *ctx, const uint64_t *epochs, size_t n, struct outrider_op *op)
{
    (void)epochs;
    op->fd = ((struct copy *)ctx)->from;
    op->kind = OUTRIDER_READ;
    op->length = PAGE;
    return n == 1;
}

static int copy_write(void *ctx, const uint64_t *epochs, size_t n, struct outrider_op *op)
{
    (void)epochs;
    op->fd = ((struct copy *)ctx)->to;
    op->linked = 1;
    return n == 1;
}

static int copy_more(void *ctx, const uint64_t *epochs, size_t n)
{
    return n == 1 && epochs[0] + 1 < ((struct copy *)ctx)->blocks ? 0 : 1;
}

static void copy_written(void *ctx, const uint64_t *epochs, size_t n, ssize_t result)
{
    struct copy *c = ctx;
    CHECK(n == 1 && epochs[0] == c->told);
    c->told++;
    c->written += result;
}

static void copy(const char *dir)
{
    char  from[4096], to[4096], block[PAGE], why[200];
    off_t sizes[] = {1, PAGE - 1, PAGE, 20 * PAGE, 20 * PAGE + 5};
    uint64_t told = 0;
    snprintf(from, sizeof from, "%s/tree", dir);
    snprintf(to, sizeof to, "%s/copy", dir);

    outrider_builder *b = outrider_builder_new("copy");
    int               r = outrider_builder_call(b, "read", OUTRIDER_READ, copy_read);
    int               w = outrider_builder_call(b, "write", OUTRIDER_WRITE, copy_write);
    int               m = outrider_builder_branch(b, "more", copy_more);
    CHECK(r > 0 && w > 0 && m > 0);
    CHECK(outrider_builder_edge(b, OUTRIDER_START, r, 0) == 0 && outrider_builder_edge(b, r, w, 0) == 0);
    CHECK(outrider_builder_edge(b, w, m, 0) == 0 && outrider_builder_edge(b, m, r, OUTRIDER_EDGE_BACK) == 0);
    CHECK(outrider_builder_edge(b, m, OUTRIDER_EXIT, 0) == 0 && outrider_builder_mark(b, r, OUTRIDER_NODE_LINK) == 0);
    CHECK(outrider_builder_edge(b, m, 99, 0) == -1 && errno == EINVAL);
    CHECK(outrider_builder_harvest(b, 99, copy_written) == -1 && errno == EINVAL);
    CHECK(outrider_builder_harvest(b, w, NULL) == -1 && errno == EINVAL);
    CHECK(outrider_builder_harvest(b, w, copy_written) == 0);
    outrider_graph *g = outrider_builder_build(b, OUTRIDER_PRIVATE_POSITIONS, why, sizeof why);
    CHECK(g != NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK(truncate(from, sizes[i]) == 0);
        struct copy c = {open(from, O_RDONLY), open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644),
                         (uint64_t)(sizes[i] + PAGE - 1) / PAGE, 0, 0};
        CHECK(c.from >= 0 && c.to >= 0);
        outrider_scope *s = outrider_enter(g, &c);
        ssize_t         n;
        off_t           all = 0;
        while ((n = outrider_read(s, c.from, block, PAGE)) > 0) {
            CHECK(outrider_write(s, c.to, block, (size_t)n) == n);
            all += n;
        }
        CHECK(n == 0 && all == sizes[i]);
        outrider_leave(s);
        /* Of a run that is passed by, or not made ahead at all, it is not told. */
        CHECK(c.told == 0 || (c.told == c.blocks && c.written == all));
        told += c.told;
        close(c.from);
        close(c.to);
        char command[8300];
        snprintf(command, sizeof command, "cmp '%s' '%s'", from, to);
        CHECK(system(command) == 0);
    }
    const char *engine = getenv("OUTRIDER_GRAPH");
    CHECK((told > 0) == (engine == NULL || strcmp(engine, "serial") != 0));
    report(g);
    outrider_graph_free(g);

    b = outrider_builder_new("refused");
    r = outrider_builder_call(b, "read", OUTRIDER_READ, copy_read);
    outrider_builder_edge(b, OUTRIDER_START, r, 0);
    CHECK(outrider_builder_build(b, 0, why, sizeof why) == NULL && errno == EINVAL);
    puts(why);
    CHECK(outrider_builder_build(outrider_builder_new("flags"), 1u << 30, why, sizeof why) == NULL && errno == EINVAL);
    CHECK(strcmp(why, "unknown flags: 0x40000000") == 0);
}

/* Foresees a write that the function does not make: only the check may be asked to run it. */
static void wrong(const char *dir)
{
    static struct tree t;
    char               path[4096], text[4096];
    snprintf(path, sizeof path, "%s/wrong", dir);
    t.pages = calloc(LEAVES, PAGE);
    t.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(t.pages != NULL && t.fd >= 0);
    for (uint32_t i = 0; i < LEAVES; i++)
        t.leaf[i] = i;
    setenv("OUTRIDER_GRAPH", "check", 1);
    outrider_graph *g = outrider_graph_generator("wrong", load, 0);
    outrider_scope *s = outrider_enter(g, &t);
    CHECK(outrider_pwrite(s, t.fd, t.pages, PAGE, (off_t)t.leaf[0] * PAGE) == PAGE);
    outrider_leave(s);
    struct stat st;
    CHECK(fstat(t.fd, &st) == 0 && st.st_size == PAGE);
    outrider_graph_report(g, text, sizeof text);
    CHECK(strstr(text, "did not call it") != NULL);
    outrider_graph_free(g);
    puts("the check found it");
}

/* Scopes that are left by other ways than return. */
static struct tree     left;
static jmp_buf         out;
static outrider_scope *open_scope;

/* Reads through a scope the first `n` leaves, and compares. */
static void some(outrider_scope *s, int n)
{
    char page[PAGE];
    for (int i = 0; i < n; i++) {
        CHECK(outrider_pread(s, left.fd, page, PAGE, (off_t)left.leaf[i] * PAGE) == PAGE);
        CHECK(memcmp(page, left.pages + (size_t)i * PAGE, PAGE) == 0);
    }
}

/* A whole run of a new graph. */
static void run(const char *name)
{
    outrider_graph *g = outrider_graph_generator(name, scan, OUTRIDER_PURE);
    outrider_scope *s = outrider_enter(g, &left);
    some(s, 20);
    outrider_leave(s);
    report(g);
    outrider_graph_free(g);
}

static void leave(void *scope)
{
    outrider_leave(scope);
}

static void *exits(void *graph)
{
    outrider_scope *s = outrider_enter(graph, &left);
    pthread_cleanup_push(leave, s);
    some(s, 5);
    pthread_exit(NULL);
    pthread_cleanup_pop(0);
}

static void *abandons(void *graph)
{
    some(outrider_enter(graph, &left), 5);
    pthread_exit(NULL);
}

static void leaving(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/left", dir);
    left.pages = malloc((size_t)LEAVES * PAGE);
    left.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(left.pages != NULL && left.fd >= 0);
    fill(&left);
    for (int i = 0; i < LEAVES; i++)
        CHECK(pwrite(left.fd, left.pages + (size_t)i * PAGE, PAGE, (off_t)left.leaf[i] * PAGE) == PAGE);

    static outrider_graph *g;
    g = outrider_graph_generator("jumped", scan, OUTRIDER_PURE);
    if (setjmp(out) == 0) {
        open_scope = outrider_enter(g, &left);
        some(open_scope, 5);
        longjmp(out, 1);
    }
    run("inside");
    outrider_leave(open_scope);
    report(g);
    outrider_graph_free(g);
    run("after");

    pthread_t thread;
    g = outrider_graph_generator("exited", scan, OUTRIDER_PURE);
    CHECK(pthread_create(&thread, NULL, exits, g) == 0 && pthread_join(thread, NULL) == 0);
    report(g);
    outrider_graph_free(g);
    g = outrider_graph_generator("abandoned", scan, OUTRIDER_PURE);
    CHECK(pthread_create(&thread, NULL, abandons, g) == 0 && pthread_join(thread, NULL) == 0);
    report(g);
    run("others");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: graph DIRECTORY\n", stderr);
        return 2;
    }
    tree(argv[1]);
    copy(argv[1]);
    leaving(argv[1]);
    wrong(argv[1]);
    return 0;
}
