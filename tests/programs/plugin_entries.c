/* A plug-in: the attributes of a listed directory's entries, in the order in which GNU fts asks for them. */
#include <fcntl.h>
#include <outrider_plugin.h>
#include <stdlib.h>

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct outrider_directory *d = ctx;
    if (i >= d->count)
        return d->complete ? OUTRIDER_END : OUTRIDER_NOT_READY;
    op->kind = OUTRIDER_FSTATAT;
    op->fd = d->fd;
    op->path = d->entries[i].name;
    op->flags = AT_SYMLINK_NOFOLLOW;
    return OUTRIDER_WEAK;
}

static int by_inode(const void *a, const void *b)
{
    const struct outrider_entry *x = a, *y = b;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

/* fts sorts directories of more than 10,000 entries. */
static void arrange(struct outrider_directory *d, size_t first)
{
    if (d->count - first > 10000)
        qsort(d->entries + first, d->count - first, sizeof *d->entries, by_inode);
}

OUTRIDER_PLUGIN = {.name = "entries", .directory = next, .directory_flags = OUTRIDER_PURE, .arrange = arrange};
