/*
 * Outrider: tell what will be read, and have it there in time.
 *
 * A program that knows what it will read declares it, as a list of byte ranges in the order of need. Outrider fetches
 * them into the page cache in the order that suits the device, as far ahead as memory allows, follows the program's
 * reads through the list, and gives up first what is needed last. The program goes on reading with its usual calls. A
 * wrong, stale, empty or hostile list costs time, never correctness.
 *
 * Link with -loutrider. Every function is safe to call from several threads. Functions return 0 or a count, or -1 with
 * errno set; what each may set is said with it and in its manual page. None of them blocks on storage, raises a signal or
 * ends the program. Without the right or the memory to prefetch they succeed and nothing is prefetched (see
 * outrider_stats).
 *
 * Descriptors: only seekable regular files are prefetched. A descriptor stays the caller's. Closing the last of those through which a
 * file was declared, and of their duplicates, takes its ranges off all lists; until then a read through any of them is a read of
 * the file. A file stays what it was when it was declared: a number that is used again for another file is another file.
 *
 * Units: offsets and lengths are bytes from the start of the file.
 */
#ifndef OUTRIDER_H
#define OUTRIDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#define OUTRIDER_NOTHROW noexcept
#else
#define OUTRIDER_NOTHROW
#endif

/* A range of a file that will be read. */
struct outrider_range {
    uint64_t offset; /* bytes */
    uint64_t length; /* bytes; 0 is a range that is never read and is left out */
};

/* An entry of an access list. */
struct outrider_access {
    int      fd;     /* a descriptor open for reading */
    uint32_t flags;  /* 0 or OUTRIDER_MARKED */
    uint64_t offset; /* bytes */
    uint64_t length; /* bytes; 0: left out */
};

#define OUTRIDER_MARKED 1u /* a landmark: see outrider_position and OUTRIDER_SET_FROM_MARK */

/* Where a program is in its list; given to callbacks. */
struct outrider_position {
    int      mark_fd;     /* of the latest marked entry that was passed; -1 if none was */
    int      fd;          /* of the read that made the call; -1 if none did */
    uint64_t mark_offset; /* bytes */
    uint64_t offset;      /* bytes */
};

/* ---- The plain form: the whole list is known -------------------------------------------------------------------- */

/*
 * Declares that `ranges` of `fd` will be read, in this order, by the calling process. It replaces what was declared for
 * the same file before; n = 0 takes it back. The ranges are copied. Returns how many ranges were taken: less than n if the
 * list is longer than OUTRIDER_LIST_MAX entries.
 * EBADF: fd is not open for reading. EINVAL: ranges is null with n > 0. ESPIPE: fd is not a seekable regular file.
 * ENOMEM: no memory for the list; EBUSY: the file belongs to a client's region. Nothing is changed then.
 */
ssize_t outrider_declare(int fd, const struct outrider_range *ranges, size_t n) OUTRIDER_NOTHROW;

/*
 * The same, pulled: `next` is called, on the thread that reads or in this call, whenever more of the list is wanted. It
 * fills at most `room` entries, of any files, and returns how many; 0 ends the list. So do calls in a row that return 65536
 * entries without a byte to read in them: empty, past the end of the file, or of what is none of the list's. It may read files; it must not call
 * functions of this header (EDEADLK), nor longjmp out; an exception passes through as one of a callback does. `next` is not
 * called any more once outrider_pull was called with the same fd and a null `next`, or fd was closed; `ctx` must live so
 * long. fd names the list, and must be one of its files.
 * Errors as outrider_declare.
 */
typedef size_t (*outrider_next)(void *ctx, struct outrider_access *entries, size_t room);
int outrider_pull(int fd, outrider_next next, void *ctx);

#define OUTRIDER_LIST_MAX 1048576 /* entries that one list holds; the rest is taken when these were read */

/* ---- Clients: libprefetch's interface (USENIX ATC '09, Figure 6), for byte ranges ------------------------------------- */

typedef struct outrider_client outrider_client;

/*
 * Called from within a read of the calling program (read, pread, readv, preadv, and stdio's) when half of the latest update is
 * read and once more when all of it is, so that what comes next can be fetched meanwhile, and when the program reads within a
 * region but outside the list. It may read files, whose reads then count as ignored, and may call
 * outrider_request on its own client; any other function of this header fails with EDEADLK there. It must not longjmp out of a
 * read; an exception passes through the read that made the call, which is not made then (on x86-64). errno is kept for the read.
 */
typedef void (*outrider_callback)(outrider_client *client, void *ctx, const struct outrider_position *at);

/*
 * Makes a client: a list of its own, regions of its own. `callback` may be null. Calls of one client's callback do not overlap: a
 * thread that would make one while another runs goes on without. A client belongs to the process that made it (after
 * fork the child has none: its calls fail with EINVAL), and serves the reads of all threads.
 * Null with ENOMEM; ENOSPC: 256 clients exist. EDEADLK: within a callback.
 */
outrider_client *outrider_client_new(outrider_callback callback, void *ctx) OUTRIDER_NOTHROW;

/*
 * Ends a client: its list is forgotten and its regions are free. Waits until callbacks of it that run on other threads have
 * returned. EINVAL: not a client. EDEADLK: within a callback.
 */
int outrider_client_free(outrider_client *client) OUTRIDER_NOTHROW;

/*
 * Lets the list of `client` cover `length` bytes of `fd` from `offset` on; length 0 means to the end of the file and all that
 * it grows by. Regions of one process must not overlap.
 * EINVAL: not a client, or the region's end exceeds 2^63 - 1. EBADF, ESPIPE: as outrider_declare. EEXIST: overlaps a region of this or
 * another client or what was declared. ENOSPC: 4096 regions exist. ENOMEM. EDEADLK.
 */
int outrider_region_add(outrider_client *client, int fd, uint64_t offset, uint64_t length) OUTRIDER_NOTHROW;

/* Takes the region that begins at `offset` of `fd` back. ENOENT: there is none of this client. EINVAL. EBADF. EDEADLK. */
int outrider_region_remove(outrider_client *client, int fd, uint64_t offset) OUTRIDER_NOTHROW;

#define OUTRIDER_SET           0  /* the list is replaced */
#define OUTRIDER_APPEND        1  /* the list goes on */
#define OUTRIDER_SET_FROM_MARK 2  /* what follows the latest marked entry that was passed is replaced */
#define OUTRIDER_DONE          16 /* or'ed to one of these: the update is complete (fetching starts), and so is the list unless a
                                     callback adds to it later */

/*
 * Gives `n` accesses that will follow. Returns how many were taken: less than n when the list is full, which also completes
 * the update. Entries outside the client's regions, or beyond the end of a file, or whose descriptor is not open, are taken and
 * left out.
 * EINVAL: not a client, unknown flags in `how` or an entry, or accesses is null with n > 0. ENOMEM. Nothing is changed then.
 */
ssize_t outrider_request(outrider_client *client, const struct outrider_access *accesses, size_t n, int how) OUTRIDER_NOTHROW;

/*
 * From now on reads of the calling thread do not count as progress of `client` nor as leaving its list (on != 0), or do
 * again (on == 0). Calls nest. EINVAL: not a client, or on == 0 without an earlier call of this thread. EDEADLK.
 */
int outrider_ignore(outrider_client *client, int on) OUTRIDER_NOTHROW;

/* ---- Both forms ---------------------------------------------------------------------------------------------------- */

/*
 * Says that `length` bytes of `fd` at `offset` are about to be read, where reads can't be seen: memory maps, direct system
 * calls, io_uring. Harmless where they are seen. EBADF.
 */
int outrider_reading(int fd, uint64_t offset, uint64_t length);

/* What became of what this process declared, so far. */
struct outrider_stats {
    uint64_t declared_bytes; /* in entries that were taken */
    uint64_t cached_bytes;   /* found cached when their turn came */
    uint64_t fetched_bytes;  /* asked for */
    uint64_t used_bytes;     /* fetched, and read by the program while it was there */
    uint64_t evicted_bytes;  /* fetched, and gone before it was read */
    uint64_t dropped_bytes;  /* given up by Outrider: no longer needed, or needed last */
    uint64_t infill_bytes;   /* read through gaps */
    uint64_t rounds;         /* of the reorder buffer, or windows when streaming */
    uint64_t diverged_reads; /* within a region, not in the list */
    uint64_t callbacks;
    uint64_t failures;       /* requests that could not be made */
};

/* Fills `stats`, of `size` bytes (sizeof *stats: later versions may have more). EINVAL: null, or size 0. */
int outrider_stats(struct outrider_stats *stats, size_t size) OUTRIDER_NOTHROW;

/* Waits until what is wanted now was asked for, at most `timeout_ms` (-1: for ever). For tests and tools; programs need it
 * not. ETIMEDOUT. EDEADLK. */
int outrider_settle(int timeout_ms) OUTRIDER_NOTHROW;

/* OUTRIDER_VERSION of the library at run time. */
uint32_t outrider_version(void) OUTRIDER_NOTHROW;
#define OUTRIDER_VERSION 0x000100u /* 0.1.0 */

#ifdef __cplusplus
}
#endif
#endif
