/* FILE: signal handlers that interrupt malloc and read what was declared, while another thread declares it anew: the library's calls wait for
 * nothing that the interrupted thread may hold. */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

enum { BLOCK = 4096, READS = 5000 };

static int fd;
static char *truth;
static uint64_t size;
static atomic_uint reads, inside;
static volatile sig_atomic_t in_malloc;
static volatile unsigned seed = 1;

static void tick(int signal)
{
    (void)signal;
    read_somewhere(fd, truth, size, &seed);
    inside += in_malloc;
    reads++;
}

static void *declares(void *unused)
{
    size_t n;
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, 0) == 0);
    struct outrider_range *list = shuffled(size, BLOCK, &n);
    while (reads < READS) {
        CHECK(outrider_declare(fd, list, n) == (ssize_t)n);
        int other = dup(fd);
        CHECK(other >= 0 && close(other) == 0);
        CHECK(outrider_declare(fd, 0, 0) == 0);
    }
    free(list);
    return unused;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (fd = open(argv[1], O_RDONLY)) >= 0);
    size = size_of(fd);
    CHECK((truth = malloc(size)) && pread(fd, truth, size, 0) == (ssize_t)size);
    /* All threads allocate from one arena, whose lock is the one that is held when a handler comes. */
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, declares, 0) == 0);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, 0) == 0 && setitimer(ITIMER_REAL, &often, 0) == 0);
    while (reads < READS) {
        /* Beyond what a thread keeps for itself, so that the arena is entered. */
        in_malloc = 1;
        void *volatile p = malloc(2000 + seed % 4096);
        free(p);
        in_malloc = 0;
    }
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0 && pthread_join(thread, 0) == 0);
    CHECK(inside > 0);
    puts("read");
    return 0;
}
