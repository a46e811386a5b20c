#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "foresee.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "btree.h"

/* Linux 6.5; the same number everywhere but on Alpha, where it is another's. */
#if !defined(SYS_cachestat) && !defined(__alpha__)
#define SYS_cachestat 451
#endif

/* Entries of a scan's first list, and how many times longer the second one is. The third one has no end: Outrider draws as much of it as memory holds. */
#define FIRST_ENTRIES 512
#define GROWTH        16
/* Table pages in the order of an index leaf after which a scan is taken for one: two may be chance, and each costs a wait. */
#define MATCHES 3
/* How far in an index leaf the next match may be: rows between are on pages that SQLite has cached. */
#define MATCH_REACH 32
/* How far ahead in a list a read is looked for: entries between are on pages that SQLite has cached. */
#define LIST_REACH 4096
/* Rows after which an interior page of the table is put on the list again. SQLite may have it cached for longer: then the entry
 * is passed over. It must not be longer than what Outrider looks back for a read (64 entries), or a page that SQLite reads again
 * would be taken for its next entry. */
#define INTERIOR_ROWS 20
/* Entries before and after the place in the list among which an interior page's is looked for. */
#define INTERIOR_REACH 64
/* Reads of other table pages after which a candidate is forgotten, and a scan. */
#define CANDIDATE_STRAYS 16
#define SCAN_STRAYS      4096
/* Index leaves per connection in which matches are looked for: a join walks one and looks others up in between. */
#define CANDIDATES 4
/* Scans of one file at a time. */
#define SCANS 16
/* Deepest b-tree: with the fewest children that a page can have, 2^20 pages. SQLite's own limit is 20. */
#define DEPTH 20
/* Bytes of a table's interior pages that a scan keeps; then it starts anew. */
#define NODES_BYTES (64u << 20)
/* Pages read at most to find an index leaf whose parent isn't known, and to read the schema. */
#define SEARCH_PAGES 512
#define SCHEMA_PAGES 1024
/* Index interior pages' children whose parents are kept, at most. */
#define PARENTS (1u << 20)
/* Index leaves of which reading is begun at once. */
#define LEAVES_AHEAD 64
/* Bytes of one request for read-ahead: the kernel shortens longer ones than its read-ahead without a word. */
#define HINT_BYTES ((uint64_t)128 << 10)
/* Unread entries that a scan keeps, at most: what an access list of Outrider's holds. */
#define QUEUE OUTRIDER_LIST_MAX

/* A table's interior page. */
struct node {
    struct node *next; /* in its bucket */
    uint32_t page;
    uint32_t keys; /* children: one more */
    uint64_t row;  /* at which it was listed last; 0: never */
    int64_t *key;
    uint32_t *child;
};

#define BUCKETS 4096

/* A page on the way from an index's root to where a scan is. */
struct level {
    unsigned char *bytes;
    struct btree_page page;
    uint32_t number;
    uint32_t at;      /* leaf: next cell; interior: the child that is walked */
    int descend;      /* interior: that child comes next */
    uint32_t hinted;  /* interior: children up to here (from here on, backwards) are being read */
    uint32_t hints;   /* ... of which the latest began so many before that */
    uint64_t brought; /* of these, counted from the first one walked: such as nobody had in the cache */
};

/* A walk through an index. */
struct scan {
    int live;
    struct foresee *owner;
    uint32_t index_root, table_root;
    int direction;        /* 1 or -1 */
    int index_depth;      /* levels, leaf included */
    int table_depth;
    int depth;            /* levels in use; 0: the walk is over */
    int capped;           /* the list ended where it was allowed to */
    int table_hinted;
    struct level level[DEPTH];
    struct node *bucket[BUCKETS];
    size_t nodes_bytes;
    uint64_t steps;       /* index pages that may still be walked: the file has no more, unless it is damaged */
    uint64_t row;         /* rows that were looked up */
    uint32_t last;        /* table leaf that was queued last */
    uint32_t pending[DEPTH]; /* pages of the table that come next, the last one first */
    int pendings;
    uint32_t behind; /* index leaf that SQLite read last, where we brought it into the cache; 0: none */
    uint64_t dropped; /* bytes that Outrider had given up when the scan began */
    /* What was foreseen: absolute positions head <= given <= tail; slot = position % capacity. An index page has MARK set, and
     * BROUGHT where we brought it into the cache. */
    uint64_t *queue;
    size_t capacity;
    uint64_t head, given, tail;
    uint64_t allowed;     /* position up to which the list may go now */
    uint64_t strays;
};

#define MARK    ((uint64_t)1 << 32)
#define BROUGHT ((uint64_t)1 << 33)

/* An index leaf that may be being walked. */
struct candidate {
    uint32_t leaf;
    uint32_t count, room;
    int64_t *rowid;
    int64_t cursor;  /* entry of the last match */
    int matches;
    int direction;   /* 0: not known */
    int strays;
    int rejected;
    uint64_t age;
};

struct schema_entry {
    uint64_t table; /* hash of the table's name */
    uint32_t root;
    char type;
};

/* What is known of a file, shared by all who have it open. */
struct book {
    struct book *next;
    unsigned references;
    dev_t device;
    ino_t inode;
    pthread_mutex_t lock;
    struct btree_file format;
    int understood;
    int listed;      /* descriptor that names the list; -1: none */
    struct scan *scan[SCANS];
    unsigned turn;
    /* Parents of index pages: open addressing, 0 is an empty slot. */
    uint32_t *parent_of, *parent;
    uint32_t parents, parents_room;
    unsigned char cookie[4];
    int schema_known;
    struct schema_entry *schema;
    uint32_t schema_count, schema_room;
};

struct foresee {
    struct book *book;
    int fd;
    uint64_t clock;
    struct candidate candidate[CANDIDATES];
    uint64_t leaves;   /* index leaves read */
    uint64_t try_from; /* … at which a scan is looked for again, after failures */
    uint64_t penalty;
    int scanning;      /* atomic: it may have live scans */
    int active;        /* atomic: there is something to forget at rest */
};

static struct foresee_library outrider;
static int available;
/* Set in a child after fork: locks may be held by threads that it doesn't have. */
static int aside;
static pthread_mutex_t books_lock = PTHREAD_MUTEX_INITIALIZER;
static struct book *books;
static struct foresee_counts counts;

#define COUNT(field, n) __atomic_fetch_add(&counts.field, (uint64_t)(n), __ATOMIC_RELAXED)

static void stand_aside(void) {
    aside = 1;
}

void foresee_use(const struct foresee_library *library) {
    outrider = *library;
    available = pthread_atfork(NULL, NULL, stand_aside) == 0;
}

void foresee_counts(struct foresee_counts *out) {
    out->scans = __atomic_load_n(&counts.scans, __ATOMIC_RELAXED);
    out->table_reads = __atomic_load_n(&counts.table_reads, __ATOMIC_RELAXED);
    out->foreseen_reads = __atomic_load_n(&counts.foreseen_reads, __ATOMIC_RELAXED);
    out->declared = __atomic_load_n(&counts.declared, __ATOMIC_RELAXED);
    out->refused = __atomic_load_n(&counts.refused, __ATOMIC_RELAXED);
}

/* ---- Pages ---- */

static uint64_t offset_of(const struct book *book, uint32_t number) {
    return ((uint64_t)number - 1) * book->format.page_size;
}

/*
 * Reads `length` bytes at `offset`, all or nothing. Not through the VFS: this may run on the thread of another connection. And
 * not through the C library: Outrider would see the read, and might wait for a thread that waits for our lock.
 */
static ssize_t read_at(int fd, void *bytes, size_t length, uint64_t offset) {
#if defined(__LP64__) && defined(SYS_pread64)
    return syscall(SYS_pread64, fd, bytes, length, (off_t)offset);
#else
    return pread(fd, bytes, length, (off_t)offset);
#endif
}

static int read_bytes(int fd, void *bytes, size_t length, uint64_t offset) {
    size_t done = 0;
    if (offset > (uint64_t)INT64_MAX - length)
        return 0;
    while (done < length) {
        ssize_t got = read_at(fd, (char *)bytes + done, length - done, offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        done += (size_t)got;
    }
    return 1;
}

static int read_page(const struct book *book, int fd, uint32_t number, unsigned char *bytes, struct btree_page *page) {
    return number > 0 && read_bytes(fd, bytes, book->format.page_size, offset_of(book, number)) &&
           btree_page_parse(page, &book->format, bytes, number);
}

/* Whether nothing of a page is cached, as far as the kernel tells (Linux 6.5). */
static int is_uncached(const struct book *book, int fd, uint32_t number) {
    struct {
        uint64_t offset, length;
    } range = {offset_of(book, number), book->format.page_size};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } found;
    return number > 0 && syscall(SYS_cachestat, fd, &range, &found, 0) == 0 && found.cached == 0;
}

/* Gives up an index leaf that we brought into the cache, once SQLite is past it and memory was short since the scan began: it would push
 * out table pages that are needed yet. */
static void leave_behind(struct scan *scan, uint64_t leaf) {
    const struct book *book = scan->owner->book;
    struct outrider_stats now;
    if (scan->behind && outrider.stats(&now, sizeof now) == 0 && now.dropped_bytes > scan->dropped)
        (void)posix_fadvise(scan->owner->fd, (off_t)offset_of(book, scan->behind), (off_t)book->format.page_size,
                            POSIX_FADV_DONTNEED);
    scan->behind = leaf & BROUGHT ? (uint32_t)leaf : 0;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Has reading of these pages begun, adjacent ones together. Sorts them. */
static void hint(const struct book *book, int fd, uint32_t *pages, size_t count) {
    size_t i, j;
    qsort(pages, count, sizeof *pages, ascending);
    for (i = 0; i < count; i = j) {
        for (j = i + 1; j < count && pages[j] - pages[j - 1] <= 1; j++) {
        }
        if (pages[i] > 0) {
            uint64_t from = offset_of(book, pages[i]), end = offset_of(book, pages[j - 1]) + book->format.page_size;
            for (; from < end; from += HINT_BYTES)
                (void)posix_fadvise(fd, (off_t)from, (off_t)(end - from < HINT_BYTES ? end - from : HINT_BYTES),
                                    POSIX_FADV_WILLNEED);
        }
    }
}

/* ---- Parents of index pages ---- */

static uint32_t slot_of(uint32_t page, uint32_t room) {
    return (page * 2654435761u) & (room - 1); /* Knuth's multiplicative hash */
}

static void parents_put(struct book *book, uint32_t child, uint32_t parent) {
    uint32_t slot;
    if (child == 0)
        return;
    if (2 * (book->parents + 1) > book->parents_room) {
        uint32_t room = book->parents_room ? 2 * book->parents_room : 1024, i;
        uint32_t *keys, *values;
        if (book->parents >= PARENTS) {
            memset(book->parent_of, 0, book->parents_room * sizeof *book->parent_of);
            book->parents = 0;
            room = 0;
        }
        if (room) {
            keys = calloc(room, sizeof *keys);
            values = calloc(room, sizeof *values);
            if (!keys || !values) {
                free(keys);
                free(values);
                return;
            }
            for (i = 0; i < book->parents_room; i++) {
                if (!book->parent_of[i])
                    continue;
                for (slot = slot_of(book->parent_of[i], room); keys[slot]; slot = (slot + 1) & (room - 1)) {
                }
                keys[slot] = book->parent_of[i];
                values[slot] = book->parent[i];
            }
            free(book->parent_of);
            free(book->parent);
            book->parent_of = keys;
            book->parent = values;
            book->parents_room = room;
        }
    }
    slot = slot_of(child, book->parents_room);
    while (book->parent_of[slot] && book->parent_of[slot] != child)
        slot = (slot + 1) & (book->parents_room - 1);
    if (!book->parent_of[slot]) {
        book->parent_of[slot] = child;
        book->parents++;
    }
    book->parent[slot] = parent;
}

static uint32_t parents_get(const struct book *book, uint32_t child) {
    uint32_t slot;
    if (!book->parents_room || !child)
        return 0;
    for (slot = slot_of(child, book->parents_room); book->parent_of[slot];
         slot = (slot + 1) & (book->parents_room - 1))
        if (book->parent_of[slot] == child)
            return book->parent[slot];
    return 0;
}

static void parents_learn(struct book *book, uint32_t number, const unsigned char *bytes) {
    struct btree_page page;
    uint32_t i;
    if (!btree_page_parse(&page, &book->format, bytes, number))
        return;
    for (i = 0; i <= page.cells; i++)
        parents_put(book, btree_child(&page, i), number);
}

/* ---- Schema ---- */

static uint64_t hash_of(const unsigned char *bytes, size_t length) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    while (length--)
        hash = (hash ^ *bytes++) * 1099511628211u;
    return hash;
}

static int schema_walk(struct book *book, int fd, uint32_t number, int depth, unsigned *pages) {
    struct btree_page page;
    unsigned char *bytes;
    uint32_t i;
    int well = 0;
    if (depth >= DEPTH || *pages == 0)
        return 0;
    --*pages;
    bytes = malloc(book->format.page_size);
    if (!bytes)
        return 0;
    if (!read_page(book, fd, number, bytes, &page))
        goto out;
    if (page.kind == BTREE_TABLE_INTERIOR) {
        for (i = 0; i <= page.cells; i++)
            if (!schema_walk(book, fd, btree_child(&page, i), depth + 1, pages))
                goto out;
        well = 1;
    } else if (page.kind == BTREE_TABLE_LEAF) {
        for (i = 0; i < page.cells; i++) {
            struct btree_schema_row row;
            if (!btree_schema_row(&page, i, &row) || !row.type || !row.root)
                continue;
            if (book->schema_count == book->schema_room) {
                uint32_t room = book->schema_room ? 2 * book->schema_room : 64;
                struct schema_entry *more = realloc(book->schema, room * sizeof *more);
                if (!more)
                    goto out;
                book->schema = more;
                book->schema_room = room;
            }
            book->schema[book->schema_count++] =
                (struct schema_entry){hash_of(row.table, row.table_length), row.root, row.type};
        }
        well = 1;
    }
out:
    free(bytes);
    return well;
}

/* Reads the header and, where it changed, the schema. */
static int schema_load(struct book *book, int fd) {
    unsigned char header[100];
    struct btree_file format;
    unsigned pages = SCHEMA_PAGES;
    if (!read_bytes(fd, header, sizeof header, 0) || !btree_file_parse(&format, header) ||
        format.page_size != book->format.page_size || format.usable != book->format.usable)
        return 0;
    if (book->schema_known && memcmp(book->cookie, header + 40, 4) == 0)
        return 1;
    book->schema_count = 0;
    /* What could be read of a long or damaged schema is as good as none: names might be missing. */
    book->schema_known = schema_walk(book, fd, 1, 0, &pages);
    memcpy(book->cookie, header + 40, 4);
    return book->schema_known;
}

static const struct schema_entry *schema_index(const struct book *book, uint32_t root) {
    uint32_t i;
    for (i = 0; i < book->schema_count; i++)
        if (book->schema[i].type == 'i' && book->schema[i].root == root)
            return &book->schema[i];
    return NULL;
}

static uint32_t schema_table(const struct book *book, uint64_t table) {
    uint32_t i;
    for (i = 0; i < book->schema_count; i++)
        if (book->schema[i].type == 't' && book->schema[i].table == table)
            return book->schema[i].root;
    return 0;
}

/* ---- Tables ---- */

static void nodes_forget(struct scan *scan) {
    unsigned i;
    for (i = 0; i < BUCKETS; i++)
        while (scan->bucket[i]) {
            struct node *next = scan->bucket[i]->next;
            free(scan->bucket[i]);
            scan->bucket[i] = next;
        }
    scan->nodes_bytes = 0;
}

/* An interior page of the table, from memory or the file; NULL if it is none. */
static struct node *node_get(struct scan *scan, uint32_t number) {
    const struct book *book = scan->owner->book;
    struct node **bucket = &scan->bucket[number % BUCKETS], *node;
    struct btree_page page;
    unsigned char *bytes;
    size_t size;
    uint32_t i;
    for (node = *bucket; node; node = node->next)
        if (node->page == number)
            return node;
    bytes = malloc(book->format.page_size);
    if (!bytes)
        return NULL;
    if (!read_page(book, scan->owner->fd, number, bytes, &page) || page.kind != BTREE_TABLE_INTERIOR) {
        free(bytes);
        return NULL;
    }
    size = sizeof *node + page.cells * sizeof(int64_t) + (page.cells + 1) * sizeof(uint32_t);
    if (scan->nodes_bytes + size > NODES_BYTES)
        nodes_forget(scan);
    node = malloc(size);
    if (!node) {
        free(bytes);
        return NULL;
    }
    node->page = number;
    node->row = 0;
    node->keys = page.cells;
    node->key = (int64_t *)(node + 1);
    node->child = (uint32_t *)(node->key + page.cells);
    for (i = 0; i < page.cells; i++) {
        if (!btree_table_key(&page, i, &node->key[i])) {
            free(node);
            free(bytes);
            return NULL;
        }
        node->child[i] = btree_child(&page, i);
    }
    node->child[page.cells] = page.right;
    node->next = *bucket;
    *bucket = node;
    scan->nodes_bytes += size;
    free(bytes);
    return node;
}

static uint32_t node_child(const struct node *node, int64_t rowid) {
    uint32_t low = 0, high = node->keys;
    while (low < high) { /* the first key that is not smaller */
        uint32_t middle = low + (high - low) / 2;
        if (node->key[middle] < rowid)
            low = middle + 1;
        else
            high = middle;
    }
    return node->child[low];
}

/* Makes the pages pending that lead to a row from below the table's root, where they haven't been listed lately. */
static void look_up(struct scan *scan, int64_t rowid) {
    uint32_t number = scan->table_root, interior[DEPTH];
    int depth, interiors = 0;
    scan->row++;
    for (depth = 1; depth < scan->table_depth; depth++) {
        struct node *node = node_get(scan, number);
        if (!node)
            return;
        /* The root stays cached while a statement uses it. */
        if (depth > 1 && (node->row == 0 || scan->row - node->row > INTERIOR_ROWS)) {
            node->row = scan->row;
            interior[interiors++] = number;
        }
        number = node_child(node, rowid);
        /* Levels above the last have children that are interior pages, all of which will be wanted. */
        if (scan->table_hinted < depth && depth < scan->table_depth - 1 && scan->allowed > FIRST_ENTRIES) {
            uint32_t *children = malloc((node->keys + 1) * sizeof *children);
            scan->table_hinted = depth;
            if (children) {
                memcpy(children, node->child, (node->keys + 1) * sizeof *children);
                hint(scan->owner->book, scan->owner->fd, children, node->keys + 1);
                free(children);
            }
        }
    }
    if (number == 0 || number == scan->last)
        return;
    scan->last = number;
    scan->pending[scan->pendings++] = number;
    while (interiors > 0)
        scan->pending[scan->pendings++] = interior[--interiors];
}

/* ---- Walking an index ---- */

static void scan_free(struct scan *scan) {
    unsigned i;
    if (!scan)
        return;
    for (i = 0; i < DEPTH; i++)
        free(scan->level[i].bytes);
    nodes_forget(scan);
    free(scan->queue);
    free(scan);
}

/* Adds the page that is walked next; its first cell comes next. */
static int scan_push(struct scan *scan, uint32_t number) {
    const struct book *book = scan->owner->book;
    struct level *level = &scan->level[scan->depth];
    int leaf = scan->depth == scan->index_depth - 1;
    if (scan->depth >= scan->index_depth || scan->steps == 0)
        return 0;
    scan->steps--;
    if (!level->bytes && !(level->bytes = malloc(book->format.page_size)))
        return 0;
    if (!read_page(book, scan->owner->fd, number, level->bytes, &level->page) ||
        level->page.kind != (leaf ? BTREE_INDEX_LEAF : BTREE_INDEX_INTERIOR))
        return 0;
    level->number = number;
    level->at = scan->direction > 0 ? 0 : level->page.cells;
    level->descend = !leaf;
    level->hinted = scan->direction > 0 ? 0 : level->page.cells + 1;
    level->hints = 0;
    scan->depth++;
    return 1;
}

/* Begins to read the leaves that come next, where `level` is the one above them. */
static void scan_hint(struct scan *scan, struct level *level) {
    uint32_t pages[LEAVES_AHEAD], count = 0, k;
    if (scan->depth != scan->index_depth - 1)
        return;
    if (scan->direction > 0 && level->at >= level->hinted) {
        uint32_t i = level->at;
        for (; i <= level->page.cells && count < LEAVES_AHEAD; i++)
            pages[count++] = btree_child(&level->page, i);
        level->hinted = i;
    } else if (scan->direction < 0 && level->at < level->hinted) {
        uint32_t i = level->at + 1;
        for (; i > 0 && count < LEAVES_AHEAD; i--)
            pages[count++] = btree_child(&level->page, i - 1);
        level->hinted = i;
    }
    if (count > 0) {
        level->hints = count;
        level->brought = 0;
        for (k = 0; k < count; k++)
            if (is_uncached(scan->owner->book, scan->owner->fd, pages[k]))
                level->brought |= (uint64_t)1 << k;
    }
    if (count > 1)
        hint(scan->owner->book, scan->owner->fd, pages, count);
}

/* Whether we brought the child that is walked next, one of those whose reading was begun last, into the cache. */
static uint64_t scan_brought(const struct scan *scan, const struct level *level) {
    uint32_t from = scan->direction > 0 ? level->hinted - level->hints : level->hinted + level->hints - 1;
    uint32_t at = scan->direction > 0 ? level->at - from : from - level->at;
    return at < level->hints && level->brought >> at & 1 ? BROUGHT : 0;
}

/* The next page in the order of need: a leaf of the index (MARK set) or of the table; 0 at the end. */
static uint64_t scan_next(struct scan *scan) {
    while (scan->pendings > 0 || scan->depth > 0) {
        struct level *level;
        int64_t rowid;
        int found = 0;
        if (scan->pendings > 0)
            return scan->pending[--scan->pendings];
        level = &scan->level[scan->depth - 1];
        if (level->page.kind == BTREE_INDEX_LEAF) {
            if (scan->direction > 0 ? level->at < level->page.cells : level->at > 0) {
                uint32_t cell = scan->direction > 0 ? level->at++ : --level->at;
                found = btree_index_rowid(&level->page, cell, &rowid);
            } else {
                scan->depth--;
            }
        } else if (level->descend) {
            uint32_t child = btree_child(&level->page, level->at);
            scan_hint(scan, level);
            level->descend = 0;
            if (!scan_push(scan, child)) {
                scan->depth = 0;
                return 0;
            }
            if (scan->depth == scan->index_depth)
                return child | MARK | scan_brought(scan, level);
        } else if (scan->direction > 0 ? level->at < level->page.cells : level->at > 0) {
            /* Interior cells are entries too, between those of their children. */
            uint32_t cell = scan->direction > 0 ? level->at++ : --level->at;
            level->descend = 1;
            found = btree_index_rowid(&level->page, cell, &rowid);
        } else {
            scan->depth--;
        }
        if (found)
            look_up(scan, rowid);
    }
    return 0;
}

/* Puts one more page into the queue; 0 at the end, or where the queue is full. */
static int scan_extend(struct scan *scan) {
    uint64_t page;
    if (scan->tail - scan->head == scan->capacity) {
        size_t room = scan->capacity ? 2 * scan->capacity : 1024;
        uint64_t *queue, i;
        if (room > QUEUE)
            return 0;
        queue = malloc(room * sizeof *queue);
        if (!queue)
            return 0;
        for (i = scan->head; i < scan->tail; i++)
            queue[i % room] = scan->queue[i % scan->capacity];
        free(scan->queue);
        scan->queue = queue;
        scan->capacity = room;
    }
    page = scan_next(scan);
    if (!page)
        return 0;
    scan->queue[scan->tail++ % scan->capacity] = page;
    return 1;
}

/* Looks for a page that was read in the entries that come next, and goes on after it. */
static int scan_advance(struct scan *scan, uint64_t page) {
    uint64_t end = scan->given - scan->head > LIST_REACH ? scan->head + LIST_REACH : scan->given, at;
    for (at = scan->head; at < end; at++)
        if ((scan->queue[at % scan->capacity] & ~BROUGHT) == page) {
            if (page & MARK)
                leave_behind(scan, scan->queue[at % scan->capacity]);
            scan->head = at + 1;
            scan->strays = 0;
            return 1;
        }
    return 0;
}

/* Whether an interior page of the table is on the list about where the scan is. */
static int scan_near(const struct scan *scan, uint64_t page) {
    uint64_t at = scan->head > INTERIOR_REACH ? scan->head - INTERIOR_REACH : 0;
    uint64_t end = scan->given - scan->head > INTERIOR_REACH ? scan->head + INTERIOR_REACH : scan->given;
    if (scan->tail > scan->capacity && at < scan->tail - scan->capacity)
        at = scan->tail - scan->capacity;
    for (; at < end; at++)
        if (scan->queue[at % scan->capacity] == page)
            return 1;
    return 0;
}

/* ---- Recognising a scan ---- */

/* Looks for the way down to `leaf` where its parents aren't known. */
static int search(struct book *book, int fd, uint32_t number, uint32_t leaf, uint32_t *path, int depth, int *length,
                  unsigned *budget) {
    struct btree_page page;
    unsigned char *bytes;
    uint32_t i;
    int found = 0;
    if (depth + 1 >= DEPTH || *budget == 0)
        return 0;
    --*budget;
    path[depth] = number;
    if (number == leaf) {
        *length = depth + 1;
        return 1;
    }
    bytes = malloc(book->format.page_size);
    if (!bytes)
        return 0;
    if (read_page(book, fd, number, bytes, &page) && page.kind == BTREE_INDEX_INTERIOR) {
        for (i = 0; i <= page.cells && !found; i++)
            if (btree_child(&page, i) == leaf) {
                path[depth + 1] = leaf;
                *length = depth + 2;
                found = 1;
            }
        for (i = 0; i <= page.cells && !found && *budget > 0; i++) {
            unsigned before = *budget;
            found = search(book, fd, btree_child(&page, i), leaf, path, depth + 1, length, budget);
            /* A child without children of its own: so are all others. */
            if (!found && before - *budget == 1 && i == 0) {
                unsigned char kind;
                uint32_t child = btree_child(&page, 0);
                if (!child || !read_bytes(fd, &kind, 1, offset_of(book, child)) || kind != BTREE_INDEX_INTERIOR)
                    break;
            }
        }
    }
    free(bytes);
    return found;
}

/* The pages from an index's root to `leaf`, both included; 0 if it belongs to no index that is known. */
static int path_to(struct book *book, int fd, uint32_t leaf, uint32_t *path) {
    uint32_t up[DEPTH], number = leaf, i;
    int length = 0, found;
    unsigned budget = SEARCH_PAGES;
    while (length < DEPTH) {
        up[length++] = number;
        if (schema_index(book, number)) {
            for (i = 0; i < (uint32_t)length; i++)
                path[i] = up[length - 1 - (int)i];
            return length;
        }
        number = parents_get(book, number);
        if (!number)
            break;
    }
    for (i = 0; i < book->schema_count && budget > 0; i++)
        if (book->schema[i].type == 'i') {
            found = search(book, fd, book->schema[i].root, leaf, path, 0, &length, &budget);
            if (found)
                return length;
        }
    return 0;
}

/* Makes the scan of which a match says that `rowid`, at the candidate's cursor, was read from the table's page `number`. */
static struct scan *scan_begin(struct foresee *file, const struct candidate *candidate, uint32_t number) {
    struct book *book = file->book;
    const struct schema_entry *index;
    uint32_t path[DEPTH], page;
    int64_t rowid = candidate->rowid[candidate->cursor];
    int length, i;
    struct scan *scan;
    struct stat about;
    struct outrider_stats so_far;
    if (fstat(file->fd, &about) != 0 || !schema_load(book, file->fd))
        return NULL;
    length = path_to(book, file->fd, candidate->leaf, path);
    index = length ? schema_index(book, path[0]) : NULL;
    scan = index ? calloc(1, sizeof *scan) : NULL;
    if (!scan)
        return NULL;
    scan->owner = file;
    scan->index_root = path[0];
    scan->table_root = schema_table(book, index->table);
    scan->direction = candidate->direction < 0 ? -1 : 1;
    scan->index_depth = length;
    scan->allowed = FIRST_ENTRIES;
    scan->steps = (uint64_t)about.st_size / book->format.page_size;
    /* The way down the table must end at the page that was read: that settles which table it is, and its depth. */
    page = scan->table_root;
    scan->table_depth = 1;
    while (page && page != number && scan->table_depth < DEPTH) {
        const struct node *node = node_get(scan, page);
        page = node ? node_child(node, rowid) : 0;
        scan->table_depth++;
    }
    if (!page || page != number)
        goto reject;
    for (i = 0; i < length; i++) {
        struct level *level = &scan->level[i];
        uint32_t child;
        if (!scan_push(scan, path[i]))
            goto reject;
        if (i == length - 1)
            break;
        for (child = 0; child <= level->page.cells && btree_child(&level->page, child) != path[i + 1]; child++) {
        }
        if (child > level->page.cells)
            goto reject;
        level->at = child;
        level->descend = 0;
    }
    if (scan->level[length - 1].page.cells != candidate->count)
        goto reject;
    scan->level[length - 1].at = (uint32_t)(candidate->cursor + (scan->direction > 0 ? 1 : 0));
    scan->last = number;
    scan->dropped = outrider.stats(&so_far, sizeof so_far) == 0 ? so_far.dropped_bytes : UINT64_MAX;
    scan->live = 1;
    return scan;
reject:
    scan_free(scan);
    return NULL;
}

/* Remembers an index leaf that was read. */
static void candidate_put(struct foresee *file, uint32_t number, const unsigned char *bytes) {
    struct candidate *into = &file->candidate[0], *from = NULL;
    struct btree_page page;
    uint32_t i;
    int matches = 0, direction = 0;
    if (!btree_page_parse(&page, &file->book->format, bytes, number) || page.cells == 0)
        return;
    file->leaves++;
    __atomic_store_n(&file->active, 1, __ATOMIC_RELAXED);
    for (i = 0; i < CANDIDATES; i++) {
        struct candidate *one = &file->candidate[i];
        if (one->leaf == number && one->count) {
            into = one;
            break;
        }
        if (one->age < into->age)
            into = one;
    }
    /* Small leaves: what was matched at the end of the last one counts. */
    for (i = 0; i < CANDIDATES; i++)
        if (file->candidate[i].count && file->candidate[i].matches > 0 && file->candidate[i].leaf != number &&
            (!from || file->candidate[i].age > from->age))
            from = &file->candidate[i];
    if (from && !from->rejected && (from->direction >= 0 ? from->cursor + 2 >= from->count : from->cursor <= 1)) {
        matches = from->matches;
        direction = from->direction;
    }
    if (into->room < page.cells) {
        int64_t *more = realloc(into->rowid, page.cells * sizeof *more);
        if (!more)
            return;
        into->rowid = more;
        into->room = page.cells;
    }
    into->count = page.cells;
    for (i = 0; i < page.cells; i++)
        if (!btree_index_rowid(&page, i, &into->rowid[i])) {
            into->count = 0; /* no rowids: an index of a table without them, or keys too long for the page */
            return;
        }
    into->leaf = number;
    into->age = ++file->clock;
    into->matches = matches;
    into->direction = direction;
    into->cursor = direction < 0 ? (int64_t)page.cells : -1;
    into->strays = 0;
    into->rejected = 0;
}

/* Whether the table's leaf with the keys low..=high is what comes next in this index leaf. */
static int candidate_match(struct candidate *one, int64_t low, int64_t high) {
    int64_t i, at = -1;
    int direction = one->direction;
#define HOLDS(k) ((k) >= 0 && (k) < (int64_t)one->count && one->rowid[k] >= low && one->rowid[k] <= high)
    if (one->matches == 0 || (one->direction == 0 && one->cursor < 0)) {
        if (HOLDS(0))
            at = 0;
        else if (HOLDS((int64_t)one->count - 1))
            at = (int64_t)one->count - 1;
        for (i = 1; at < 0 && i < (int64_t)one->count; i++)
            if (HOLDS(i))
                at = i;
    } else {
        for (i = 1; at < 0 && i <= MATCH_REACH; i++) {
            if (one->direction >= 0 && HOLDS(one->cursor + i)) {
                at = one->cursor + i;
                direction = 1;
            } else if (one->direction <= 0 && HOLDS(one->cursor - i)) {
                at = one->cursor - i;
                direction = -1;
            }
        }
    }
#undef HOLDS
    if (at < 0)
        return 0;
    one->cursor = at;
    one->direction = direction;
    one->matches++;
    one->strays = 0;
    one->age++;
    return 1;
}

static int owns(const struct scan *scan, const struct foresee *file) {
    return scan && scan->live && scan->owner == file;
}

/* A table's leaf was read that no scan had foreseen. Returns whether a scan began. */
static int table_read(struct foresee *file, uint32_t number, const unsigned char *bytes) {
    struct book *book = file->book;
    struct btree_page page;
    int64_t low, high;
    unsigned i, k;
    if (!btree_page_parse(&page, &book->format, bytes, number) || page.cells == 0 ||
        !btree_table_key(&page, 0, &low) || !btree_table_key(&page, page.cells - 1, &high))
        return 0;
    for (i = 0; i < CANDIDATES; i++) {
        struct candidate *one = &file->candidate[i];
        struct scan *scan;
        unsigned slot = SCANS;
        if (!one->count || one->rejected)
            continue;
        if (!candidate_match(one, low, high)) {
            if (++one->strays > CANDIDATE_STRAYS)
                one->matches = 0, one->direction = 0, one->cursor = -1, one->strays = 0;
            continue;
        }
        if (one->matches < MATCHES || file->leaves < file->try_from)
            continue;
        scan = scan_begin(file, one, number);
        if (!scan) {
            one->rejected = 1;
            file->penalty = file->penalty < 2048 ? 2 * file->penalty + 1 : file->penalty;
            file->try_from = file->leaves + file->penalty;
            continue;
        }
        file->penalty = 0;
        one->count = 0;
        for (k = 0; k < SCANS; k++) {
            if (owns(book->scan[k], file) && book->scan[k]->index_root == scan->index_root)
                book->scan[k]->live = 0; /* the same statement, anew or elsewhere */
            if (book->scan[k] && !book->scan[k]->live) {
                scan_free(book->scan[k]);
                book->scan[k] = NULL;
            }
            if (!book->scan[k] && slot == SCANS)
                slot = k;
        }
        if (slot == SCANS) {
            scan_free(scan);
            return 0;
        }
        book->scan[slot] = scan;
        __atomic_store_n(&file->scanning, 1, __ATOMIC_RELAXED);
        COUNT(scans, 1);
        return 1;
    }
    return 0;
}

/* ---- The list ---- */

/* outrider_next: what is foreseen for this file, scan by scan in turns. */
static size_t more(void *ctx, struct outrider_access *entries, size_t room) {
    struct book *book = ctx;
    size_t count = 0;
    unsigned idle = 0;
    if (aside)
        return 0;
    pthread_mutex_lock(&book->lock);
    while (count < room && idle < SCANS) {
        struct scan *scan = book->scan[book->turn++ % SCANS];
        unsigned in_turn = 0;
        if (!scan || !scan->live || !book->understood) {
            idle++;
            continue;
        }
        for (; count < room && in_turn < 32; in_turn++) {
            uint64_t page;
            if (scan->given == scan->tail) {
                if (scan->tail >= scan->allowed) {
                    scan->capped = 1;
                    break;
                }
                if (!scan_extend(scan))
                    break;
            }
            page = scan->queue[scan->given++ % scan->capacity];
            entries[count].fd = scan->owner->fd;
            entries[count].flags = page & MARK ? OUTRIDER_MARKED : 0;
            entries[count].offset = offset_of(book, (uint32_t)page);
            entries[count].length = book->format.page_size;
            count++;
        }
        idle = in_turn ? 0 : idle + 1;
    }
    pthread_mutex_unlock(&book->lock);
    COUNT(declared, count);
    return count;
}

/* Has Outrider take the list anew from where each scan is now; without scans it is taken back. Never with the lock held: Outrider
 * calls `more` from within. */
static void list_anew(struct book *book) {
    int fd = -1, before;
    unsigned i;
    pthread_mutex_lock(&book->lock);
    before = book->listed;
    for (i = 0; i < SCANS; i++) {
        struct scan *scan = book->scan[i];
        if (!scan || !scan->live)
            continue;
        scan->given = scan->head;
        scan->capped = 0;
        fd = scan->owner->fd;
    }
    book->listed = fd;
    pthread_mutex_unlock(&book->lock);
    if (fd >= 0) {
        if (outrider.pull(fd, more, book) != 0)
            COUNT(refused, 1);
    } else if (before >= 0) {
        (void)outrider.pull(before, NULL, NULL);
    }
}

/* Ends the scans of one who has the file open. */
static void end_scans(struct foresee *file) {
    struct book *book = file->book;
    unsigned i;
    int changed = 0;
    if (!__atomic_load_n(&file->scanning, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&book->lock);
    for (i = 0; i < SCANS; i++)
        if (book->scan[i] && book->scan[i]->owner == file) { /* dead ones as well */
            scan_free(book->scan[i]);
            book->scan[i] = NULL;
            changed = 1;
        }
    __atomic_store_n(&file->scanning, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&book->lock);
    if (changed)
        list_anew(book);
}

/* ---- What the shim calls ---- */

struct foresee *foresee_open(int fd) {
    struct foresee *file;
    struct book *book;
    struct stat about;
    if (!available || aside || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        return NULL;
    file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->fd = fd;
    pthread_mutex_lock(&books_lock);
    for (book = books; book && (book->device != about.st_dev || book->inode != about.st_ino); book = book->next) {
    }
    if (!book) {
        book = calloc(1, sizeof *book);
        if (!book || pthread_mutex_init(&book->lock, NULL) != 0) {
            pthread_mutex_unlock(&books_lock);
            free(book);
            free(file);
            return NULL;
        }
        book->device = about.st_dev;
        book->inode = about.st_ino;
        book->listed = -1;
        book->next = books;
        books = book;
    }
    book->references++;
    file->book = book;
    pthread_mutex_unlock(&books_lock);
    return file;
}

void foresee_close(struct foresee *file) {
    struct book *book, **link;
    unsigned i;
    int last;
    if (!file || aside)
        return;
    book = file->book;
    end_scans(file);
    pthread_mutex_lock(&books_lock);
    last = --book->references == 0;
    if (last) {
        for (link = &books; *link != book; link = &(*link)->next) {
        }
        *link = book->next;
    }
    pthread_mutex_unlock(&books_lock);
    if (last) {
        free(book->parent_of);
        free(book->parent);
        free(book->schema);
        pthread_mutex_destroy(&book->lock);
        free(book);
    }
    for (i = 0; i < CANDIDATES; i++)
        free(file->candidate[i].rowid);
    free(file);
}

void foresee_reads(struct foresee *file, uint64_t offset, size_t length) {
    if (file && !aside && !outrider.sees_reads && __atomic_load_n(&file->scanning, __ATOMIC_RELAXED))
        (void)outrider.reading(file->fd, offset, length);
}

void foresee_was_read(struct foresee *file, uint64_t offset, const void *bytes, size_t length) {
    struct book *book;
    uint32_t number;
    enum btree_kind kind;
    int anew = 0;
    unsigned i;
    if (!file || aside || length < 100)
        return;
    book = file->book;
    /* Whoever holds the lock may be reading for Outrider: rather than to wait, miss this one. */
    if (pthread_mutex_trylock(&book->lock) != 0)
        return;
    if (offset == 0) {
        struct btree_file format;
        int well = btree_file_parse(&format, bytes);
        if (!well || !book->understood || format.page_size != book->format.page_size ||
            format.usable != book->format.usable) {
            /* Another size of pages: nothing that was learned holds. */
            for (i = 0; i < SCANS; i++)
                if (book->scan[i]) {
                    book->scan[i]->live = 0;
                    anew = 1;
                }
            if (book->parents_room)
                memset(book->parent_of, 0, book->parents_room * sizeof *book->parent_of);
            book->parents = 0;
            book->schema_known = 0;
            book->understood = well;
            if (well)
                book->format = format;
        }
    }
    if (!book->understood || length != book->format.page_size || offset % length != 0 ||
        offset / length >= UINT32_MAX)
        goto out;
    number = (uint32_t)(offset / length) + 1;
    kind = btree_kind_of(bytes, number);
    if (kind == BTREE_INDEX_INTERIOR)
        parents_learn(book, number, bytes);
    if (kind == BTREE_TABLE_INTERIOR || kind == BTREE_TABLE_LEAF)
        COUNT(table_reads, 1);
    if (kind == BTREE_TABLE_INTERIOR) {
        for (i = 0; i < SCANS; i++)
            if (owns(book->scan[i], file) && scan_near(book->scan[i], number)) {
                COUNT(foreseen_reads, 1);
                break;
            }
        goto out;
    }
    if (kind != BTREE_INDEX_LEAF && kind != BTREE_TABLE_LEAF)
        goto out;
    if (__atomic_load_n(&file->scanning, __ATOMIC_RELAXED))
        for (i = 0; i < SCANS; i++) {
            struct scan *scan = book->scan[i];
            if (!owns(scan, file))
                continue;
            if (scan_advance(scan, number | (kind == BTREE_INDEX_LEAF ? MARK : 0))) {
                if (kind == BTREE_TABLE_LEAF)
                    COUNT(foreseen_reads, 1);
                if (scan->capped && 2 * scan->head >= scan->allowed) {
                    scan->allowed = scan->allowed > FIRST_ENTRIES ? UINT64_MAX : scan->allowed * GROWTH;
                    anew = 1;
                }
                goto out;
            }
            if (kind == BTREE_TABLE_LEAF && ++scan->strays > SCAN_STRAYS) {
                scan->live = 0;
                anew = 1;
            }
        }
    if (kind == BTREE_INDEX_LEAF)
        candidate_put(file, number, bytes);
    else
        anew |= table_read(file, number, bytes);
out:
    pthread_mutex_unlock(&book->lock);
    if (anew)
        list_anew(book);
}

void foresee_writes(struct foresee *file, uint64_t offset, const void *bytes, size_t length) {
    struct book *book;
    if (!file || aside || length < 512)
        return;
    book = file->book;
    if (pthread_mutex_trylock(&book->lock) != 0)
        return;
    if (book->understood && length == book->format.page_size && offset % length == 0 &&
        offset / length < UINT32_MAX &&
        btree_kind_of(bytes, (uint32_t)(offset / length) + 1) == BTREE_INDEX_INTERIOR)
        parents_learn(book, (uint32_t)(offset / length) + 1, bytes);
    pthread_mutex_unlock(&book->lock);
}

void foresee_rest(struct foresee *file) {
    unsigned i;
    if (!file || aside || !__atomic_load_n(&file->active, __ATOMIC_RELAXED))
        return;
    end_scans(file);
    __atomic_store_n(&file->active, 0, __ATOMIC_RELAXED);
    pthread_mutex_lock(&file->book->lock);
    for (i = 0; i < CANDIDATES; i++)
        file->candidate[i].count = 0;
    pthread_mutex_unlock(&file->book->lock);
}
