/*
 * Outrider's foreaction graphs: tell which system calls a function is going to make, and have them made ahead, in parallel.
 *
 * A graph is built once, and shared by all threads. A function enters it, makes its calls through the scope that it gets, and
 * leaves. Each call gives exactly what it would give without a graph; its result may be there already. A wrong graph costs time, and
 * is switched off. Only a graph that calls something certain that the function then does not do has effects that the
 * function did not have; run it once with OUTRIDER_GRAPH=check in the environment to find that.
 *
 * Between effects that are certain the thread makes no calls besides, in this function, in another scope or in none, that would see them or be seen by
 * them; it writes no other bytes than the graph says; it moves positions that the graph calls private only by calls that the graph has; and it does not
 * change its umask, user, groups, RLIMIT_FSIZE, descriptors' flags, working directory, root or mounts, close descriptors of the effects, nor confine
 * itself by seccomp(2). After fork(2) either the parent or the child makes the rest of them. The check finds these, too.
 *
 * An effect that fails: those behind it that were on their way beside it may have happened; nothing more is made ahead until the function has called the
 * one that failed. Where a function ends at the first failure, OUTRIDER_STOPS says so.
 *
 * Environment, read when a graph is built: OUTRIDER_GRAPH=auto (io_uring, or threads where it is refused; the default), uring,
 * threads, serial (nothing is made ahead) or check (nothing is made ahead, and every prediction is compared with what the
 * function does; see outrider_graph_report).
 *
 * Link with -loutrider. Stubs must not throw or longjmp out. Descriptors that a graph speaks of are opened and closed through the scope, or
 * outlive it; what a stub gives must not be changed by others before the function has called it.
 */
#ifndef OUTRIDER_GRAPH_H
#define OUTRIDER_GRAPH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stat;
struct statx;
struct iovec;

/* Calls. */
enum outrider_kind {
    OUTRIDER_OPENAT = 0, /* fd (directory or AT_FDCWD), path, flags, mode; looked up ahead, opened by the call itself */
    OUTRIDER_CLOSE,      /* fd; never ahead */
    OUTRIDER_READ,       /* fd, length; at the descriptor's position */
    OUTRIDER_PREAD,      /* fd, length, offset */
    OUTRIDER_WRITE,      /* fd, data, length; ahead only with OUTRIDER_PRIVATE_POSITIONS */
    OUTRIDER_PWRITE,     /* fd, data, length, offset */
    OUTRIDER_LSEEK,      /* fd, offset, flags (whence); never ahead */
    OUTRIDER_FSTAT,      /* fd */
    OUTRIDER_FSTATAT,    /* fd (directory), path, flags */
    OUTRIDER_STATX,      /* fd (directory), path, flags, mode (mask) */
    OUTRIDER_GETDENTS,   /* fd, length; listed ahead, read by the call itself */
    OUTRIDER_FSYNC,      /* fd; fdatasync if flags is 1 */
    OUTRIDER_UNLINKAT,   /* fd (directory), path, flags */
    OUTRIDER_RENAMEAT,   /* fd, path, fd2, path2 */
    OUTRIDER_MKDIRAT     /* fd (directory), path, mode */
};

/* A foreseen call. Stubs find it zeroed; those of a node find its kind. */
struct outrider_op {
    uint32_t    kind;   /* enum outrider_kind */
    int32_t     fd;
    int32_t     fd2;
    int32_t     flags;
    uint32_t    mode;
    uint32_t    linked; /* a write: 1 if it writes what the linked read before it returns; data and length are then not used */
    int64_t     offset; /* bytes */
    size_t      length; /* bytes */
    const char *path;
    const char *path2;
    const void *data;   /* copied when it is written ahead, and compared when the function writes it: written again if it is other */
};

typedef struct outrider_graph outrider_graph;
typedef struct outrider_builder outrider_builder;
typedef struct outrider_scope outrider_scope;

/* ---- The generator: one loop of calls ----------------------------------------------------------------------------- */

/* What a generator returns. */
#define OUTRIDER_END       0 /* the function makes no such call */
#define OUTRIDER_CALL      1 /* it makes this call, and goes on */
#define OUTRIDER_WEAK      2 /* it makes this call, after which it may end or do something else */
#define OUTRIDER_LINK      3 /* it makes this read, and the next call, a write, writes what it returns */
#define OUTRIDER_NOT_READY 4 /* there is such a call; its arguments can't be told yet */

/* Gives the i-th call. It must give the same when it is asked again, except that what was not ready may be later. */
typedef int (*outrider_graph_next)(void *ctx, uint64_t i, struct outrider_op *op);

#define OUTRIDER_PURE              1u /* no call has effects; needed to look beyond what is not ready */
#define OUTRIDER_PRIVATE_POSITIONS 2u /* nobody but the function moves the positions of what it writes */
#define OUTRIDER_AMONG             4u /* the function makes other such calls in between, which are no divergence */
#define OUTRIDER_STABLE            8u /* nothing else that the function does changes what its calls without effects return */

#define OUTRIDER_WALK              16u /* it asks for the attributes of the entries of the directories that it lists: they are looked up ahead */
#define OUTRIDER_FETCH             32u /* it often ends early, or scans: reads through the page cache are fetched into it, not made ahead */
#define OUTRIDER_STOPS             64u /* it ends, or goes another way, after an effect that fails or is short: each is made ahead only when those
                                          before it have succeeded */

/* Builds a graph of the function `name`. Null with EINVAL: name or next is null, or a flag is unknown. */
outrider_graph *outrider_graph_generator(const char *name, outrider_graph_next next, unsigned flags);

/* ---- The full graph --------------------------------------------------------------------------------------------------- */

#define OUTRIDER_START 0 /* the function's entrance, a node with one edge */
#define OUTRIDER_EXIT  1 /* the function's exit */

/* Gives a call's arguments (nonzero), or 0 while they can't be told. `epochs` are the indices of the enclosing loops, outermost
 * first, `n` of them. */
typedef int (*outrider_graph_args)(void *ctx, const uint64_t *epochs, size_t n, struct outrider_op *op);
/* Gives the number of the edge that is taken, in the order in which they were added, or -1 while it can't be told. */
typedef int (*outrider_graph_choice)(void *ctx, const uint64_t *epochs, size_t n);

outrider_builder *outrider_builder_new(const char *name);
/* The new node's number, or -1 with EINVAL. */
int outrider_builder_call(outrider_builder *b, const char *name, enum outrider_kind kind, outrider_graph_args args);
int outrider_builder_branch(outrider_builder *b, const char *name, outrider_graph_choice choice);

#define OUTRIDER_EDGE_WEAK 1u /* the function may end on it */
#define OUTRIDER_EDGE_BACK 2u /* it closes a loop: from a branch to a node before it */
/* Adds an edge. -1 with EINVAL: no such node, or an unknown flag. */
int outrider_builder_edge(outrider_builder *b, int from, int to, unsigned flags);

#define OUTRIDER_NODE_LINK 1u /* this read's bytes are written by the next call */
#define OUTRIDER_NODE_HELD 2u /* this effect behind a weak edge is known to be never made ahead */
int outrider_builder_mark(outrider_builder *b, int node, unsigned marks);

/* Is told what a call returned, or its negated errno, when the function has it and before it is asked for the next call: what later stubs compute
 * arguments from. Runs that are not looked ahead of call no stubs. */
typedef void (*outrider_graph_harvest)(void *ctx, const uint64_t *epochs, size_t n, ssize_t result);
/* Has `then` told of the calls of a node. -1 with EINVAL: a pointer is null, or there is no such node. */
int outrider_builder_harvest(outrider_builder *b, int node, outrider_graph_harvest then);

/* Checks and builds the graph, and frees the builder either way. Null with EINVAL: `why`, if it isn't null, says what is wrong, cut to
 * `room` bytes. */
outrider_graph *outrider_builder_build(outrider_builder *b, unsigned flags, char *why, size_t room);

/* ---- Both -------------------------------------------------------------------------------------------------------------- */

/* Frees a graph that no thread is in. */
void outrider_graph_free(outrider_graph *graph);

/* Writes the graph in Graphviz's language, or what became of its calls so far (a line of counts, then a line for each problem), cut to
 * `room` bytes with the final zero. Returns the length of the whole text. */
size_t outrider_graph_dot(const outrider_graph *graph, char *text, size_t room);
size_t outrider_graph_report(const outrider_graph *graph, char *text, size_t room);

/* The function begins, with the context for the stubs, which lives until outrider_leave. Never null unless graph is (EINVAL).
 *
 * Until then the calls below are made through the scope, or the thread's calls of the C library are offered to it as they come (they are
 * not any more once it was named in one of the calls below). Scopes may lie within each other, up to 32 of a thread; a call goes to the
 * innermost that foresees it. The scopes that a forked child finds pass their calls through, except that effects which were made before the fork are
 * handed out to the thread that forked. */
outrider_scope *outrider_enter(const outrider_graph *graph, void *ctx);

/* Only calls of the C library on this descriptor (or by a path relative to it; AT_FDCWD is one) are offered to the scope, and on others that
 * it is bound to, 8 at most. Closing a descriptor unbinds it. -1 with EINVAL: the scope is null, or has 8. */
int outrider_bind(outrider_scope *scope, int fd);

/* The function ends: what was not needed is cancelled. On the thread that entered. */
void outrider_leave(outrider_scope *scope);

/* The calls. Results and errno are those of the system calls of these names. */
int     outrider_openat(outrider_scope *s, int dir, const char *path, int flags, mode_t mode);
int     outrider_close(outrider_scope *s, int fd);
ssize_t outrider_read(outrider_scope *s, int fd, void *buffer, size_t n);
ssize_t outrider_pread(outrider_scope *s, int fd, void *buffer, size_t n, off_t offset);
ssize_t outrider_readv(outrider_scope *s, int fd, const struct iovec *parts, int n);
ssize_t outrider_preadv(outrider_scope *s, int fd, const struct iovec *parts, int n, off_t offset);
ssize_t outrider_write(outrider_scope *s, int fd, const void *bytes, size_t n);
ssize_t outrider_pwrite(outrider_scope *s, int fd, const void *bytes, size_t n, off_t offset);
off_t   outrider_lseek(outrider_scope *s, int fd, off_t offset, int whence);
int     outrider_fstat(outrider_scope *s, int fd, struct stat *st);
int     outrider_fstatat(outrider_scope *s, int dir, const char *path, struct stat *st, int flags);
int     outrider_statx(outrider_scope *s, int dir, const char *path, int flags, unsigned mask, struct statx *st);
ssize_t outrider_getdents64(outrider_scope *s, int fd, void *entries, size_t n);
int     outrider_fsync(outrider_scope *s, int fd);
int     outrider_fdatasync(outrider_scope *s, int fd);
int     outrider_unlinkat(outrider_scope *s, int dir, const char *path, int flags);
int     outrider_renameat(outrider_scope *s, int from_dir, const char *from, int to_dir, const char *to);
int     outrider_mkdirat(outrider_scope *s, int dir, const char *path, mode_t mode);

#ifdef __cplusplus
}
#endif
#endif
