/* remapped FILE moved|cut|covered OTHER: touches a byte of every 64 KiB of FILE by a mapping of it, in order. After an eighth: moved, of a mapping of that eighth,
 * which is made as long as the file and moved elsewhere; cut, once what was touched is unmapped; covered, of OTHER, which is mapped over all that is left. Prints the sum. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static volatile unsigned char *map(const char *path, void *at, size_t length, off_t from)
{
	int fd = open(path, O_RDONLY);
	return mmap(at, length, PROT_READ, MAP_SHARED | (at ? MAP_FIXED : 0), fd, from);
}

int main(int argc, char **argv)
{
	struct stat st;
	if (argc != 4 || stat(argv[1], &st))
		return 2;
	size_t size = (size_t)st.st_size, eighth = size / 8;
	int moved = !strcmp(argv[2], "moved");
	volatile unsigned char *p = map(argv[1], 0, moved ? eighth : size, 0);
	unsigned long sum = 0;
	for (size_t i = 0; i < size; i += 64 << 10) {
		if (i == eighth && moved) {
			char *place = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			p = mremap((void *)p, eighth, size, MREMAP_MAYMOVE | MREMAP_FIXED, place);
		} else if (i == eighth && !strcmp(argv[2], "cut")) {
			munmap((void *)p, eighth);
		} else if (i == eighth) {
			map(argv[3], (void *)(p + eighth), size - eighth, 0);
		}
		if (p == MAP_FAILED)
			return 1;
		sum += p[i];
	}
	printf("%lu\n", sum);
	return 0;
}
