/* forked_stream FILE: opens a stream, reads a byte, and lets a child read the rest of it. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static char block[16384];
	FILE *file = argc == 2 ? fopen(argv[1], "r") : 0;
	if (!file || fgetc(file) == EOF)
		return 1;
	pid_t child = fork();
	if (!child) {
		while (fread(block, 1, sizeof block, file) == sizeof block)
			;
		_exit(!feof(file));
	}
	int status;
	return waitpid(child, &status, 0) != child || status;
}
