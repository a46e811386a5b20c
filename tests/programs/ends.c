/* Reads a file from its beginning on and ends in some way while it has it.
 *
 * ends FILE WAY [MIB [HOW]]: reads MIB MiB (1) in 32 KiB, HOW is back: backwards from there, slow: with a pause of 50 ms after each
 * MiB, or blind: without asking how large it is (all of MIB are there). WAY: close (and exit), hush (close,
 * then standard output, and exit), exit, _exit, quick (quick_exit), kill (by SIGKILL), number and alone (exit_group(2)
 * and exit(2) by syscall(2)), exec (true; the descriptor is
 * closed by that), map (maps the file, closes it, reads the mapping, exits). Prints the sum of all bytes. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static unsigned char buffer[32 << 10];
    struct stat st;
    unsigned long sum = 0;
    size_t want = (size_t)(argc > 3 ? atoi(argv[3]) : 1) << 20;
    int fd = argc > 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    const char *way = argc > 2 ? argv[2] : "", *how = argc > 4 ? argv[4] : "";
    st.st_size = want;
    if (fd < 0 || strcmp(how, "blind") && fstat(fd, &st)) {
        perror(argv[1]);
        return 1;
    }
    if (want > (size_t)st.st_size)
        want = st.st_size;
    if (!strcmp(way, "map")) {
        unsigned char *at = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (at == MAP_FAILED)
            return 1;
        for (size_t i = 0; i < want; i += 512)
            sum += at[i];
    } else
        for (size_t got = 0; got < want;) {
            ssize_t n = !strcmp(how, "back") ? pread(fd, buffer, sizeof buffer, want - got - sizeof buffer) : read(fd, buffer, sizeof buffer);
            if (n <= 0)
                return 1;
            for (ssize_t i = 0; i < n; i++)
                sum += buffer[i];
            got += n;
            if (!strcmp(how, "slow") && got % (1 << 20) == 0)
                usleep(50000);
        }
    if (!strcmp(way, "close") || !strcmp(way, "hush"))
        close(fd);
    printf("%lu\n", sum);
    fflush(stdout);
    if (!strcmp(way, "hush"))
        fclose(stdout);
    if (!strcmp(way, "_exit"))
        _exit(0);
    if (!strcmp(way, "quick"))
        quick_exit(0);
    if (!strcmp(way, "number"))
        syscall(SYS_exit_group, 0);
    if (!strcmp(way, "alone"))
        syscall(SYS_exit, 0);
    if (!strcmp(way, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(way, "exec"))
        execlp("true", "true", (char *)NULL);
    exit(0);
}
