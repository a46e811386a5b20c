/*
 * GNU du: subdirectories are listed ahead, and the inodes of their entries fetched.
 *
 *     outrider run --plugin outrider_du.so -- du -s DIR
 *
 * du walks with fts, which reads a directory to its end and then names each entry by the directory's descriptor: in the order of the
 * listing, or sorted by inode where there are more than 10,000. Subdirectories are opened when their turn comes: that is what is foreseen. The
 * attributes of their entries are not: whoever lists a directory ahead looks up one entry of each block of inodes (OUTRIDER_WALK), which is a
 * small part of du's calls, and du finds the rest cached. It goes on into the subdirectories, too.
 */
#include <fcntl.h>

#include "outrider_plugin.h"

/* How fts opens a directory. */
#define DIRECTORY_FLAGS (O_RDONLY | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_DIRECTORY)
/* fts sorts directories of more entries. */
#define SORTED_FROM 10000

/* The subdirectory that was foreseen last: the next one is found from there. */
static _Thread_local struct {
    const struct outrider_directory *directory;
    const struct outrider_entry     *entries;
    uint64_t                         number;
    uint64_t                         inode;
    size_t                           entry;
} last;

/* The entry that is subdirectory `number`, or the count of entries. */
static size_t subdirectory(const struct outrider_directory *d, uint64_t number)
{
    uint64_t n = 0;
    size_t   entry = 0;
    /* Another directory may lie where one was that is closed by now. */
    if (last.directory == d && last.entries == d->entries && last.number <= number && last.entry < d->count &&
        d->entries[last.entry].inode == last.inode) {
        n = last.number;
        entry = last.entry;
    }
    for (; entry < d->count; entry++) {
        if (d->entries[entry].type != DT_DIR)
            continue;
        if (n == number) {
            last.directory = d;
            last.entries = d->entries;
            last.number = number;
            last.inode = d->entries[entry].inode;
            last.entry = entry;
            break;
        }
        n++;
    }
    return entry;
}

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct outrider_directory *d = ctx;
    size_t entry = subdirectory(d, i);
    if (entry >= d->count)
        return d->complete ? OUTRIDER_END : OUTRIDER_NOT_READY;
    op->kind = OUTRIDER_OPENAT;
    op->fd = d->fd;
    op->path = d->entries[entry].name;
    op->flags = DIRECTORY_FLAGS;
    return OUTRIDER_WEAK;
}

/* Sorts by inode. Not qsort(3), which may allocate: this is called within du's fstatat. */
static void sift(struct outrider_entry *e, size_t at, size_t count)
{
    for (;;) {
        size_t large = 2 * at + 1;
        if (large >= count)
            return;
        if (large + 1 < count && e[large].inode < e[large + 1].inode)
            large++;
        if (e[at].inode >= e[large].inode)
            return;
        struct outrider_entry other = e[at];
        e[at] = e[large];
        e[large] = other;
        at = large;
    }
}

static void arrange(struct outrider_directory *d, size_t first)
{
    struct outrider_entry *e = d->entries + first;
    size_t                 count = d->count - first;
    if (count <= SORTED_FROM)
        return;
    for (size_t i = count / 2; i-- > 0;)
        sift(e, i, count);
    for (size_t i = count; i-- > 1;) {
        struct outrider_entry largest = e[0];
        e[0] = e[i];
        e[i] = largest;
        sift(e, 0, i);
    }
}

static const char *const programs[] = {"du", NULL};

OUTRIDER_PLUGIN = {
    .name = "du",
    .programs = programs,
    .directory = next,
    .directory_flags = OUTRIDER_PURE | OUTRIDER_AMONG | OUTRIDER_WALK,
    .arrange = arrange,
};
