/* privileged FILE: declares and reads parts of a file, and says whether any memory of the service's is mapped. Linked with -loutrider. */
#include <fcntl.h>
#include <outrider.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    int fd = open(arguments[1], O_RDONLY);
    struct outrider_range ranges[] = {{0, 65536}, {1 << 20, 65536}};
    int declared = outrider_declare(fd, ranges, 2);
    outrider_settle(5000);
    static char bytes[65536];
    ssize_t n = pread(fd, bytes, sizeof bytes, 0) + pread(fd, bytes, sizeof bytes, 1 << 20);
    for (long at = 2 << 20; pread(fd, bytes, sizeof bytes, at) > 0; at += sizeof bytes)
        ;
    int mapped = 0;
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        mapped += strstr(line, "memfd:") != NULL;
    printf("declared %d, read %zd, %s\n", declared, n, mapped ? "attached" : "alone");
    return 0;
}
