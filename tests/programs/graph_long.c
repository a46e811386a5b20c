/*
 * A loop of ITERATIONS reads of 8 bytes that goes round and round through a file, in one run of its graph. Prints the sum of what was read and
 * the graph's counts. Usage: graph_long FILE ITERATIONS
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "outrider_graph.h"

#define NUMBERS 251

struct loop {
    int      fd;
    uint64_t end;
};

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct loop *l = ctx;
    if (i == l->end)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = l->fd;
    op->length = sizeof(uint64_t);
    op->offset = (int64_t)(i % NUMBERS * sizeof(uint64_t));
    return OUTRIDER_CALL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct loop l = {open(argv[1], O_RDONLY), strtoull(argv[2], NULL, 10)};
    outrider_graph *graph = outrider_graph_generator("long", next, 0);
    if (l.fd < 0 || graph == NULL)
        return 3;
    uint64_t sum = 0;
    outrider_scope *s = outrider_enter(graph, &l);
    for (uint64_t i = 0; i < l.end; i++) {
        uint64_t number;
        if (pread(l.fd, &number, sizeof number, (off_t)(i % NUMBERS * sizeof number)) != sizeof number)
            return 4;
        sum = sum * 31 + number;
    }
    outrider_leave(s);
    printf("sum %llu\n", (unsigned long long)sum);
    char text[4096];
    outrider_graph_report(graph, text, sizeof text);
    fputs(text, stdout);
    return 0;
}
