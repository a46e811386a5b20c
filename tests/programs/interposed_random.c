/*
 * interposed_random DIR SEED: a random function that makes its calls of the C library while its graph's scope is entered, and beside it
 * one whose scope is bound to a descriptor. After a weak edge it may do something else than its graph says. Prints every result, errno and
 * what was read, and in the end what is in DIR: the same on every engine.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <outrider_graph.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { STEPS = 240, FILES = 4, NAMES = 12, SIZE = 96 * 1024 };

static uint64_t state;

static unsigned below(unsigned n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % n;
}

struct step {
    struct outrider_op op;
    int                weak, ready_at;
    char               path[16], path2[16];
    unsigned char      bytes[600];
};

struct function {
    struct step steps[STEPS];
    int         count, at;
};

static int fds[FILES + 1], names;

static void make_step(struct step *s, int pure)
{
    static const int kinds[] = {OUTRIDER_PREAD, OUTRIDER_PREAD, OUTRIDER_PREAD,   OUTRIDER_READ,    OUTRIDER_READ,     OUTRIDER_LSEEK,
                                OUTRIDER_FSTAT, OUTRIDER_STATX, OUTRIDER_FSTATAT, OUTRIDER_FSTATAT, OUTRIDER_PWRITE,   OUTRIDER_PWRITE,
                                OUTRIDER_FSYNC, OUTRIDER_WRITE, OUTRIDER_MKDIRAT, OUTRIDER_UNLINKAT, OUTRIDER_RENAMEAT, OUTRIDER_OPENAT};
    struct outrider_op *op = &s->op;
    memset(s, 0, sizeof *s);
    op->kind = pure ? kinds[below(3)] : kinds[below(sizeof kinds / sizeof *kinds)];
    op->fd = pure ? fds[FILES] : fds[below(FILES)];
    op->length = 1 + below(sizeof s->bytes);
    op->offset = below(SIZE);
    snprintf(s->path, sizeof s->path, "n%u", below(NAMES));
    snprintf(s->path2, sizeof s->path2, "n%u", below(NAMES));
    switch (op->kind) {
    case OUTRIDER_PWRITE:
    case OUTRIDER_WRITE:
        for (size_t i = 0; i < op->length; i++)
            s->bytes[i] = (unsigned char)below(256);
        op->data = s->bytes;
        if (op->kind == OUTRIDER_WRITE)
            op->offset = 0;
        break;
    case OUTRIDER_READ:
        op->offset = 0;
        break;
    case OUTRIDER_FSTAT:
    case OUTRIDER_FSYNC:
        op->offset = 0;
        op->length = 0;
        break;
    case OUTRIDER_LSEEK:
        op->length = 0;
        op->flags = below(2) ? SEEK_SET : SEEK_CUR;
        break;
    case OUTRIDER_PREAD:
        break;
    default:
        op->fd = names;
        op->path = s->path;
        op->length = 0;
        op->offset = 0;
        op->flags = op->kind == OUTRIDER_FSTATAT ? AT_SYMLINK_NOFOLLOW : 0;
        if (op->kind == OUTRIDER_MKDIRAT)
            op->mode = 0700;
        if (op->kind == OUTRIDER_STATX)
            op->mode = STATX_SIZE | STATX_TYPE;
        if (op->kind == OUTRIDER_UNLINKAT)
            op->flags = below(2) ? AT_REMOVEDIR : 0;
        if (op->kind == OUTRIDER_OPENAT) {
            op->flags = O_CREAT | O_RDWR | (below(3) ? 0 : O_TRUNC);
            op->mode = 0600;
        }
        if (op->kind == OUTRIDER_RENAMEAT) {
            op->fd2 = names;
            op->path2 = s->path2;
        }
    }
    s->weak = below(4) == 0;
    s->ready_at = below(3) == 0 ? 1 + (int)below(5) : STEPS;
}

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct function *f = ctx;
    if (i >= (uint64_t)f->count)
        return OUTRIDER_END;
    const struct step *s = &f->steps[i];
    if ((int)i - f->at > s->ready_at)
        return OUTRIDER_NOT_READY;
    *op = s->op;
    return s->weak ? OUTRIDER_WEAK : OUTRIDER_CALL;
}

static unsigned long hash(const void *p, size_t n)
{
    unsigned long        h = 5381;
    const unsigned char *b = p;
    while (n-- > 0)
        h = h * 33 + *b++;
    return h;
}

static void make(const struct step *s)
{
    const struct outrider_op *op = &s->op;
    unsigned char             b[600];
    struct stat               st;
    struct statx              stx;
    struct iovec              v[2] = {{b, op->length / 2}, {b + op->length / 2, op->length - op->length / 2}};
    long                      r = -1;
    unsigned long             what = 0;
    errno = 77;
    switch (op->kind) {
    case OUTRIDER_PREAD:
        r = op->length % 3 ? pread(op->fd, b, op->length, op->offset) : preadv(op->fd, v, 2, op->offset);
        what = r > 0 ? hash(b, r) : 0;
        break;
    case OUTRIDER_READ:
        r = op->length % 3 ? read(op->fd, b, op->length) : readv(op->fd, v, 2);
        what = r > 0 ? hash(b, r) : 0;
        break;
    case OUTRIDER_LSEEK: r = lseek(op->fd, op->offset, op->flags); break;
    case OUTRIDER_FSTAT:
        r = fstat(op->fd, &st);
        what = r == 0 ? (unsigned long)st.st_size : 0;
        break;
    case OUTRIDER_FSTATAT:
        r = fstatat(op->fd, op->path, &st, op->flags);
        what = r == 0 ? st.st_mode : 0;
        break;
    case OUTRIDER_STATX:
        r = statx(op->fd, op->path, op->flags, op->mode, &stx);
        what = r == 0 ? stx.stx_mode : 0;
        break;
    case OUTRIDER_PWRITE: r = pwrite(op->fd, op->data, op->length, op->offset); break;
    case OUTRIDER_WRITE: r = write(op->fd, op->data, op->length); break;
    case OUTRIDER_FSYNC: r = fsync(op->fd); break;
    case OUTRIDER_MKDIRAT: r = mkdirat(op->fd, op->path, op->mode); break;
    case OUTRIDER_UNLINKAT: r = unlinkat(op->fd, op->path, op->flags); break;
    case OUTRIDER_RENAMEAT: r = renameat(op->fd, op->path, op->fd2, op->path2); break;
    case OUTRIDER_OPENAT:
        r = openat(op->fd, op->path, op->flags, op->mode);
        if (r >= 0)
            r = close((int)r);
        break;
    default: abort();
    }
    printf("%u %ld %d %lx\n", op->kind, r, errno, what);
}

/* What no graph says. */
static void something_else(void)
{
    struct step s;
    int         fd = fds[below(FILES + 1)];
    switch (below(6)) {
    case 0: printf("truncated %d\n", ftruncate(fd, below(SIZE))); break;
    case 1: {
        struct iovec v[2] = {{"abc", 3}, {"defg", 4}};
        printf("pwritev %zd\n", pwritev(fd, v, 2, below(SIZE)));
        break;
    }
    case 2: {
        int copy = dup(fd);
        printf("moved %ld\n", (long)lseek(copy, below(SIZE), SEEK_SET));
        close(copy);
        break;
    }
    default:
        make_step(&s, 0);
        make(&s);
    }
}

static int work(struct function *f)
{
    if (f->at >= f->count)
        return 0;
    int weak = f->at > 0 && f->steps[f->at - 1].weak;
    if (weak && below(6) == 0)
        f->at += below(3);
    /* Not beside the other function: its graph may have promised that nothing comes in between. */
    if (weak && f->count == STEPS && below(6) == 0)
        something_else();
    if (f->at >= f->count || (weak && below(100) == 0))
        return 0;
    make(&f->steps[f->at++]);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3 || chdir(argv[1]) != 0)
        return 2;
    state = strtoull(argv[2], NULL, 10) * 7919 + 1;
    for (int i = 0; i <= FILES; i++) {
        char name[16], bytes[SIZE];
        snprintf(name, sizeof name, "f%d", i);
        fds[i] = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        for (int k = 0; k < SIZE; k++)
            bytes[k] = (char)below(256);
        if (write(fds[i], bytes, SIZE - below(3) * 1000) < 0 || lseek(fds[i], 0, SEEK_SET) != 0)
            return 3;
    }
    mkdir("names", 0700);
    names = open("names", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < NAMES; i += 2) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        close(openat(names, name, O_CREAT | O_WRONLY, 0600));
    }
    static struct function f, g;
    f.count = STEPS;
    g.count = STEPS / 2;
    for (int i = 0; i < f.count; i++)
        make_step(&f.steps[i], 0);
    for (int i = 0; i < g.count; i++)
        make_step(&g.steps[i], 1);
    outrider_graph *all = outrider_graph_generator("all", next, OUTRIDER_AMONG);
    outrider_graph *beside = outrider_graph_generator("beside", next, OUTRIDER_PURE);
    outrider_scope *s = outrider_enter(all, &f), *t = outrider_enter(beside, &g);
    if (outrider_bind(t, fds[FILES]) != 0)
        return 4;
    int more = 1;
    while (more) {
        more = work(&f);
        if (below(3) == 0)
            more |= work(&g);
    }
    int first = below(2);
    outrider_leave(first ? s : t);
    outrider_leave(first ? t : s);
    printf("position %ld\n", (long)lseek(fds[0], 0, SEEK_CUR));
    fflush(stdout);
    char text[16384];
    outrider_graph_report(all, text, sizeof text);
    fputs(text, stderr);
    outrider_graph_report(beside, text, sizeof text);
    fputs(text, stderr);
    return 0;
}
