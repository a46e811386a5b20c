/* cancel FILE: for each call that POSIX or glibc makes a cancellation point, whether a pending
 * cancellation is acted upon in it; and whether a thread that waits in read on a pipe can be
 * cancelled. Printed, and compared with the run without hooks. */
#include "hostile.h"

static const char *path;
static int file, out, ends[2], cleaned;
static void cleanup(void *arg) { (void)arg; cleaned++; }

static void call(int which)
{
    static __thread char buf[4096];
    struct iovec iov = { buf, sizeof buf };
    FILE *f;
    switch (which) {
    case 0: if (read(file, buf, 10)) {} break;
    case 1: if (pread(file, buf, 10, 0)) {} break;
    case 2: if (readv(file, &iov, 1)) {} break;
    case 3: if (preadv(file, &iov, 1, 0)) {} break;
    case 4: if (preadv2(file, &iov, 1, 0, 0)) {} break;
    case 5: if (write(out, buf, 10)) {} break;
    case 6: if (pwrite(out, buf, 10, 0)) {} break;
    case 7: if (writev(out, &iov, 1)) {} break;
    case 8: if (pwritev(out, &iov, 1, 0)) {} break;
    case 9: if (open(path, O_RDONLY)) {} break;
    case 10: if (openat(AT_FDCWD, path, O_RDONLY)) {} break;
    case 11: if (creat("created", 0600)) {} break;
    case 12: close(dup(file)); break;
    case 13: fsync(out); break;
    case 14: if (copy_file_range(file, NULL, out, NULL, 10, 0)) {} break;
    case 15: lseek(file, 0, SEEK_SET); break;
    case 16: posix_fadvise(file, 0, 0, POSIX_FADV_WILLNEED); break;
    case 17: fcntl(file, F_GETFL); break;
    case 18: if (dup2(file, dup(file))) {} break;
    case 19: f = fopen(path, "r"); if (f && fread(buf, 1, 4096, f)) {} break;
    case 20: msync(mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0), 4096, MS_SYNC); break;
    case 21: if (readahead(file, 0, 4096)) {} break;
    case 22: if (splice(file, NULL, ends[1], NULL, 10, SPLICE_F_NONBLOCK)) {} break;
    case 23: fdatasync(out); break;
    }
}

static void *pending(void *arg)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cancel(pthread_self());
    call((int)(intptr_t)arg); /* not while it is disabled */
    pthread_cleanup_push(cleanup, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    call((int)(intptr_t)arg);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *blocked(void *arg)
{
    char byte;
    pthread_cleanup_push(cleanup, NULL);
    if (*(int *)arg == 0) {
        if (read(ends[0], &byte, 1)) {}
    } else if (*(int *)arg == 1) {
        struct iovec iov = { &byte, 1 };
        if (readv(ends[0], &iov, 1)) {}
    } else {
        FILE *f = fdopen(ends[0], "r");
        int number;
        if (fscanf(f, "%d", &number)) {}
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void *asynchronous(void *arg)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (long i = 0;; i++)
        if (!pread_ok(file, i * 4096 % (length - 8192), 4096))
            return arg;
}

int main(int argc, char **argv)
{
    path = argv[1];
    load_reference(path);
    file = open(path, O_RDONLY);
    out = open("out", O_RDWR | O_CREAT, 0600);
    CHECK(pipe(ends) == 0);
    CHECK(rest_ok(file, 0)); /* by now whatever is to be started has been */
    for (int which = 0; which < 24; which++) {
        pthread_t t;
        void *result;
        lseek(file, 0, SEEK_SET);
        CHECK(pthread_create(&t, NULL, pending, (void *)(intptr_t)which) == 0 && pthread_join(t, &result) == 0);
        printf("call %d: %s\n", which, result == PTHREAD_CANCELED ? "cancelled" : "returned");
    }
    printf("clean-ups %d\n", cleaned);
    for (int kind = 0; kind < 3; kind++) {
        pthread_t t;
        void *result;
        char drain[64];
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        while (read(ends[0], drain, sizeof drain) > 0)
            ;
        fcntl(ends[0], F_SETFL, 0);
        CHECK(pthread_create(&t, NULL, blocked, &kind) == 0);
        usleep(50000);
        CHECK(pthread_cancel(t) == 0 && pthread_join(t, &result) == 0);
        printf("blocked %d: %s\n", kind, result == PTHREAD_CANCELED ? "cancelled" : "returned");
    }
    /* Asynchronous cancellation while reading is undefined for glibc's locks but not for a bare
     * pread; hooks that held a lock here would hang the next thread. */
    for (int i = 0; i < 50; i++) {
        pthread_t t;
        void *result;
        CHECK(pthread_create(&t, NULL, asynchronous, NULL) == 0);
        usleep(500 + i * 37);
        CHECK(pthread_cancel(t) == 0 && pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(pread_ok(file, 0, 8192));
    printf("clean-ups %d\n", cleaned);
    return 0;
}
