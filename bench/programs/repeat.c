/* repeat uniform|zipf FILE BLOCK READS: random reads with replacement; prints seconds.
 * repeat latency FILE BLOCK SECONDS: one random read at a time over a range that is not read twice; prints p50 and p99 in µs.
 * repeat stream FILE BLOCK SECONDS: reads FILE in order, over and over, dropping it from the cache behind itself. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t state = 88172645463325252ull;
static double uniform(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (double)(state >> 11) / 9007199254740992.0;
}
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	size_t block = strtoul(argv[3], 0, 0), n = strtoul(argv[4], 0, 0);
	int fd = open(argv[2], O_RDONLY);
	off_t size = lseek(fd, 0, SEEK_END);
	char *buf = malloc(block);
	if (fd < 0 || size < (off_t)block || !buf)
		return 1;
	uint64_t blocks = (uint64_t)size / block;
	double begin = now();
	if (!strcmp(argv[1], "stream")) {
		while (now() - begin < (double)n) {
			lseek(fd, 0, SEEK_SET);
			while (read(fd, buf, block) > 0 && now() - begin < (double)n)
				;
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		}
		return 0;
	}
	if (!strcmp(argv[1], "latency")) {
		double *took = malloc(sizeof *took * blocks);
		size_t k = 0;
		uint64_t step = 7919, at = 1;
		while (k < blocks && now() - begin < (double)n) {
			at = (at + step) % blocks;
			double t = now();
			if (pread(fd, buf, block, (off_t)(at * block)) < 0)
				return 1;
			took[k++] = (now() - t) * 1e6;
			usleep(1000);
		}
		qsort(took, k, sizeof *took, order);
		printf("%zu reads p50 %.0f p99 %.0f\n", k, took[k / 2], took[k * 99 / 100]);
		return 0;
	}
	int zipf = !strcmp(argv[1], "zipf");
	for (size_t i = 0; i < n; i++) {
		uint64_t b;
		if (zipf) {
			/* rank by inverse power (s close to 1), scattered over the file */
			uint64_t rank = (uint64_t)pow((double)blocks, uniform());
			b = rank * 2654435761u % blocks;
		} else {
			b = (uint64_t)(uniform() * (double)blocks);
		}
		if (pread(fd, buf, block, (off_t)(b * block)) < 0)
			return 1;
	}
	printf("%.6f\n", now() - begin);
	return 0;
}
