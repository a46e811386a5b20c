/*
 * What a database's index says will be read next, kept per file.
 *
 * A query that returns rows in the order of a secondary index reads a leaf of the index, then for each of its entries the page
 * of the table that holds the row. Both orders are known: an index entry ends with the rowid, and the interior pages of the
 * table say which leaf holds it. So the shim only has to notice that this is going on, which takes three table pages read in
 * the order of an index leaf, and to find out which index and which table that is. From then on the access list is pulled out of
 * it by Outrider, as far ahead as Outrider has memory for.
 *
 * How far ahead: a statement may end after a few rows (LIMIT, a range). The first list is FIRST_ENTRIES long, and each later one
 * GROWTH times the one before, once half of it was read.
 *
 * Nothing here is ever wrong for the program: what is read here is only used to say what to prefetch. Pages may be
 * changed, torn, or newer in a write-ahead log: then what is foreseen is stale, and only time is lost.
 */
#ifndef OUTRIDER_SQLITE_FORESEE_H
#define OUTRIDER_SQLITE_FORESEE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "outrider.h"

/* The functions of liboutrider that are needed. */
struct foresee_library {
    int (*pull)(int fd, outrider_next next, void *ctx);
    int (*reading)(int fd, uint64_t offset, uint64_t length);
    int (*stats)(struct outrider_stats *stats, size_t size);
    int sees_reads; /* whether the C library's reads of this process go through it */
};

/* What happened so far, in this process. */
struct foresee_counts {
    uint64_t scans;          /* scans by an index that were recognised */
    uint64_t table_reads;    /* pages of tables that SQLite read */
    uint64_t foreseen_reads; /* of these, such as had been declared before */
    uint64_t declared;       /* entries given to Outrider, repeated ones included */
    uint64_t refused;        /* lists that Outrider didn't take */
};

/* One open database file of SQLite. */
struct foresee;

/* Sets the library; without, foresee_open returns NULL. Once, before anything else. */
void foresee_use(const struct foresee_library *library);

/* Follows the file of `fd`, which stays open until foresee_close. NULL: it isn't followed (no memory, no regular file). */
struct foresee *foresee_open(int fd);

/* Ends that; before the descriptor is closed. */
void foresee_close(struct foresee *file);

/* Says that SQLite is about to read. */
void foresee_reads(struct foresee *file, uint64_t offset, size_t length);

/* Says what SQLite read, or is writing. */
void foresee_was_read(struct foresee *file, uint64_t offset, const void *bytes, size_t length);
void foresee_writes(struct foresee *file, uint64_t offset, const void *bytes, size_t length);

/* Says that the connection's read transaction is over. */
void foresee_rest(struct foresee *file);

void foresee_counts(struct foresee_counts *counts);

#endif
