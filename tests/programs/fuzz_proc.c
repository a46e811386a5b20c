/* Operations of the differential fuzzer on processes and signals. */
#include "fuzz_core.h"
#include <dirent.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;

static int wait_for(pid_t pid)
{
	int status = -1;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/* ---- what /proc says of this process ---- */

int task_count(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/task");
	if (!dir)
		return -1;
	for (struct dirent *e; (e = readdir(dir));)
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* The open numbers and what they lead to, with what differs between runs taken out. */
void say_descriptors(struct ctx *c)
{
	int fds[300], n = 0;
	DIR *dir = opendir("/proc/self/fd");
	if (!dir)
		return say(c, "no /proc");
	for (struct dirent *e; (e = readdir(dir)) && n < 300;)
		if (e->d_name[0] != '.')
			fds[n++] = atoi(e->d_name);
	closedir(dir);
	qsort(fds, (size_t)n, sizeof fds[0], by_value);
	for (int i = 0; i < n; i++) {
		char path[64], target[PATH_MAX];
		if (fds[i] < 3)
			continue;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fds[i]);
		ssize_t len = readlink(path, target, sizeof target - 1);
		target[len > 0 ? len : 0] = 0;
		char *shown = target;
		size_t root = strlen(root_path);
		if (!strncmp(target, root_path, root))
			shown = target + root;
		else if (strchr(target, '['))
			*strchr(target, '[') = 0;
		/* /proc/self names the process; a temporary file's name is random. */
		if (!strncmp(shown, "/proc/", 6))
			shown = "/proc";
		if (strstr(shown, "tmp") || strstr(shown, "/#"))
			shown = "temporary";
		say(c, " %d:%s", fds[i], shown);
	}
}

/* State that nothing may touch behind the program's back. */
void op_self(struct ctx *c)
{
	sigset_t mask, pending;
	uint64_t signals = 0;
	char name[17] = "";
	sigprocmask(SIG_BLOCK, NULL, &mask);
	sigpending(&pending);
	for (int sig = 1; sig < 65; sig++) {
		struct sigaction sa;
		if (sigaction(sig, NULL, &sa) == 0)
			signals = signals * 3 + (sa.sa_handler == SIG_DFL ? 0 : sa.sa_handler == SIG_IGN ? 1 : 2);
		signals += (uint64_t)sigismember(&mask, sig) * 7919 + (uint64_t)sigismember(&pending, sig) * 104729;
	}
	mode_t mask_bits = umask(022);
	prctl(PR_GET_NAME, name);
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	say(c, "signals=%lx umask=%o nice=%d ioprio=%ld name=%s dumpable=%d nofile=%ld", (unsigned long)signals, mask_bits,
	    getpriority(PRIO_PROCESS, 0), kernel(SYS_ioprio_get, 1, 0, 0, 0, 0, 0), name, prctl(PR_GET_DUMPABLE),
	    (long)files.rlim_cur);
	if (c->threaded)
		return;
	/* A library's helper process would be ours to wait for. */
	int status, ret, err;
	CALL(ret, err, waitpid(-1, &status, WNOHANG));
	say_ret(c, ret, err);
	/* Nor may a thread appear among those that the program started. */
	say(c, " tasks=%d", task_count());
}

/* ---- children ---- */

void op_fork(struct ctx *c)
{
	uint64_t seed = rnd(c);
	int count = 2 + (int)below(c, 6), form = (int)below(c, 10);
	extern pid_t _Fork(void);
	say(c, "n=%d form=%d", count, form);
	/* _Fork leaves malloc as another thread had it: not where there are any. */
	pid_t pid = form == 0 && !c->threaded ? _Fork() : fork();
	if (pid < 0) {
		say_ret(c, -1, errno);
		return;
	}
	if (pid == 0) {
		/* The log is shared memory: while the parent waits, the child goes on writing it. */
		c->rng = seed;
		c->depth++;
		say(c, "\n");
		if (!c->threaded)
			say(c, "  tasks=%d\n", task_count());
		for (int i = 0; i < count; i++) {
			c->op = i;
			one_operation(c, CHILD);
		}
		say(c, "  end");
		/* exit() also writes out what streams hold, from both processes, as it does without us. */
		if (form == 1 && !c->threaded)
			exit(7);
		_exit(form);
	}
	say(c, " status=%x", (unsigned)wait_for(pid));
}

static void quote(char out[32], uint64_t number) { snprintf(out, 32, "%llu", (unsigned long long)number); }

/* Execs this program again with the descriptors it inherits; the child's log comes in between. */
void op_spawn(struct ctx *c)
{
	char seed[32];
	int form = (int)below(c, 7), ret = 0;
	bool silent = c->threaded;
	quote(seed, rnd(c));
	char *args[] = { self_path, silent ? "--true" : "--child", seed, NULL };
	char *no_environment[] = { NULL };
	say(c, "form=%d\n", form);
	if (!silent)
		log_flush(c);
	pid_t pid = -1;
	switch (form) {
	case 0:
		pid = vfork();
		if (pid == 0) {
			execv(self_path, args);
			_exit(127);
		}
		break;
	case 1:
		pid = fork();
		if (pid == 0) {
			execl(self_path, self_path, args[1], seed, (char *)NULL);
			_exit(127);
		}
		break;
	case 2:
		pid = fork();
		if (pid == 0) {
			int fd = open(self_path, O_RDONLY | O_CLOEXEC);
			fexecve(fd, args, environ);
			_exit(127);
		}
		break;
	case 3:
		ret = posix_spawn(&pid, self_path, NULL, NULL, args, environ);
		break;
	case 4: {
		posix_spawn_file_actions_t actions;
		posix_spawnattr_t attr;
		sigset_t all;
		posix_spawn_file_actions_init(&actions);
		posix_spawnattr_init(&attr);
		posix_spawn_file_actions_addopen(&actions, 70, "b0", O_RDONLY, 0);
		posix_spawn_file_actions_adddup2(&actions, 70, 71);
		posix_spawn_file_actions_addclose(&actions, 70);
		sigemptyset(&all);
		posix_spawnattr_setsigmask(&attr, &all);
		posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
		ret = posix_spawnp(&pid, self_path, &actions, &attr, args, environ);
		posix_spawn_file_actions_destroy(&actions);
		posix_spawnattr_destroy(&attr);
		break;
	}
	case 5:
		/* Without the environment the child is not interposed: what it inherits must serve it anyway. */
		pid = vfork();
		if (pid == 0) {
			execve(self_path, args, no_environment);
			_exit(127);
		}
		break;
	default:
		/* A child that shares memory and is born past libc's fork. */
		pid = (pid_t)kernel(SYS_fork, 0, 0, 0, 0, 0, 0);
		if (pid == 0) {
			execve(self_path, args, environ);
			_exit(127);
		}
	}
	say(c, "  status=%x ret=%d", pid > 0 ? (unsigned)wait_for(pid) : 0, ret);
}

/* Writes a program, reads it, closes it, runs it: whoever still holds the file open for writing
 * makes that fail with ETXTBSY. */
void op_exec_fresh(struct ctx *c)
{
	char buf[65536], *args[] = { "fresh", "--true", NULL };
	int in = open(self_path, O_RDONLY | O_CLOEXEC), out = open("fresh", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	ssize_t got;
	while ((got = read(in, buf, sizeof buf)) > 0)
		if (write(out, buf, (size_t)got) != got)
			break;
	close(in);
	/* Bytes behind the image do no harm and make the file worth prefetching. */
	if (ftruncate(out, 600000))
		say(c, "no room ");
	make_cold(out);
	uint64_t sum = 0;
	lseek(out, 0, SEEK_SET);
	while ((got = read(out, buf, 16384)) > 0)
		sum += (uint64_t)got;
	close(out);
	pid_t pid = -1;
	int ret = posix_spawn(&pid, "./fresh", NULL, NULL, args, environ);
	say(c, "%lu ret=%d status=%x", (unsigned long)sum, ret, pid > 0 ? (unsigned)wait_for(pid) : 0);
	unlink("fresh");
}

/* A daemon's start: everything is closed by number, then the low numbers are used anew. */
void op_daemon(struct ctx *c)
{
	int form = (int)below(c, 3);
	say(c, "form=%d", form);
	pid_t pid = fork();
	if (pid == 0) {
		char buf[4096];
		setsid();
		if (form == 0)
			closefrom(3);
		else if (form == 1)
			close_range(3, ~0u, 0);
		else
			for (int fd = 3; fd < 1100; fd++)
				close(fd);
		say_descriptors(c);
		int fd = open("b1", O_RDONLY);
		say(c, " fd=%d", fd);
		uint64_t h = 0;
		for (int i = 0; i < 64; i++) {
			ssize_t got = read(fd, buf, sizeof buf);
			if (got > 0)
				h = hash(h, buf, (size_t)got);
		}
		say(c, " h=%08x", (unsigned)h);
		say_pos(c, fd);
		say_descriptors(c);
		pid_t inner = fork();
		if (inner == 0) {
			ssize_t got = pread(fd, buf, sizeof buf, 1 << 19);
			_exit(got == sizeof buf ? 5 : 6);
		}
		say(c, " inner=%x", (unsigned)wait_for(inner));
		_exit(3);
	}
	say(c, " status=%x", (unsigned)wait_for(pid));
}

/* What a program sees that was started with our descriptors: its own state, then each of them. */
int child_main(int argc, char **argv)
{
	static struct ctx ctx;
	struct ctx *c = &ctx;
	char buf[4096] __attribute__((aligned(PAGE)));
	if (argc < 3)
		return 2;
	c->log = log_new(1 << 22);
	c->rng = strtoull(argv[2], NULL, 10);
	if (!getcwd(root_path, sizeof root_path))
		return 2;
	say(c, "  tasks=%d fds", task_count());
	say_descriptors(c);
	say(c, "\n");
	for (int fd = 3; fd < 1100; fd++) {
		struct stat st;
		if (kernel(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0) < 0)
			continue;
		int ret, err;
		CALL(ret, err, fstat(fd, &st));
		say(c, "  fd=%d mode=%o", fd, st.st_mode);
		say_ret(c, ret, err);
		if (!S_ISREG(st.st_mode)) {
			say(c, "\n");
			continue;
		}
		/* Of a hole a direct read that isn't aligned is no error, and which pages of one get blocks when one of them is written through a mapping
		 * depends on how the file came to be cached. */
		bool direct = kernel(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0) & O_DIRECT;
		for (int i = 0; i < 3; i++) {
			off_t off = (off_t)below(c, 1 << 20);
			ssize_t got;
			CALL(got, err, pread(fd, buf, sizeof buf, direct ? off & -(off_t)PAGE : off));
			say_ret(c, got, err);
			if (got > 0)
				say_hash(c, buf, (size_t)got);
		}
		/* The position is shared with the parent. */
		ssize_t got;
		if (!direct) {
			CALL(got, err, read(fd, buf, 100));
			say_ret(c, got, err);
		}
		say_pos(c, fd);
		say(c, "\n");
	}
	log_flush(c);
	return (int)below(c, 100);
}

/* ---- signals ---- */

static volatile sig_atomic_t ticks, wrong;
static char ticker_path[PATH_MAX + 4];
static char ticker_text[64];
static pid_t ticker_thread;
static bool ticker_again;

static void arm(long microseconds, long interval)
{
	struct itimerval timer = { .it_value = { 0, microseconds }, .it_interval = { 0, interval } };
	setitimer(ITIMER_REAL, &timer, NULL);
}

/* Opens, reads and closes inside the handler; says nothing but whether something was wrong. */
static void on_tick(int sig)
{
	(void)sig;
	int saved = errno;
	char buf[64];
	ticks++;
	/* A process-directed signal that lands on a thread the program did not start. */
	if ((pid_t)kernel(SYS_gettid, 0, 0, 0, 0, 0, 0) != ticker_thread)
		wrong |= 1;
	int fd = open(ticker_path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		wrong |= 2;
	} else {
		if (pread(fd, buf, sizeof buf, 0) != sizeof buf || memcmp(buf, ticker_text, sizeof buf))
			wrong |= 4;
		if (read(fd, buf, 16) != 16 || memcmp(buf, ticker_text, 16))
			wrong |= 8;
		if (lseek(fd, 0, SEEK_CUR) != 16)
			wrong |= 16;
		if (close(fd))
			wrong |= 32;
	}
	errno = saved;
	/* Re-armed from here, so that a slow machine is not buried in signals. */
	if (ticker_again)
		arm(150, 0);
}

static void listen_for_ticks(void (*handler)(int), int flags)
{
	struct sigaction sa = { .sa_handler = handler, .sa_flags = flags };
	sigaction(SIGALRM, &sa, NULL);
	ticks = wrong = 0;
	ticker_thread = (pid_t)kernel(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

static void ignore_ticks(void)
{
	ticker_again = false;
	arm(0, 0);
	struct sigaction sa = { .sa_handler = SIG_IGN };
	sigaction(SIGALRM, &sa, NULL);
}

/* Operations while a timer's handler reads files of its own. */
void op_storm(struct ctx *c)
{
	int flags = (chance(c, 50) ? SA_RESTART : 0) | (chance(c, 50) ? SA_ONSTACK : 0), count = 10 + (int)below(c, 20);
	snprintf(ticker_path, sizeof ticker_path, "%s/h", root_path);
	long fd = kernel(SYS_openat, AT_FDCWD, (long)ticker_path, O_RDONLY, 0, 0, 0);
	kernel(SYS_read, fd, (long)ticker_text, sizeof ticker_text, 0, 0, 0);
	kernel(SYS_close, fd, 0, 0, 0, 0, 0);
	say(c, "flags=%x n=%d\n", (unsigned)flags, count);
	listen_for_ticks(on_tick, flags);
	ticker_again = true;
	arm(100, 0);
	int op = c->op;
	for (int i = 0; i < count; i++) {
		c->op = i;
		one_operation(c, STORM);
	}
	c->op = op;
	ignore_ticks();
	say(c, "  wrong=%d", (int)wrong);
}

static int wake_fd = -1;

static void on_wake(int sig)
{
	(void)sig;
	if (++ticks == 3 && wake_fd >= 0 && write(wake_fd, "w", 1) != 1)
		wrong |= 64;
}

/* A read that waits is interrupted, or goes on, just as the handler's flags say. */
void op_interrupt(struct ctx *c)
{
	int ends[2], ret, err;
	char byte;
	if (pipe(ends)) {
		say(c, "no pipe");
		return;
	}
	/* Interval timers, so that a signal that comes too early is not the last. */
	wake_fd = -1;
	listen_for_ticks(on_wake, 0);
	arm(300, 300);
	CALL(ret, err, (int)read(ends[0], &byte, 1));
	say_ret(c, ret, err);
	CALL(ret, err, poll(&(struct pollfd){ .fd = ends[0], .events = POLLIN }, 1, 5000));
	say_ret(c, ret, err);
	ignore_ticks();
	wake_fd = ends[1];
	listen_for_ticks(on_wake, SA_RESTART);
	arm(300, 300);
	CALL(ret, err, (int)read(ends[0], &byte, 1));
	ignore_ticks();
	say_ret(c, ret, err);
	say(c, " wrong=%d", (int)wrong);
	close(ends[0]);
	close(ends[1]);
}

static sigjmp_buf leap;
static void on_leap(int sig) { (void)sig; siglongjmp(leap, 1); }

/* A handler that never returns leaves whatever it interrupted half done. */
void op_longjmp(struct ctx *c)
{
	char path[NAME_LEN], buf[4096];
	volatile int fd;
	big_path(c, path);
	fd = open(path, O_RDONLY);
	uint64_t step = 1 + below(c, 9);
	volatile uint64_t at = 0;
	if (!sigsetjmp(leap, 1)) {
		listen_for_ticks(on_leap, 0);
		arm(200 + (long)below(c, 300), 0);
		for (;;) {
			if (pread(fd, buf, sizeof buf, (off_t)(at % 200) * 4096) < 0)
				break;
			at = at + step;
		}
	}
	ignore_ticks();
	/* After the leap everything works as before. */
	say(c, "%s", path);
	uint64_t h = 0;
	long sum = 0;
	for (int i = 0; i < 20; i++) {
		ssize_t got = pread(fd, buf, sizeof buf, i * 20480);
		if (got > 0)
			h = hash(h, buf, (size_t)got);
		sum += got;
	}
	int ret, err;
	CALL(ret, err, close(fd));
	say(c, " sum=%ld h=%08x", sum, (unsigned)h);
	say_ret(c, ret, err);
}
