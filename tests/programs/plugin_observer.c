/* A plug-in that tells what it is told of, a line each on standard error; its own calls are told to nobody. */
#include <errno.h>
#include <outrider_plugin.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void say(const char *format, ...)
{
    char    line[256];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (write(2, line, n) < 0)
        return;
    close(-1); /* fails, sets errno, and must not be told of */
}

static void before(const struct outrider_op *op)
{
    if (op->kind == OUTRIDER_CLOSE)
        say("close %d\n", op->fd);
}

static void after(const struct outrider_op *op, int64_t result)
{
    if (op->path != NULL)
        say("%u %s %d\n", op->kind, op->path, result < 0 ? (int)-result : 0);
    else if (op->kind == OUTRIDER_PREAD)
        say("pread %zu at %ld: %ld\n", op->length, (long)op->offset, (long)result);
}

static void duplicated(int fd, int copy) { say("dup %d %d\n", fd, copy); }
static void listing(DIR *stream, int fd) { say("listing %d %d\n", stream != NULL, fd); }
static void closing(DIR *stream, int fd) { say("closing %d %d\n", stream != NULL, fd); }
static void rewound(DIR *stream, int fd) { say("rewound %d %d\n", stream != NULL, fd); }

static void entry(DIR *stream, const struct dirent *e)
{
    (void)stream;
    if (e == NULL || e->d_name[0] != '.')
        say("entry %s\n", e == NULL ? "-" : e->d_name);
}

static const struct outrider_observer observer = {before, after, duplicated, listing, entry, closing, rewound};
static const char *const              programs[] = {"observed", NULL};

OUTRIDER_PLUGIN = {.name = "observer", .programs = programs, .observer = &observer};
