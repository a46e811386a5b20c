/*
 * graph FILE COUNT FORESEEN: reads COUNT pages of FILE at random, of which a graph foresees as many before each as outrider-graph thinks right:
 * `certain`, or `weak` if the function might end after each. `plain`: without a graph. Prints microseconds.
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

static struct { uint64_t *at, count; int fd, edge; } work;

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
	(void)ctx;
	if (i >= work.count)
		return OUTRIDER_END;
	*op = (struct outrider_op){ .kind = OUTRIDER_PREAD, .fd = work.fd, .length = PAGE, .offset = work.at[i] };
	return work.edge;
}

int main(int argc, char **argv)
{
	struct timespec begun, ended;
	outrider_scope *scope = NULL;
	outrider_graph *graph;
	uint64_t state = 3, pages;
	char page[PAGE];

	if (argc != 4)
		return 2;
	work.fd = open(argv[1], O_RDONLY);
	work.count = strtoull(argv[2], 0, 0);
	work.edge = strcmp(argv[3], "weak") ? OUTRIDER_CALL : OUTRIDER_WEAK;
	work.at = calloc(work.count + 1, sizeof(*work.at));
	graph = outrider_graph_generator("random", next, OUTRIDER_PURE);
	if (work.fd < 0 || !work.at || !graph)
		return 1;
	pages = lseek(work.fd, 0, SEEK_END) / PAGE;
	posix_fadvise(work.fd, 0, 0, POSIX_FADV_RANDOM);
	for (uint64_t i = 0; i < work.count; i++)
		work.at[i] = random_u64(&state) % pages * PAGE;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	if (strcmp(argv[3], "plain"))
		scope = outrider_enter(graph, NULL);
	for (uint64_t i = 0; i < work.count; i++) {
		ssize_t got = scope ? outrider_pread(scope, work.fd, page, PAGE, work.at[i]) : pread(work.fd, page, PAGE, work.at[i]);

		if (got != PAGE)
			return 1;
	}
	if (scope)
		outrider_leave(scope);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	outrider_graph_free(graph);
	printf("%lld\n", (ended.tv_sec - begun.tv_sec) * 1000000LL + (ended.tv_nsec - begun.tv_nsec) / 1000);
	return 0;
}
