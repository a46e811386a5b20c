/* turns_direct FILE HOW MIB: reads MIB MiB of FILE, has the rest read past the page cache (O_DIRECT) and reads that. HOW it is set: dup (through a duplicate of the
 * descriptor), call (by syscall(2)), child (by another process, which no hook of the reader sees). Prints the sum of all bytes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char *buffer;
static unsigned long sum;

/* Reads that many bytes, or all. */
static int reads(int fd, size_t want)
{
    for (size_t got = 0; got < want;) {
        ssize_t n = read(fd, buffer, 64 << 10);
        if (n <= 0)
            return n;
        for (ssize_t i = 0; i < n; i++)
            sum += buffer[i];
        got += n;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int fd = argc == 4 ? open(argv[1], O_RDONLY) : -1, set = -1, status = 0;
    if (fd < 0 || posix_memalign((void **)&buffer, 64 << 10, 64 << 10) || reads(fd, (size_t)atoi(argv[3]) << 20))
        return 1;
    if (!strcmp(argv[2], "dup"))
        set = fcntl(dup(fd), F_SETFL, O_DIRECT);
    if (!strcmp(argv[2], "call"))
        set = syscall(SYS_fcntl, fd, F_SETFL, O_DIRECT);
    if (!strcmp(argv[2], "child")) {
        if (fork() == 0)
            _exit(fcntl(fd, F_SETFL, O_DIRECT) != 0);
        wait(&status);
        set = status;
    }
    /* The file system has no such reads. */
    if (set != 0)
        return 77;
    if (reads(fd, (size_t)-1))
        return 1;
    printf("%lu\n", sum);
    return 0;
}
