/* readers THREADS: reads whole files, whose names come on standard input, one a line, with so many threads, in that order; an empty line ends a round.
 * Prints the seconds of each round: what a device and the opening of files allow whoever knows their order. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 20 };
static char **names;
static size_t count, room;
static atomic_size_t next;

static void *reader(void *buffer)
{
	for (size_t i; (i = atomic_fetch_add(&next, 1)) < count;) {
		int fd = open(names[i], O_RDONLY | O_CLOEXEC);
		if (fd < 0) {
			perror(names[i]);
			exit(1);
		}
		while (read(fd, buffer, BUFFER) > 0)
			;
		close(fd);
	}
	return buffer;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 0;
	if (n < 1 || n > 256)
		return 2;
	char *line = NULL;
	size_t size = 0;
	for (ssize_t got; (got = getline(&line, &size, stdin)) > 0;) {
		line[strcspn(line, "\n")] = 0;
		if (*line) {
			if (count == room)
				names = realloc(names, (room = 2 * room + 1024) * sizeof *names);
			names[count++] = strdup(line);
			continue;
		}
		pthread_t threads[256];
		double begin = now();
		next = 0;
		for (int i = 0; i < n; i++)
			pthread_create(&threads[i], NULL, reader, malloc(BUFFER));
		for (int i = 0; i < n; i++) {
			void *buffer;
			pthread_join(threads[i], &buffer);
			free(buffer);
		}
		printf("%.6f\n", now() - begin);
		while (count)
			free(names[--count]);
	}
	return 0;
}
