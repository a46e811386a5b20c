/*
 * libprefetch's interface as printed in its paper (VanDeBogart, Frost, Kohler: Reducing Seek Overhead with
 * Application-Directed Prefetching, USENIX ATC '09, Figures 6 and 7), over outrider.h. Link with -loutrider.
 *
 * An entry is the page of 4096 bytes that contains its offset. The figures name two of an entry's fields differently
 * (pageOffset and page_offset, mark and marked): both names work. Functions return -1 or NULL with errno set where they fail;
 * which errors there are is what outrider.h says of the function that each of them calls.
 */
#ifndef LIBPREFETCH_H
#define LIBPREFETCH_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "outrider.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The paper's loff_t, which strict ISO C hides. */
#ifdef __GLIBC__
typedef __loff_t libprefetch_off;
#else
typedef int64_t libprefetch_off;
#endif

/* Bytes of an entry. */
#define LIBPREFETCH_PAGE 4096

/* One future access. */
struct access_entry {
    __extension__ union {
        libprefetch_off pageOffset; /* of any byte of the page, from the start of the file */
        libprefetch_off page_offset;
    };
    int fd; /* a descriptor open for reading */
    __extension__ union {
        bool mark; /* a landmark: the callback is told which was passed last */
        bool marked;
    };
};

/* Exactly one of the first three is given to request_prefetching, with PF_DONE at the last call of an update. */
#define PF_APPEND        1 /* the list goes on */
#define PF_SET           2 /* the list is replaced */
#define PF_SET_FROM_MARK 4 /* what follows the marked entry that was passed last is replaced */
#define PF_DONE          8 /* the update is complete */

/*
 * Called from within a read when half of the latest update is read and once more when all of it is, and when the program reads
 * within a region but outside the list. Where nothing marked was passed, lastMarkedFD is -1.
 */
typedef void (*callback_t)(void *arg, int lastMarkedFD, libprefetch_off lastMarkedOffset, int requestedFD,
                           libprefetch_off requestedOffset);

typedef struct libprefetch_client *client_t;
typedef struct libprefetch_region *region_t;

/* What stands behind the two handles. Private. */
struct libprefetch_region {
    struct libprefetch_region *next;
    int fd;
    uint64_t start;
};

struct libprefetch_client {
    outrider_client *client;
    callback_t callback;
    void *arg;
    struct libprefetch_region *regions;
    char lock;
};

static inline void libprefetch_lock(client_t c) {
    while (__atomic_test_and_set(&c->lock, __ATOMIC_ACQUIRE)) {
    }
}

static inline void libprefetch_unlock(client_t c) {
    __atomic_clear(&c->lock, __ATOMIC_RELEASE);
}

static inline void libprefetch_call(outrider_client *client, void *ctx, const struct outrider_position *at) {
    client_t c = (client_t)ctx;
    (void)client;
    c->callback(c->arg, at->mark_fd, (libprefetch_off)at->mark_offset, at->fd, (libprefetch_off)at->offset);
}

/* Makes a client. `cb` may be NULL. NULL with errno set where it fails, as outrider_client_new. */
static inline client_t register_client(callback_t cb, void *arg) {
    client_t c = (client_t)calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->callback = cb;
    c->arg = arg;
    c->client = outrider_client_new(cb ? libprefetch_call : NULL, c);
    if (!c->client) {
        int error = errno;
        free(c);
        errno = error;
        return NULL;
    }
    return c;
}

/* Ends a client and its regions, whose handles are no longer valid then. Errors as outrider_client_free. */
static inline int unregister_client(client_t c) {
    if (!c) {
        errno = EINVAL;
        return -1;
    }
    if (outrider_client_free(c->client) != 0)
        return -1;
    while (c->regions) {
        region_t next = c->regions->next;
        free(c->regions);
        c->regions = next;
    }
    free(c);
    return 0;
}

/*
 * Lets the client's list cover the bytes start..end of `fd`. NULL with errno set where it fails, as
 * outrider_region_add; EINVAL as well where not 0 <= start < end.
 */
static inline region_t register_region(client_t c, int fd, libprefetch_off start, libprefetch_off end) {
    region_t r;
    if (!c || start < 0 || end <= start) {
        errno = EINVAL;
        return NULL;
    }
    r = (region_t)calloc(1, sizeof *r);
    if (!r)
        return NULL;
    if (outrider_region_add(c->client, fd, (uint64_t)start, (uint64_t)(end - start)) != 0) {
        int error = errno;
        free(r);
        errno = error;
        return NULL;
    }
    r->fd = fd;
    r->start = (uint64_t)start;
    libprefetch_lock(c);
    r->next = c->regions;
    c->regions = r;
    libprefetch_unlock(c);
    return r;
}

/*
 * Takes a region back; the handle is no longer valid then, whatever is returned, unless that is -1 with EDEADLK (in a
 * callback). ENOENT: not a region of this client. Otherwise as outrider_region_remove, EBADF where its file was closed.
 */
static inline int unregister_region(client_t c, region_t r) {
    region_t *link;
    int fd, result;
    uint64_t start;
    if (!c || !r) {
        errno = EINVAL;
        return -1;
    }
    libprefetch_lock(c);
    for (link = &c->regions; *link && *link != r; link = &(*link)->next) {
    }
    if (!*link) {
        libprefetch_unlock(c);
        errno = ENOENT;
        return -1;
    }
    *link = r->next;
    fd = r->fd;
    start = r->start;
    libprefetch_unlock(c);
    result = outrider_region_remove(c->client, fd, start);
    if (result != 0 && errno == EDEADLK) {
        libprefetch_lock(c);
        r->next = c->regions;
        c->regions = r;
        libprefetch_unlock(c);
        return -1;
    }
    {
        int error = errno;
        free(r);
        errno = error;
    }
    return result;
}

/*
 * Gives `n` accesses that will follow; `type` is PF_SET, PF_APPEND or PF_SET_FROM_MARK, with or without PF_DONE. Returns how
 * many entries were taken: less than n once the list is full. EINVAL: another type. Otherwise as outrider_request.
 */
static inline ssize_t request_prefetching(client_t c, const struct access_entry *a, size_t n, int type) {
    struct outrider_access batch[64];
    size_t taken = 0;
    int how;
    switch (type & ~PF_DONE) {
    case PF_SET:
        how = OUTRIDER_SET;
        break;
    case PF_APPEND:
        how = OUTRIDER_APPEND;
        break;
    case PF_SET_FROM_MARK:
        how = OUTRIDER_SET_FROM_MARK;
        break;
    default:
        how = -1;
    }
    if (!c || how < 0 || (!a && n > 0)) {
        errno = EINVAL;
        return -1;
    }
    do {
        size_t count = 0;
        ssize_t accepted;
        for (; count < sizeof batch / sizeof *batch && taken + count < n; count++) {
            const struct access_entry *entry = &a[taken + count];
            batch[count].fd = entry->fd;
            batch[count].flags = entry->mark ? OUTRIDER_MARKED : 0;
            batch[count].offset = (uint64_t)entry->pageOffset & ~(uint64_t)(LIBPREFETCH_PAGE - 1);
            batch[count].length = LIBPREFETCH_PAGE;
        }
        if (taken + count == n && (type & PF_DONE))
            how |= OUTRIDER_DONE;
        accepted = outrider_request(c->client, batch, count, how);
        if (accepted < 0)
            return taken > 0 ? (ssize_t)taken : -1;
        taken += (size_t)accepted;
        if ((size_t)accepted < count)
            break;
        how = OUTRIDER_APPEND;
    } while (taken < n);
    return (ssize_t)taken;
}

/* From now on what this thread reads does not count for the client's list. Calls nest. Errors as outrider_ignore. */
static inline int ignore_accesses(client_t c) {
    if (!c) {
        errno = EINVAL;
        return -1;
    }
    return outrider_ignore(c->client, 1);
}

/* Ends what ignore_accesses began. */
static inline int unignore_accesses(client_t c) {
    if (!c) {
        errno = EINVAL;
        return -1;
    }
    return outrider_ignore(c->client, 0);
}

#ifdef __cplusplus
}
#endif
#endif
