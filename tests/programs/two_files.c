/* two_files A B D MIB: holds MIB of memory, reads A backwards and closes it, reads D and writes into its middle, and then reads B,
 * a block at a time and without haste, until standard input ends. Prints "read" when A and D are done with, and at the end a
 * checksum of all that was read. */
#include "hostile.h"
#include <poll.h>

enum { BLOCK = 16384 };
static unsigned char buf[BLOCK];
static uint64_t sum;

static void take(int fd, long at)
{
    CHECK(pread(fd, buf, BLOCK, at) == BLOCK);
    for (int i = 0; i < BLOCK; i++)
        sum = sum * 31 + buf[i];
}

static long size(int fd)
{
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    return st.st_size;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    size_t held = (size_t)atol(argv[4]) << 20;
    char *memory = malloc(held);
    CHECK(memory);
    memset(memory, 1, held);
    int a = open(argv[1], O_RDONLY);
    CHECK(a >= 0);
    for (long at = size(a) - BLOCK; at >= 0; at -= BLOCK)
        take(a, at);
    CHECK(close(a) == 0);
    int d = open(argv[3], O_RDWR);
    CHECK(d >= 0);
    for (long at = size(d) - BLOCK; at >= 0; at -= BLOCK)
        take(d, at);
    memset(buf, 'w', BLOCK);
    for (long at = size(d) / 4; at < size(d) / 2; at += BLOCK)
        CHECK(pwrite(d, buf, BLOCK, at) == BLOCK);
    CHECK(close(d) == 0);
    int b = open(argv[2], O_RDONLY);
    CHECK(b >= 0);
    long at = size(b);
    uint64_t seen = sum, once = 0;
    struct pollfd in = { 0, POLLIN, 0 };
    CHECK(write(1, "read\n", 5) == 5);
    while (poll(&in, 1, 5) == 0) {
        at = at == 0 ? size(b) - BLOCK : at - BLOCK;
        take(b, at);
    }
    sum = 0;
    for (at = size(b) - BLOCK; at >= 0; at -= BLOCK)
        take(b, at);
    once = sum;
    printf("sum %016llx %016llx %d\n", (unsigned long long)seen, (unsigned long long)once, memory[held / 2]);
    return 0;
}
