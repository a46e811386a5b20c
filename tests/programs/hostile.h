/* What the hostile programs share: a reference copy of the input to check every read against. The
 * copy is made at the start, backwards: the kernel's own readahead does not foresee that, so from then on
 * the prefetcher is at work. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char *reference;
static long length;

static __attribute__((unused)) uint64_t mix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static __attribute__((unused)) void fail(const char *what)
{
    char text[200];
    int n = snprintf(text, sizeof text, "FAILED: %s (errno %d)\n", what, errno);
    if (write(2, text, n)) {}
    _exit(99);
}

#define CHECK(condition) do { if (!(condition)) fail(#condition); } while (0)

static __attribute__((unused)) void load_reference(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    length = st.st_size;
    reference = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(reference != MAP_FAILED);
    for (long end = length; end > 0;) {
        long n = end > 16384 ? 16384 : end;
        CHECK(pread(fd, reference + end - n, n, end - n) == n);
        end -= n;
    }
    CHECK(close(fd) == 0);
}

/* One positioned read, checked; async-signal-safe. */
static __attribute__((unused)) int pread_ok(int fd, long offset, long len)
{
    unsigned char buf[8192];
    ssize_t n = pread(fd, buf, len, offset);
    long want = offset >= length ? 0 : length - offset < len ? length - offset : len;
    return n == want && memcmp(buf, reference + offset, n) == 0;
}

/* Reads the rest of a descriptor from where it stands and checks it. */
static __attribute__((unused)) int rest_ok(int fd, long at)
{
    unsigned char buf[8192];
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) != 0; at += n)
        if (n < 0 || at + n > length || memcmp(buf, reference + at, n) != 0)
            return 0;
    return at == length;
}
