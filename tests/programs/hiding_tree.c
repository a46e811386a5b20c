/* A FUSE server of a directory of small files, as libfuse's are: an unlinked file that somebody has open stays as .fuse_hidden… until it is closed.
 *
 * hiding_tree MOUNT-POINT FILES US: mounts a file system with the directory box, in which are the files f000, f001, … of 6 KiB, goes into the background, and serves it
 * until it is unmounted. What is cached stays when a file is opened again. Each read takes so many µs, eight of them at a time. The file hidden says how often one was unlinked
 * while it was open. */
#define _GNU_SOURCE
#include "fuse_raw.h"
#include <pthread.h>

enum { ROOT = 1, BOX, HIDDEN, FIRST, MOST = 1000, SIZE = 6 << 10, THREADS = 8 };

static int files, box = 1, times;
static unsigned delay;
/* Of each file whether its name, or the one under which it hides, leads to it, and how often it is open. */
static struct { int linked, hides, open; } file[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct fuse_attr attributes(unsigned long long node)
{
    struct fuse_attr a = {.ino = node, .nlink = 1, .blksize = 4096, .size = node == HIDDEN ? 20 : SIZE, .blocks = SIZE / 512};
    a.mode = node == ROOT || node == BOX ? S_IFDIR | 0755 : S_IFREG | 0644;
    return a;
}

/* The name of the file with this number, if it has one. */
static int name_of(int i, char *name)
{
    sprintf(name, file[i].hides ? ".fuse_hidden%03d" : "f%03d", i);
    return file[i].linked || file[i].hides;
}

static unsigned long long find(unsigned long long dir, const char *name)
{
    char own[30];
    if (dir == ROOT && !strcmp(name, "hidden"))
        return HIDDEN;
    if (dir == ROOT && !strcmp(name, "box") && box)
        return BOX;
    for (int i = 0; i < files && dir == BOX; i++)
        if (name_of(i, own) && !strcmp(name, own))
            return FIRST + i;
    return 0;
}

static size_t list(unsigned long long from, size_t most, char *to)
{
    size_t n = 0;
    for (int i = from; i < files; i++) {
        char name[30];
        if (!name_of(i, name))
            continue;
        if (n + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + strlen(name)) > most)
            break;
        n += entry(to + n, FIRST + i, i + 1, name, S_IFREG);
    }
    return n;
}

/* Everything but reads of files; under the lock. */
static void serve(struct fuse_in_header *h, void *body)
{
    static char buffer[1 << 16];
    unsigned long long node = h->nodeid, found;
    int i = node >= FIRST ? node - FIRST : 0;
    switch (h->opcode) {
    case FUSE_INIT:
        begins(h, FUSE_PARALLEL_DIROPS, 16);
        break;
    case FUSE_LOOKUP:
        if ((found = find(node, body))) {
            struct fuse_entry_out out = {.nodeid = found, .generation = 1, .entry_valid = 100, .attr_valid = 100, .attr = attributes(found)};
            reply(h->unique, 0, &out, sizeof out);
        } else
            reply(h->unique, ENOENT, NULL, 0);
        break;
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 100, .attr = attributes(node)};
        reply(h->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN:
        file[i].open += node >= FIRST;
        /* fall through */
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {.fh = node, .open_flags = node >= FIRST ? FOPEN_KEEP_CACHE : node == HIDDEN ? FOPEN_DIRECT_IO : 0};
        reply(h->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: {
        struct fuse_read_in *in = body;
        int n = snprintf(buffer, 20, "%d\n", times);
        reply(h->unique, 0, buffer, in->offset ? 0 : n);
        break;
    }
    case FUSE_READDIR: {
        struct fuse_read_in *in = body;
        reply(h->unique, 0, buffer, node == BOX ? list(in->offset, in->size < sizeof buffer ? in->size : sizeof buffer, buffer) : 0);
        break;
    }
    case FUSE_RELEASE:
        if (node >= FIRST && --file[i].open == 0)
            file[i].hides = 0;
        reply(h->unique, 0, NULL, 0);
        break;
    case FUSE_UNLINK:
        found = find(node, body);
        i = found - FIRST;
        if (found >= FIRST && file[i].linked) {
            file[i].linked = 0;
            file[i].hides = file[i].open > 0;
            times += file[i].hides;
        }
        reply(h->unique, found >= FIRST ? 0 : ENOENT, NULL, 0);
        break;
    case FUSE_RMDIR: {
        char name[30];
        int left = 0;
        for (i = 0; i < files; i++)
            left |= name_of(i, name);
        box = left;
        reply(h->unique, left ? ENOTEMPTY : 0, NULL, 0);
        break;
    }
    default:
        if (!serve_plain(h))
            reply(h->unique, ENOSYS, NULL, 0);
    }
}

static void *work(void *unused)
{
    static char bytes[SIZE];
    char *request = aligned_alloc(8, 1 << 18);
    for (;;) {
        struct fuse_in_header *h = take(request, 1 << 18);
        struct fuse_read_in *in = (void *)(h + 1);
        if (h->opcode == FUSE_READ && h->nodeid >= FIRST) {
            usleep(delay);
            size_t left = in->offset < SIZE ? SIZE - in->offset : 0;
            reply(h->unique, 0, bytes, left < in->size ? left : in->size);
            continue;
        }
        pthread_mutex_lock(&lock);
        serve(h, h + 1);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 4 || (files = atoi(argv[2])) > MOST)
        return 1;
    delay = atoi(argv[3]);
    for (int i = 0; i < files; i++)
        file[i].linked = 1;
    mount_at(argv[1]);
    for (int i = 1; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
    }
    work(NULL);
}
