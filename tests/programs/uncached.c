/* uncached FILE: reads a file backwards by preadv2(2) with RWF_DONTCACHE, and prints the sum of some bytes, and whether more than an eighth of it is cached then. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

int main(int argc, char **argv)
{
    static unsigned char buffer[64 << 10], cached[1 << 16];
    int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    off_t size = lseek(fd, 0, SEEK_END);
    struct iovec to = {buffer, sizeof buffer};
    unsigned long sum = 0, pages = 0;
    for (off_t at = size - sizeof buffer; at >= 0; at -= sizeof buffer) {
        ssize_t n = preadv2(fd, &to, 1, at, RWF_DONTCACHE);
        if (n < 0) {
            printf("%s\n", strerror(errno));
            return errno != EOPNOTSUPP;
        }
        for (ssize_t i = 0; i < n; i += 64)
            sum += buffer[i];
    }
    /* Whatever else was asked for arrives meanwhile. */
    usleep(300000);
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || size > (off_t)sizeof cached << 12 || mincore(map, size, cached))
        return 1;
    for (off_t i = 0; i < size >> 12; i++)
        pages += cached[i] & 1;
    printf("%lu, %s\n", sum, pages > (unsigned long)(size >> 15) ? "cached" : "not cached");
    return 0;
}
