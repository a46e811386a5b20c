/*
 * declared A B: reads every second page of A in random order, then of B, as declared lists (SPEC LP3); linked with liboutrider.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "outrider.h"
#include "random_u64.h"

#define PAGE 4096

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void read_list(const char *path)
{
	int fd = open(path, O_RDONLY);
	size_t count = fd < 0 ? 0 : lseek(fd, 0, SEEK_END) / PAGE / 2, i;
	struct outrider_range *list = calloc(count + 1, sizeof(*list)), swapped;
	uint64_t state = 5;
	char page[PAGE];

	if (!count || !list)
		die(path);
	for (i = 0; i < count; i++)
		list[i] = (struct outrider_range){ .offset = i * 2 * PAGE, .length = PAGE };
	for (i = count - 1; i; i--) {
		size_t other = random_u64(&state) % (i + 1);

		swapped = list[i];
		list[i] = list[other];
		list[other] = swapped;
	}
	if (outrider_declare(fd, list, count) < 0)
		die("outrider_declare");
	for (i = 0; i < count; i++)
		if (pread(fd, page, PAGE, list[i].offset) != PAGE)
			die(path);
	close(fd);
	free(list);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		read_list(argv[i]);
	return argc < 2;
}
