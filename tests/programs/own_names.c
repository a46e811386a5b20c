/* own_names FILE: a program that defines some of the C library's functions under one of their names, and calls each by another. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t __write(int fd, const void *bytes, size_t n);
int __close(int fd);
int __dup2(int from, int to);
int __fcntl(int fd, int command, ...);
int __openat64_2(int dir, const char *path, int flags);

int open(const char *path, int flags, ...) { return open64(path, flags, 0644); }
int openat(int dir, const char *path, int flags, ...) { return openat64(dir, path, flags, 0644); }
ssize_t write(int fd, const void *bytes, size_t n) { return __write(fd, bytes, n); }
int close(int fd) { return __close(fd); }
int dup2(int from, int to) { return __dup2(from, to); }
off_t lseek(int fd, off_t at, int whence) { return lseek64(fd, at, whence); }
ssize_t pread(int fd, void *bytes, size_t n, off_t at) { return pread64(fd, bytes, n, at); }
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) { return pwrite64(fd, bytes, n, at); }
int fstat(int fd, struct stat *st) { return fstat64(fd, (struct stat64 *)st); }
int stat(const char *path, struct stat *st) { return stat64(path, (struct stat64 *)st); }
struct dirent *readdir(DIR *directory) { return (struct dirent *)readdir64(directory); }
int fcntl(int fd, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	long argument = va_arg(arguments, long);
	va_end(arguments);
	return __fcntl(fd, command, argument);
}

int main(int argc, char **argv)
{
	struct stat st;
	char block[4096];
	if (argc != 2 || stat(argv[1], &st))
		return 1;
	printf("%ld bytes\n", (long)st.st_size);
	int fd = open(argv[1], O_RDONLY), other = openat(AT_FDCWD, "own_names.out", O_CREAT | O_RDWR | O_TRUNC);
	printf("pread %zd at the end %zd\n", pread(fd, block, sizeof block, 8192), pread(fd, block, sizeof block, st.st_size));
	printf("pwrite %zd write %zd\n", pwrite(other, block, 100, 0), write(other, block, 50));
	printf("lseek %ld\n", (long)lseek(other, 0, SEEK_END));
	printf("fstat %d dup2 %d flags %x\n", fstat(other, &st), dup2(fd, 40), fcntl(40, F_GETFL));
	DIR *directory = opendir(".");
	int entries = 0;
	for (struct dirent *e; (e = readdir(directory));)
		entries += e->d_name[0] != '.';
	printf("entries %s\n", entries > 1 ? "some" : "none");
	closedir(directory);
	printf("close %d %d %d\n", close(fd), close(other), close(40));
	return 0;
}
