/*
 * location FILE PAGES OFFSET BOUNDARY: for random pages of FILE, whether outrider_ra's answer (debugfs outrider_ra/locate) is what the
 * volume's table says: FIEMAP's sector plus OFFSET lies on otssd below BOUNDARY, and behind it on otdisk. With a BOUNDARY of 0 nothing may
 * be known.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "located.h"

#define PAGE 4096

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t sector_of(int fd, uint64_t page)
{
	static union { struct fiemap map; char room[sizeof(struct fiemap) + sizeof(struct fiemap_extent)]; } ask;
	struct fiemap_extent *extent = ask.map.fm_extents;

	memset(&ask, 0, sizeof(ask));
	ask.map.fm_start = page * PAGE;
	ask.map.fm_length = PAGE;
	ask.map.fm_extent_count = 1;
	if (ioctl(fd, FS_IOC_FIEMAP, &ask.map) || !ask.map.fm_mapped_extents)
		die("FIEMAP");
	return (extent->fe_physical + page * PAGE - extent->fe_logical) / 512;
}

int main(int argc, char **argv)
{
	int fd, on_ssd = 0, on_disk = 0, unknown = 0;
	unsigned int seed = 11;
	uint64_t pages, offset, boundary;

	if (argc != 5)
		return 2;
	fd = open(argv[1], O_RDONLY);
	if (fd < 0)
		die(argv[1]);
	pages = lseek(fd, 0, SEEK_END) / PAGE;
	offset = strtoull(argv[3], NULL, 10);
	boundary = strtoull(argv[4], NULL, 10);
	for (int i = 0; i < atoi(argv[2]); i++) {
		uint64_t page = rand_r(&seed) % pages, sector = sector_of(fd, page) + offset;
		char answer[64], expected[64] = "unknown\n";

		located(fd, page, answer, sizeof(answer));
		if (boundary && sector < boundary)
			on_ssd += snprintf(expected, sizeof(expected), "otssd %llu\n", (unsigned long long)sector) > 0;
		else if (boundary)
			on_disk += snprintf(expected, sizeof(expected), "otdisk %llu\n", (unsigned long long)(sector - boundary)) > 0;
		else
			unknown++;
		if (strcmp(answer, expected)) {
			printf("page %llu: located on %.40s, but it is on %s\n", (unsigned long long)page, answer, expected);
			return 1;
		}
	}
	printf("%d pages on the SSD, %d on the disk, %d unknown\n", on_ssd, on_disk, unknown);
	return 0;
}
