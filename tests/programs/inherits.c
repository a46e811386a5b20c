/* A thread forks while another one first tells something of the process, again and again. Says how many children were made, how many of them have a mapping of
   the memory that the process shares with the service from then on, how many a descriptor of it, and how many can write by that when the service has had time to
   take it in. argv: libc|_Fork|clone|syscall|vfork|bare ROUNDS FILE; vfork is for a child's own child, bare for an
   instruction of the program's own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 8

static const char *how;
static volatile int go, through;
static volatile struct {
	long made, mapped, open, writable;
} *found;

/* A system call that no hook sees. */
static long bare(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long r;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e,
	                                       x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#endif
}

/* The inodes of the memory that a process has mapped. */
static int mapped_by(const char *process, unsigned long *to)
{
	static char maps[1 << 18];
	char path[64];
	long n = 0, r;
	int count = 0;
	snprintf(path, sizeof path, "/proc/%s/maps", process);
	int file = bare(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0, 0, 0);
	while ((r = bare(SYS_read, file, (long)(maps + n), sizeof maps - 1 - n, 0, 0, 0)) > 0)
		n += r;
	bare(SYS_close, file, 0, 0, 0, 0, 0);
	maps[n] = 0;
	char *rest = maps;
	for (char *line; (line = strsep(&rest, "\n")) && count < MOST;)
		if (strstr(line, "memfd:outrider (") && sscanf(line, "%*s %*s %*s %*s %lu", &to[count]) == 1)
			count++;
	return count;
}

static int is_among(unsigned long inode, const unsigned long *inodes, int n)
{
	int among = 0;
	for (int i = 0; i < n; i++)
		among |= inodes[i] == inode;
	return among;
}

static void nap(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	bare(SYS_nanosleep, (long)&t, 0, 0, 0, 0, 0);
}

static int look(void *unused)
{
	unsigned long own[MOST], its[MOST];
	int fds[MOST], open = 0, n = mapped_by("self", own);
	char path[64], name[128];
	struct stat st;
	(void)unused;
	for (int fd = 3; fd < 16 && open < MOST; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		long len = bare(SYS_readlinkat, AT_FDCWD, (long)path, (long)name, sizeof name - 1, 0, 0);
		name[len > 0 ? len : 0] = 0;
		if (strstr(name, "memfd:outrider") && !strstr(name, "needs"))
			fds[open++] = fd;
	}
	if (n + open == 0)
		bare(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	/* By now the parent knows what it uses. */
	nap(50);
	snprintf(path, sizeof path, "%d", (int)bare(SYS_getppid, 0, 0, 0, 0, 0, 0));
	int used = mapped_by(path, its), mapped = 0, has = 0, writes = 0;
	for (int i = 0; i < n; i++)
		mapped |= is_among(own[i], its, used);
	for (int i = 0; i < open; i++) {
		bare(SYS_newfstatat, fds[i], (long)"", (long)&st, AT_EMPTY_PATH, 0, 0);
		if (!is_among(st.st_ino, its, used))
			continue;
		has = writes = 1;
		for (int turn = 0; turn < 500 && writes; turn++) {
			long at = bare(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
			writes = at > 0 || at < -4095;
			if (writes) {
				bare(SYS_munmap, at, 4096, 0, 0, 0, 0);
				nap(10);
			}
		}
	}
	__sync_fetch_and_add(&found->mapped, mapped);
	__sync_fetch_and_add(&found->open, has);
	__sync_fetch_and_add(&found->writable, writes);
	bare(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	return 0;
}

static void *fork_on(void *unused)
{
	static char stack[1 << 16];
	while (!go)
		;
	for (int i = 0; i < 6 && !through; i++) {
		long child;
		if (!strcmp(how, "libc"))
			child = fork();
		else if (!strcmp(how, "_Fork"))
			child = _Fork();
		else if (!strcmp(how, "clone"))
			child = clone(look, stack + sizeof stack, SIGCHLD, NULL);
		else if (!strcmp(how, "syscall"))
			child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		else if (!strcmp(how, "vfork")) {
			/* It runs in its parent's memory, and has descriptors of its own. */
			child = vfork();
			if (child == 0) {
				long copy = bare(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
				if (copy == 0)
					look(NULL);
				bare(SYS_wait4, copy, 0, 0, 0, 0, 0);
				_exit(0);
			}
		}
		else
			child = bare(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
		if (child == 0)
			look(NULL);
		__sync_fetch_and_add(&found->made, child > 0);
	}
	return unused;
}

int main(int argc, char **argv)
{
	how = argv[argc - 3];
	found = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0, rounds = atoi(argv[argc - 2]); i < rounds; i++) {
		pid_t child = fork();
		if (child == 0) {
			char page[4096];
			pthread_t thread;
			pthread_create(&thread, NULL, fork_on, NULL);
			nap(1);
			go = 1;
			for (volatile int turn = 0; turn < i % 40 * 200; turn++)
				;
			int fd = open(argv[argc - 1], O_RDONLY);
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
			for (int at = 0; at < 4; at++)
				if (pread(fd, page, sizeof page, at << 20) < 0)
					_exit(1);
			through = 1;
			pthread_join(thread, NULL);
			while (waitpid(-1, NULL, 0) > 0)
				;
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	printf("%ld made, %ld mapped, %ld open, %ld writable\n", found->made, found->mapped, found->open, found->writable);
	return 0;
}
