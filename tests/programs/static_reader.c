/* static_reader FILE: prints the length and a checksum of FILE, twice, and exits with 4. Linked
 * statically (or made set-uid) it is a program that no preloaded library reaches. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    for (int round = 0; round < 2; round++) {
        int fd = open(argv[argc - 1], O_RDONLY);
        if (fd < 0) {
            perror(argv[argc - 1]);
            return 1;
        }
        static unsigned char buf[65536];
        uint64_t sum = 14695981039346656037u, total = 0;
        for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0; total += n)
            for (ssize_t i = 0; i < n; i++)
                sum = (sum ^ buf[i]) * 1099511628211u;
        printf("%llu bytes, %016llx, uid %d euid %d\n", (unsigned long long)total, (unsigned long long)sum,
               (int)getuid(), (int)geteuid());
        close(fd);
    }
    return 4;
}
