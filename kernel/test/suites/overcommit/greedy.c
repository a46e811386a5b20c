/* greedy FILE: takes all memory that the kernel commits, to the last page, and then reads the file backwards, which no kernel foresees. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* A stack that has no memory to grow into ends the program: it grows before. */
static __attribute__((noinline)) void grow_stack(void)
{
    volatile char room[64 * PAGE];
    for (size_t at = 0; at < sizeof room; at += PAGE)
        room[at] = 0;
}

int main(int argc, char **argv)
{
    static unsigned char buffer[PAGE];
    unsigned long taken = 0, sum = 0;
    void *first = NULL;
    size_t largest = 0;
    if (argc != 2)
        return 2;
    grow_stack();
    for (size_t part = (size_t)1 << 30; part >= PAGE; part /= 2) {
        void *memory;
        while ((memory = mmap(NULL, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED) {
            taken += part;
            if (first == NULL) {
                first = memory;
                largest = part;
            }
        }
    }
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0)
        return 3;
    for (off_t at = lseek(fd, 0, SEEK_END) / PAGE * PAGE - PAGE; at >= 0; at -= PAGE) {
        if (pread(fd, buffer, PAGE, at) != PAGE)
            return 4;
        for (int i = 0; i < PAGE; i++)
            sum += buffer[i];
    }
    munmap(first, largest); /* what is printed takes memory */
    fprintf(stderr, "%lu MiB taken\n", taken >> 20);
    printf("%lu\n", sum);
    return 0;
}
