/* A preload library of somebody else's: wraps read and open by dlsym(RTLD_NEXT), counts, and says at
 * exit what it saw, in the one program named by $PRELOAD_WATCH. Built once per NAME. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int reads, opens;

ssize_t read(int fd, void *buf, size_t n)
{
    static ssize_t (*next)(int, void *, size_t);
    if (!next)
        next = dlsym(RTLD_NEXT, "read");
    reads++;
    return next(fd, buf, n);
}

int open(const char *path, int flags, ...)
{
    static int (*next)(const char *, int, ...);
    if (!next)
        next = dlsym(RTLD_NEXT, "open");
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    opens++;
    return next(path, flags, mode);
}

static int watched(void)
{
    const char *name = getenv("PRELOAD_WATCH");
    return name && strcmp(name, program_invocation_short_name) == 0;
}

__attribute__((destructor)) static void end(void)
{
    if (watched())
        dprintf(2, "%s: %d reads, %d opens\n", NAME, reads, opens);
}
