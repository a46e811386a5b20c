/* oracle HOW PATH [SIZE]: reads the file or the files in the directory PATH in a way, and asks the kernel before each of its reads what of that is cached. Prints how many
 * bytes of its reads were and how many were not. It asks by mappings that are too short to be followed, of which it touches nothing. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, LOOK = 512 << 10 };

static long there, missing;
static char *buffer;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Counts what is cached of n bytes at an offset of a file of some size. */
static void look(int fd, long offset, long n, long size)
{
    long end = offset + n < size ? offset + n : size;
    for (long at = offset; at < end;) {
        long from = at / PAGE * PAGE, to = end < from + LOOK ? end : from + LOOK;
        unsigned char cached[LOOK / PAGE];
        void *map = mmap(NULL, to - from, PROT_READ, MAP_SHARED, fd, from);
        if (map == MAP_FAILED || mincore(map, to - from, cached))
            fail("mincore");
        munmap(map, to - from);
        for (long page = from; at < to; page += PAGE) {
            long next = page + PAGE < to ? page + PAGE : to;
            *(cached[(page - from) / PAGE] & 1 ? &there : &missing) += next - at;
            at = next;
        }
    }
}

static void read_at(int fd, long offset, long n, long size)
{
    look(fd, offset, n, size);
    if (pread(fd, buffer, n, offset) < 0)
        fail("pread");
}

static uint64_t next_random(void)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* Places 0, 1, ... in no order. */
static int *shuffled(int n)
{
    int *order = malloc(n * sizeof *order);
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = next_random() % (i + 1), swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    return order;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads the files of a directory, each as a whole. */
static void directory(const char *path, int in_order)
{
    static char *names[1 << 16];
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir)
        fail(path);
    for (struct dirent *e; n < 1 << 16 && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            names[n++] = strdup(e->d_name);
    closedir(dir);
    qsort(names, n, sizeof *names, by_name);
    int *order = shuffled(n);
    if (chdir(path))
        fail(path);
    for (int i = 0; i < n; i++) {
        struct stat st;
        int fd = open(names[in_order ? i : order[i]], O_RDONLY);
        if (fd < 0 || fstat(fd, &st))
            fail("open");
        look(fd, 0, st.st_size, st.st_size);
        if (read(fd, buffer, st.st_size + 1) != st.st_size)
            fail("read");
        close(fd);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *how = argv[1];
    buffer = malloc(8 << 20);
    if (!strcmp(how, "walk") || !strcmp(how, "shuffled")) {
        directory(argv[2], how[0] == 'w');
        printf("%ld %ld\n", there, missing);
        return 0;
    }
    struct stat st;
    int fd = open(argv[2], O_RDONLY);
    if (fd < 0 || fstat(fd, &st))
        fail(argv[2]);
    long size = st.st_size, block = argc > 3 ? atol(argv[3]) : 16 << 10;
    int blocks = size / block;
    if (!strcmp(how, "forward") || !strcmp(how, "slow")) {
        for (long at = 0; at < size; at += block) {
            look(fd, at, block, size);
            if (read(fd, buffer, block) < 0)
                fail("read");
            /* It thinks: what is foreseen is there in time. */
            if (how[0] == 's')
                usleep(500);
        }
    } else if (!strcmp(how, "twice")) {
        for (long k = 0; k < 2 * blocks; k++)
            read_at(fd, k % blocks * block, block, size);
    } else if (!strcmp(how, "backward")) {
        for (long k = blocks; k-- > 0;)
            read_at(fd, k * block, block, size);
    } else if (!strcmp(how, "strides")) {
        for (long k = 0; k < blocks; k += 4)
            read_at(fd, k * block, block, size);
    } else if (!strcmp(how, "beside")) {
        /* Two streams on one descriptor. */
        for (long k = 0; k < blocks / 2; k++) {
            read_at(fd, k * block, block, size);
            read_at(fd, (blocks / 2 + k) * block, block, size);
        }
    } else if (!strcmp(how, "near")) {
        /* In no order: some blocks of a quarter of a megabyte, then of another. */
        int parts = size / (256 << 10), each = (256 << 10) / block;
        int *part = shuffled(parts);
        for (int i = 0; i < parts / 2; i++) {
            int *order = shuffled(each);
            for (int k = 0; k < each / 2; k++)
                read_at(fd, part[i] * (256L << 10) + order[k] * block, block, size);
            free(order);
        }
    } else if (!strcmp(how, "random") || !strcmp(how, "hint")) {
        int *order = shuffled(blocks);
        if (how[0] == 'h')
            posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        for (int k = 0; k < blocks; k++)
            read_at(fd, order[k] * block, block, size);
    } else if (!strcmp(how, "map") || !strcmp(how, "map-random")) {
        char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            fail("mmap");
        int *order = shuffled(blocks);
        for (int k = 0; k < blocks; k++) {
            long at = (strcmp(how, "map") ? order[k] : k) * block;
            look(fd, at, block, size);
            memcpy(buffer, map + at, block);
        }
    } else if (!strcmp(how, "copy")) {
        int to = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
        for (off_t at = 0; at < size;) {
            look(fd, at, block, size);
            if (sendfile(to, fd, &at, block) <= 0)
                fail("sendfile");
        }
    } else if (!strcmp(how, "copies")) {
        int to = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
        int *order = shuffled(blocks);
        for (int k = 0; k < blocks; k++) {
            off_t at = order[k] * block, end = at + block < size ? at + block : size;
            look(fd, at, block, size);
            while (at < end)
                if (sendfile(to, fd, &at, end - at) <= 0)
                    fail("sendfile");
        }
    } else if (!strcmp(how, "list")) {
        struct access {
            long offset, length;
        } *list = calloc(blocks, sizeof *list);
        ssize_t (*declare)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_DEFAULT, "outrider_declare");
        int *order = shuffled(blocks);
        for (int k = 0; k < blocks; k++)
            list[k] = (struct access){ order[k] * block, block };
        if (declare && declare(fd, list, blocks) < 0)
            fail("outrider_declare");
        for (int k = 0; k < blocks; k++)
            read_at(fd, order[k] * block, block, size);
    } else {
        return 2;
    }
    printf("%ld %ld\n", there, missing);
    return 0;
}
