/*
 * One source, three objects. REDIRECTS: a library that stands before open(2), read(2) and close(2): it leads /nowhere/redirected to the file that the
 * variable REDIRECTED names, and says at the end how often each was called. NEEDED: one that reads that file in its constructor. Otherwise: a
 * program that needs the latter, and reads the file once more.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef REDIRECTS

static int opened, reads, closed;

int open(const char *path, int flags, ...)
{
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    opened++;
    return next(strcmp(path, "/nowhere/redirected") ? path : getenv("REDIRECTED"), flags, mode);
}

ssize_t read(int fd, void *to, size_t bytes)
{
    ssize_t (*next)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    reads++;
    return next(fd, to, bytes);
}

int close(int fd)
{
    int (*next)(int) = dlsym(RTLD_NEXT, "close");
    closed++;
    return next(fd);
}

/* Its own calls count, too. */
__attribute__((constructor)) static void begin(void)
{
    char byte;
    int fd = open("/nowhere/redirected", O_RDONLY);
    if (read(fd, &byte, 1) != 1 || close(fd))
        _exit(3);
}

__attribute__((destructor)) static void end(void)
{
    printf("opened %d, read %d, closed %d\n", opened, reads, closed);
}

#else

void say(const char *who)
{
    char text[64] = "";
    int fd = open("/nowhere/redirected", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    printf("%s: %zd %s\n", who, n, text);
    fflush(stdout);
    if (fd >= 0)
        close(fd);
}

#ifdef NEEDED
__attribute__((constructor)) static void begin(void)
{
    say("needed");
}
void needed(void)
{
}
#else
void needed(void);
int main(void)
{
    needed();
    say("program");
    return 0;
}
#endif
#endif
