/* What every part of the differential fuzzer shares: the seeded generator, the log, the tables of
 * open things, and the list of operations. fuzz.c says what the program is for. */
#ifndef FUZZ_CORE_H
#define FUZZ_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum {
	NSLOT = 40,            /* descriptors a context holds at most */
	NSTREAM = 5,           /* stdio streams */
	NMAP = 6,              /* mappings */
	NAME_LEN = 96,         /* a path inside the fuzzed directory */
	IO_MAX = 64 * 1024,    /* bytes of one ordinary read or write */
	PAGE = 4096,
	SECTOR = 512,          /* least that a direct write may be of */
	SENTINEL = 4242,       /* errno before each call: shows a successful call that touched it */
};

/* No file grows past this on purpose: the closing hash reads every byte of every file. */
#define FILE_MAX ((off_t)16 << 20)

/* What a descriptor refers to, as far as an operation has to know to stay deterministic. */
enum kind {
	FREE = 0,
	BIG = 'b',        /* 1 to 8 MiB, the files worth prefetching */
	SCRATCH = 'f',    /* small regular files, renamed, truncated, written */
	PREALLOC = 'p',   /* regular files with unwritten extents: see op_lseek */
	DIRECTORY = 'd',
	FIFO = 'q',       /* pipes and fifos, always non-blocking */
	SOCKET = 'k',
	PATHONLY = 'o',   /* O_PATH */
	EVENT = 'e',
	MEMFD = 'm',
	SPECIAL = 'z',    /* devices and procfs */
};

struct slot { int fd; enum kind kind; bool stdio; };
struct stream { FILE *file; enum kind kind; bool wrote, append; };
struct mapping { char *addr; size_t len; bool split; };

/* Lives in shared memory, so that a forked child appends to the same log. */
struct log { size_t len, flushed, cap; char text[]; };

struct ctx {
	uint64_t rng;
	struct log *log;
	struct slot slots[NSLOT];
	struct stream streams[NSTREAM];
	struct mapping maps[NMAP];
	char root[16];      /* prefix of this context's own names: "" or "t3/" */
	bool threaded;      /* descriptor numbers are shared with other threads: don't log or guess them */
	int depth;          /* 0 in the first process, 1 in a child */
	int op;             /* number of the current operation */
};

extern char self_path[PATH_MAX];   /* this executable */
extern char root_path[PATH_MAX];   /* the fuzzed directory */

/* Generator. */
uint64_t rnd(struct ctx *c);
uint64_t below(struct ctx *c, uint64_t n);           /* 0..n */
bool chance(struct ctx *c, int percent);
void fill(struct ctx *c, void *buf, size_t len);
#define PICK(c, array) ((array)[below((c), sizeof(array) / sizeof((array)[0]))])

/* Log: a line is begun by the operation's arguments and ended by its results. */
void say(struct ctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void say_ret(struct ctx *c, long ret, int err);
void say_fd(struct ctx *c, int fd, int err);
void say_hash(struct ctx *c, const void *buf, size_t len);
void say_pos(struct ctx *c, int fd);
uint64_t hash(uint64_t seed, const void *buf, size_t len);
void log_flush(struct ctx *c);
struct log *log_new(size_t cap);

/* Runs a call with errno set to a known value; `err` holds errno afterwards. */
#define CALL(ret, err, expr) do { errno = SENTINEL; (ret) = (expr); (err) = errno; } while (0)

/* The kernel itself, past anything that stands in front of libc: what the log reports besides the
 * call under test has to be the truth. */
long kernel(long nr, long a, long b, long c, long d, long e, long f);
off_t true_pos(int fd);
off_t true_size(int fd);
void make_cold(int fd);      /* written out and dropped from the cache */

/* Hides a value from the compiler, so that a bad pointer or length reaches the call unwarned and
 * without a known object size. */
void *opaque(const void *p);
size_t opaque_len(size_t n);

/* Tables. */
struct slot *slot_new(struct ctx *c);                 /* room for a descriptor: closes one if full */
void slot_set(struct ctx *c, int fd, enum kind kind); /* remembers a descriptor if fd >= 0 */
struct slot *slot_any(struct ctx *c);                 /* an open descriptor, or NULL */
struct slot *slot_file(struct ctx *c);                /* an open regular file: opens one if there is none */
void slot_forget(struct ctx *c, int fd);
int some_fd(struct ctx *c);                           /* mostly open, now and then a bad number */
bool is_file(enum kind k);
int fd_name(struct ctx *c, int fd);                   /* how the log calls a descriptor */

/* Names. */
enum kind some_path(struct ctx *c, char out[NAME_LEN]);
void scratch_path(struct ctx *c, char out[NAME_LEN]);
enum kind big_path(struct ctx *c, char out[NAME_LEN]);
void own_path(struct ctx *c, char out[NAME_LEN], const char *name);
off_t some_offset(struct ctx *c);
size_t some_len(struct ctx *c);

/* Runs `body` where touching memory may fault; returns the signal, or 0. */
int guarded(void (*body)(void *), void *arg);
void fault_handlers(void);
void *alt_stack(void);

/* Operations. An operation ends with its line unfinished; the caller adds the newline. */
enum { SINGLE = 1, CHILD = 2, STORM = 4 };
struct operation { const char *name; void (*run)(struct ctx *); int weight; int where; };
extern const struct operation operations[];
void one_operation(struct ctx *c, int where);

void make_tree(struct ctx *c);
void make_file(struct ctx *c, const char *name, size_t size, int style);
void say_tree(struct ctx *c, const char *path);
void say_descriptors(struct ctx *c);
int task_count(void);
int child_main(int argc, char **argv);

void op_open(struct ctx *), op_open2(struct ctx *), op_openat2(struct ctx *), op_tmpfile(struct ctx *);
void op_special(struct ctx *), op_bad_path(struct ctx *);
void op_read(struct ctx *), op_pread(struct ctx *), op_readv(struct ctx *), op_preadv(struct ctx *);
void op_write(struct ctx *), op_pwrite(struct ctx *), op_writev(struct ctx *), op_pwritev(struct ctx *);
void op_lseek(struct ctx *), op_burst(struct ctx *), op_burst_close(struct ctx *);
void op_bad_buffer(struct ctx *), op_hints(struct ctx *), op_transfer(struct ctx *), op_sync(struct ctx *);
void op_dup(struct ctx *), op_fcntl(struct ctx *), op_close(struct ctx *), op_close_range(struct ctx *);
void op_pipe(struct ctx *), op_socket(struct ctx *), op_rights(struct ctx *), op_ioctl(struct ctx *);
void op_lock(struct ctx *), op_lock_probe(struct ctx *), op_flock(struct ctx *), op_lease(struct ctx *);
void op_limit(struct ctx *), op_descriptors(struct ctx *), op_poll(struct ctx *);
void op_fopen(struct ctx *), op_fread(struct ctx *), op_fwrite(struct ctx *), op_fseek(struct ctx *);
void op_fclose(struct ctx *), op_memstream(struct ctx *), op_wide(struct ctx *), op_popen(struct ctx *);
void op_mmap(struct ctx *), op_map_read(struct ctx *), op_map_write(struct ctx *), op_madvise(struct ctx *);
void op_remap(struct ctx *), op_munmap(struct ctx *), op_bad_mmap(struct ctx *);
void op_truncate(struct ctx *), op_fallocate(struct ctx *), op_rename(struct ctx *), op_unlink(struct ctx *);
void op_link(struct ctx *), op_stat(struct ctx *), op_dir(struct ctx *), op_mkdir(struct ctx *);
void op_chdir(struct ctx *), op_inotify(struct ctx *), op_attr(struct ctx *);
void op_fork(struct ctx *), op_spawn(struct ctx *), op_exec_fresh(struct ctx *), op_storm(struct ctx *);
void op_interrupt(struct ctx *), op_longjmp(struct ctx *), op_self(struct ctx *), op_daemon(struct ctx *);

#endif
