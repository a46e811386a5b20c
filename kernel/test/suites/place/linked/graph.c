/*
 * graph FILE COUNT FORESEEN [THEN FEW RUNS]: reads COUNT pages of FILE at random, of which a graph foresees as many before each as outrider-graph thinks
 * right: `certain`, or `weak` if the function might end after each. `plain`: without a graph. With THEN it goes on in that file, of which the graph foresees
 * COUNT pages too, and ends after FEW; RUNS says whether that is `one` run of the function or `two`. Prints microseconds.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "outrider_graph.h"
#include "random_u64.h"

#define PAGE 4096

struct page { int fd; uint64_t at; };
static struct { struct page *pages; uint64_t begin, end; int edge; } work;

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
	(void)ctx;
	if (work.begin + i >= work.end)
		return OUTRIDER_END;
	*op = (struct outrider_op){ .kind = OUTRIDER_PREAD, .fd = work.pages[work.begin + i].fd, .length = PAGE, .offset = work.pages[work.begin + i].at };
	return work.edge;
}

/* The next COUNT pages of the function's: of FILE, at random. */
static void choose(const char *path, uint64_t count)
{
	static uint64_t state = 3;
	int fd = open(path, O_RDONLY);
	uint64_t pages = fd < 0 ? 0 : lseek(fd, 0, SEEK_END) / PAGE;

	work.pages = realloc(work.pages, (work.end + count) * sizeof(*work.pages));
	if (!pages || !work.pages)
		exit(1);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (uint64_t i = 0; i < count; i++)
		work.pages[work.end++] = (struct page){ fd, random_u64(&state) % pages * PAGE };
}

/* One run of the function: COUNT pages from number BEGIN on. */
static void run(outrider_graph *graph, uint64_t begin, uint64_t count)
{
	outrider_scope *scope = NULL;
	char page[PAGE];

	work.begin = begin;
	if (graph)
		scope = outrider_enter(graph, NULL);
	for (struct page *next = work.pages + begin; next < work.pages + begin + count; next++) {
		ssize_t got = scope ? outrider_pread(scope, next->fd, page, PAGE, next->at) : pread(next->fd, page, PAGE, next->at);

		if (got != PAGE)
			exit(1);
	}
	if (scope)
		outrider_leave(scope);
}

int main(int argc, char **argv)
{
	struct timespec begun, ended;
	outrider_graph *graph = NULL;
	uint64_t count, few;
	int one;

	if (argc != 4 && argc != 7)
		return 2;
	count = strtoull(argv[2], 0, 0);
	few = argc == 7 ? strtoull(argv[5], 0, 0) : 0;
	one = argc == 7 && !strcmp(argv[6], "one");
	work.edge = strcmp(argv[3], "weak") ? OUTRIDER_CALL : OUTRIDER_WEAK;
	if (strcmp(argv[3], "plain"))
		graph = outrider_graph_generator("random", next, OUTRIDER_PURE);
	choose(argv[1], count);
	if (one)
		choose(argv[4], count);
	clock_gettime(CLOCK_MONOTONIC, &begun);
	run(graph, 0, one ? count + few : count);
	if (few && !one) {
		choose(argv[4], count);
		run(graph, count, few);
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	outrider_graph_free(graph);
	printf("%lld\n", (ended.tv_sec - begun.tv_sec) * 1000000LL + (ended.tv_nsec - begun.tv_nsec) / 1000);
	return 0;
}
