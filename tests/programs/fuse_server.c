/* A FUSE server without a library, for what libfuse's users see and for servers that misbehave.
 *
 * fuse_server MOUNT-POINT [WORD]...: mounts a file system with the file box/f and the file stats, goes into the background, and serves it until it is unmounted.
 * Words: size=MIB (64), delay=US (each read), direct (reads of f go past the page cache), keep (what is cached stays when f is opened again), hide (as libfuse
 * does, an unlinked file that is open stays as .fuse_hidden until it is closed), once (an open while f is open fails), stall (is never answered),
 * hang=OPCODE (is never answered, of f).
 * stats is one line: opens of f, the most at one time, those now, reads, bytes read, requests that were not answered, times that f's attributes were asked for. Opening it with O_TRUNC is not needed: the
 * file reset sets all to zero when it is opened. */
#define _GNU_SOURCE
#include "fuse_raw.h"

enum { ROOT = 1, BOX, FILE_F, STATS, RESET };

static unsigned long long size = 64ull << 20;
static unsigned delay;
static int direct, keep, hide, once, stall, hang;
static int linked = 1, hidden, box = 1;
static long opens, now, most, reads, unanswered, asked;
static unsigned long long bytes;
static char buffer[1 << 20];

static struct fuse_attr attributes(unsigned long long node)
{
    struct fuse_attr a = {.ino = node, .nlink = 1, .blksize = 4096};
    a.mode = node == ROOT || node == BOX ? S_IFDIR | 0755 : S_IFREG | 0644;
    if (node == FILE_F)
        a.size = size, a.blocks = size / 512, a.nlink = linked;
    return a;
}

static unsigned long long find(unsigned long long dir, const char *name)
{
    if (dir == ROOT && !strcmp(name, "box") && box)
        return BOX;
    if (dir == ROOT && !strcmp(name, "stats"))
        return STATS;
    if (dir == ROOT && !strcmp(name, "reset"))
        return RESET;
    if (dir == BOX && !strcmp(name, linked ? "f" : ".fuse_hidden1") && (linked || hidden))
        return FILE_F;
    return 0;
}

static size_t list(unsigned long long dir, unsigned long long from, char *to)
{
    static const char *in_root[] = {"box", "stats", "reset"};
    size_t n = 0;
    for (unsigned long long i = from; i < 3; i++) {
        const char *name = dir == ROOT ? in_root[i] : i ? NULL : linked ? "f" : hidden ? ".fuse_hidden1" : NULL;
        if (!name || !find(dir, name))
            continue;
        n += entry(to + n, find(dir, name), i + 1, name, attributes(find(dir, name)).mode);
    }
    return n;
}

static void serve(struct fuse_in_header *h, void *body)
{
    unsigned long long node = h->nodeid, found;
    if ((int)h->opcode == hang && node == FILE_F) {
        unanswered++;
        return;
    }
    switch (h->opcode) {
    case FUSE_INIT:
        begins(h, FUSE_BIG_WRITES, 12);
        break;
    case FUSE_LOOKUP:
        if ((found = find(node, body))) {
            struct fuse_entry_out out = {.nodeid = found, .generation = 1, .attr = attributes(found)};
            reply(h->unique, 0, &out, sizeof out);
        } else
            reply(h->unique, ENOENT, NULL, 0);
        break;
    case FUSE_GETATTR: {
        asked += node == FILE_F;
        struct fuse_attr_out out = {.attr = attributes(node)};
        reply(h->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: {
        struct fuse_open_out out = {.fh = node};
        if (node == FILE_F) {
            if (once && now) {
                reply(h->unique, EBUSY, NULL, 0);
                break;
            }
            if (stall && now) {
                unanswered++;
                break;
            }
            opens++;
            most = ++now > most ? now : most;
            out.open_flags = (direct ? FOPEN_DIRECT_IO : 0) | (keep ? FOPEN_KEEP_CACHE : 0);
        } else
            out.open_flags = FOPEN_DIRECT_IO;
        if (node == RESET)
            opens = most = reads = bytes = asked = 0;
        reply(h->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {.fh = node};
        reply(h->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: {
        struct fuse_read_in *in = body;
        if (node != FILE_F) {
            int n = snprintf(buffer, 300, "opens %ld most %ld now %ld reads %ld bytes %llu unanswered %ld asked %ld\n", opens, most, now, reads, bytes, unanswered, asked);
            n = in->offset >= (unsigned)n ? 0 : n - in->offset;
            reply(h->unique, 0, buffer + in->offset, n < (int)in->size ? n : (int)in->size);
            break;
        }
        unsigned long long n = in->offset >= size ? 0 : size - in->offset < in->size ? size - in->offset : in->size;
        if (delay)
            usleep(delay);
        for (unsigned long long i = 0; i < n; i++)
            buffer[i] = (in->offset + i) * 2654435761u >> 13;
        reads++;
        bytes += n;
        reply(h->unique, 0, buffer, n);
        break;
    }
    case FUSE_READDIR: {
        struct fuse_read_in *in = body;
        reply(h->unique, 0, buffer, list(node, in->offset, buffer));
        break;
    }
    case FUSE_RELEASE:
        if (node == FILE_F && --now == 0)
            hidden = 0;
        reply(h->unique, 0, NULL, 0);
        break;
    case FUSE_UNLINK:
        if (node != BOX || !linked || strcmp(body, "f")) {
            reply(h->unique, EPERM, NULL, 0);
            break;
        }
        linked = 0;
        hidden = hide && now;
        reply(h->unique, 0, NULL, 0);
        break;
    case FUSE_RMDIR:
        if (linked || hidden)
            reply(h->unique, ENOTEMPTY, NULL, 0);
        else
            box = 0, reply(h->unique, 0, NULL, 0);
        break;
    default:
        if (!serve_plain(h))
            reply(h->unique, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv)
{
    static char request[1 << 18] __attribute__((aligned(8)));
    for (int i = 2; i < argc; i++) {
        direct |= !strcmp(argv[i], "direct");
        keep |= !strcmp(argv[i], "keep");
        hide |= !strcmp(argv[i], "hide");
        once |= !strcmp(argv[i], "once");
        stall |= !strcmp(argv[i], "stall");
        unsigned long n = strchr(argv[i], '=') ? strtoul(strchr(argv[i], '=') + 1, NULL, 10) : 0;
        if (!strncmp(argv[i], "size=", 5))
            size = (unsigned long long)n << 20;
        if (!strncmp(argv[i], "delay=", 6))
            delay = n;
        if (!strncmp(argv[i], "hang=", 5))
            hang = n;
    }
    if (argc < 2)
        return 1;
    mount_at(argv[1]);
    for (;;) {
        struct fuse_in_header *h = take(request, sizeof request);
        serve(h, h + 1);
    }
}
