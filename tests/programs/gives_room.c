/* Gives the room of a file back while it is being read, in several ways, and looks each time whether it is free.
 *
 * gives_room FILE: writes 12 MiB to FILE, reads a part of that backwards, cold, and takes it away. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MIB = 1 << 20, SIZE = 12 * MIB, STEP = 32 << 10 };

static const char *const ways[] = {"close, unlink", "unlink, close", "close, unlinkat", "close, rename", "close, remove", "close, by number"};

static long free_bytes(const char *path)
{
    struct statfs st;
    if (statfs(path, &st))
        exit(1);
    return (long)st.f_bfree * st.f_bsize;
}

int main(int argc, char **argv)
{
    static char buffer[MIB], other[4096];
    if (argc < 2)
        return 1;
    snprintf(other, sizeof other, "%s.other", argv[1]);
    for (int i = 0; i < 12; i++) {
        int way = i % 6, fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
        memset(buffer, i + 1, sizeof buffer);
        for (int at = 0; at < SIZE; at += MIB)
            if (write(fd, buffer, MIB) != MIB)
                return 1;
        if (way == 3)
            close(open(other, O_RDWR | O_CREAT, 0600));
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
        long before = free_bytes(argv[1]);
        fd = open(argv[1], O_RDONLY);
        for (int at = SIZE - STEP; at >= SIZE / 2; at -= STEP)
            if (pread(fd, buffer, STEP, at) != STEP || buffer[0] != (char)(i + 1))
                return 1;
        if (way != 1)
            close(fd);
        switch (way) {
        case 0:
        case 1:
            unlink(argv[1]);
            break;
        case 2:
            unlinkat(AT_FDCWD, argv[1], 0);
            break;
        case 3:
            rename(other, argv[1]);
            break;
        case 4:
            remove(argv[1]);
            break;
        default:
            syscall(SYS_unlinkat, AT_FDCWD, argv[1], 0);
        }
        if (way == 1)
            close(fd);
        char dir[4096];
        snprintf(dir, sizeof dir, "%s", argv[1]);
        *strrchr(dir, '/') = 0;
        long given = free_bytes(dir) - before;
        printf("%s: %s\n", ways[way], given >= SIZE - MIB ? "free" : "held");
        fflush(stdout);
        unlink(argv[1]);
    }
    return 0;
}
