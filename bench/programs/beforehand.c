/* beforehand FILE BLOCK STEP HELPERS COMMAND…: runs COMMAND, while HELPERS threads of another process ask for a block every STEP bytes of FILE, in order and
 * without a bound: what somebody who knows the order can do for an unmodified program. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/wait.h>
static int fd; static size_t block, step, blocks; static atomic_size_t next;
static void *help(void *u)
{
	for (;;) {
		size_t from = atomic_fetch_add(&next, 8);
		if (from >= blocks) return u;
		for (size_t i = from; i < from + 8 && i < blocks; i++) readahead(fd, (off_t)(i * step), block);
	}
}
int main(int argc, char **argv)
{
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	block = strtoul(argv[2], 0, 0), step = strtoul(argv[3], 0, 0);
	int n = atoi(argv[4]);
	blocks = (size_t)lseek(fd, 0, SEEK_END) / step;
	if (fork()) { execvp(argv[5], argv + 5); return 1; }
	pthread_t t[16];
	for (int i = 0; i < n; i++) pthread_create(&t[i], 0, help, 0);
	for (int i = 0; i < n; i++) pthread_join(t[i], 0);
	_exit(0);
}
