/* ideal PATTERN FILE BLOCK STEP THREADS AHEAD: reads FILE in a pattern with a prefetcher built in that knows the order: what a machine
 * allows at best, beside which Outrider is measured. AHEAD 0 leaves the prefetcher out: the same program for stock and for `outrider run`.
 * PATTERN: seq, reverse, stride (a block every STEP bytes), perm (each block once, in random order, asked for in that order), sweep (the
 * same reads, while the file is asked for from begin to end). Prints the seconds from open to the last read.
 * Two helper threads stay AHEAD bytes ahead of the reads, in readahead calls of at most 128 KiB. With THREADS > 1 each reads its part. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIECE (128 << 10)
static size_t block, step, threads, ahead, blocks, per;
static off_t *order;
static int fd, sweep;
static sem_t credit; /* pieces that may be asked for */
static atomic_size_t next;

/* Piece k is the k-th of what each thread reads next, in turns; blocks that touch are asked for in one call. */
static void *help(void *unused)
{
	size_t part = blocks / threads;
	for (;;) {
		while (sem_wait(&credit))
			;
		size_t k = atomic_fetch_add(&next, 1), from = k % threads * part + k / threads * per;
		if (k / threads * per >= part)
			return unused;
		if (sweep) {
			readahead(fd, (off_t)(from * block), per * block);
			continue;
		}
		size_t end = from + per < (k % threads + 1) * part ? from + per : (k % threads + 1) * part;
		while (from < end) {
			off_t low = order[from], high = low + (off_t)block;
			for (from++; from < end; from++)
				if (order[from] == high)
					high += (off_t)block;
				else if (order[from] + (off_t)block == low)
					low = order[from];
				else
					break;
			readahead(fd, low, (size_t)(high - low));
		}
	}
}

static void *run(void *number)
{
	size_t part = blocks / threads, from = (size_t)number * part;
	char *buf = malloc(block);
	for (size_t i = 0; i < part; i++) {
		if (pread(fd, buf, block, order[from + i]) < 0)
			exit(1);
		if (ahead && i % per == per - 1)
			sem_post(&credit);
	}
	free(buf);
	return 0;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 2;
	const char *pattern = argv[1];
	block = strtoul(argv[3], 0, 0), step = strtoul(argv[4], 0, 0);
	threads = strtoul(argv[5], 0, 0), ahead = strtoul(argv[6], 0, 0);
	double begin = now();
	fd = open(argv[2], O_RDONLY);
	if (fd < 0 || !block || block > PIECE || !threads || threads > 64)
		return 2;
	if (strcmp(pattern, "stride"))
		step = block;
	blocks = (size_t)lseek(fd, 0, SEEK_END) / step;
	per = PIECE / block;
	order = malloc(blocks * sizeof *order);
	int back = !strcmp(pattern, "reverse");
	for (size_t i = 0; i < blocks; i++)
		order[i] = (off_t)((back ? blocks - 1 - i : i) * step);
	sweep = !strcmp(pattern, "sweep");
	uint64_t x = 88172645463325252ull;
	for (size_t i = blocks; (sweep || !strcmp(pattern, "perm")) && i > 1; i--) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		size_t j = x % i;
		off_t t = order[j];
		order[j] = order[i - 1], order[i - 1] = t;
	}
	pthread_t t[64], h;
	sem_init(&credit, 0, (unsigned)(ahead / PIECE));
	for (int i = 0; ahead && i < 2; i++)
		pthread_create(&h, 0, help, 0);
	for (size_t i = 1; i < threads; i++)
		pthread_create(&t[i], 0, run, (void *)i);
	run(0);
	for (size_t i = 1; i < threads; i++)
		pthread_join(t[i], 0);
	printf("%.6f\n", now() - begin);
	return 0;
}
