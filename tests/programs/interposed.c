/*
 * interposed CASE FILE: ways to leave a scope, and signals, while the C library's calls are offered to it. FILE has 256 blocks of 4 KiB,
 * the i-th full of the byte i. Exits with 0 if every call gave what it should, with 77 where it may not try, and prints the graphs' reports.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <outrider_graph.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 256 };

struct scan {
    int             fd;
    uint64_t        from, to;
    volatile int   *asked; /* how often the graph was asked */
};

static int            fd;
static volatile int   asked;
static outrider_graph *graph;

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                     \
            _exit(1);                                                                                                \
        }                                                                                                            \
    } while (0)

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    const struct scan *s = ctx;
    (*s->asked)++;
    if (s->from + i >= s->to)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = s->fd;
    op->length = BLOCK;
    op->offset = (int64_t)(s->from + i) * BLOCK;
    return OUTRIDER_WEAK;
}

static int right(int file, uint64_t i)
{
    unsigned char b[BLOCK];
    ssize_t       n;
    while ((n = pread(file, b, BLOCK, (off_t)i * BLOCK)) < 0 && errno == EINTR)
        ;
    return n == BLOCK && b[0] == (unsigned char)i && b[BLOCK - 1] == (unsigned char)i && memcmp(b, b + 1, BLOCK - 1) == 0;
}

/* Reads that the program has made, its handlers' left out. */
static volatile uint64_t made;

static void reads(uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++, made++)
        CHECK(right(fd, i));
}

static void report(void)
{
    char text[4096];
    outrider_graph_report(graph, text, sizeof text);
    fputs(text, stdout);
}

static int ended(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* In the middle of a scope: a child goes on by itself, has scopes of its own, and disturbs nobody. */
static void forks(void)
{
    struct scan     s = {fd, 0, BLOCKS, &asked};
    outrider_scope *scope = outrider_enter(graph, &s);
    reads(0, 100);
    pid_t child = fork();
    if (child == 0) {
        reads(100, 120);
        outrider_leave(scope);
        struct scan     t = {fd, 0, 50, &asked};
        outrider_scope *own = outrider_enter(graph, &t);
        reads(0, 50);
        CHECK(close(fd) == 0);
        outrider_leave(own);
        _exit(0);
    }
    reads(100, 180);
    CHECK(ended(child) == 0);
    child = vfork();
    if (child == 0) {
        /* What a program does before exec: none of it is the parent's. */
        close(fd);
        dup2(2, 1);
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(ended(child) == 0);
    reads(180, BLOCKS);
    outrider_leave(scope);
    report();
}

static void *leaves_open(void *how)
{
    struct scan *s = malloc(sizeof *s);
    *s = (struct scan){fd, 0, BLOCKS, &asked};
    outrider_enter(graph, s);
    reads(0, 40);
    if (how != NULL)
        pthread_exit(NULL);
    return s;
}

/* A thread ends and leaves its scope open. */
static void exits(void)
{
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, leaves_open, i % 2 ? &fd : NULL) == 0);
        CHECK(pthread_join(t, NULL) == 0);
    }
    struct scan     s = {fd, 0, BLOCKS, &asked};
    outrider_scope *scope = outrider_enter(graph, &s);
    reads(0, BLOCKS);
    outrider_leave(scope);
    report();
}

static jmp_buf         out;
static outrider_scope *jumped;

static void __attribute__((noinline)) jumps_out(void)
{
    struct scan s = {fd, 0, BLOCKS, &asked};
    jumped = outrider_enter(graph, &s);
    reads(0, 40);
    longjmp(out, 1);
}

static void __attribute__((noinline)) overwrite_the_stack(void)
{
    volatile char junk[4096];
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (char)0xa5;
}

/* A function is left by longjmp, and with it the context on its stack: the graph is asked for nothing more. */
static void jumps(void)
{
    if (setjmp(out) == 0)
        jumps_out();
    overwrite_the_stack();
    int then = asked;
    reads(40, BLOCKS);
    CHECK(asked == then);
    /* Where the file is cached looking ahead may rest for a while. */
    for (int round = 0; round < 100 && asked == then; round++) {
        struct scan s = {fd, 0, BLOCKS, &asked};
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        outrider_scope *scope = outrider_enter(graph, &s);
        reads(0, BLOCKS);
        outrider_leave(scope);
    }
    CHECK(asked > then);
    outrider_leave(jumped);
    report();
}

/* The program's own allocator, which must not be needed in a handler. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void  __libc_free(void *);
static __thread volatile int in_handler;

static void not_in_a_handler(void)
{
    if (in_handler) {
        static const char text[] = "allocated in a handler\n";
        if (write(2, text, sizeof text - 1) < 0)
            _exit(4);
        _exit(3);
    }
}

void *malloc(size_t n)
{
    not_in_a_handler();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t m)
{
    not_in_a_handler();
    return __libc_calloc(n, m);
}

void *realloc(void *p, size_t n)
{
    not_in_a_handler();
    return __libc_realloc(p, n);
}

void free(void *p)
{
    not_in_a_handler();
    __libc_free(p);
}

static volatile sig_atomic_t signals, armed;
static volatile uint64_t     handled;
static sigjmp_buf            back;
static int                   other;

static void handler(int number)
{
    int error = errno;
    (void)number;
    in_handler = 1;
    signals++;
    /* A program whose handlers read as often as itself, as where others keep it from going on, is none that the graph foresees. */
    if (made - handled < 64) {
        in_handler = 0;
        return;
    }
    handled = made;
    CHECK(right(other, (uint64_t)signals % BLOCKS));
    CHECK(right(fd, (uint64_t)signals % BLOCKS));
    in_handler = 0;
    errno = error;
    if (armed && signals % 7 == 0) {
        armed = 0;
        siglongjmp(back, 1);
    }
}

/* A storm of signals, whose handlers read by themselves; `leave`: some leave by siglongjmp. */
static void storm(int leave)
{
    struct sigaction a = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &a, NULL) == 0);
    struct itimerval t = {{0, 150}, {0, 150}};
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    static outrider_scope *volatile scope;
    static struct scan s;
    for (volatile int round = 0; round < 200 && signals < 4000; round++) {
        s = (struct scan){fd, 0, BLOCKS, &asked};
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        scope = outrider_enter(graph, &s);
        if (sigsetjmp(back, 1) == 0) {
            armed = leave;
            reads(0, BLOCKS);
        } else {
            reads(0, BLOCKS);
        }
        armed = 0;
        outrider_leave(scope);
    }
    memset(&t, 0, sizeof t);
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    CHECK(signals > 10);
    report();
}

/* Many scopes of one thread, each bound to a descriptor, in an order that no stack has; closing unbinds. */
static void bound(void)
{
    enum { SCOPES = 8 };
    struct scan     s[SCOPES];
    outrider_scope *scopes[SCOPES];
    int             fds[SCOPES];
    char            path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (int i = 0; i < SCOPES; i++) {
        fds[i] = open(path, O_RDONLY);
        s[i] = (struct scan){fds[i], 0, BLOCKS, &asked};
        scopes[i] = outrider_enter(graph, &s[i]);
        CHECK(outrider_bind(scopes[i], fds[i]) == 0);
    }
    for (uint64_t block = 0; block < BLOCKS; block++) {
        for (int i = 0; i < SCOPES; i++)
            CHECK(fds[(i * 3) % SCOPES] < 0 || right(fds[(i * 3) % SCOPES], block));
        if (block % 60 == 59) {
            int gone = (int)(block / 60);
            CHECK(close(fds[gone]) == 0);
            /* The same number, for a file in which the blocks are others. */
            int zero = open("/dev/zero", O_RDONLY);
            CHECK(zero == fds[gone]);
            unsigned char b[BLOCK];
            CHECK(pread(zero, b, BLOCK, (off_t)(block + 1) * BLOCK) == BLOCK && b[0] == 0);
            fds[gone] = -1;
            outrider_leave(scopes[gone]);
            scopes[gone] = NULL;
        }
    }
    for (int i = 0; i < SCOPES; i++)
        outrider_leave(scopes[i]);
    report();
}

enum { NAMES = 100 };

static const char *file_name;       /* FILE */
static char        place[4096];     /* a directory beside it */
static char        names[NAMES][8];
static int         directory;
static outrider_graph *named;

static struct outrider_op each; /* what is called on each of the names */

static int next_name(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i >= NAMES)
        return OUTRIDER_END;
    *op = each;
    op->path = names[i];
    return OUTRIDER_CALL;
}

static void on_names(const char *called, struct outrider_op op, unsigned flags, mode_t mode)
{
    snprintf(place, sizeof place, "%s-%s-XXXXXX", file_name, called);
    CHECK(mkdtemp(place) != NULL && chmod(place, mode) == 0);
    CHECK((directory = open(place, O_RDONLY | O_DIRECTORY)) >= 0);
    for (int i = 0; i < NAMES; i++)
        snprintf(names[i], sizeof names[i], "%d", i);
    each = op;
    each.fd = directory;
    named = outrider_graph_generator(called, next_name, flags);
    CHECK(named != NULL);
}

static void make_files(void)
{
    for (int i = 0; i < NAMES; i++)
        CHECK(close(openat(directory, names[i], O_CREAT | O_WRONLY, 0644)) == 0);
}

static void report_named(void)
{
    char text[4096];
    outrider_graph_report(named, text, sizeof text);
    fputs(text, stdout);
}

/* Directories are opened with a third argument that the call has no use for. */
static void opens(void)
{
    int flags = O_RDONLY | O_DIRECTORY;
    on_names("opens", (struct outrider_op){.kind = OUTRIDER_OPENAT, .flags = flags}, OUTRIDER_PURE, 0755);
    for (int i = 0; i < NAMES; i++)
        CHECK(mkdirat(directory, names[i], 0755) == 0);
    outrider_scope *scope = outrider_enter(named, NULL);
    for (int i = 0; i < NAMES; i++)
        CHECK(close(openat(directory, names[i], flags, 0755)) == 0);
    outrider_leave(scope);
    report_named();
}

static char        changed[4096];
static const char *looked_at[2];

static int next_look(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i >= 2)
        return OUTRIDER_END;
    op->kind = OUTRIDER_FSTATAT;
    op->fd = AT_FDCWD;
    op->path = looked_at[i];
    return OUTRIDER_CALL;
}

/* Changes of a file that is looked ahead in, by functions that no graph contains: whether the call after them sees them. */
static void changes(void)
{
    enum { AT = 2 * BLOCK }; /* where, among what is looked ahead at first */
    static char    old[16 * BLOCK], new[BLOCK], seen[BLOCK], is[BLOCK];
    struct stat    st, now;
    struct timeval times[2] = {{1000, 0}, {1000, 0}};
    memset(old, 'a', sizeof old);
    memset(new, 'b', sizeof new - 1);
    snprintf(changed, sizeof changed, "%s-changed", file_name);
    looked_at[0] = file_name;
    looked_at[1] = changed;
    outrider_graph *looks = outrider_graph_generator("looks", next_look, OUTRIDER_PURE);
    for (int way = 0; way < 12; way++) {
        unlink(changed);
        int file = open(changed, O_CREAT | O_RDWR, 0644);
        CHECK(write(file, old, sizeof old) == sizeof old && fsync(file) == 0);
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        FILE           *before = way == 3 ? fopen(changed, "r+") : NULL, *stream = NULL;
        struct scan     s = {file, 0, 16, &asked};
        outrider_scope *reading = outrider_enter(graph, &s);
        outrider_scope *looking = outrider_enter(looks, NULL);
        CHECK(pread(file, seen, BLOCK, 0) == BLOCK && fstatat(AT_FDCWD, file_name, &st, 0) == 0);
        usleep(20000);
        switch (way) {
        case 0:
            CHECK((stream = fopen(changed, "r+")) != NULL && fseek(stream, AT, SEEK_SET) == 0);
            CHECK(fwrite(new, BLOCK, 1, stream) == 1 && fclose(stream) == 0);
            break;
        case 1:
            CHECK((stream = fdopen(dup(file), "r+")) != NULL && fseek(stream, AT, SEEK_SET) == 0);
            CHECK(fwrite(new, BLOCK, 1, stream) == 1 && fflush(stream) == 0);
            break;
        case 2:
            CHECK(lseek(file, AT, SEEK_SET) == AT && dprintf(file, "%s", new) == BLOCK - 1);
            break;
        case 3:
            CHECK(fseek(before, AT, SEEK_SET) == 0 && fwrite(new, BLOCK, 1, before) == 1 && fclose(before) == 0);
            break;
        case 4:
            CHECK(syscall(SYS_pwrite64, file, new, BLOCK, AT) == BLOCK);
            break;
        case 5:
            CHECK((stream = fopen(changed, "w")) != NULL);
            break;
        case 6:
            CHECK(posix_fallocate(file, 0, 17 * BLOCK) == 0);
            break;
        case 7:
            CHECK(utimes(changed, times) == 0);
            break;
        case 8:
            CHECK(remove(changed) == 0);
            break;
        case 9:
            CHECK(unlink(changed) == 0 && mkfifo(changed, 0600) == 0);
            break;
        case 10:
            CHECK(syscall(SYS_fchmodat, AT_FDCWD, changed, 0600) == 0);
            break;
        case 11:
            CHECK(unlink(changed) == 0 && mknod(changed, S_IFREG | 0600, 0) == 0);
            break;
        }
        ssize_t n = 0;
        for (int i = 1; i <= AT / BLOCK; i++)
            n = pread(file, seen, BLOCK, (off_t)i * BLOCK);
        int r = fstatat(AT_FDCWD, changed, &st, 0);
        outrider_leave(looking);
        outrider_leave(reading);
        ssize_t m = pread(file, is, BLOCK, AT);
        int     right = n == m && (n <= 0 || memcmp(seen, is, (size_t)n) == 0);
        int     found = fstatat(AT_FDCWD, changed, &now, 0);
        right = right && r == found;
        if (right && found == 0)
            right = st.st_size == now.st_size && st.st_mode == now.st_mode && st.st_ino == now.st_ino &&
                    st.st_mtime == now.st_mtime;
        if (!right) {
            fprintf(stderr, "way %d\n", way);
            _exit(1);
        }
        if (stream != NULL && way != 0)
            fclose(stream);
        close(file);
    }
    unlink(changed);
    report();
}

/* What the thread may do, and where its paths lead, changes between calls that are foreseen. */
static void other_user(void)
{
    if (geteuid() != 0)
        exit(77);
    struct stat st;
    on_names("looks", (struct outrider_op){.kind = OUTRIDER_FSTATAT}, OUTRIDER_PURE, 0700);
    make_files();
    outrider_scope *scope = outrider_enter(named, NULL);
    CHECK(fstatat(directory, names[0], &st, 0) == 0);
    usleep(20000);
    CHECK(seteuid(65534) == 0);
    for (int i = 1; i < NAMES; i++)
        CHECK(fstatat(directory, names[i], &st, 0) < 0 && errno == EACCES);
    CHECK(seteuid(0) == 0);
    outrider_leave(scope);
    report_named();
}

static void other_mask(void)
{
    on_names("makes", (struct outrider_op){.kind = OUTRIDER_MKDIRAT, .mode = 0777}, 0, 0755);
    outrider_scope *scope = outrider_enter(named, NULL);
    CHECK(mkdirat(directory, names[0], 0777) == 0);
    usleep(20000);
    umask(0077);
    for (int i = 1; i < NAMES; i++)
        CHECK(mkdirat(directory, names[i], 0777) == 0);
    outrider_leave(scope);
    report_named();
}

static void other_root(int mounts)
{
    struct stat st;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        exit(77);
    on_names("looks", (struct outrider_op){.kind = OUTRIDER_FSTATAT}, OUTRIDER_PURE, 0755);
    make_files();
    CHECK(chdir("/") == 0);
    static char paths[NAMES][4200];
    for (int i = 0; i < NAMES; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%d", place, i);
    looked_at[0] = paths[0];
    looked_at[1] = paths[1];
    outrider_graph *looks = outrider_graph_generator("paths", next_look, OUTRIDER_PURE);
    outrider_scope *scope = outrider_enter(looks, NULL);
    CHECK(fstatat(AT_FDCWD, paths[0], &st, 0) == 0);
    usleep(20000);
    CHECK((mounts ? mount("none", place, "tmpfs", 0, NULL) : chroot(place)) == 0);
    CHECK(fstatat(AT_FDCWD, paths[1], &st, 0) < 0 && errno == ENOENT);
    outrider_leave(scope);
}

/* The thread enters a sandbox that forbids what threads outside may do. */
static void confined(void)
{
    on_names("removes", (struct outrider_op){.kind = OUTRIDER_UNLINKAT}, 0, 0755);
    make_files();
    /* There are threads outside. */
    outrider_leave(outrider_enter(named, NULL));
    struct {
        uint64_t handled;
    } rules = {1 << 5}; /* LANDLOCK_ACCESS_FS_REMOVE_FILE */
    long set = syscall(444, &rules, sizeof rules, 0);
    if (set < 0)
        exit(77);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(446, set, 0) == 0);
    outrider_scope *scope = outrider_enter(named, NULL);
    for (int i = 0; i < NAMES; i++)
        CHECK(unlinkat(directory, names[i], 0) < 0 && errno == EACCES);
    outrider_leave(scope);
}

/* The main thread ends within a scope, and nobody else is left. */
static void last(void)
{
    static struct scan s;
    s = (struct scan){fd, 0, BLOCKS, &asked};
    struct stat     st;
    on_names("looks", (struct outrider_op){.kind = OUTRIDER_FSTATAT}, OUTRIDER_PURE, 0755);
    make_files();
    outrider_enter(named, NULL);
    outrider_enter(graph, &s);
    CHECK(fstatat(directory, names[0], &st, 0) == 0);
    reads(0, 10);
    pthread_exit(NULL);
}

/* There is no memory at all. `warm`: there was, for a first scope. */
static void without_memory(int warm)
{
    struct scan s = {fd, 0, BLOCKS, &asked};
    if (warm) {
        outrider_scope *scope = outrider_enter(graph, &s);
        reads(0, 10);
        outrider_leave(scope);
    }
    struct rlimit none = {1, 1};
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    for (size_t n = 1 << 20; n >= 16; n /= 2)
        while (malloc(n) != NULL)
            ;
    for (int i = 0; i < 5000; i++) {
        outrider_scope *scope = outrider_enter(graph, &s);
        reads(0, 2);
        outrider_leave(scope);
    }
    _exit(0);
}

static char listed[256];

static void names_an_entry(int number)
{
    struct stat st;
    (void)number;
    in_handler = 1;
    int copy = dup(directory);
    CHECK(fstatat(directory, listed, &st, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(fstatat(copy, listed, &st, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(close(directory) == 0 && close(copy) == 0);
    in_handler = 0;
}

/* Under a plug-in for directories: a handler is the first that names an entry of one, and ends it. */
static void lists(void)
{
    on_names("files", (struct outrider_op){.kind = OUTRIDER_FSTATAT}, OUTRIDER_PURE, 0755);
    make_files();
    struct sigaction a = {.sa_handler = names_an_entry};
    CHECK(sigaction(SIGUSR1, &a, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        DIR           *stream = opendir(place);
        struct dirent *entry;
        directory = dup(dirfd(stream));
        while ((entry = readdir(stream)) != NULL)
            if (entry->d_name[0] != '.')
                strcpy(listed, entry->d_name);
        closedir(stream);
        CHECK(raise(SIGUSR1) == 0);
    }
}

int main(int argc, char **argv)
{
    file_name = argv[argc - 1];
    if (argc != 3 || (fd = open(argv[2], O_RDONLY)) < 0 || (other = open(argv[2], O_RDONLY)) < 0)
        return 2;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    graph = outrider_graph_generator("scan", next, OUTRIDER_PURE);
    if (strcmp(argv[1], "forks") == 0)
        forks();
    else if (strcmp(argv[1], "exits") == 0)
        exits();
    else if (strcmp(argv[1], "jumps") == 0)
        jumps();
    else if (strcmp(argv[1], "storm") == 0)
        storm(0);
    else if (strcmp(argv[1], "storm-out") == 0)
        storm(1);
    else if (strcmp(argv[1], "bound") == 0)
        bound();
    else if (strcmp(argv[1], "opens") == 0)
        opens();
    else if (strcmp(argv[1], "changes") == 0)
        changes();
    else if (strcmp(argv[1], "other-user") == 0)
        other_user();
    else if (strcmp(argv[1], "other-mask") == 0)
        other_mask();
    else if (strcmp(argv[1], "other-root") == 0)
        other_root(0);
    else if (strcmp(argv[1], "mounts") == 0)
        other_root(1);
    else if (strcmp(argv[1], "confined") == 0)
        confined();
    else if (strcmp(argv[1], "last") == 0)
        last();
    else if (strcmp(argv[1], "memory") == 0)
        without_memory(0);
    else if (strcmp(argv[1], "memory-warm") == 0)
        without_memory(1);
    else if (strcmp(argv[1], "lists") == 0)
        lists();
    else
        return 2;
    return 0;
}
