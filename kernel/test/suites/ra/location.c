/*
 * location FILE PAGES: for random pages, whether outrider_ra's answer (debugfs outrider_ra/locate) is what bcache then does: the
 * flag `hit` of its tracepoint bcache_read. Pages without a block have no read to compare with.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "located.h"

#define PAGE 4096

static int open_file(const char *path, int flags)
{
	int fd = open(path, flags);

	if (fd < 0) {
		perror(path);
		exit(1);
	}
	return fd;
}

int main(int argc, char **argv)
{
	static char seen[1 << 20], data[PAGE];
	int fd, trace, on_ssd = 0, on_disk = 0, holes = 0, wrong = 0;
	unsigned int seed = 7;
	uint64_t pages;

	if (argc != 3)
		return 2;
	fd = open_file(argv[1], O_RDONLY);
	trace = open_file("/sys/kernel/tracing/trace_pipe", O_RDONLY | O_NONBLOCK);
	pages = lseek(fd, 0, SEEK_END) / PAGE;
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (int i = 0; i < atoi(argv[2]); i++) {
		uint64_t page = rand_r(&seed) % pages;
		char answer[64];
		const char *event = seen, *hit;
		size_t length = 0;
		ssize_t got;
		int flag = -1;

		posix_fadvise(fd, page * PAGE, PAGE, POSIX_FADV_DONTNEED);
		while (read(trace, seen, sizeof(seen)) > 0)
			;
		located(fd, page, answer, sizeof(answer));
		if (pread(fd, data, PAGE, page * PAGE) != PAGE) {
			perror(argv[1]);
			return 1;
		}
		while (length < sizeof(seen) - 1 && (got = read(trace, seen + length, sizeof(seen) - 1 - length)) > 0)
			length += got;
		seen[length] = 0;
		/* The read of this page is the one of eight sectors; reads of metadata may come before it. */
		while ((event = strstr(event, "bcache_read:"))) {
			hit = strstr(event, " hit ");
			if (hit && strtoul(strchr(event, '+') + 1, NULL, 10) == PAGE / 512)
				flag = atoi(hit + 5);
			event++;
		}
		if (!strncmp(answer, "otssd", 5) && flag == 1)
			on_ssd++;
		else if (!strncmp(answer, "otdisk", 6) && flag == 0)
			on_disk++;
		else if (!strncmp(answer, "unknown", 7) && flag == -1)
			holes++;
		else if (++wrong < 5)
			printf("page %llu: located on %.20s, bcache's hit flag is %d\n", (unsigned long long)page, answer, flag);
	}
	printf("@ figure location %d pages on the SSD, %d on the disk, %d in holes\n", on_ssd, on_disk, holes);
	if (wrong || on_ssd < 20 || on_disk < 20 || holes < 5) {
		printf("%d wrong; %d on the SSD, %d on the disk, %d in holes\n", wrong, on_ssd, on_disk, holes);
		return 1;
	}
	return 0;
}
