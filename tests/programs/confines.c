/* confines HOW WHAT FILE [BYTES]
 *
 * Opens FILE in several ways, confines itself, and reads by all of them, BYTES of each (all, if none are given).
 *
 * HOW: none; linked (prctl(2) as it is linked); handle (through a handle of the C library); call (syscall(2)); raw (an instruction of its own);
 * strict (SECCOMP_MODE_STRICT by an instruction of its own); thread (an instruction, of one thread only, and the others go on);
 * tsync (an instruction of another thread, for all).
 * WHAT, letters: r read, p pread, v readv, s fread, m a mapping, l lseek, d dup, c close, o open, e leaves the file to exit, x ends by _exit,
 * D drops the file's pages between opening and confining, F makes a child after it, a advice, q copies within the kernel, k likewise to a file, u munmap, M mmap, f fcntl,
 * z other functions of streams, y other kinds of read, i a directory, t attributes.
 * The filter allows just what these need without us; whatever else is called is the end of the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static long raw(long n, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
    long r;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return r;
#elif defined(__aarch64__)
    register long x8 asm("x8") = n, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c, x3 asm("x3") = d, x4 asm("x4") = e;
    asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

static const char *how, *what;
static struct sock_filter code[128];
static struct sock_fprog filter = { 0, code };

static int has(char c) { return strchr(what, c) != NULL; }

static void allow(int number)
{
    code[filter.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
    code[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
}

static void make_filter(void)
{
    code[filter.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    allow(SYS_read);
    allow(SYS_write);
    allow(SYS_exit);
    allow(SYS_exit_group);
    if (has('p'))
        allow(SYS_pread64);
    if (has('v'))
        allow(SYS_readv);
    /* exit(3) puts the position where the stream is. */
    if (has('l') || has('s'))
        allow(SYS_lseek);
    if (has('c'))
        allow(SYS_close);
    if (has('d'))
        allow(SYS_dup);
    if (has('o'))
        allow(SYS_openat);
    if (has('a')) {
        allow(SYS_fadvise64);
        allow(SYS_readahead);
        allow(SYS_madvise);
    }
    if (has('q') || has('k')) {
        allow(SYS_sendfile);
        allow(SYS_copy_file_range);
    }
    if (has('u'))
        allow(SYS_munmap);
    if (has('M'))
        allow(SYS_mmap);
    if (has('f'))
        allow(SYS_fcntl);
    if (has('z')) {
        allow(SYS_lseek);
        allow(SYS_close);
    }
    if (has('y')) {
        allow(SYS_preadv);
        allow(SYS_preadv2);
    }
    if (has('i')) {
        allow(SYS_getdents64);
        allow(SYS_lseek);
    }
    if (has('t')) {
        allow(SYS_newfstatat);
        allow(SYS_fstat);
        allow(SYS_statx);
    }
    if (has('F')) {
        allow(SYS_clone);
        allow(SYS_set_robust_list);
        allow(SYS_rseq);
        allow(SYS_wait4);
    }
    if (strcmp(how, "thread") == 0 || strcmp(how, "tsync") == 0) {
        /* What threads need that end, and those that wait for them. */
        allow(SYS_futex);
        allow(SYS_madvise);
        allow(SYS_munmap);
        allow(SYS_rt_sigprocmask);
    }
    code[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
}

static int confine(void)
{
    if (strcmp(how, "none") == 0)
        return 0;
    if (strcmp(how, "strict") == 0)
        return raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
    if (strcmp(how, "linked") == 0)
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
    if (strcmp(how, "call") == 0)
        return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
    if (strcmp(how, "handle") == 0) {
        int (*f)(int, ...) = (int (*)(int, ...))dlsym(dlopen("libc.so.6", RTLD_NOW), "prctl");
        return f(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || f(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
    }
    int flags = strcmp(how, "tsync") == 0 ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    return raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        || raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, (long)&filter, 0, 0) != 0;
}

static uint64_t sum;
static size_t limit = SIZE_MAX;

static void add(const unsigned char *at, size_t n)
{
    for (size_t i = 0; i < n; i += 61)
        sum = sum * 31 + at[i];
    sum += n;
}

struct open {
    int plain, at, vectors, left, none, copy;
    FILE *stream, *other;
    DIR *directory;
    unsigned char *mapping;
    size_t size;
    const char *name;
};

static void use_others(struct open *f)
{
    static unsigned char buf[1 << 16];
    static char line[1 << 16];
    struct iovec part = { buf, sizeof buf };
    ssize_t n;
    if (has('a')) {
        sum += posix_fadvise(f->at, 1 << 20, 1 << 20, POSIX_FADV_WILLNEED);
        sum += posix_fadvise(f->at, 2 << 20, 65536, POSIX_FADV_SEQUENTIAL);
        sum += readahead(f->at, 3 << 20, 1 << 20);
        sum += madvise(f->mapping, 1 << 20, MADV_WILLNEED);
    }
    if (has('q')) {
        off_t from = 4096;
        sum += sendfile(f->none, f->at, &from, 2 << 20);
        sum += copy_file_range(f->at, &from, f->none, NULL, 2 << 20, 0);
    }
    if (has('k')) {
        off_t from = 4096;
        sum += sendfile(f->copy, f->at, &from, 2 << 20);
        sum += copy_file_range(f->at, &from, f->copy, NULL, 2 << 20, 0);
    }
    if (has('f')) {
        sum += fcntl(f->at, F_GETFL) + fcntl(f->at, F_GETFD);
        int copy = fcntl(f->plain, F_DUPFD_CLOEXEC, 40);
        if ((n = pread(copy, buf, 0, 0)) == 0 || has('p'))
            sum += copy;
    }
    if (has('y')) {
        for (size_t at = 0; at < limit / 4 && (n = preadv(f->at, &part, 1, at)) > 0; at += n)
            add(buf, n);
        if ((n = preadv2(f->at, &part, 1, 5 << 20, 0)) > 0)
            add(buf, n);
    }
    if (has('z')) {
        sum += getc(f->other) + fgetc(f->other) + getc_unlocked(f->other);
        if (fgets(line, sizeof line, f->other))
            add((unsigned char *)line, strlen(line));
        sum += fseek(f->other, 2 << 20, SEEK_SET) + ftell(f->other);
        if ((n = fread(buf, 1, 9000, f->other)) > 0)
            add(buf, n);
        sum += fseeko(f->other, -100, SEEK_CUR);
        rewind(f->other);
        sum += ungetc(getc(f->other), f->other) + fclose(f->other);
    }
    if (has('i')) {
        for (struct dirent *e; (e = readdir(f->directory));)
            sum += e->d_type;
        rewinddir(f->directory);
        sum += readdir(f->directory) != NULL;
    }
    if (has('t')) {
        struct stat st;
        sum += stat(f->name, &st) + fstat(f->at, &st) + lstat(f->name, &st) + st.st_size;
        struct statx stx;
        sum += statx(AT_FDCWD, f->name, 0, STATX_SIZE, &stx) + stx.stx_size;
    }
    if (has('M')) {
        unsigned char *more = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE, f->at, 8192);
        for (int i = 0; i < 1 << 20; i += 4096)
            sum += more[i];
    }
    if (has('u'))
        sum += munmap(f->mapping, f->size);
}

static void use(struct open *f)
{
    static unsigned char buf[1 << 16];
    ssize_t n;
    size_t all = 0;
    if (has('r'))
        while (all < limit && (n = read(f->plain, buf, sizeof buf)) > 0) {
            add(buf, n);
            all += n;
        }
    if (has('l'))
        sum += lseek(f->plain, 4096, SEEK_SET);
    if (has('d')) {
        int copy = dup(f->plain);
        if ((n = read(copy, buf, sizeof buf)) > 0)
            add(buf, n);
        sum += copy;
    }
    if (has('p'))
        for (all = 0; all < limit && (n = pread(f->at, buf, sizeof buf, all)) > 0; all += n)
            add(buf, n);
    if (has('v')) {
        struct iovec parts[2] = { { buf, 1000 }, { buf + 1000, sizeof buf - 1000 } };
        for (all = 0; all < limit && (n = readv(f->vectors, parts, 2)) > 0; all += n)
            add(buf, n);
    }
    if (has('s'))
        for (all = 0; all < limit && (n = fread(buf, 1, 5000, f->stream)) > 0; all += n)
            add(buf, n);
    if (has('m'))
        for (all = 0; all < limit && all < f->size; all += 4096)
            add(f->mapping + all, 61);
    if (has('o')) {
        int fd = open(f->name, O_RDONLY);
        sum += fd;
        if ((n = read(fd, buf, sizeof buf)) > 0)
            add(buf, n);
    }
    if (has('F')) {
        pid_t child = fork();
        if (child == 0) {
            while ((n = read(f->left, buf, sizeof buf)) > 0)
                add(buf, n);
            _exit(sum & 63);
        }
        int status = 0;
        waitpid(child, &status, 0);
        sum += status;
    }
    use_others(f);
    if (has('c'))
        sum += close(f->plain) + close(f->at) + close(f->vectors);
}

static void say(const char *who)
{
    char text[128];
    int n = snprintf(text, sizeof text, "%s %016llx\n", who, (unsigned long long)sum);
    if (write(1, text, n) != n)
        raw(SYS_exit_group, 9, 0, 0, 0, 0);
}

static void *other(void *argument)
{
    if (confine())
        raw(SYS_exit_group, 8, 0, 0, 0, 0);
    if (strcmp(how, "thread") == 0) {
        use(argument);
        say("thread");
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    how = argv[1];
    what = argv[2];
    if (argc > 4)
        limit = strtoul(argv[4], NULL, 0);
    make_filter();
    struct open f = { .name = argv[3] };
    f.plain = open(f.name, O_RDONLY);
    f.at = open(f.name, O_RDONLY);
    f.vectors = open(f.name, O_RDONLY);
    f.left = open(f.name, O_RDONLY);
    f.none = open("/dev/null", O_WRONLY);
    char copy[4096];
    snprintf(copy, sizeof copy, "%s.copy", f.name);
    f.copy = open(copy, O_WRONLY | O_CREAT, 0600);
    f.stream = fopen(f.name, "r");
    f.other = fopen(f.name, "r");
    f.directory = opendir("/usr/bin");
    struct stat st;
    if (f.plain < 0 || f.copy < 0 || !f.stream || fstat(f.plain, &st))
        return 3;
    /* Its buffer, and the state of the program's own output. */
    setvbuf(f.stream, malloc(1 << 16), _IOFBF, 1 << 16);
    setvbuf(f.other, malloc(1 << 16), _IOFBF, 1 << 16);
    f.size = st.st_size;
    f.mapping = mmap(NULL, f.size, PROT_READ, MAP_SHARED, f.plain, 0);
    char first[64];
    if (read(f.plain, first, sizeof first) < 0)
        return 4;
    if (has('D'))
        posix_fadvise(f.plain, 0, 0, POSIX_FADV_DONTNEED);
    if (strcmp(how, "thread") == 0 || strcmp(how, "tsync") == 0) {
        pthread_t t;
        if (pthread_create(&t, NULL, other, &f) || pthread_join(t, NULL))
            return 5;
    } else if (confine()) {
        return 8;
    }
    use(&f);
    say(how);
    /* In strict mode only the older call ends a thread. */
    if (strcmp(how, "strict") == 0)
        raw(SYS_exit, 3, 0, 0, 0, 0);
    if (has('x'))
        _exit(3);
    return 3;
}
