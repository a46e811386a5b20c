/* A shared library: copies blocks of 4 KiB. */
#include <unistd.h>

int copy_blocks(int from, int to, int count)
{
    char b[4096];
    for (int i = 0; i < count; i++)
        if (pread(from, b, sizeof b, i * 4096L) != 4096 || pwrite(to, b, sizeof b, i * 4096L) != 4096)
            return i;
    return count;
}
