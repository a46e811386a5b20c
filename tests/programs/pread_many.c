/* pread_many FILE COUNT pause|- OTHER: reads a quarter of FILE in order, OTHER backwards, COUNT times
 * FILE at random, and FILE as a whole, and prints a checksum of it all. With `pause` it waits for a
 * byte on standard input after the first quarter. Backwards is what the kernel's own readahead does
 * not foresee, so that there is work for us on the fastest disk. */
#include "hostile.h"

int main(int argc, char **argv)
{
    int fd = open(argv[1], O_RDONLY);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    uint64_t sum = 0, state = 11;
    unsigned char buf[65536];
    ssize_t n;
    for (long at = 0; at < st.st_size / 4 && (n = read(fd, buf, sizeof buf)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++)
            sum = sum * 31 + buf[i];
    if (argc < 5)
        return 2;
    if (strcmp(argv[3], "pause") == 0) {
        char go;
        CHECK(write(1, "ready\n", 6) == 6 && read(0, &go, 1) == 1);
    }
    int other = open(argv[4], O_RDONLY);
    for (long at = lseek(other, 0, SEEK_END) - 16384; at >= 0; at -= 16384) {
        CHECK(pread(other, buf, 16384, at) == 16384);
        for (int i = 0; i < 16384; i++)
            sum = sum * 31 + buf[i];
    }
    for (long i = 0; i < atol(argv[2]); i++) {
        long at = mix(&state) % (st.st_size - 4096);
        CHECK(pread(fd, buf, 64, at) == 64);
        for (int k = 0; k < 64; k++)
            sum = sum * 31 + buf[k];
    }
    int again = open(argv[1], O_RDONLY);
    for (; (n = read(again, buf, sizeof buf)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            sum = sum * 31 + buf[i];
    printf("sum %016llx\n", (unsigned long long)sum);
    return 0;
}
