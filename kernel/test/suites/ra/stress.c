/*
 * stress DIR SECONDS [REST]: reads files in every way while they are changed, and checks what is read. REST: microseconds that each
 * thread sleeps after each file that it was busy with, to leave the processors to others.
 *
 * Two files never change: whatever is read of them has to be right. Two are truncated, punched and written anew all the time: every
 * byte that is read of them is right or zero. At the end everything is compared.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FILES 4
#define CHANGING 2	/* files from here on change */
#define PAGES 1536
#define PAGE 4096
#define STEP 512	/* a word every so often */

static char paths[FILES][256];
static time_t until;
static useconds_t rest;
static long reads;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t word(int file, uint64_t offset)
{
	uint64_t x = (offset ^ (uint64_t)file << 48) * 0x9e3779b97f4a7c15ULL;

	return (x ^ x >> 29) | 1;
}

/* Whether every byte of what was read is right or zero: a read beside a write may find the half of a word. */
static int is_partly(uint64_t is, uint64_t right)
{
	for (int shift = 0; shift < 64; shift += 8) {
		uint64_t byte = is >> shift & 0xff;

		if (byte && byte != (right >> shift & 0xff))
			return 0;
	}
	return 1;
}

static void check(int file, const char *data, uint64_t offset, size_t length, const char *how)
{
	for (size_t i = 0; i + sizeof(uint64_t) <= length; i += STEP) {
		uint64_t is;

		memcpy(&is, data + i, sizeof(is));
		if (is == word(file, offset + i) || (file >= CHANGING && is_partly(is, word(file, offset + i))))
			continue;
		printf("%s: %s found %llx at byte %llu\n", paths[file], how, (unsigned long long)is, (unsigned long long)(offset + i));
		exit(1);
	}
}

static void write_pages(int fd, int file, uint64_t page, uint64_t count)
{
	char data[PAGE] = { 0 };

	for (uint64_t at = page * PAGE; at < (page + count) * PAGE; at += PAGE) {
		for (int i = 0; i < PAGE; i += STEP) {
			uint64_t w = word(file, at + i);

			memcpy(data + i, &w, sizeof(w));
		}
		if (pwrite(fd, data, PAGE, at) != PAGE)
			die("pwrite");
	}
}

static void *reader(void *argument)
{
	unsigned int seed = (long)argument;
	static __thread char data[64 * PAGE];

	while (time(NULL) < until) {
		int file = rand_r(&seed) % FILES, fd = open(paths[file], O_RDONLY);
		uint64_t at = rand_r(&seed) % PAGES * PAGE;
		size_t block = (1 + rand_r(&seed) % 64) * PAGE;
		ssize_t got;

		if (fd < 0)
			die(paths[file]);
		if (rand_r(&seed) % 8 == 0)
			at = 0;
		if (rand_r(&seed) % 4 == 0)
			block = PAGE;
		for (int runs = rand_r(&seed) % 200; runs >= 0; runs--) {
			got = pread(fd, data, block, at);
			if (got < 0)
				die("pread");
			check(file, data, at, got, "read");
			at += got;
			__atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED);
			if (!got)
				break;
		}
		if (rand_r(&seed) % 3 == 0)
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
		usleep(rest);
	}
	return NULL;
}

/* Faults, forwards and at random, only in files that keep their length. */
static void *mapper(void *argument)
{
	unsigned int seed = (long)argument;

	while (time(NULL) < until) {
		int file = rand_r(&seed) % CHANGING, fd = open(paths[file], O_RDONLY);
		char *data = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
		uint64_t page = rand_r(&seed) % PAGES;

		if (data == MAP_FAILED)
			die("mmap");
		if (rand_r(&seed) % 2)
			madvise(data, PAGES * PAGE, MADV_SEQUENTIAL);
		for (int i = rand_r(&seed) % 300; i >= 0 && page < PAGES; i--, page++)
			check(file, data + page * PAGE, page * PAGE, PAGE, "mmap");
		munmap(data, PAGES * PAGE);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
		usleep(rest);
	}
	return NULL;
}

static void *changer(void *argument)
{
	unsigned int seed = (long)argument;

	while (time(NULL) < until) {
		int file = CHANGING + rand_r(&seed) % (FILES - CHANGING), fd = open(paths[file], O_RDWR);
		uint64_t page = rand_r(&seed) % PAGES, count = 1 + rand_r(&seed) % (PAGES - page);

		if (fd < 0)
			die(paths[file]);
		if (rand_r(&seed) % 2) {
			if (ftruncate(fd, page * PAGE) || ftruncate(fd, PAGES * PAGE))
				die("ftruncate");
			count = PAGES - page;
		} else if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, count * PAGE)) {
			die("fallocate");
		}
		write_pages(fd, file, page, count);
		if (rand_r(&seed) % 2)
			fdatasync(fd);
		close(fd);
		usleep(rest);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	void *(*const bodies[])(void *) = { reader, reader, reader, mapper, mapper, changer };
	enum { THREADS = sizeof(bodies) / sizeof(bodies[0]) };
	pthread_t threads[THREADS];
	static char data[PAGE];

	if (argc < 3 || argc > 4)
		return 2;
	if (argc == 4)
		rest = atoi(argv[3]);
	for (int file = 0; file < FILES; file++) {
		int fd;

		snprintf(paths[file], sizeof(paths[file]), "%s/%d", argv[1], file);
		fd = open(paths[file], O_CREAT | O_TRUNC | O_RDWR, 0644);
		if (fd < 0)
			die(paths[file]);
		write_pages(fd, file, 0, PAGES);
		fdatasync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
	until = time(NULL) + atoi(argv[2]);
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, bodies[i], (void *)(i + 1)))
			die("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	/* Nothing is being changed any more: every word has to be there. */
	for (int file = 0; file < FILES; file++) {
		int fd = open(paths[file], O_RDONLY);

		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		for (uint64_t at = 0; at < PAGES * PAGE; at += PAGE) {
			if (read(fd, data, PAGE) != PAGE)
				die("read at the end");
			for (int i = 0; i < PAGE; i += STEP) {
				uint64_t w = word(file, at + i);

				if (memcmp(data + i, &w, sizeof(w))) {
					printf("%s: wrong at the end, byte %llu\n", paths[file], (unsigned long long)(at + i));
					return 1;
				}
			}
		}
		close(fd);
	}
	printf("%ld reads\n", reads);
	return reads < 100;
}
