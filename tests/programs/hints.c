/*
 * Hints pieces of 8 MiB of a file over and over, and throws away in between what has come: most of it is on its way then, stays, and is cached when it is hinted again.
 *
 * usage: hints FILE ROUNDS
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	const long piece = 8L << 20;
	static char page[4096];
	int fd = argc == 3 ? open(argv[1], O_RDONLY) : -1;
	if (fd < 0 || pread(fd, page, sizeof page, 0) != sizeof page)
		return 1;
	for (int round = 0; round < atoi(argv[2]); round++) {
		for (int i = 0; i < 64; i++)
			if (posix_fadvise(fd, (i * 7 % 3) * piece, piece, POSIX_FADV_WILLNEED))
				return 1;
		if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
			return 1;
	}
	return 0;
}
