// runs FILE read|fread: reads runs of 160 to 640 KiB of FILE, with seeks over 2 to 5 MB between them. Prints how many bytes it read and a sum of them.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    FILE *f = fopen(argv[1], "r");
    struct stat st;
    if (f == NULL || fstat(fileno(f), &st) != 0)
        return 1;
    int buffered = strcmp(argv[2], "fread") == 0;
    static unsigned char block[16384];
    uint64_t x = 88172645463325252u, sum = 0;
    long total = 0;
    for (long at = 0; at < st.st_size; at += 2000000 + (long)(x >> 20 & 0x2fffff)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if (buffered ? fseek(f, at, SEEK_SET) : lseek(fileno(f), at, SEEK_SET) != at)
            return 1;
        for (long left = 10 + (long)(x % 30); left > 0; left--) {
            long n = buffered ? (long)fread(block, 1, sizeof block, f) : read(fileno(f), block, sizeof block);
            for (long k = 0; k < n; k += 64)
                sum = sum * 31 + block[k];
            total += n;
        }
    }
    printf("%ld %lu\n", total, (unsigned long)sum);
    return 0;
}
