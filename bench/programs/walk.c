/* walk DIR THREADS [blocks]: what `du -s --apparent-size --block-size=1 DIR` prints, and the seconds that it took: THREADS threads take
 * directories from a shared stack, list them and look up every entry. What a machine allows at best, beside which du under its plug-in is
 * measured. blocks: only the first entry of each 16 inodes is looked up, and directories; then the first thread alone goes through the
 * whole tree again, which is what an unmodified du has left to do if all that it needs has arrived. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536
static char *stack[MOST];
static size_t depth, busy;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static atomic_ullong total;
static _Atomic uint8_t fetched[1 << 16];
static int blocks;

struct entry {
	uint64_t inode;
	int64_t next;
	unsigned short length;
	unsigned char kind;
	char name[];
};

static void push(char *path)
{
	pthread_mutex_lock(&lock);
	if (depth == MOST)
		exit(1);
	stack[depth++] = path;
	pthread_mutex_unlock(&lock);
	pthread_cond_signal(&more);
}

static void list(const char *path)
{
	char buf[32 << 10];
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long n;
	while ((n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
		for (long at = 0; at < n; at += ((struct entry *)(buf + at))->length) {
			struct entry *e = (struct entry *)(buf + at);
			if (!strcmp(e->name, ".") || !strcmp(e->name, ".."))
				continue;
			if (e->kind == DT_DIR) {
				char *p;
				if (asprintf(&p, "%s/%s", path, e->name) < 0)
					exit(1);
				push(p);
			}
			if (blocks && atomic_exchange(&fetched[(e->inode - 1) >> 4 & 0xffff], 1) && e->kind != DT_DIR)
				continue;
			struct statx st;
			if (!statx(fd, e->name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &st))
				atomic_fetch_add_explicit(&total, st.stx_size, memory_order_relaxed);
		}
	close(fd);
}

static void *run(void *unused)
{
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!depth && busy)
			pthread_cond_wait(&more, &lock);
		if (!depth)
			break;
		char *path = stack[--depth];
		busy++;
		pthread_mutex_unlock(&lock);
		list(path);
		free(path);
		pthread_mutex_lock(&lock);
		busy--;
	}
	pthread_mutex_unlock(&lock);
	pthread_cond_broadcast(&more);
	return unused;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void walk(const char *dir, size_t threads)
{
	pthread_t t[256];
	struct stat st;
	if (stat(dir, &st))
		exit(1);
	total = (unsigned long long)st.st_size;
	push(strdup(dir));
	for (size_t i = 1; i < threads; i++)
		pthread_create(&t[i], 0, run, 0);
	run(0);
	for (size_t i = 1; i < threads; i++)
		pthread_join(t[i], 0);
}

int main(int argc, char **argv)
{
	size_t threads = argc > 2 ? strtoul(argv[2], 0, 0) : 0;
	if (!threads || threads > 256)
		return 2;
	double begin = now();
	blocks = argc > 3;
	walk(argv[1], threads);
	double then = now();
	if (blocks) {
		blocks = 0;
		walk(argv[1], 1);
	}
	printf("%llu\t%s\t%.4f\t%.4f\n", total, argv[1], then - begin, now() - begin);
	return 0;
}
