/* oddities WHAT FILE: things that once went wrong under Outrider, one at a time. FILE is a few MiB and not sparse. Prints what a
 * program can see; nothing of it depends on time or addresses. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char *path, block[16384];

/* Reads all of FILE backwards, so that it is followed. */
static long warm_up(int fd)
{
	long sum = 0;
	for (off_t at = lseek(fd, 0, SEEK_END) - (off_t)sizeof block; at >= 0; at -= (off_t)sizeof block)
		sum += pread(fd, block, sizeof block, at);
	return sum;
}

static atomic_int ready, go;
static void *opener(void *arg)
{
	char local[512];
	long *sum = arg;
	ready++;
	while (!go)
		;
	int fd = open(path, O_RDONLY);
	for (int i = 0; i < 300; i++)
		*sum += pread(fd, local, sizeof local, (off_t)(i * 7919 % 1000) * 4096);
	close(fd);
	return 0;
}

/* Two threads open the process's first followed file at the same time. */
static void first_files_race(void)
{
	for (int round = 0; round < 50; round++) {
		pid_t child = fork();
		if (child == 0) {
			pthread_t t[4];
			long sums[4] = { 0 };
			for (int i = 0; i < 4; i++)
				pthread_create(&t[i], 0, opener, &sums[i]);
			while (ready < 4)
				;
			go = 1;
			for (int i = 0; i < 4; i++)
				pthread_join(t[i], 0);
			_exit(sums[0] + sums[1] + sums[2] + sums[3] == 4 * 300 * 512 ? 0 : 1);
		}
		int status;
		waitpid(child, &status, 0);
		if (status)
			printf("round %d: status %x\n", round, status);
	}
}

/* From here on NUMBER kills, as the first filter of this process; asked for by name, or by the number of prctl(2). */
static void forbid(int number, int by_number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (by_number ? syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0)
		      : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		perror("seccomp");
}

/* Runs cksum in a child under a filter that kills for NUMBER, and tells how it ended. */
static void confined_child(int number, int by_number)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		forbid(number, by_number);
		execlp("cksum", "cksum", path, (char *)0);
		_exit(1);
	}
	int status;
	waitpid(child, &status, 0);
	printf("%d by %s: status %d\n", number, by_number ? "number" : "name", status);
}

/* Forks, reads and lists a directory under a filter that kills for NUMBER, in a child that is followed already. */
static void confined_calls(int number, int fd)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		warm_up(fd);
		forbid(number, 0);
		pid_t grandchild = fork();
		if (grandchild == 0)
			_exit(5);
		int status;
		waitpid(grandchild, &status, 0);
		warm_up(open(path, O_RDONLY));
		for (int i = 0; i < 5; i++) {
			DIR *directory = opendir("/usr/lib");
			while (directory && readdir(directory))
				;
			closedir(directory);
		}
		fcntl(fd, F_SETLEASE, F_UNLCK);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	int status;
	waitpid(child, &status, 0);
	printf("%d: status %d\n", number, status);
}

static void *end_later(void *arg)
{
	usleep(100000);
	printf("%s ends\n", (char *)arg);
	return 0;
}

static void read_cold(int fd)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	warm_up(fd);
}

/* Pages that are mapped in a child where a mapping with MADV_DONTFORK was, when the child has read FILE, and its own child after it. */
static void hole(const char *when, int fd, size_t pages)
{
	const size_t page = 4096;
	char *at = mmap(0, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || madvise(at, pages * page, MADV_DONTFORK))
		exit(1);
	fflush(stdout);
	pid_t child = fork();
	for (int generation = 1; child == 0 && generation <= 2; generation++) {
		char line[100];
		unsigned char cached;
		size_t mapped = 0;
		read_cold(fd);
		for (size_t i = 0; i < pages; i++)
			mapped += mincore(at + i * page, page, &cached) == 0;
		int n = snprintf(line, sizeof line, "%s, hole of %zu pages, generation %d: %zu mapped\n", when, pages, generation,
				 mapped);
		write(1, line, (size_t)n);
		child = generation == 1 ? fork() : 0;
		if (child) {
			waitpid(child, 0, 0);
			_exit(0);
		}
	}
	if (child == 0)
		_exit(0);
	waitpid(child, 0, 0);
	munmap(at, pages * page);
}

static void holes(int fd)
{
	const size_t sizes[] = { 1, 16, 200, 213, 300, 426, 427, 2000 };
	for (int known = 0; known < 2; known++) {
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
			hole(known ? "after reads" : "before reads", fd, sizes[i]);
		read_cold(fd);
	}
}

static volatile sig_atomic_t broken;
static void lease_broken(int signal) { broken += signal == SIGIO; }

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	path = argv[2];
	int fd = open(path, strncmp(argv[1], "lease", 5) ? O_RDONLY : O_RDWR);
	if (fd < 0)
		return 1;
	if (!strcmp(argv[1], "race")) {
		close(fd);
		first_files_race();
	} else if (!strcmp(argv[1], "null_stream")) {
		printf("%ld bytes\n", warm_up(fd));
		printf("fread of no items: %zu\n", fread(block, 1, 0, (FILE *)0));
	} else if (!strcmp(argv[1], "errno")) {
		FILE *memory = fmemopen(block, sizeof block, "r");
		errno = 0;
		fclose(memory);
		printf("errno %d\n", errno);
		FILE *stream = fopen(path, "r");
		errno = 0;
		size_t n = fread(block, 1, sizeof block, stream);
		printf("%zu bytes, errno %d\n", n, errno);
		errno = 0;
		fclose(stream);
		printf("errno %d\n", errno);
	} else if (!strcmp(argv[1], "seccomp")) {
		warm_up(fd);
		lseek(fd, 0, SEEK_SET);
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		ssize_t n = 0;
		for (int i = 0; i < 200; i++)
			n += read(fd, block, 4096);
		if (n != 200 * 4096 || write(1, "survived\n", 9) != 9)
			syscall(SYS_exit, 1);
		syscall(SYS_exit, 0);
	} else if (!strcmp(argv[1], "jail")) {
		/* cachestat is a system call that no program makes, and one that a sandbox may kill for. */
		warm_up(fd);
		forbid(451, 0);
		warm_up(open(path, O_RDONLY));
		execlp("cksum", "cksum", path, (char *)0);
		return 1;
	} else if (!strcmp(argv[1], "jailed_calls")) {
		const int numbers[] = { 451, SYS_getpid, SYS_getrusage, SYS_fstatfs, SYS_readlinkat, SYS_madvise };
		for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
			confined_calls(numbers[i], fd);
	} else if (!strcmp(argv[1], "jailed_children")) {
		warm_up(fd);
		const int numbers[] = { 451, SYS_madvise, SYS_fstat, SYS_futex,
#if !__GLIBC_PREREQ(2, 37)
			/* Later loaders make this one for the token in a preloaded library's path. */
			SYS_readlinkat,
#endif
		};
		for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
			confined_child(numbers[i], 0);
			confined_child(numbers[i], 1);
		}
	} else if (!strcmp(argv[1], "lease_apart")) {
		/* After its threads have tables of descriptors of their own the process is not followed, and not disturbed either. */
		warm_up(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		for (off_t at = 0; at < 60 * (off_t)sizeof block; at += (off_t)sizeof block)
			pread(fd, block, sizeof block, at);
		printf("unshare %d\n", unshare(CLONE_FILES));
		int r = fcntl(fd, F_SETLEASE, F_WRLCK);
		printf("lease %d errno %d\n", r, r ? errno : 0);
	} else if (!strcmp(argv[1], "vfork_dup")) {
		/* The child's dup2 is on its own descriptor: the parent's pipe stays a pipe, and is asked for no position. */
		int ends[2];
		if (pipe(ends))
			return 1;
		warm_up(fd);
		pid_t child = vfork();
		if (child == 0) {
			dup2(fd, ends[0]);
			_exit(0);
		}
		waitpid(child, 0, 0);
		long n = 0;
		for (int i = 0; i < 300 && write(ends[1], block, 4096) == 4096; i++)
			n += read(ends[0], block, 4096);
		printf("%ld bytes through the pipe\n", n);
	} else if (!strcmp(argv[1], "holes")) {
		holes(fd);
	} else if (!strcmp(argv[1], "leader")) {
		pthread_t other;
		pthread_create(&other, 0, end_later, "the last thread");
		warm_up(fd);
		pthread_exit(0);
	} else if (!strcmp(argv[1], "lease")) {
		signal(SIGIO, lease_broken);
		int other = dup(fd);
		warm_up(other);
		int r = fcntl(fd, F_SETLEASE, F_WRLCK);
		printf("lease %d errno %d\n", r, r ? errno : 0);
		for (int round = 0; round < 5; round++) {
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
			warm_up(other);
			usleep(20000);
		}
		printf("broken %d times\n", (int)broken);
	} else if (!strcmp(argv[1], "flock")) {
		for (int round = 0; round < 200; round++) {
			int a = open(path, O_RDONLY);
			flock(a, LOCK_SH);
			for (int i = 40; i > 0; i--)
				if (pread(a, block, 4096, (off_t)i * 8192) != 4096)
					return 1;
			close(a);
			int b = open(path, O_RDONLY);
			if (flock(b, LOCK_EX | LOCK_NB))
				printf("round %d: still locked\n", round);
			close(b);
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		}
	} else if (!strcmp(argv[1], "hints")) {
		int wrong[] = { -1, 999, fd };
		for (int i = 0; i < 3; i++)
			for (int k = -1; k < 2; k++) {
				errno = 0;
				printf("readahead %zd", readahead(wrong[i], (off_t)k * 4096, (size_t)(k * 5)));
				printf(" errno %d\n", errno);
			}
		syscall(SYS_close, fd);
		printf("fadvise of a closed one %d\n", posix_fadvise(fd, 0, 4096, POSIX_FADV_WILLNEED));
	} else if (!strcmp(argv[1], "vfork")) {
		pid_t child = vfork();
		if (child == 0) {
			close(fd);
			execl("/bin/true", "true", (char *)0);
			_exit(1);
		}
		int status;
		waitpid(child, &status, 0);
		printf("status %d, %ld bytes\n", status, warm_up(fd));
	} else {
		return 2;
	}
	return 0;
}
