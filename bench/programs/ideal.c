/* ideal PATTERN FILE BLOCK STEP THREADS AHEAD [HELPERS [PIECE [WAY]]]: reads FILE in a pattern with a prefetcher built in that knows the order: what a machine
 * allows at best, beside which Outrider is measured. AHEAD 0 leaves the prefetcher out: the same program for stock and for `outrider run`.
 * PATTERN: seq, reverse, stride (a block every STEP bytes), perm (each block once, in random order, asked for in that order), sweep (the
 * same reads, while the file is asked for from begin to end). Prints the seconds from open to the last read.
 * HELPERS threads (2) stay AHEAD bytes ahead of the reads; each asks for PIECE bytes of what is read (128 KiB) at a time, blocks that touch
 * in one call. WAY: readahead(2), fadvise (WILLNEED), populate (madvise of a mapping, which waits), or by io_uring fadvise, or read into
 * a buffer. With THREADS > 1 each reads its part. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static size_t block, step, threads, ahead, blocks, per, piece = 128 << 10;
static const char *way = "readahead", *mapped;
static off_t *order;
static int fd, sweep;
static sem_t credit; /* pieces that may be asked for */
static atomic_size_t next;

/* A ring of one thread's. */
struct ring {
	int fd;
	unsigned *tail, *array, *done_head, *done_tail, mask, unsent;
	struct io_uring_sqe *entries;
	char *buffer;
};

static struct ring ring_new(void)
{
	struct io_uring_params p = {0};
	struct ring r = {.fd = (int)syscall(SYS_io_uring_setup, 4096, &p), .buffer = malloc(1 << 20)};
	if (r.fd < 0)
		exit(3);
	char *s = mmap(0, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r.fd, IORING_OFF_SQ_RING);
	char *c = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r.fd,
		       IORING_OFF_CQ_RING);
	r.entries = mmap(0, p.sq_entries * sizeof *r.entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r.fd, IORING_OFF_SQES);
	r.tail = (unsigned *)(s + p.sq_off.tail), r.array = (unsigned *)(s + p.sq_off.array);
	r.done_head = (unsigned *)(c + p.cq_off.head), r.done_tail = (unsigned *)(c + p.cq_off.tail);
	r.mask = p.sq_entries - 1;
	return r;
}

/* Hands over what was put in, and takes what has come out. */
static void ring_enter(struct ring *r)
{
	syscall(SYS_io_uring_enter, r->fd, r->unsent, 0, 0, 0, 0);
	r->unsent = 0;
	__atomic_store_n(r->done_head, __atomic_load_n(r->done_tail, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

static void ring_ask(struct ring *r, off_t at, size_t length)
{
	if (r->unsent > r->mask)
		ring_enter(r);
	unsigned i = *r->tail & r->mask;
	struct io_uring_sqe *e = &r->entries[i];
	memset(e, 0, sizeof *e);
	e->fd = fd, e->off = (uint64_t)at, e->len = (unsigned)length;
	if (!strcmp(way, "ring-read"))
		e->opcode = IORING_OP_READ, e->addr = (uint64_t)r->buffer;
	else
		e->opcode = IORING_OP_FADVISE, e->fadvise_advice = POSIX_FADV_WILLNEED;
	r->array[i] = i;
	__atomic_store_n(r->tail, *r->tail + 1, __ATOMIC_RELEASE);
	r->unsent++;
}

static void ask(struct ring *r, off_t at, size_t length)
{
	if (r->fd >= 0)
		ring_ask(r, at, length);
	else if (!strcmp(way, "fadvise"))
		posix_fadvise(fd, at, (off_t)length, POSIX_FADV_WILLNEED);
	else if (!strcmp(way, "populate"))
		madvise((char *)mapped + at, length, 22 /* MADV_POPULATE_READ */);
	else
		readahead(fd, at, length);
}

/* Piece k is the k-th of what each thread reads next, in turns; blocks that touch are asked for in one call. */
static void *help(void *unused)
{
	size_t part = blocks / threads;
	struct ring r = {.fd = -1};
	if (!strncmp(way, "ring", 4))
		r = ring_new();
	for (;;) {
		while (sem_wait(&credit))
			;
		size_t k = atomic_fetch_add(&next, 1), from = k % threads * part + k / threads * per;
		if (k / threads * per >= part)
			return unused;
		if (sweep) {
			ask(&r, (off_t)(from * block), per * block);
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
			ask(&r, low, (size_t)(high - low));
		}
		if (r.fd >= 0)
			ring_enter(&r);
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
	if (argc < 7 || argc > 10)
		return 2;
	const char *pattern = argv[1];
	block = strtoul(argv[3], 0, 0), step = strtoul(argv[4], 0, 0);
	threads = strtoul(argv[5], 0, 0), ahead = strtoul(argv[6], 0, 0);
	int helpers = argc > 7 ? atoi(argv[7]) : 2;
	piece = argc > 8 ? strtoul(argv[8], 0, 0) : piece;
	way = argc > 9 ? argv[9] : way;
	double begin = now();
	fd = open(argv[2], O_RDONLY);
	size_t size = (size_t)lseek(fd, 0, SEEK_END);
	if (!strcmp(way, "populate"))
		mapped = mmap(0, size, PROT_READ, MAP_SHARED, fd, 0);
	if (fd < 0 || !block || block > piece || !threads || threads > 64)
		return 2;
	if (strcmp(pattern, "stride"))
		step = block;
	blocks = size / step;
	per = piece / block;
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
	sem_init(&credit, 0, (unsigned)(ahead / piece));
	for (int i = 0; ahead && i < helpers; i++)
		pthread_create(&h, 0, help, 0);
	for (size_t i = 1; i < threads; i++)
		pthread_create(&t[i], 0, run, (void *)i);
	run(0);
	for (size_t i = 1; i < threads; i++)
		pthread_join(t[i], 0);
	printf("%.6f\n", now() - begin);
	return 0;
}
