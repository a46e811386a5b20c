/* signals FILE: a timer signal every 200 us whose handler opens, preads and closes while the main
 * loop does the same. Hooks are re-entered at every instruction; errno survives in both. */
#include "hostile.h"

static const char *path;
static volatile sig_atomic_t hits, wrong, lost_errno;
static int shared_fd;

static void handler(int sig)
{
    (void)sig;
    int saved = errno;
    uint64_t state = ++hits;
    errno = 4321;
    int fd = open(path, O_RDONLY);
    long at = mix(&state) % (length - 8192);
    if (fd < 0 || !pread_ok(fd, at, 4096) || !pread_ok(shared_fd, at, 100) || lseek(fd, at, SEEK_SET) != at)
        wrong++;
    char byte;
    if (read(fd, &byte, 1) != 1 || (unsigned char)byte != reference[at] || close(fd) != 0)
        wrong++;
    if (errno != 4321)
        lost_errno++;
    errno = saved;
}

int main(int argc, char **argv)
{
    path = argv[1];
    load_reference(path);
    shared_fd = open(path, O_RDONLY);
    struct sigaction sa = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &sa, NULL);
    struct itimerval every = { { 0, 200 }, { 0, 200 } };
    setitimer(ITIMER_REAL, &every, NULL);
    uint64_t state = 5;
    long position = 0;
    for (int i = 0; i < 60000 || (hits < 500 && i < 2000000); i++) {
        errno = 1234;
        long at = mix(&state) % (length - 8192);
        CHECK(pread_ok(shared_fd, at, 1 + i % 8000));
        unsigned char byte;
        if (i % 16 == 0) { /* the offset of the shared descriptor is the main loop's alone */
            CHECK(read(shared_fd, &byte, 1) == 1 && byte == reference[position]);
            position = lseek(shared_fd, position + 4097, SEEK_SET) % (length - 8192);
            CHECK(lseek(shared_fd, position, SEEK_SET) == position);
        }
        if (i % 64 == 0) {
            int fd = open(path, O_RDONLY);
            CHECK(fd >= 0 && pread_ok(fd, at, 8192) && close(fd) == 0);
        }
        CHECK(errno == 1234);
    }
    struct itimerval never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &never, NULL);
    printf("many signals: %d, wrong reads: %d, errno changed: %d\n", hits >= 500, (int)wrong, (int)lost_errno);
    return wrong || lost_errno;
}
