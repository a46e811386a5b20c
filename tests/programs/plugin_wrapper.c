/* A plug-in that wraps a function of a shared library. With ONE_TOO_MANY or ELSEWHERE in the environment its graph is wrong: it has a block more than the
 * function copies, or others. STARTS names a file that gets a line with the process's number wherever it is built. */
#include <fcntl.h>
#include <outrider_plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct copy {
    int from, to, count;
};

static outrider_graph *graph;
static int             too_many, elsewhere;

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct copy *c = ctx;
    if (i >= 2 * (uint64_t)(c->count + too_many))
        return OUTRIDER_END;
    op->kind = i % 2 ? OUTRIDER_PWRITE : OUTRIDER_PREAD;
    op->fd = i % 2 ? c->to : c->from;
    op->length = 4096;
    op->offset = (int64_t)(i / 2) * 4096 + elsewhere;
    op->linked = i % 2;
    return i % 2 ? OUTRIDER_CALL : OUTRIDER_LINK;
}

static int start(void)
{
    const char *starts = getenv("STARTS");
    int         fd = starts ? open(starts, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (fd >= 0) {
        dprintf(fd, "%d\n", getpid());
        close(fd);
    }
    too_many = getenv("ONE_TOO_MANY") != NULL;
    elsewhere = getenv("ELSEWHERE") != NULL;
    graph = outrider_graph_generator("copy_blocks", next, 0);
    return graph == NULL;
}

__attribute__((visibility("default"))) int copy_blocks(int from, int to, int count)
{
    int (*real)(int, int, int) = (int (*)(int, int, int))OUTRIDER_NEXT("copy_blocks");
    struct copy     c = {from, to, count};
    outrider_scope *s = outrider_enter(graph, &c);
    int             r = real(from, to, count);
    outrider_leave(s);
    return r;
}

OUTRIDER_PLUGIN = {.name = "wrapper", .start = start};
