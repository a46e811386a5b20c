/* Differential fuzzer: makes a random but reproducible sequence of file operations through libc's
 * public functions and logs all that a program can see of each: result, errno, bytes, position.
 *
 *     fuzz SEED NOPS DIR [--threads N]
 *
 * The same SEED, NOPS and N give the same log to the byte, wherever DIR is: no time, process number,
 * inode number or address is in it. So two runs, one of them with a library interposed, may be
 * compared line by line, and any difference is the library's doing. The log goes to standard output.
 *
 * Kept out, because the kernel itself gives a free choice there: what mincore, RWF_NOWAIT and
 * SEEK_DATA over unwritten extents say depends on what is cached; times and block counts.
 *
 * fuzz_rw.c, fuzz_fd.c, fuzz_map.c, fuzz_stdio.c, fuzz_names.c and fuzz_proc.c hold the operations. */
#include "fuzz_core.h"
#include <pthread.h>
#include <sched.h>

/* Weights are per mille, roughly; what forks or syncs is rare because it is slow.
 *
 * SINGLE: not in threads. Either it is about descriptor numbers or signals, which threads share, or
 * about the moment an open file is let go (locks of the file, end of a pipe, close events), which the
 * child that another thread forks puts off at random. */
const struct operation operations[] = {
	{ "open", op_open, 90, CHILD | STORM },
	{ "open2", op_open2, 40, CHILD | STORM },
	{ "openat2", op_openat2, 15, CHILD },
	{ "tmpfile", op_tmpfile, 6, CHILD },
	{ "special", op_special, 10, CHILD },
	{ "badpath", op_bad_path, 4, CHILD | STORM },
	{ "read", op_read, 90, CHILD | STORM },
	{ "pread", op_pread, 80, CHILD | STORM },
	{ "readv", op_readv, 30, CHILD | STORM },
	{ "preadv", op_preadv, 40, CHILD | STORM },
	{ "write", op_write, 40, CHILD },
	{ "pwrite", op_pwrite, 35, CHILD },
	{ "writev", op_writev, 15, CHILD },
	{ "pwritev", op_pwritev, 20, CHILD },
	{ "lseek", op_lseek, 50, CHILD | STORM },
	{ "burst", op_burst, 35, CHILD | STORM },
	{ "burstclose", op_burst_close, 20, CHILD },
	{ "badbuf", op_bad_buffer, 15, CHILD },
	{ "hints", op_hints, 35, CHILD | STORM },
	{ "sync", op_sync, 2, CHILD },
	{ "transfer", op_transfer, 35, CHILD },
	{ "dup", op_dup, 35, CHILD | STORM },
	{ "fcntl", op_fcntl, 30, CHILD | STORM },
	{ "close", op_close, 60, CHILD | STORM },
	{ "closerange", op_close_range, 6, CHILD | SINGLE },
	{ "pipe", op_pipe, 6, CHILD | SINGLE },
	{ "socket", op_socket, 4, CHILD | SINGLE },
	{ "rights", op_rights, 10, CHILD },
	{ "ioctl", op_ioctl, 6, CHILD },
	{ "poll", op_poll, 5, CHILD },
	{ "lock", op_lock, 25, CHILD },
	{ "lockprobe", op_lock_probe, 6, 0 },
	{ "flock", op_flock, 10, CHILD | SINGLE },
	{ "lease", op_lease, 3, SINGLE },
	{ "limit", op_limit, 3, SINGLE },
	{ "descriptors", op_descriptors, 8, CHILD | SINGLE },
	{ "fopen", op_fopen, 20, CHILD },
	{ "fread", op_fread, 55, CHILD | STORM },
	{ "fwrite", op_fwrite, 20, CHILD },
	{ "fseek", op_fseek, 20, CHILD | STORM },
	{ "fclose", op_fclose, 8, CHILD },
	{ "memstream", op_memstream, 3, CHILD },
	{ "wide", op_wide, 2, CHILD },
	{ "popen", op_popen, 1, SINGLE },
	{ "mmap", op_mmap, 25, CHILD },
	{ "mapread", op_map_read, 25, CHILD },
	{ "mapwrite", op_map_write, 15, CHILD },
	{ "madvise", op_madvise, 15, CHILD },
	{ "remap", op_remap, 12, CHILD },
	{ "munmap", op_munmap, 5, CHILD },
	{ "badmmap", op_bad_mmap, 4, CHILD },
	{ "truncate", op_truncate, 20, CHILD },
	{ "fallocate", op_fallocate, 8, CHILD },
	{ "rename", op_rename, 12, CHILD },
	{ "unlink", op_unlink, 12, CHILD },
	{ "link", op_link, 5, CHILD },
	{ "stat", op_stat, 20, CHILD | STORM },
	{ "dir", op_dir, 6, CHILD },
	{ "mkdir", op_mkdir, 3, CHILD },
	{ "chdir", op_chdir, 3, SINGLE },
	{ "attr", op_attr, 6, CHILD },
	{ "inotify", op_inotify, 3, SINGLE },
	{ "fork", op_fork, 6, 0 },
	{ "spawn", op_spawn, 4, 0 },
	{ "execfresh", op_exec_fresh, 1, SINGLE },
	{ "daemon", op_daemon, 2, SINGLE },
	{ "storm", op_storm, 4, SINGLE },
	{ "interrupt", op_interrupt, 2, SINGLE },
	{ "longjmp", op_longjmp, 3, SINGLE },
	{ "self", op_self, 6, 0 },
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* Runs one operation among those that may run in the place `where`: 0, CHILD or STORM. */
void one_operation(struct ctx *c, int where)
{
	const struct operation *op;
	static int total;
	if (!total)
		for (int i = 0; i < OPERATIONS; i++)
			total += operations[i].weight;
	do {
		int roll = (int)below(c, (uint64_t)total);
		for (op = operations; roll >= op->weight; op++)
			roll -= op->weight;
	} while ((where & ~op->where) || ((op->where & SINGLE) && c->threaded));
	say(c, "%s%d %s ", where ? "  " : "", c->op, op->name);
	op->run(c);
	say(c, "\n");
}

/* ---- one thread's work ---- */

struct job { struct ctx ctx; int count; bool own_table; };

static void *work(void *arg)
{
	struct job *job = arg;
	struct ctx *c = &job->ctx;
	alt_stack();
	/* A descriptor table of its own: the same number is then another file in another thread. */
	if (job->own_table)
		say(c, "own table %d\n", unshare(CLONE_FILES));
	for (c->op = 0; c->op < job->count; c->op++)
		one_operation(c, 0);
	for (int i = 0; i < NSTREAM; i++)
		if (c->streams[i].file)
			fclose(c->streams[i].file);
	return NULL;
}

static void crashed(int sig)
{
	static const char text[] = "\nCRASHED\n";
	kernel(SYS_write, 1, (long)text, sizeof text - 1, 0, 0, 0);
	signal(sig, SIG_DFL);
	raise(sig);
}

/* A process that execs with nothing to do, or copies one file to standard output. */
static int helper(int argc, char **argv)
{
	char buf[16384];
	if (!strcmp(argv[1], "--true"))
		return 9;
	int fd = argc > 2 ? open(argv[2], O_RDONLY) : -1;
	for (ssize_t got; (got = read(fd, buf, sizeof buf)) > 0;)
		if (write(1, buf, (size_t)got) != got)
			return 1;
	return close(fd) ? 1 : 4;
}

int main(int argc, char **argv)
{
	int threads = 0;
	if (argc > 2 && !strcmp(argv[1], "--child")) {
		ssize_t n = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
		return n < 0 ? 2 : child_main(argc, argv);
	}
	if (argc > 1 && !strncmp(argv[1], "--", 2))
		return helper(argc, argv);
	if (argc == 6 && !strcmp(argv[4], "--threads"))
		threads = atoi(argv[5]);
	else if (argc != 4) {
		fprintf(stderr, "usage: fuzz SEED NOPS DIR [--threads N]\n");
		return 2;
	}
	int count = atoi(argv[2]);
	ssize_t n = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
	if (n < 0 || chdir(argv[3]) || !getcwd(root_path, sizeof root_path)) {
		perror(argv[3]);
		return 2;
	}
	umask(022);
	/* The program's own start decides what is inherited; what it was started with does not. */
	close_range(3, ~0u, 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGIO, SIG_IGN);
	signal(SIGALRM, SIG_IGN);
	signal(SIGABRT, crashed);
	fault_handlers();

	static struct job first;
	struct ctx *c = &first.ctx;
	c->rng = strtoull(argv[1], NULL, 10);
	c->log = log_new((size_t)256 << 20);
	say(c, "tasks=%d\n", task_count());
	make_tree(c);
	if (!threads) {
		first.count = count;
		work(&first);
	} else {
		struct job *jobs = calloc((size_t)threads, sizeof *jobs);
		pthread_t *ids = calloc((size_t)threads, sizeof *ids);
		for (int i = 0; i < threads; i++) {
			struct ctx *t = &jobs[i].ctx;
			snprintf(t->root, sizeof t->root, "t%d/", i);
			t->rng = rnd(c);
			t->log = log_new((size_t)64 << 20);
			t->threaded = true;
			jobs[i].count = count / threads;
			jobs[i].own_table = i > 0 && chance(c, 30);
			make_tree(t);
		}
		for (int i = 0; i < threads; i++)
			if (pthread_create(&ids[i], NULL, work, &jobs[i]))
				abort();
		log_flush(c);
		for (int i = 0; i < threads; i++) {
			pthread_join(ids[i], NULL);
			say(c, "thread %d\n", i);
			log_flush(c);
			log_flush(&jobs[i].ctx);
		}
	}
	say(c, "tree\n");
	say_tree(c, ".");
	say(c, "end\n");
	log_flush(c);
	return 0;
}
