/* tiles FILE WIDTH HEIGHT MEMORY: what the reads and writes of `outrider-work blur` take at least when somebody who knows them all chooses them by hand, with
 * so many MiB for tiles and around the page cache. FILE holds three copies of an image of WIDTH x HEIGHT tiles of 16 KiB. Each pass takes as many columns
 * (rows) at a time as memory holds: what of them lies together with one call each, upwards, and writes them in the order of the next copy. Nothing is
 * computed. Prints seconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TILE ((size_t)16 << 10)
#define CALL ((size_t)1 << 20)

static int fd;
static char *band, *out;
static size_t memory;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int well)
{
	if (!well)
		perror("tiles"), exit(1);
}

/* Reads a copy whose lines (rows or columns) of `across` tiles lie one after the other, `lines` of them, against the grain, and writes it so to `to`, if that is not 0. */
static void pass(off_t from, off_t to, size_t across, size_t lines)
{
	size_t most = memory / TILE / lines;
	for (size_t first = 0, n; first < across; first += n) {
		n = across - first < most ? across - first : most;
		for (size_t line = 0; line < lines; line++) {
			ssize_t bytes = (ssize_t)(n * TILE);
			must(pread(fd, band + line * n * TILE, (size_t)bytes, from + (off_t)((line * across + first) * TILE)) == bytes);
		}
		if (!to)
			continue;
		size_t filled = 0;
		off_t at = to + (off_t)(first * lines * TILE);
		for (size_t k = 0; k < n * lines; k++) {
			memcpy(out + filled, band + (k % lines * n + k / lines) * TILE, TILE);
			filled += TILE;
			if (filled == CALL || k + 1 == n * lines) {
				must(pwrite(fd, out, filled, at) == (ssize_t)filled);
				at += (off_t)filled, filled = 0;
			}
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return fprintf(stderr, "tiles FILE WIDTH HEIGHT MEMORY\n"), 2;
	size_t width = strtoul(argv[2], 0, 0), height = strtoul(argv[3], 0, 0);
	memory = strtoul(argv[4], 0, 0) << 20;
	must((fd = open(argv[1], O_RDWR | O_DIRECT)) >= 0);
	must(!posix_memalign((void **)&band, 4096, memory) && !posix_memalign((void **)&out, 4096, CALL));
	off_t image = (off_t)(width * height * TILE);
	double begun = now();
	pass(0, image, width, height);
	pass(image, 2 * image, height, width);
	pass(2 * image, 0, width, height);
	printf("%.3f\n", now() - begun);
	return 0;
}
