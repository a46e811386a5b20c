/* malloc_io FILE: the executable replaces malloc, and its malloc opens and reads a large file, as
 * some profilers and allocators do. It also reads from constructors, before main and before any
 * preloaded library may be ready. A hook that allocates would recurse; one that holds a lock while
 * it allocates would hang. The counts of calls are not printed: they belong to libc. */
#include "hostile.h"
#include <malloc.h>

static _Alignas(64) char pool[96 << 20];
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside;
static int big = -1, wrong, reads;
static unsigned calls;

static void touch_file(void)
{
    const char *path = getenv("MALLOC_IO_FILE");
    if (inside || !path)
        return;
    inside = 1;
    int saved = errno;
    if (++calls % 8 == 1) {
        unsigned char small[4096], again[4096];
        if (big < 0)
            big = open(path, O_RDONLY | O_CLOEXEC);
        long at = (long)(calls % 1000) * 4096;
        int other = open(path, O_RDONLY | O_CLOEXEC);
        if (pread(big, small, sizeof small, at) != sizeof small || lseek(other, at, SEEK_SET) != at ||
            read(other, again, sizeof again) != sizeof again || memcmp(small, again, sizeof small) != 0)
            wrong++;
        close(other);
        reads++;
    }
    errno = saved;
    inside = 0;
}

static void *take(size_t size, size_t align)
{
    touch_file();
    pthread_mutex_lock(&lock);
    size_t start = (used + 16 + align - 1) & ~(align - 1);
    void *p = NULL;
    if (start + size <= sizeof pool) {
        p = pool + start;
        ((size_t *)p)[-1] = size;
        used = start + size;
    } else {
        errno = ENOMEM;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

void *malloc(size_t size) { return take(size, 16); }
void free(void *p) { if (p) touch_file(); }
void *calloc(size_t n, size_t size) { return n && size > (size_t)-1 / n ? NULL : take(n * size, 16); }
void *memalign(size_t align, size_t size) { return take(size, align < 16 ? 16 : align); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void **out, size_t align, size_t size) { *out = memalign(align, size); return *out ? 0 : ENOMEM; }
void *realloc(void *old, size_t size)
{
    void *p = take(size, 16);
    if (old && p) {
        size_t had = ((size_t *)old)[-1];
        memcpy(p, old, had < size ? had : size);
    }
    return p;
}

static int early;
static void preinit(int argc, char **argv, char **envp)
{
    unsigned char buf[65536];
    (void)argc;
    (void)envp;
    int fd = open(argv[1], O_RDONLY);
    while (fd >= 0 && early < 4 && read(fd, buf, sizeof buf) > 0)
        early++;
    close(fd);
}
__attribute__((section(".preinit_array"), used)) static void (*const at_preinit)(int, char **, char **) = preinit;

__attribute__((constructor(101))) static void before_main(void)
{
    free(malloc(100));
    FILE *f = fopen("/proc/self/cmdline", "r");
    if (f) {
        char line[100];
        if (fgets(line, sizeof line, f))
            early++;
        fclose(f);
    }
}

__attribute__((destructor)) static void after_main(void)
{
    void *volatile p = malloc(100);
    free(p);
    unsigned char byte;
    if (big >= 0 && pread(big, &byte, 1, 0) != 1)
        _exit(96);
}

static void *busy(void *arg)
{
    for (int i = 0; i < 4000; i++) {
        char *volatile p = malloc(1 + i % 200);
        p[0] = 1;
        free(p);
    }
    return arg;
}

int main(int argc, char **argv)
{
    load_reference(argv[1]);
    setenv("MALLOC_IO_FILE", argv[1], 1);
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&t[i], NULL, busy, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        FILE *f = fopen(argv[1], "r"); /* allocates its buffer while it opens */
        CHECK(f && fseek(f, i * 9973L, SEEK_SET) == 0 && fgetc(f) == reference[i * 9973L] && fclose(f) == 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    pid_t child = fork();
    if (child == 0) {
        busy(NULL);
        _exit(wrong != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("read in malloc: %d, wrong: %d, read before main: %d\n", reads > 100, wrong, early > 1);
    return wrong != 0;
}
