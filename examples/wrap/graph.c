/* The graph of sum_blocks, which the linker puts around it. */
#include <outrider_wrap.h>
#include <stdio.h>
#include <stdlib.h>

#include "blocks.h"

struct sum {
    int         fd;
    const long *blocks;
    int         count;
};

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct sum *s = ctx;
    if (i >= (uint64_t)s->count)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = s->fd;
    op->length = BLOCK;
    op->offset = s->blocks[i] * BLOCK;
    return OUTRIDER_WEAK; /* it ends where a block can't be read */
}

static outrider_graph *graph;

static void report(void)
{
    char text[1024];
    outrider_graph_report(graph, text, sizeof text);
    fputs(text, stderr);
}

__attribute__((constructor)) static void build(void)
{
    graph = outrider_graph_generator("sum_blocks", next, OUTRIDER_PURE);
    if (getenv("SUMS_REPORT") != NULL)
        atexit(report);
}

OUTRIDER_WRAP(long, sum_blocks, (int fd, const long *blocks, int count), (fd, blocks, count), graph,
              &((struct sum){fd, blocks, count}))
