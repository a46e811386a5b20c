/*
 * sums FILE [BLOCK …]: adds up the bytes of blocks of 4 KiB, all of them if none is named. It knows nothing of Outrider: the graph of
 * its function sum_blocks is in graph.c, and the linker puts it around the calls (-Wl,--wrap=sum_blocks).
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "blocks.h"

int main(int argc, char **argv)
{
    int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0) {
        fprintf(stderr, "sums FILE [BLOCK ...]: %s\n", argc > 1 ? "cannot open the file" : "a file is missing");
        return 2;
    }
    struct stat st;
    int         count = argc - 2;
    if (count == 0 && fstat(fd, &st) == 0)
        count = (int)((st.st_size + BLOCK - 1) / BLOCK);
    long *blocks = calloc(count + 1, sizeof *blocks);
    for (int i = 0; i < count; i++)
        blocks[i] = argc > 2 ? atol(argv[i + 2]) : i;
    printf("%ld\n", sum_blocks(fd, blocks, count));
    free(blocks);
    return 0;
}
