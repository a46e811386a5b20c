/*
 * GNU cp: the next blocks of a file, and of the files after it, are on their way while the current ones are copied.
 *
 *     outrider run --plugin outrider_cp.so -- cp -r DIR COPY
 *
 * cp copies one file after the other, in the order of a directory's inodes: by copy_file_range(2) within a file system, else by reads and
 * writes of 128 KiB. Neither tells the kernel more than the readahead of one file, which ends with the file. What is asked for here goes
 * to the page cache only; cp makes all of its calls itself, so a copy is what it would be without. Files with holes are left to cp, which
 * skips them; so are files of more than a mebibyte where the kernel reads that far ahead by itself: its own read-ahead takes large folios, and
 * single pages for what it is asked for, which cost the copy half as much processor time again. Files that are cached cost a look at
 * their first and every further mebibyte.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "outrider_plugin.h"

/* Bytes that are asked for ahead of cp: what a device of 1 GB/s has under way in 8 ms. */
#define WINDOW (8ll << 20)
/* Bytes between two looks ahead. */
#define STEP (1ll << 20)
/* Bytes that the kernel takes in one piece, whatever the device's readahead is. */
#define PIECE (128ll << 10)
/* The kernel's read-ahead from which on a file is left to it, KiB. */
#define FAR_KIB 1024
/* Files that are asked for ahead of cp. */
#define FILES 16
/* Directories within each other; those deeper are copied without a look ahead. */
#define DEEPEST 64

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct name {
    uint64_t inode;
    char    *text;
    off_t    asked; /* bytes from its start; -1: it is not to be asked for */
};

/* A directory that cp has listed. */
struct directory {
    DIR         *stream; /* null: the listing is over */
    char        *path;
    struct name *names;
    size_t       count, room;
    size_t       done; /* names before it have had their turn */
};

static struct directory stack[DEEPEST];
static size_t           depth;

/* The file that is being copied. */
static struct {
    int               fd; /* -1: none */
    off_t             size, at, asked;
    struct directory *of; /* null: it was named by the user */
    size_t            index;
} current = {.fd = -1};

/* cp has one thread; should another program have more, they are left alone. */
static pid_t owner;

static int is_cached(int fd, off_t from, off_t bytes)
{
    struct { uint64_t off, len; } range = {from, bytes};
    struct { uint64_t cache, dirty, writeback, evicted, recent; } stat;
    static long page;
    if (!page)
        page = sysconf(_SC_PAGESIZE);
    if (syscall(SYS_cachestat, fd, &range, &stat, 0) != 0)
        return 0;
    uint64_t first = from / page, last = (from + bytes - 1) / page;
    return stat.cache >= last - first + 1;
}

/* Asks for the bytes from..to of a file of `size`; nothing for what is cached. Whether anything was asked for. */
static int ask(int fd, off_t from, off_t to)
{
    int asked = 0;
    while (from < to) {
        off_t end = from + STEP < to ? from + STEP : to;
        if (!is_cached(fd, from, end - from)) {
            for (off_t at = from; at < end; at += PIECE)
                posix_fadvise(fd, at, end - at < PIECE ? end - at : PIECE, POSIX_FADV_WILLNEED);
            asked = 1;
        }
        from = end;
    }
    return asked;
}

/* Whether the kernel reads far ahead on a file system's device. sysfs is asked once for each that follows another. */
static int reads_far_ahead(dev_t device)
{
    static const char *const forms[] = {"/sys/dev/block/%u:%u/queue/read_ahead_kb", "/sys/dev/block/%u:%u/../queue/read_ahead_kb"};
    static dev_t             asked;
    static int               far;
    if (device == asked)
        return far;
    asked = device;
    far = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char path[80], text[16];
        snprintf(path, sizeof path, forms[i], major(device), minor(device));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        far = atol(text) >= FAR_KIB;
        break;
    }
    return far;
}

static int is_left_to_cp(const struct stat *st)
{
    int has_holes = st->st_blocks * 512ll < st->st_size;
    return has_holes || (st->st_size > STEP && reads_far_ahead(st->st_dev));
}

/* Asks for the files after the current one, for `bytes` in all. */
static void ask_next(off_t bytes)
{
    struct directory *d = current.of;
    for (size_t i = current.index + 1; d && i < d->count && i <= current.index + FILES && bytes > 0; i++) {
        struct name *n = &d->names[i];
        char         path[PATH_MAX];
        struct stat  st;
        if (n->asked != 0) {
            bytes -= n->asked > 0 ? n->asked : 0;
            continue;
        }
        n->asked = -1;
        if (snprintf(path, sizeof path, "%s/%s", d->path, n->text) >= (int)sizeof path)
            continue;
        int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && !is_left_to_cp(&st)) {
            off_t end = st.st_size < bytes ? st.st_size : bytes;
            int   cold = ask(fd, 0, end);
            n->asked = end;
            bytes -= end;
            if (!cold)
                bytes = 0;
        }
        close(fd);
    }
}

/* Looks ahead from where the copy is, unless what is asked for lasts for a while yet. */
static void look_ahead(void)
{
    if (current.fd < 0 || current.asked < 0 || current.asked - current.at > WINDOW - STEP)
        return;
    off_t end = current.at + WINDOW < current.size ? current.at + WINDOW : current.size;
    off_t begin = current.asked > current.at ? current.asked : current.at;
    int   cold = begin < end && ask(current.fd, begin, end);
    if (begin < end)
        current.asked = end;
    if (current.asked >= current.size) {
        /* What follows is asked for once the file's end is; a cached file says nothing of the next. */
        if (cold || current.at + STEP >= current.size)
            ask_next(current.at + WINDOW - current.size);
    }
}

static void forget(struct directory *d)
{
    for (size_t i = 0; i < d->count; i++)
        free(d->names[i].text);
    free(d->names);
    free(d->path);
    memset(d, 0, sizeof *d);
}

/* Finds a file that cp opens in the directories that it is in. */
static void find(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    current.of = NULL;
    for (size_t n = depth; n > 0; n--) {
        struct directory *d = &stack[n - 1];
        for (size_t i = d->done; i < d->count; i++) {
            if (strcmp(d->names[i].text, base) == 0) {
                while (depth > n)
                    forget(&stack[--depth]);
                d->done = i + 1;
                current.of = d;
                current.index = i;
                return;
            }
        }
    }
}

static void opened(const struct outrider_op *call, int fd)
{
    struct stat st;
    if ((call->flags & (O_ACCMODE | O_DIRECTORY | O_CREAT)) != O_RDONLY || !call->path)
        return;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return;
    current.fd = fd;
    current.size = st.st_size;
    current.at = current.asked = 0;
    find(call->path);
    if (current.of && current.of->names[current.index].asked > 0)
        current.asked = current.of->names[current.index].asked;
    if (is_left_to_cp(&st))
        current.asked = -1;
    else if (current.asked == 0 && is_cached(fd, 0, st.st_size < STEP ? st.st_size : STEP))
        /* It is looked at again a step before the window's end. */
        current.asked = st.st_size < WINDOW ? st.st_size : WINDOW;
    else
        look_ahead();
}

static int mine(void) { return gettid() == owner; }

static void before(const struct outrider_op *call)
{
    if (call->kind == OUTRIDER_CLOSE && call->fd == current.fd && mine())
        current.fd = -1;
}

static void after(const struct outrider_op *call, int64_t result)
{
    if (result < 0)
        return;
    if (call->kind == OUTRIDER_READ && call->fd == current.fd && mine()) {
        current.at += result;
        look_ahead();
    } else if (call->kind == OUTRIDER_OPENAT && mine()) {
        opened(call, (int)result);
    }
}

static void listing(DIR *stream, int fd)
{
    char proc[32], path[PATH_MAX];
    if (!mine() || depth == DEEPEST)
        return;
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(proc, path, sizeof path - 1);
    if (n <= 0)
        return;
    path[n] = 0;
    struct directory *d = &stack[depth];
    d->path = strdup(path);
    if (!d->path)
        return;
    d->stream = stream;
    depth++;
}

static struct directory *listed(DIR *stream)
{
    return depth > 0 && stack[depth - 1].stream == stream && mine() ? &stack[depth - 1] : NULL;
}

static void entry(DIR *stream, const struct dirent *e)
{
    struct directory *d = listed(stream);
    if (!d || !e || (e->d_type != DT_REG && e->d_type != DT_UNKNOWN))
        return;
    if (d->count == d->room) {
        size_t       room = d->room ? 2 * d->room : 256;
        struct name *names = realloc(d->names, room * sizeof *names);
        if (!names)
            return;
        d->names = names;
        d->room = room;
    }
    char *text = strdup(e->d_name);
    if (text)
        d->names[d->count++] = (struct name){e->d_ino, text, 0};
}

static int by_inode(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    return (x->inode > y->inode) - (x->inode < y->inode);
}

static void closing(DIR *stream, int fd)
{
    struct directory *d = listed(stream);
    (void)fd;
    if (!d)
        return;
    d->stream = NULL;
    if (d->count > 0)
        qsort(d->names, d->count, sizeof *d->names, by_inode);
}

/* cp asks for a whole file at once. It gets a whole file, in pieces between which there is a look ahead. */
__attribute__((visibility("default"))) ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t n,
                                                               unsigned flags)
{
    static ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned);
    if (!real)
        real = (ssize_t (*)(int, off64_t *, int, off64_t *, size_t, unsigned))OUTRIDER_NEXT("copy_file_range");
    if (!real) {
        errno = ENOSYS;
        return -1;
    }
    if (from != current.fd || from_at || to_at || flags || current.asked < 0 || !mine())
        return real(from, from_at, to, to_at, n, flags);
    ssize_t done = 0;
    while (n > 0) {
        look_ahead();
        ssize_t r = real(from, NULL, to, NULL, n < (size_t)STEP ? n : (size_t)STEP, 0);
        if (r < 0)
            return done ? done : r;
        if (r == 0)
            break;
        done += r;
        n -= r;
        current.at += r;
    }
    return done;
}

static int start(void)
{
    owner = gettid();
    return 0;
}

static const struct outrider_observer observer = {
    .before = before,
    .after = after,
    .listing = listing,
    .entry = entry,
    .closing = closing,
};

static const char *const programs[] = {"cp", NULL};

OUTRIDER_PLUGIN = {.name = "cp", .programs = programs, .start = start, .observer = &observer};
