/*
 * What a training loop does: reads samples in a new random order in every epoch.
 *
 *     loader [--plain] [--seed N] [--epochs N] DIRECTORY              each regular file in it is a sample
 *     loader [--plain] [--seed N] [--epochs N] --record BYTES FILE    each record of the file is one
 *
 * The order is known before the first read, so it is declared to Outrider (not with --plain). Records of one file are declared
 * in the pull form: Outrider calls back for more of the order whenever it can use it. Files have to be open to be declared, so
 * a client is given those that are opened, AHEAD before their turn. Prints a checksum over all samples in the order of use.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <outrider.h>

#define AHEAD 256 /* files that are open before their turn */

static uint64_t state, sum = 14695981039346656037u;

static void fail(const char *what) {
    fprintf(stderr, "loader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        fail("memory");
    return memory;
}

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void shuffle(size_t *order, size_t count) {
    size_t i, j, kept;
    for (i = 0; i < count; i++)
        order[i] = i;
    for (i = count; i > 1; i--) {
        j = (size_t)(draw() % i);
        kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

/* Stands for the training step: every byte counts, and so does the order. */
static void train(const unsigned char *bytes, size_t length) {
    while (length--)
        sum = (sum ^ *bytes++) * 1099511628211u;
}

/* ---- Records of one file ---- */

struct epoch {
    int fd;
    size_t record, count, next;
    uint64_t size;
    const size_t *order;
};

/* outrider_next: the records that come after those that were told before. */
static size_t more_records(void *ctx, struct outrider_access *entries, size_t room) {
    struct epoch *epoch = ctx;
    size_t n = 0;
    for (; n < room && epoch->next < epoch->count; n++) {
        entries[n].fd = epoch->fd;
        entries[n].flags = 0;
        entries[n].offset = (uint64_t)epoch->order[epoch->next++] * epoch->record;
        entries[n].length = epoch->record;
    }
    return n;
}

static void records(const char *path, size_t record, long epochs, bool plain) {
    struct epoch epoch = {.fd = open(path, O_RDONLY | O_CLOEXEC), .record = record};
    struct stat about;
    unsigned char *sample = allocate(record, 1);
    size_t *order, i;
    if (epoch.fd < 0 || fstat(epoch.fd, &about) != 0)
        fail(path);
    epoch.count = (size_t)about.st_size / record;
    epoch.order = order = allocate(epoch.count, sizeof *order);
    while (epochs--) {
        shuffle(order, epoch.count);
        epoch.next = 0;
        /* If it fails the samples still come, at the disk's pace. */
        if (!plain)
            (void)outrider_pull(epoch.fd, more_records, &epoch);
        for (i = 0; i < epoch.count; i++) {
            if (pread(epoch.fd, sample, record, (off_t)(order[i] * record)) != (ssize_t)record)
                fail(path);
            train(sample, record);
        }
        if (!plain)
            (void)outrider_pull(epoch.fd, NULL, NULL);
    }
    printf("%zu records, checksum %016" PRIx64 "\n", epoch.count, sum);
    close(epoch.fd);
    free(order);
    free(sample);
}

/* ---- Many files ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Opens a sample's file and says that it will be read after those that were opened before. */
static int open_ahead(int directory, const char *name, outrider_client *client) {
    struct outrider_access access = {.fd = openat(directory, name, O_RDONLY | O_CLOEXEC)};
    struct stat about;
    if (access.fd < 0 || fstat(access.fd, &about) != 0)
        fail(name);
    access.length = (uint64_t)about.st_size;
    if (client && outrider_region_add(client, access.fd, 0, 0) == 0)
        (void)outrider_request(client, &access, 1, OUTRIDER_APPEND | OUTRIDER_DONE);
    return access.fd;
}

static void files(const char *path, long epochs, bool plain) {
    DIR *directory = opendir(path);
    outrider_client *client = plain ? NULL : outrider_client_new(NULL, NULL);
    struct dirent *entry;
    char **names = NULL;
    int open_files[AHEAD];
    size_t count = 0, *order, opened, i;
    unsigned char *piece = allocate(1 << 16, 1);
    if (!directory)
        fail(path);
    while ((entry = readdir(directory)) != NULL) {
        struct stat about;
        if (fstatat(dirfd(directory), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode))
            continue;
        if ((count & (count + 1)) == 0 && !(names = realloc(names, 2 * (count + 1) * sizeof *names)))
            fail("memory");
        if (!(names[count++] = strdup(entry->d_name)))
            fail("memory");
    }
    qsort(names, count, sizeof *names, by_name);
    order = allocate(count, sizeof *order);
    while (epochs--) {
        shuffle(order, count);
        for (i = opened = 0; i < count; i++) {
            ssize_t got;
            int fd;
            for (; opened < count && opened < i + (plain ? 1 : AHEAD); opened++)
                open_files[opened % AHEAD] = open_ahead(dirfd(directory), names[order[opened]], client);
            fd = open_files[i % AHEAD];
            while ((got = read(fd, piece, 1 << 16)) > 0)
                train(piece, (size_t)got);
            if (got < 0)
                fail(names[order[i]]);
            close(fd); /* takes the file off the list */
        }
    }
    printf("%zu files, checksum %016" PRIx64 "\n", count, sum);
    if (client)
        (void)outrider_client_free(client);
    for (i = 0; i < count; i++)
        free(names[i]);
    free(names);
    free(order);
    free(piece);
    closedir(directory);
}

static int usage(const char *wrong) {
    fprintf(stderr, "loader: %s\n", wrong);
    fprintf(stderr, "usage: loader [--plain] [--seed N] [--epochs N] DIRECTORY\n"
                    "       loader [--plain] [--seed N] [--epochs N] --record BYTES FILE\n");
    return 2;
}

int main(int argc, char **argv) {
    const char *path = NULL;
    bool plain = false;
    long epochs = 1, record = 0;
    int i;
    for (i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--plain") == 0) {
            plain = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            state = strtoull(argv[++i], &end, 10);
            if (*end)
                return usage("--seed takes a number");
        } else if (strcmp(argv[i], "--epochs") == 0 && i + 1 < argc) {
            epochs = strtol(argv[++i], &end, 10);
            if (*end || epochs < 1)
                return usage("--epochs takes a number from 1");
        } else if (strcmp(argv[i], "--record") == 0 && i + 1 < argc) {
            record = strtol(argv[++i], &end, 10);
            if (*end || record < 1 || record > 1 << 30)
                return usage("--record takes bytes from 1 to 1073741824");
        } else if ((argv[i][0] == '-' && argv[i][1]) || path) {
            return usage(argv[i]);
        } else {
            path = argv[i];
        }
    }
    if (!path)
        return usage("DIRECTORY or FILE is missing");
    if (record)
        records(path, (size_t)record, epochs, plain);
    else
        files(path, epochs, plain);
    return 0;
}
