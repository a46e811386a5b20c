/* known.so, preloaded into a program that reads a file in pages of 4 KiB: what its reads take when somebody who knows them all beforehand fetches them by
 * hand. Built with cc -O2 -shared -fPIC.
 * KNOWN_RECORD=FILE KNOWN_PAGES=N: writes into FILE the program's reads, and what Belady's algorithm fetches and drops with room for N pages.
 * KNOWN_PLAY=FILE [KNOWN_AHEAD=64] [KNOWN_HELPER=1]: carries that out: posix_fadvise(WILLNEED) so many fetches ahead, by the reading thread or a thread of its
 * own, and DONTNEED behind. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define NONE UINT32_MAX

static const char *record;
static uint32_t *taken;
static size_t taken_count, taken_room;
static uint32_t count, at, front, under_way, ahead = 64;
static uint32_t *page, *drop;
static uint8_t *fetch;
static int play, helper, descriptor = -1;
static sem_t credit;

static void advise(uint32_t number, int advice)
{
	posix_fadvise(descriptor, (off_t)number * PAGE, PAGE, advice);
}

static void *help(void *unused)
{
	for (;;) {
		while (sem_wait(&credit))
			;
		while (front < count && !fetch[front])
			front++;
		if (front >= count)
			return unused;
		advise(page[front++], POSIX_FADV_WILLNEED);
	}
}

__attribute__((constructor)) static void begin(void)
{
	const char *file = getenv("KNOWN_PLAY"), *number = getenv("KNOWN_AHEAD"), *help_ = getenv("KNOWN_HELPER");
	struct stat about;
	int fd;
	record = getenv("KNOWN_RECORD");
	if (!file || (fd = open(file, O_RDONLY)) < 0 || fstat(fd, &about))
		return;
	uint8_t *map = mmap(0, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return;
	count = *(uint32_t *)map, page = (uint32_t *)map + 1, drop = page + count, fetch = (uint8_t *)(drop + count);
	ahead = number ? (uint32_t)atoi(number) : ahead;
	helper = help_ && atoi(help_);
	play = 1;
}

__attribute__((destructor)) static void end(void)
{
	uint32_t n = (uint32_t)taken_count, pages = 0, held = 0, fetched = 0;
	const char *number = getenv("KNOWN_PAGES");
	if (!record || !number || n < 2)
		return;
	for (uint32_t i = 0; i < n; i++)
		pages = taken[i] >= pages ? taken[i] + 1 : pages;
	uint32_t room = (uint32_t)atoi(number), *next = malloc(4 * n), *last = malloc(4 * pages), *gone = malloc(4 * n);
	uint8_t *here = calloc(pages, 1), *wanted = calloc(n, 1), *fetches = calloc(n, 1);
	memset(last, 0xff, 4 * pages);
	for (uint32_t i = n; i-- > 0; last[taken[i]] = i)
		next[i] = last[taken[i]];
	for (uint32_t i = 0; i < n; i++) {
		uint32_t p = taken[i], victim = NONE;
		if (!here[p])
			here[p] = fetches[i] = 1, fetched++, held++;
		wanted[i] = 0;
		if (next[i] == NONE)
			victim = p;
		else
			wanted[next[i]] = 1;
		if (victim == NONE && held > room) {
			uint32_t k = n - 1;
			while (!wanted[k])
				k--;
			wanted[k] = 0, victim = taken[k];
		}
		if (victim != NONE)
			here[victim] = 0, held--;
		gone[i] = victim;
	}
	FILE *out = fopen(record, "w");
	if (out) {
		fwrite(&n, 4, 1, out), fwrite(taken, 4, n, out), fwrite(gone, 4, n, out), fwrite(fetches, 1, n, out);
		fclose(out);
	}
	fprintf(stderr, "%u reads of %u pages, %u fetches with room for %u\n", n, pages, fetched, room);
}

ssize_t pread64(int fd, void *bytes, size_t n, off_t offset)
{
	uint32_t number = (uint32_t)(offset / PAGE), i = at;
	if (n != PAGE || offset % PAGE || !(record || play))
		return syscall(SYS_pread64, fd, bytes, n, offset);
	if (record) {
		if (taken_count == taken_room)
			taken = realloc(taken, 4 * (taken_room = taken_room ? 2 * taken_room : 65536));
		taken[taken_count++] = number;
		return syscall(SYS_pread64, fd, bytes, n, offset);
	}
	if (descriptor < 0) {
		pthread_t thread;
		descriptor = fd;
		posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
		if (helper && (sem_init(&credit, 0, ahead) || pthread_create(&thread, 0, help, 0)))
			abort();
	}
	/* It must read as it was recorded. */
	if (i >= count || page[i] != number)
		abort();
	for (; !helper && front < count && under_way < ahead; front++)
		if (fetch[front])
			advise(page[front], POSIX_FADV_WILLNEED), under_way++;
	ssize_t r = syscall(SYS_pread64, fd, bytes, n, offset);
	if (fetch[i] && helper)
		sem_post(&credit);
	else if (fetch[i])
		under_way--;
	if (drop[i] != NONE)
		advise(drop[i], POSIX_FADV_DONTNEED);
	at = i + 1;
	return r;
}
