/* FILE: signal handlers that read what was declared while the program waits for the sweep that brings it. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>

enum { BLOCK = 4096 };

static int fd;
static char *truth;
static uint64_t size;
static volatile sig_atomic_t reads, during;
static volatile unsigned seed = 1;

static void tick(int signal)
{
    (void)signal;
    read_somewhere(fd, truth, size, &seed);
    during += reads;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    size = size_of(fd);
    CHECK((truth = malloc(size)) && pread(fd, truth, size, 0) == (ssize_t)size);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    char buf[BLOCK];
    uint64_t s = 0;
    /* The program's own reads, nearly all of which wait, are to be met by so many. */
    while (during < 300) {
        size_t n;
        make_cold(fd);
        struct outrider_range *list = shuffled(size, BLOCK, &n);
        CHECK(outrider_declare(fd, list, n) == (ssize_t)n && setitimer(ITIMER_REAL, &often, 0) == 0);
        s = 0;
        for (size_t i = 0; i < n; i++) {
            reads = 1;
            CHECK(pread(fd, buf, BLOCK, list[i].offset) == BLOCK);
            reads = 0;
            CHECK(!memcmp(buf, truth + list[i].offset, BLOCK));
            s += sum(0, buf, BLOCK);
        }
        CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
        CHECK(outrider_settle(60000) == 0 && outrider_declare(fd, 0, 0) == 0);
        free(list);
    }
    printf("%llx\n", (unsigned long long)s);
    return 0;
}
