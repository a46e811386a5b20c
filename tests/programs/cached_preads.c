// cached_preads FILE READS: reads blocks of 4 KiB in scattered order, again and again.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char block[4096];
    if (argc != 3)
        return 2;
    long reads = atol(argv[2]);
    int fd = open(argv[1], O_RDONLY);
    long blocks = lseek(fd, 0, SEEK_END) / (long)sizeof block;
    for (long i = 0; i < reads; i++)
        if (pread(fd, block, sizeof block, i * 1021 % blocks * (long)sizeof block) != sizeof block)
            return 1;
    return 0;
}
