/*
 * Damages database files and asks them the same questions without the SQLite extension and through it: rows, error codes and
 * messages must not differ. Built together with the extension's sources, under the sanitizers.
 *
 *     sqlite_mutants DIRECTORY SEED COUNT [SECONDS]
 *
 * Makes COUNT mutants, or as many as SECONDS allow, of databases of several page sizes in DIRECTORY, and prints how many there were
 * and in how many of them scans were recognised.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "../../plugins/sqlite/foresee.h"

int sqlite3_outrider_init(sqlite3 *db, char **message, const void *api);

static uint64_t seed;

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void mix(uint64_t *digest, const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    while (length--)
        *digest = (*digest ^ *at++) * 1099511628211u;
}

static void run(sqlite3 *db, const char *sql) {
    char *message = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        die(message ? message : "sqlite3_exec");
}

/* One that an index leads through, and whose leaves are spread over the file. */
static void make(const char *path, int page_size, int auto_vacuum, int rows) {
    sqlite3 *db;
    sqlite3_stmt *insert;
    char sql[256];
    int i;
    unlink(path);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "unix") != SQLITE_OK)
        die("open");
    snprintf(sql, sizeof sql, "PRAGMA page_size=%d; PRAGMA auto_vacuum=%d; PRAGMA synchronous=0", page_size, auto_vacuum);
    run(db, sql);
    run(db, "BEGIN; CREATE TABLE customer(id INTEGER PRIMARY KEY, zip TEXT, data TEXT);"
            "CREATE TABLE fast(a TEXT PRIMARY KEY, b) WITHOUT ROWID; CREATE INDEX fast_b ON fast(b)");
    if (sqlite3_prepare_v2(db, "INSERT INTO customer VALUES(?1, ?2, ?3)", -1, &insert, NULL) != SQLITE_OK)
        die("prepare");
    for (i = 0; i < rows; i++) {
        char zip[16];
        snprintf(zip, sizeof zip, "%09u", (unsigned)(next_random() % 1000000000));
        sqlite3_bind_int(insert, 1, i * 3);
        sqlite3_bind_text(insert, 2, zip, -1, SQLITE_TRANSIENT);
        sqlite3_bind_zeroblob(insert, 3, (int)(next_random() % (i % 50 == 0 ? 3000 : 400)));
        if (sqlite3_step(insert) != SQLITE_DONE)
            die("insert");
        sqlite3_reset(insert);
    }
    sqlite3_finalize(insert);
    run(db, "INSERT INTO fast SELECT zip || id, id FROM customer LIMIT 300;"
            "CREATE INDEX customer_zip ON customer(zip); COMMIT");
    sqlite3_close(db);
}

/* Everything that can be seen of asking a database these questions. */
static uint64_t answers(const char *path, const char *vfs) {
    static const char *const questions[] = {
        "SELECT * FROM customer ORDER BY zip",
        "SELECT id, zip, length(data) FROM customer WHERE zip > '3' AND zip < '35' ORDER BY zip DESC",
        "SELECT count(*), sum(length(data)) FROM customer",
        "SELECT * FROM fast ORDER BY b",
        "SELECT c.id, f.a FROM customer c, fast f WHERE f.b = c.id ORDER BY c.zip LIMIT 50",
        "PRAGMA integrity_check(5)",
        "UPDATE customer SET zip = zip || 'x' WHERE id % 37 = 0",
        "SELECT * FROM customer ORDER BY zip LIMIT 200",
        "VACUUM",
        "SELECT * FROM customer ORDER BY zip LIMIT 100",
    };
    uint64_t digest = 14695981039346656037u;
    sqlite3 *db = NULL;
    size_t i;
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, vfs);
    mix(&digest, &code, sizeof code);
    if (code == SQLITE_OK)
        sqlite3_exec(db, "PRAGMA synchronous=0; PRAGMA cache_size=20", NULL, NULL, NULL);
    for (i = 0; code == SQLITE_OK && i < sizeof questions / sizeof *questions; i++) {
        sqlite3_stmt *statement = NULL;
        int result = sqlite3_prepare_v2(db, questions[i], -1, &statement, NULL), rows = 0;
        while (statement && (result = sqlite3_step(statement)) == SQLITE_ROW && rows++ < 20000) {
            int column;
            for (column = 0; column < sqlite3_column_count(statement); column++) {
                int type = sqlite3_column_type(statement, column);
                const void *bytes = sqlite3_column_blob(statement, column);
                mix(&digest, &type, sizeof type);
                if (bytes)
                    mix(&digest, bytes, (size_t)sqlite3_column_bytes(statement, column));
            }
        }
        sqlite3_finalize(statement);
        result = sqlite3_extended_errcode(db) << 8 ^ result;
        mix(&digest, &result, sizeof result);
        mix(&digest, sqlite3_errmsg(db), strlen(sqlite3_errmsg(db)));
    }
    sqlite3_close(db);
    return digest;
}

/* Sets bytes where b-trees keep what leads elsewhere: headers, pointers, the beginnings and ends of cells. */
static void damage(unsigned char *bytes, size_t size, int page_size) {
    size_t pages = size / (size_t)page_size;
    int changes = 1 + (int)(next_random() % 12);
    while (changes--) {
        size_t page = next_random() % 4 ? next_random() % pages : next_random() % (pages < 8 ? pages : 8);
        size_t start = page * (size_t)page_size, at;
        switch (next_random() % 6) {
        case 0: /* a header */
            at = start + next_random() % 12;
            break;
        case 1: /* a cell's pointer */
            at = start + 8 + next_random() % 64;
            break;
        case 2: /* the file's header */
            at = next_random() % 8 ? start + next_random() % (size_t)page_size : next_random() % 100;
            break;
        case 3: { /* a page becomes another */
            size_t other = next_random() % pages * (size_t)page_size;
            if (page != 0 && other != 0)
                memcpy(bytes + start, bytes + other, (size_t)page_size);
            continue;
        }
        case 4: { /* the kind changes */
            static const unsigned char kinds[] = {0x02, 0x05, 0x0a, 0x0d, 0x00, 0xff};
            bytes[start + (page == 0 ? 100 : 0)] = kinds[next_random() % sizeof kinds];
            continue;
        }
        default:
            at = start + next_random() % (size_t)page_size;
        }
        if (at < size)
            bytes[at] = next_random() % 3 ? (unsigned char)next_random() : next_random() % 2 ? 0xff : 0;
    }
}

static void put(const char *path, const unsigned char *bytes, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd) != 0)
        die("write");
}

static unsigned char *get(const char *path, size_t *size) {
    struct stat about;
    unsigned char *bytes;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &about) != 0)
        die(path);
    *size = (size_t)about.st_size;
    bytes = malloc(*size + 1);
    if (!bytes || read(fd, bytes, *size) != (ssize_t)*size)
        die("read");
    close(fd);
    return bytes;
}

int main(int argc, char **argv) {
    static const struct {
        int page_size, auto_vacuum, rows;
    } kinds[] = {{512, 0, 1500}, {1024, 1, 1500}, {4096, 0, 3000}, {65536, 0, 1500}};
    char original[4096], plain[4096], helped[4096];
    unsigned char *bytes[4];
    size_t sizes[4];
    sqlite3 *db;
    char *message = NULL;
    long count, i, scanned = 0;
    double limit;
    struct timespec begun, now;
    if (argc < 4)
        die("usage: sqlite_mutants DIRECTORY SEED COUNT [SECONDS]");
    count = atol(argv[3]);
    limit = argc > 4 ? atof(argv[4]) : 1e9;
    if (sqlite3_open(":memory:", &db) != SQLITE_OK || sqlite3_outrider_init(db, &message, NULL) != SQLITE_OK_LOAD_PERMANENTLY)
        die(message ? message : "the extension can't be loaded");
    snprintf(plain, sizeof plain, "%s/plain.db", argv[1]);
    snprintf(helped, sizeof helped, "%s/helped.db", argv[1]);
    seed = 1;
    for (i = 0; i < 4; i++) {
        snprintf(original, sizeof original, "%s/original.db", argv[1]);
        make(original, kinds[i].page_size, kinds[i].auto_vacuum, kinds[i].rows);
        bytes[i] = get(original, &sizes[i]);
    }
    seed = strtoull(argv[2], NULL, 10);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (i = 0; i < count; i++) {
        int kind = (int)(i % 4);
        unsigned char *mutant = malloc(sizes[kind]), *left, *right;
        size_t size = sizes[kind], left_size, right_size;
        struct foresee_counts before, after;
        uint64_t a[12], b[12];
        int tries, other, met;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - begun.tv_sec) >= limit) {
            free(mutant);
            break;
        }
        if (!mutant)
            die("memory");
        memcpy(mutant, bytes[kind], size);
        if (i >= 4) /* the first of each kind are sound */
            damage(mutant, size, kinds[kind].page_size);
        if (next_random() % 16 == 0)
            size -= next_random() % (size / 2);
        foresee_counts(&before);
        /* What SQLite makes of a damaged page may depend on what memory held before: then it differs from itself, and what counts is
         * that it has the same answers to choose from. */
        for (tries = met = 0; tries < 12 && !met; tries++) {
            put(plain, mutant, size);
            put(helped, mutant, size);
            a[tries] = answers(plain, "unix");
            b[tries] = answers(helped, "outrider");
            left = get(plain, &left_size);
            right = get(helped, &right_size);
            mix(&a[tries], left, left_size);
            mix(&b[tries], right, right_size);
            free(left);
            free(right);
            for (other = 0; other <= tries; other++)
                met |= a[other] == b[tries] || a[tries] == b[other];
        }
        foresee_counts(&after);
        scanned += after.scans > before.scans;
        if (!met) {
            fprintf(stderr, "seed %s, mutant %ld differs\n", argv[2], i);
            return 1;
        }
        free(mutant);
    }
    printf("%ld mutants, scans in %ld\n", i, scanned);
    for (i = 0; i < 4; i++)
        free(bytes[i]);
    sqlite3_close(db);
    return 0;
}
