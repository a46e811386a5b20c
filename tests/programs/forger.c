/* Tells the service whatever it likes, as fast as it can: `forger MODE COUNT FILE`. It finds the memory
 * that it has with the service by its name, says "ready", and begins with the first byte on its standard
 * input. When all has been told and taken it says "told N", and ends with the end of its input; in the
 * modes that never end it goes on until then. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* As in shm.rs. */
enum { HEAD = 64, TAIL = 128, CLOSED = 236, WATCHES = 252, WANTED = 260, DONE = 268, CALLS = 272,
       ASKED = 324, NOTES = 352, RING = 512, CELLS = 2048, SLOTS = RING + CELLS * 32, FDS = 4096,
       HINTS = SLOTS + FDS * 64, SAVED = HINTS + 16392, BOARD = SAVED + 1024, GRAPHS = 64, ENTRY = 8192,
       BYTES = 872448 };
enum { OPEN = 1, READ, CLOSE, WILLNEED, DONTNEED, TRUNCATE, MAP, UNMAP, MAPWILLNEED, LEAVE, ENTERED,
       VISIT, LISTING, ATTRIBUTES, SEEK, MOVE, REMAP };

static unsigned char *memory;
static uint64_t state = 42, told;
static int file, directory;
static struct stat about, place;

static volatile uint32_t *word(size_t at) { return (volatile uint32_t *)(memory + at); }
static volatile uint64_t *number(size_t at) { return (volatile uint64_t *)(memory + at); }

static uint64_t mix(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The whole mapping, which hooks may have made anew since. */
static int find(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    memory = NULL;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end, offset;
        if (strstr(line, "memfd:outrider") && sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3
            && offset == 0 && end - start == BYTES)
            memory = (unsigned char *)start;
    }
    if (maps)
        fclose(maps);
    return memory != NULL && *word(232) == 1;
}

static int is_over(void) { return *word(CLOSED) != 0; }

static void tell(int kind, int fd, int generation, uint64_t extra, uint64_t offset, uint64_t len)
{
    uint32_t at = *word(HEAD), index = at & (CELLS - 1), empty = at - index;
    size_t cell = RING + index * 32;
    for (long k = 0; *word(cell) != empty; k++) {
        if (is_over() || k > 20000000)
            return;
        if (k > 100)
            sched_yield();
    }
    *word(HEAD) = at + 1;
    *word(cell + 4) = fd | kind << 16 | (uint32_t)(generation & 255) << 24;
    *number(cell + 8) = extra;
    *number(cell + 16) = offset;
    *number(cell + 24) = len;
    __sync_synchronize();
    *word(cell) = empty + 1;
    told++;
}

/* A slot says what it likes of a number. */
static void claim(int fd, uint64_t dev, uint64_t ino, uint32_t generation, uint64_t pos)
{
    size_t slot = SLOTS + fd * 64;
    *word(slot) = 0;
    *word(slot + 4) = 8;
    *word(slot + 8) = generation;
    *word(slot + 12) = 0;
    *number(slot + 16) = dev;
    *number(slot + 24) = ino;
    *number(slot + 48) = pos;
    *number(slot + 56) = pos;
    __sync_synchronize();
    *word(slot) = 2;
}

static void forge(const char *mode, uint64_t k)
{
    uint64_t r = mix();
    int fd = file;
    uint32_t mine = *word(SLOTS + file * 64 + 8);
    if (!strcmp(mode, "leave")) {
        tell(LEAVE, fd, 0, 0, 7, k);
    } else if (!strcmp(mode, "open")) {
        fd = 100 + k % 3900;
        claim(fd, about.st_dev, 1000000 + k, k, 0);
        tell(OPEN, fd, k, 0, 1 << 30, 0);
        tell(READ, fd, k, 1, r % (1 << 30), 4096);
    } else if (!strcmp(mode, "held")) {
        /* One file under all numbers, each of which really has it. */
        fd = file + k % 900;
        mine = *word(SLOTS + fd * 64 + 8);
        tell(READ, fd, mine, 1, r >> 4 & ~4095ull, 8192);
    } else if (!strcmp(mode, "random")) {
        tell(READ, fd, mine, k % 7, (r % ((uint64_t)about.st_size)) & ~4095ull, 4096);
    } else if (!strcmp(mode, "stride")) {
        uint64_t step = 4096 + (k / 64 % 1000) * 4096;
        tell(READ, fd, mine, 0, (k % 64) * step + k / 64 * 64, 1 + r % 4096);
        tell(SEEK, fd, mine, 0, r % about.st_size, mix() % about.st_size);
    } else if (!strcmp(mode, "hint")) {
        tell(WILLNEED, fd, mine, 0, (r % (uint64_t)about.st_size) & ~4095ull, mix() >> (r & 63));
        tell(r & 64 ? DONTNEED : TRUNCATE, fd, mine, 0, r, mix() >> 20);
    } else if (!strcmp(mode, "map")) {
        tell(MAP, fd, mine, 0, 4096 * (r % (1 << 30)), mix() >> 20);
        tell(REMAP, fd, mine, mix() >> 8, 4096 * (r % (1 << 30)), mix() >> 8);
        tell(UNMAP, fd, mine, 0, 0, mix() >> 4);
        tell(MAP, 999, 0, 0, r >> 20, 1 << 20);
        tell(MAPWILLNEED, fd, mine, 0, 0, 1ull << 61);
    } else if (!strcmp(mode, "walk")) {
        /* A directory under a number that it really has, by other devices and inodes. */
        uint32_t of = *word(SLOTS + directory * 64 + 8);
        uint64_t dev = r & 1 ? place.st_dev : k << 8, ino = r & 2 ? place.st_ino : k;
        *word(ASKED) = k * 7;
        tell(VISIT, directory, of, of, dev, ino);
        tell(ENTERED, file, mine, mine, k, k);
        tell(LISTING, directory, of, of | r << 32, dev, ino);
        tell(ATTRIBUTES, directory, of, 0, 0, 0);
    } else if (!strcmp(mode, "move")) {
        tell(MOVE, fd + (int)(k % 900), *word(SLOTS + (fd + k % 900) * 64 + 8), 0, r % about.st_size, 1ull << 40);
    } else if (!strcmp(mode, "board")) {
        /* Names and lines of one letter, all different, in all entries. */
        size_t entry = BOARD + k % GRAPHS * ENTRY;
        for (int i = 0; i < 16; i++)
            *number(entry + 16 + 8 * i) = mix();
        snprintf((char *)memory + entry + 144, 64, "graph%lu \033[2J", (unsigned long)k);
        unsigned char *text = memory + entry + 144 + 64;
        for (int i = 0; i + 8 < ENTRY - 208; i += 2)
            text[i] = 33 + mix() % 90, text[i + 1] = '\n';
        *word(entry + 4) = r;
        *word(entry + 8) = mix() % 9000;
        *word(entry) = 2;
        told++;
    } else if (!strcmp(mode, "noise")) {
        /* Anything at all. */
        fd = r & 3 ? file : (int)(mix() % 5000);
        if (r & 4 && fd < FDS && fd != file)
            claim(fd, mix() & 1 ? about.st_dev : mix(), mix(), mix(), mix());
        uint64_t offset = mix() >> (mix() & 63), len = mix() >> (mix() & 63);
        if (r & 8) {
            *number(SLOTS + file * 64 + 56) = mix() >> (mix() & 63);
            *word(SLOTS + file * 64 + 12) = mix();
        }
        int kind = 1 + mix() % 20;
        if (kind == LEAVE)
            kind = READ;
        tell(kind, fd, r & 16 ? (int)*word(SLOTS + (fd & 4095) * 64 + 8) : (int)mix(), mix(), offset, len);
    }
}

/* Calls and demands that are never over. */
static void *demand(void *unused)
{
    for (;;) {
        for (int i = 0; i < 8; i++)
            *word(CALLS + 4 * i) = mix() | 1;
        __sync_fetch_and_add(word(WANTED), 1);
        sched_yield();
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const char *mode = argv[1];
    /* Where nobody listens any more it would wait for ever. */
    alarm(240);
    uint64_t count = strtoull(argv[2], NULL, 10);
    static char block[65536];
    file = open(argv[3], O_RDONLY);
    directory = open(argc > 4 ? argv[4] : ".", O_RDONLY | O_DIRECTORY);
    if (file < 0 || directory < 0 || fstat(file, &about) || fstat(directory, &place))
        return 3;
    for (int tries = 0; !find(); tries++) {
        for (int i = 0; i < 40; i++)
            if (pread(file, block, 4096, ((off_t)i * 1000003 * (tries + 1)) % about.st_size) < 0)
                return 4;
        usleep(20000);
        if (tries == 1000)
            return 5;
    }
    if (!strcmp(mode, "held") || !strcmp(mode, "move")) {
        int base = fcntl(file, F_DUPFD, 100);
        file = base;
        for (int i = 0; i < 900; i++)
            if (fcntl(file + i, F_GETFD) < 0 && dup2(base, file + i) < 0)
                return 7;
        for (int i = 0; i < 900; i++)
            claim(file + i, about.st_dev, about.st_ino, 1, 0);
    }
    /* Tracked, as by a hook. */
    if (*word(SLOTS + file * 64) != 2)
        claim(file, about.st_dev, about.st_ino, *word(SLOTS + file * 64 + 8), 4096);
    printf("ready\n");
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) < 1)
        return 0;
    if (!strcmp(mode, "demand")) {
        pthread_t thread;
        pthread_create(&thread, NULL, demand, NULL);
        pthread_create(&thread, NULL, demand, NULL);
    }
    for (uint64_t k = 0; k < count && !is_over(); k++)
        forge(mode, k);
    for (int i = 0; i < 20000 && !is_over() && *word(TAIL) != *word(HEAD); i++)
        usleep(1000);
    /* Time for what is done a few times a second. */
    usleep(400000);
    printf("told %lu\n", (unsigned long)told);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
