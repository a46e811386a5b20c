#include <unistd.h>

#include "blocks.h"

long sum_blocks(int fd, const long *blocks, int count)
{
    unsigned char bytes[BLOCK];
    long          sum = 0;
    for (int i = 0; i < count; i++) {
        ssize_t n = pread(fd, bytes, BLOCK, blocks[i] * BLOCK);
        if (n < 0)
            return -1;
        while (n > 0)
            sum += bytes[--n];
    }
    return sum;
}
