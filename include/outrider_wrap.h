/*
 * Outrider's foreaction graphs for functions of a program that is linked anew, without touching its source.
 *
 *     OUTRIDER_WRAP(long, sum_blocks, (int fd, const long *at, int n), (fd, at, n), graph(), &((struct blocks){fd, at, n}))
 *
 * defines __wrap_sum_blocks: it enters the graph with that context, calls the function, and leaves, by return, exception or cancellation.
 * The function's calls of the C library are offered to the graph meanwhile. Link the program's objects with this one and
 *
 *     -Wl,--wrap=sum_blocks -loutrider
 *
 * The linker redirects calls between object files, not those within the file that defines the function. -loutrider comes before the C
 * library, as it does by default; a static program can't be wrapped. Compile with -fexceptions where exceptions may pass.
 */
#ifndef OUTRIDER_WRAP_H
#define OUTRIDER_WRAP_H

#include "outrider_graph.h"

static inline void outrider_wrap_leave(outrider_scope **scope)
{
    outrider_leave(*scope);
}

/* `graph` and `ctx` may use the parameters; the graph is built once and kept by whoever gives it. */
#define OUTRIDER_WRAP(type, function, parameters, arguments, graph, ctx)                                            \
    type __real_##function parameters;                                                                              \
    type __wrap_##function parameters;                                                                              \
    type __wrap_##function parameters                                                                               \
    {                                                                                                               \
        __attribute__((cleanup(outrider_wrap_leave), unused)) outrider_scope *outrider_wrap_scope =                 \
            outrider_enter(graph, ctx);                                                                             \
        return __real_##function arguments;                                                                         \
    }

#endif
