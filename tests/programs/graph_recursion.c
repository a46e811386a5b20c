/*
 * A function with a graph that calls itself, ten deep: each run opens its own file, reads half of it, calls itself, reads the rest, in which the
 * inner run has written meanwhile what it found, and tells the run that called it. Its graph is built once. Prints what each run found, the
 * innermost first, and the graph's counts. Usage: graph_recursion DIRECTORY
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "outrider_graph.h"

#define DEEPEST 10
#define BLOCKS  8
#define BLOCK   4096

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A run. */
struct run {
    int         fd;
    struct run *caller;
    int         read; /* blocks */
    uint64_t    sum;
};

/* Blocks in their order, and what the run found, to the caller's block that lies in the middle of what that has yet to read. */
static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    struct run *r = ctx;
    op->length = BLOCK;
    if (i < BLOCKS) {
        op->kind = OUTRIDER_PREAD;
        op->fd = r->fd;
        op->offset = (int64_t)i * BLOCK;
        return OUTRIDER_CALL;
    }
    if (i > BLOCKS || r->caller == NULL)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PWRITE;
    op->fd = r->caller->fd;
    op->offset = (BLOCKS - 2) * BLOCK;
    op->length = sizeof r->sum;
    op->data = &r->sum;
    return r->read == BLOCKS ? OUTRIDER_CALL : OUTRIDER_NOT_READY;
}

static outrider_graph *graph;
static int             built;

static void build(void)
{
    graph = outrider_graph_generator("visit", next, 0);
    built++;
}

static void visit(const char *dir, int depth, struct run *caller)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build);
    char       path[4096];
    uint64_t   block[BLOCK / sizeof(uint64_t)];
    struct run r = {.caller = caller};
    snprintf(path, sizeof path, "%s/%d", dir, depth);
    r.fd = open(path, O_RDWR);
    CHECK(r.fd >= 0);
    outrider_scope *s = outrider_enter(graph, &r);
    for (; r.read < BLOCKS; r.read++) {
        if (r.read == BLOCKS / 2 && depth < DEEPEST)
            visit(dir, depth + 1, &r);
        CHECK(pread(r.fd, block, BLOCK, (off_t)r.read * BLOCK) == BLOCK);
        for (size_t j = 0; j < BLOCK / sizeof *block; j++)
            r.sum = r.sum * 31 + block[j];
    }
    if (caller != NULL)
        CHECK(pwrite(caller->fd, &r.sum, sizeof r.sum, (BLOCKS - 2) * BLOCK) == sizeof r.sum);
    outrider_leave(s);
    close(r.fd);
    printf("%d: %016llx\n", depth, (unsigned long long)r.sum);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (int depth = 0; depth <= DEEPEST; depth++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", argv[1], depth);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL);
        for (int i = 0; i < BLOCKS * BLOCK; i++)
            fputc(i / BLOCK * 7 + i % 251 + depth, f);
        CHECK(fclose(f) == 0);
    }
    visit(argv[1], 0, NULL);
    CHECK(built == 1);
    char text[4096];
    outrider_graph_report(graph, text, sizeof text);
    fputs(text, stdout);
    return 0;
}
