// stress DIRECTORY ROUNDS MILLISECONDS BIG_MB [alone|coarse|follow]: threads do everything to a few files that changes what is cached of them; after every round they stop,
// and each file's bitmap is held against mincore and cachestat (CP7, CP8). BIG_MB is the size of the largest, sparse file. With `alone` nobody
// opens the device, and threads rest between their operations: load for loading and unloading under it. With `follow` all files of the
// file system are followed from their first page.
#include "outrider_test.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define FILES 20
#define MAPPED 6
#define MB (1ull << 20)

static const char *directory;
static uint64_t big_size;
static int gentle;
static int device = -1;
static atomic_int stop;
static pthread_barrier_t barrier;
static atomic_ulong operations[16];

static void path_of(char *path, int file) { sprintf(path, "%s/file%d", directory, file); }

// File 0 is the big one; others grow to 12 MiB, so some are small ones and some outgrow that.
static uint64_t most(int file) { return file == 0 ? big_size : file < 8 ? 3 * MB : 12 * MB; }

static void make(int file, uint64_t *state) {
    char path[256];
    path_of(path, file);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (fd < 0) return;
    if (file == 0) {
        if (ftruncate(fd, big_size)) die("ftruncate %s", path);
    } else {
        static char block[65536];
        uint64_t size = random_u64(state) % most(file);
        memset(block, file, sizeof block);
        for (uint64_t at = 0; at < size; at += sizeof block)
            if (pwrite(fd, block, size - at < sizeof block ? size - at : sizeof block, at) < 0) break;
    }
    close(fd);
}

static void operate(uint64_t *state) {
    static __thread char buffer[256 * 1024];
    char path[256], other[256];
    int file = random_u64(state) % FILES, operation = random_u64(state) % 15;
    path_of(path, file);
    int fd = open(path, O_RDWR);
    if (fd < 0) {
        make(file, state);
        return;
    }
    struct stat stat;
    fstat(fd, &stat);
    uint64_t size = stat.st_size ? stat.st_size : 1, offset = random_u64(state) % size, length = 1 + random_u64(state) % sizeof buffer;
    operations[operation]++;
    switch (operation) {
    case 0:
        for (int i = 0; i < 20; i++) (void)!pread(fd, buffer, 4096, random_u64(state) % size);
        break;
    case 1:
        for (int i = 0; i < 16 && pread(fd, buffer, 65536, offset) > 0; i++) offset += 65536;
        break;
    case 2:
        if (offset + length < most(file)) (void)!pwrite(fd, buffer, length, offset);
        break;
    case 3:
        if (size + length < most(file)) (void)!pwrite(fd, buffer, length, size);
        break;
    case 4:
    case 5: {
        uint64_t from = offset / PAGE * PAGE, bytes = size - from < 4 * MB ? size - from : 4 * MB;
        char *map = mmap(NULL, bytes, PROT_READ | (operation == 5 ? PROT_WRITE : 0), MAP_SHARED, fd, from);
        if (map == MAP_FAILED) break;
        // Not beyond what another thread may cut off: only populating, which does not raise SIGBUS.
        madvise(map, bytes, operation == 5 ? 23 /* MADV_POPULATE_WRITE */ : 22);
        munmap(map, bytes);
        break;
    }
    case 6:
        posix_fadvise(fd, offset, length * 8, POSIX_FADV_WILLNEED);
        break;
    case 7:
        posix_fadvise(fd, offset, length * 4, POSIX_FADV_DONTNEED);
        break;
    case 8:
        if (file && ftruncate(fd, random_u64(state) % most(file))) break;
        break;
    case 9:
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
        break;
    case 10:
        if (file) {
            path_of(other, 1 + random_u64(state) % (FILES - 1));
            rename(path, other);
        }
        break;
    case 11:
        if (file && random_u64(state) % 4 == 0) unlink(path);
        break;
    case 12:
    case 13:
        if (device >= 0) {
            struct outrider_readahead_info info = info_of(fd, offset, random_u64(state) % (8 * MB), 0);
            info.budget = random_u64(state) % 2 ? 0 : random_u64(state) % (4 * MB);
            if (ioctl(device, OUTRIDER_READAHEAD_INFO, &info)) die("READAHEAD_INFO %s", path);
            if (info.issued > info.missing || (info.budget && info.issued > info.budget))
                die("issued %llu of %llu missing, budget %llu", info.issued, info.missing, info.budget);
        }
        break;
    case 14:
        if (random_u64(state) % 40 == 0) {
            // 3 evicts inodes too.
            int drop = open("/proc/sys/vm/drop_caches", O_WRONLY);
            (void)!write(drop, random_u64(state) % 2 ? "1" : "3", 1);
            close(drop);
        } else if (random_u64(state) % 10 == 0) {
            fsync(fd);
        }
        break;
    }
    close(fd);
}

static void *work(void *number) {
    uint64_t state = 0x9e3779b97f4a7c15ull * ((uintptr_t)number + 1);
    for (;;) {
        pthread_barrier_wait(&barrier);
        if (stop == 2) return NULL;
        while (!stop) {
            operate(&state);
            if (gentle) usleep(2000);
        }
        pthread_barrier_wait(&barrier);
    }
}

static void verify_all(int *opened, uint64_t **mapped) {
    char path[256];
    for (int file = 0; file < FILES; file++) {
        path_of(path, file);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        verify(device, fd, path, NULL);
        close(fd);
    }
    // Those whose bitmaps were mapped before the round, whatever name they have now, or none.
    for (int i = 0; i < MAPPED; i++)
        if (mapped[i]) verify(device, opened[i], "mapped file", mapped[i]);
}

int main(int argc, char **argv) {
    if (argc < 5) die("usage: stress DIRECTORY ROUNDS MILLISECONDS BIG_MB [alone|coarse|follow]");
    directory = argv[1];
    int rounds = atoi(argv[2]), milliseconds = atoi(argv[3]);
    big_size = atoll(argv[4]) * MB;
    int coarse = argc > 5 && !strcmp(argv[5], "coarse");
    int follow = argc > 5 && !strcmp(argv[5], "follow");
    gentle = argc > 5 && !strcmp(argv[5], "alone");
    if (!gentle) device = open_device();
    if (follow) {
        int fd = open(directory, O_RDONLY);
        if (ioctl(device, OUTRIDER_FOLLOW, &fd) < 0) die("FOLLOW");
        close(fd);
    }
    uint64_t state = 4711;
    for (int file = 0; file < FILES; file++) make(file, &state);
    if (follow) {
        // Nobody has named any of them, and those that were written are known.
        char known[64] = "";
        int books = open("/sys/kernel/debug/outrider_cache/state", O_RDONLY);
        if (read(books, known, sizeof known - 1) < 0 || atoi(known + strlen("files ")) < FILES - 1) die("of %d files are known: %s", FILES, known);
        close(books);
    }
    int count = device >= 0 ? THREADS : THREADS / 2;
    pthread_barrier_init(&barrier, NULL, count + 1);
    pthread_t threads[THREADS];
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i);
    for (int round = 0; round < rounds; round++) {
        int opened[MAPPED], handles[MAPPED];
        uint64_t *mapped[MAPPED] = {0};
        // A coarse file that grows while its bitmap is mapped keeps the bits it has, so it is not held against the oracle.
        for (int i = 0; device >= 0 && !coarse && i < MAPPED; i++) {
            char path[256];
            path_of(path, i * 3);
            opened[i] = open(path, O_RDONLY);
            if (opened[i] < 0) continue;
            struct outrider_bitmap request = {.size = sizeof request, .fd = opened[i]};
            handles[i] = ioctl(device, OUTRIDER_BITMAP, &request);
            if (handles[i] < 0) die("BITMAP %s", path);
            mapped[i] = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, handles[i], 0);
            if (mapped[i] == MAP_FAILED) die("mmap of the bitmap");
        }
        stop = 0;
        pthread_barrier_wait(&barrier);
        usleep(milliseconds * 1000);
        stop = 1;
        pthread_barrier_wait(&barrier);
        if (device >= 0) verify_all(opened, mapped);
        for (int i = 0; i < MAPPED; i++) {
            if (!mapped[i]) continue;
            munmap(mapped[i], 1 << 20);
            close(handles[i]);
            close(opened[i]);
        }
    }
    stop = 2;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    printf("operations:");
    for (int i = 0; i < 15; i++) printf(" %lu", operations[i]);
    printf("\n");
    for (int i = 0; i < 14; i++)
        if (device >= 0 && !operations[i] && rounds > 3) die("operation %d never happened", i);
    return 0;
}
