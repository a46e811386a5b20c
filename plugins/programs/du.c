/*
 * GNU du: the attributes of a directory's entries are looked up ahead, in the order in which du asks for them.
 *
 *     outrider run --plugin outrider_du.so -- du -s DIR
 *
 * du walks with fts, which reads a directory to its end and then names each entry by the directory's descriptor: in the order of the
 * listing, or sorted by inode where there are more than 10,000. Subdirectories are opened when their turn comes, after they were looked
 * up; so an entry that is one foresees two calls.
 */
#include <fcntl.h>
#include <stdlib.h>

#include "outrider_plugin.h"

/* How fts opens a directory. */
#define DIRECTORY_FLAGS (O_RDONLY | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_DIRECTORY)
/* fts sorts directories of more entries. */
#define SORTED_FROM 10000

/* The call that was foreseen last: the next one is found from there. */
static _Thread_local struct {
    const struct outrider_directory *directory;
    uint64_t                         call;
    size_t                           entry;
} last;

/* The entry that call `i` names: each has one call, subdirectories have two. */
static size_t entry_of(const struct outrider_directory *d, uint64_t i, int *second)
{
    uint64_t call = 0;
    size_t   entry = 0;
    if (last.directory == d && last.call <= i && last.entry < d->count) {
        call = last.call;
        entry = last.entry;
    }
    while (entry < d->count) {
        uint64_t calls = d->entries[entry].type == DT_DIR ? 2 : 1;
        if (i < call + calls)
            break;
        call += calls;
        entry++;
    }
    last.directory = d;
    last.call = call;
    last.entry = entry;
    *second = i > call;
    return entry;
}

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct outrider_directory *d = ctx;
    int    open;
    size_t entry = entry_of(d, i, &open);
    if (entry >= d->count)
        return d->complete ? OUTRIDER_END : OUTRIDER_NOT_READY;
    op->kind = open ? OUTRIDER_OPENAT : OUTRIDER_FSTATAT;
    op->fd = d->fd;
    op->path = d->entries[entry].name;
    op->flags = open ? DIRECTORY_FLAGS : AT_SYMLINK_NOFOLLOW;
    return OUTRIDER_WEAK;
}

static int by_inode(const void *a, const void *b)
{
    const struct outrider_entry *x = a, *y = b;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

static void arrange(struct outrider_directory *d, size_t first)
{
    if (d->count - first > SORTED_FROM)
        qsort(d->entries + first, d->count - first, sizeof *d->entries, by_inode);
}

static const char *const programs[] = {"du", NULL};

OUTRIDER_PLUGIN = {
    .name = "du",
    .programs = programs,
    .directory = next,
    .directory_flags = OUTRIDER_PURE | OUTRIDER_AMONG,
    .arrange = arrange,
};
