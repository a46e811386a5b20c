/* fork_mt FILE: threads read without pause while the main thread forks; children read through
 * inherited and new descriptors, fork again, start threads, and exec. No thread of ours and no lock
 * survives a fork, and nothing may wait for one. */
#include "hostile.h"

static const char *path;
static int fd;
static volatile int stop;

static void *reader(void *arg)
{
    uint64_t state = (uintptr_t)arg;
    long at = 0;
    while (!stop) {
        CHECK(pread_ok(fd, mix(&state) % (length - 8192), 4096));
        CHECK(pread_ok(fd, at, 8192));
        at = (at + 8192) % (length - 8192);
        if (mix(&state) % 32 == 0) {
            int other = open(path, O_RDONLY);
            CHECK(other >= 0 && pread_ok(other, 0, 8192) && close(other) == 0);
        }
    }
    return NULL;
}

static void *one_pass(void *arg)
{
    int other = open(path, O_RDONLY);
    CHECK(rest_ok(other, 0) && close(other) == 0);
    return arg;
}

int main(int argc, char **argv)
{
    path = argv[1];
    load_reference(path);
    fd = open(path, O_RDONLY);
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, reader, (void *)(i + 1));
    int good = 0, total = 0;
    for (int k = 0; k < 60; k++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            CHECK(pread_ok(fd, k * 1000, 8192));
            if (k % 4 == 1) {
                int other = open(path, O_RDONLY);
                CHECK(rest_ok(other, 0));
            } else if (k % 4 == 2) {
                if (fork() == 0) {
                    one_pass(NULL);
                    _exit(0);
                }
                int status;
                CHECK(wait(&status) > 0 && status == 0);
                pthread_t t;
                CHECK(pthread_create(&t, NULL, one_pass, NULL) == 0 && pthread_join(t, NULL) == 0);
            } else if (k % 4 == 3) {
                CHECK(dup2(fd, 0) == 0);
                CHECK(freopen("/dev/null", "w", stdout));
                execlp("cksum", "cksum", NULL);
                _exit(98);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        total++;
        good += status == 0;
        /* the children above moved the shared offset by their cksum; put it back */
        lseek(fd, 0, SEEK_SET);
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%d of %d children ended well; the parent still reads: %d\n", good, total, rest_ok(fd, 0));
    return good != total;
}
