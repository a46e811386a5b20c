/*
 * remapped FILE PAGES LEAST: for random pages of FILE, whether outrider_ra's answer (debugfs outrider_ra/locate) is where the device then sends
 * the read, which its tracepoint block_bio_remap says: to otdisk, or to another. At most one answer in nine may be wrong, `unknown` is
 * none, and at least LEAST pages have to lie on each side. Prints how many answers were right, wrong and unknown.
 */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "located.h"

#define PAGE 4096

int main(int argc, char **argv)
{
	static char seen[1 << 18], data[PAGE], from[32], disk[32];
	int fd, trace, on_ssd = 0, on_disk = 0, right = 0, wrong = 0, unknown = 0;
	unsigned int seed = 13, major, minor;
	struct stat st;
	uint64_t pages;
	FILE *number = fopen("/sys/block/otdisk/dev", "r");

	if (argc != 4 || !number || fscanf(number, "%u:%u", &major, &minor) != 2)
		return 2;
	fd = open(argv[1], O_RDONLY);
	trace = open("/sys/kernel/tracing/trace_pipe", O_RDONLY | O_NONBLOCK);
	if (fd < 0 || trace < 0 || fstat(fd, &st)) {
		perror(argv[1]);
		return 1;
	}
	snprintf(from, sizeof(from), "+ %d <- (%u,%u)", PAGE / 512, major(st.st_dev), minor(st.st_dev));
	snprintf(disk, sizeof(disk), "remap: %u,%u ", major, minor);
	pages = st.st_size / PAGE;
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (int i = 0; i < atoi(argv[2]); i++) {
		uint64_t page = rand_r(&seed) % pages;
		size_t length = 0;
		char answer[64], *event;
		int is_disk, says_disk;
		ssize_t got;

		posix_fadvise(fd, page * PAGE, PAGE, POSIX_FADV_DONTNEED);
		located(fd, page, answer, sizeof(answer));
		while (read(trace, seen, sizeof(seen)) > 0)
			;
		if (pread(fd, data, PAGE, page * PAGE) != PAGE)
			return 1;
		while (length < sizeof(seen) - 1 && (got = read(trace, seen + length, sizeof(seen) - 1 - length)) > 0)
			length += got;
		seen[length] = 0;
		event = strstr(seen, from);
		if (!event) {
			printf("page %llu: no request was seen\n", (unsigned long long)page);
			return 1;
		}
		while (event > seen && event[-1] != '\n')
			event--;
		*strchr(event, '\n') = 0;
		is_disk = strstr(event, disk) != NULL;
		on_disk += is_disk;
		on_ssd += !is_disk;
		says_disk = !strncmp(answer, "otdisk", 6);
		if (!strncmp(answer, "unknown", 7))
			unknown++;
		else if (says_disk == is_disk)
			right++;
		else
			wrong++;
	}
	printf("%d right, %d wrong, %d unknown; %d on the SSD, %d on the disk\n", right, wrong, unknown, on_ssd, on_disk);
	return wrong * 9 > right + wrong || on_ssd < atoi(argv[3]) || on_disk < atoi(argv[3]);
}
