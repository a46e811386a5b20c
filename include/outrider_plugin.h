/*
 * Outrider's plug-ins: foreaction graphs for programs that know nothing of them.
 *
 * A plug-in is a shared object that exports one table, OUTRIDER_PLUGIN. `outrider run --plugin FILE.so -- CMD` loads it into CMD and the
 * programs that CMD starts. It brings graphs to a program's calls in three ways:
 *
 *   - a directory's entries: with `directory`, the calls on the entries of every directory that the program lists are foreseen by a
 *     generator; nothing else is needed for programs such as du, find or rm;
 *   - an observer is told of the program's calls, and enters, binds and leaves scopes as it sees fit;
 *   - an exported function of a shared library (or of the program) is wrapped by defining it: the plug-in comes before the libraries. The
 *     wrapper enters a scope, calls OUTRIDER_NEXT's function, and leaves.
 *
 *     static int next(void *ctx, uint64_t i, struct outrider_op *op)
 *     {
 *         const struct outrider_directory *d = ctx;
 *         if (i >= d->count)
 *             return d->complete ? OUTRIDER_END : OUTRIDER_NOT_READY;
 *         op->kind = OUTRIDER_FSTATAT;
 *         op->fd = d->fd;
 *         op->path = d->entries[i].name;
 *         op->flags = AT_SYMLINK_NOFOLLOW;
 *         return OUTRIDER_WEAK;
 *     }
 *     OUTRIDER_PLUGIN = {.name = "du", .directory = next, .directory_flags = OUTRIDER_PURE};
 *
 * While a scope is entered (outrider_enter in outrider_graph.h), the thread's calls of the C library that a graph may contain are offered
 * to it; see outrider_plugin(3) for which they are. Those that the graph foresees find their result ready; the others are made as ever.
 * A scope that is bound to descriptors (outrider_bind) is offered the calls on these alone, and many of them may be open at once.
 *
 * cc -shared -fPIC -I… plugin.c -o plugin.so; it need not be linked with -loutrider.
 */
#ifndef OUTRIDER_PLUGIN_H
#define OUTRIDER_PLUGIN_H

#include <dirent.h>
#include <dlfcn.h>

#include "outrider_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An entry of a directory, without "." and "..". */
struct outrider_entry {
    const char *name;
    uint64_t    inode;
    uint32_t    type; /* DT_REG, DT_DIR … DT_UNKNOWN */
};

/* A directory that the program has listed, the context of `directory`. */
struct outrider_directory {
    int                    fd;       /* a descriptor of it, the one that the program names its entries by */
    int                    complete; /* the program has read the listing to its end */
    size_t                 count;    /* entries read so far */
    struct outrider_entry *entries;
};

/* Is told of the calls of all threads, on the thread that makes them. Anything may be null. The callbacks may enter, bind and leave scopes.
 * Calls that they make themselves are offered to no scope and told to no observer. */
struct outrider_observer {
    /* A call that a graph may contain is about to be made (kind CLOSE also for the descriptors that closedir, fclose and dup2
     * close). */
    void (*before)(const struct outrider_op *call);
    /* It was made: a result of zero or more, or a negated errno. */
    void (*after)(const struct outrider_op *call, int64_t result);
    /* `copy` is a duplicate of `fd` (dup, dup2, dup3, fcntl). */
    void (*duplicated)(int fd, int copy);
    /* opendir or fdopendir gave this stream. */
    void (*listing)(DIR *stream, int fd);
    /* readdir gave this entry, or null at the end. */
    void (*entry)(DIR *stream, const struct dirent *entry);
    /* The stream is about to be closed, or was rewound. */
    void (*closing)(DIR *stream, int fd);
    void (*rewound)(DIR *stream, int fd);
};

struct outrider_plugin {
    const char *name; /* of letters, digits, - and _ */
    /* Short names of the programs that it is for, ended by null; null: all. */
    const char *const *programs;
    /* Called once in each process, before main; builds graphs. Nonzero: the plug-in stays out of this process. The plug-in's own
     * constructors may not have run yet. */
    int (*start)(void);
    const struct outrider_observer *observer;
    /* Foresees the calls on the entries of a directory; the context is a struct outrider_directory. The scope begins with the first call that
     * names an entry by a descriptor of the directory, and ends with the last of these descriptors, or with rewinddir. */
    outrider_graph_next directory;
    unsigned            directory_flags;
    /* Puts entries `first` and following, which are new, into the order in which the program is going to name them; may be null. `directory`
     * and it are called within the program's calls, which may be a handler's: they must not allocate. */
    void (*arrange)(struct outrider_directory *d, size_t first);
};

/* The table's name says which version of this interface it is made for. */
#define OUTRIDER_PLUGIN __attribute__((visibility("default"))) const struct outrider_plugin outrider_plugin_1
extern OUTRIDER_PLUGIN;

/* The function of this name after the plug-in's own: what a wrapper calls. Null if there is none. */
#define OUTRIDER_NEXT(name) dlsym(RTLD_NEXT, name)

#ifdef __cplusplus
}
#endif
#endif
