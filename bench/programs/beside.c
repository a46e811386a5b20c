/* beside [-d US] FILE COMMAND…: runs COMMAND, and meanwhile reads 4 KiB at random places of FILE through the page cache, one after the other without pause and
 * each page once: a foreign reader beside whom COMMAND reads. What it writes is thrown away. With -d he reads around the cache, pauses for so many microseconds after each read, and begins anew when
 * he has read all. Prints the seconds of COMMAND, the reader's reads, and the median, p99 and longest of them, µs,
 * then the p99 of those that began within the first 25 ms of COMMAND, and of those that began later. The reader begins 50 ms before COMMAND. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int longer(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The p99 of `n` numbers, which are sorted then. */
static double p99(double *v, size_t n)
{
	qsort(v, n, sizeof *v, longer);
	return n ? v[n * 99 / 100] : 0;
}

int main(int argc, char **argv)
{
	int direct = argc > 2 && !strcmp(argv[1], "-d");
	long pause = direct ? atol(argv[2]) : 0;
	argc -= 2 * direct, argv += 2 * direct;
	if (argc < 3)
		return 2;
	int fd = open(argv[1], O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
	if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM))
		return 2;
	size_t pages = (size_t)lseek(fd, 0, SEEK_END) / 4096, made = 0, early = 0;
	uint32_t *order = malloc(pages * sizeof *order);
	/* Of the cache each page is read once; around it nobody waits for an hour. */
	size_t most = direct ? (size_t)64 << 20 : pages;
	double *took = malloc(most * sizeof *took);
	uint64_t x = 88172645463325252ull;
	for (size_t i = 0; i < pages; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		size_t j = x % (i + 1);
		order[i] = order[j], order[j] = (uint32_t)i;
	}
	_Alignas(4096) static char page[4096];
	struct timespec between = { pause / 1000000, pause % 1000000 * 1000 };
	pid_t child = 0;
	posix_spawn_file_actions_t quietly;
	if (posix_spawn_file_actions_init(&quietly) || posix_spawn_file_actions_addopen(&quietly, 1, "/dev/null", O_WRONLY, 0))
		return 2;
	int status = 0, over = 0;
	double begin = now(), started = 0;
	for (size_t i = 0; i < most && !over; i++) {
		if (!child && now() - begin > 50e3) {
			started = now();
			if (posix_spawnp(&child, argv[2], &quietly, 0, argv + 2, environ))
				return 2;
		}
		double from = now();
		if (pread(fd, page, sizeof page, (off_t)order[i % pages] * 4096) < 0)
			return 1;
		if (child) {
			took[made++] = now() - from;
			early = from - started < 25e3 ? made : early;
			over = waitpid(child, &status, WNOHANG) == child;
		}
		if (pause)
			nanosleep(&between, 0);
	}
	if (!over || !made)
		return 1;
	double whole = now() - started;
	double first = p99(took, early), later = p99(took + early, made - early), all = p99(took, made);
	printf("%.6f %zu %.0f %.0f %.0f %.0f %.0f\n", whole / 1e6, made, took[made / 2], all, took[made - 1], first, later);
	return status != 0;
}
