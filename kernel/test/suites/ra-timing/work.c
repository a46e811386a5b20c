/*
 * Readers of files, in virtual time. Every command prints one line, `NANOSECONDS BYTES`, of its timed part.
 *
 *   work fill FILE KIB SEED       writes a file whose every word depends on its place and on SEED, to the disk (not timed: prints nothing)
 *   work fill-head FILE KIB SEED  writes its first KIB again
 *   work read FILE BLOCK SEED     reads the file from its start in BLOCKs and checks every word
 *   work random FILE COUNT SEED   reads COUNT pages at random places, checks them
 *   work compare A B BLOCK        reads two files by turns, as cmp does
 *   work tree DIR COUNT SEED      fills DIR with COUNT files of 1 to 256 KiB
 *   work grep DIR COUNT SEED      reads the files of a tree in order, whole, and checks them
 *   work grep-whole DIR COUNT SEED  the same, with every file asked for whole when it is opened
 *   work diff A B COUNT           reads the files of two equal trees by turns
 *   work compile DIR COUNT DIR2   for each of the files, sources of which every tenth is a header of all others: reads it and what it
 *                                 includes, computes, and writes an object to DIR2; then reads all objects, and removes them
 *   work scan A,B,C,… VECTOR SEED  queries over columns: maps the files and goes over them by turns, VECTOR bytes at a time
 *   work postmark DIR COUNT N     N transactions over small files: read one, then create and delete or append
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
static char buffer[1 << 20];
static int ask_whole;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9e3779b97f4a7c15ULL;
	return x ^ x >> 29;
}

/* Every 256 bytes begin with a word that says where they are. */
static void make(char *at, size_t length, uint64_t offset, uint64_t seed)
{
	for (size_t i = 0; i < length; i += 256) {
		uint64_t word = mix((offset + i) ^ seed << 40);

		memcpy(at + i, &word, sizeof(word));
	}
}

static void check(const char *at, size_t length, uint64_t offset, uint64_t seed, const char *path)
{
	for (size_t i = 0; i + sizeof(uint64_t) <= length; i += 256) {
		uint64_t word = mix((offset + i) ^ seed << 40), is;

		memcpy(&is, at + i, sizeof(is));
		if (is != word) {
			fprintf(stderr, "%s: wrong data at byte %llu\n", path, (unsigned long long)(offset + i));
			exit(1);
		}
	}
}

static int open_file(const char *path, int flags)
{
	int fd = open(path, flags, 0644);

	if (fd < 0)
		die(path);
	return fd;
}

/* To the disk at once, so that blocks are given out in the order of the files, and not in that in which the kernel comes to them. */
static void flush(const char *path)
{
	int fd = open_file(path, O_WRONLY);

	if (fsync(fd))
		die(path);
	close(fd);
}

static void fill(const char *path, uint64_t bytes, uint64_t seed, int flags)
{
	int fd = open_file(path, flags | O_WRONLY);

	for (uint64_t at = 0; at < bytes; at += sizeof(buffer)) {
		size_t length = bytes - at < sizeof(buffer) ? bytes - at : sizeof(buffer);

		make(buffer, length, at, seed);
		if (write(fd, buffer, length) != (ssize_t)length)
			die(path);
	}
	close(fd);
}

static uint64_t read_whole(const char *path, size_t block, uint64_t seed)
{
	int fd = open_file(path, O_RDONLY);
	uint64_t at = 0;
	ssize_t got;

	if (ask_whole)
		posix_fadvise(fd, 0, lseek(fd, 0, SEEK_END), POSIX_FADV_WILLNEED);
	lseek(fd, 0, SEEK_SET);
	while ((got = read(fd, buffer, block)) > 0) {
		check(buffer, got, at, seed, path);
		at += got;
	}
	if (got < 0)
		die(path);
	close(fd);
	return at;
}

static uint64_t compare(const char *a, const char *b, size_t block)
{
	int fds[2] = { open_file(a, O_RDONLY), open_file(b, O_RDONLY) };
	uint64_t bytes = 0;
	ssize_t got[2];

	do {
		for (int i = 0; i < 2; i++) {
			got[i] = read(fds[i], buffer + i * block, block);
			if (got[i] < 0)
				die(i ? b : a);
			bytes += got[i];
		}
		/* What is behind a file's end in the buffers is not compared. */
		if (got[0] != got[1] || memcmp(buffer, buffer + block, got[0])) {
			fprintf(stderr, "%s and %s differ\n", a, b);
			exit(1);
		}
	} while (got[0]);
	close(fds[0]);
	close(fds[1]);
	return bytes;
}

static uint64_t tree_size(uint64_t number, uint64_t seed)
{
	uint64_t r = mix(number * 77 + seed);

	/* Most are small, as sources are: 2^0 to 2^7 KiB, and then some. */
	return (1024ULL << (r % 8)) + (r >> 8) % 4096;
}

static void tree_path(char *to, size_t room, const char *dir, unsigned int number)
{
	snprintf(to, room, "%s/%u", dir, number);
}

static uint64_t compile(const char *dir, unsigned int count, const char *objects)
{
	uint64_t bytes = 0;
	char path[256];

	mkdir(objects, 0755);
	for (unsigned int i = 0; i < count; i++) {
		if (i % 10 == 0)
			continue;
		tree_path(path, sizeof(path), dir, i);
		bytes += read_whole(path, 4096, i);
		for (unsigned int header = i % 3 * 10; header < count; header += 30) {
			tree_path(path, sizeof(path), dir, header);
			bytes += read_whole(path, 4096, header);
		}
		/* The compiler's own time. Virtual time passes as well without counting it out. */
		usleep(20000);
		tree_path(path, sizeof(path), objects, i);
		fill(path, 4096 + tree_size(i, 1) / 2, i, O_CREAT | O_TRUNC);
	}
	for (unsigned int i = 0; i < count; i++) {
		if (i % 10 == 0)
			continue;
		tree_path(path, sizeof(path), objects, i);
		bytes += read_whole(path, 65536, i);
		unlink(path);
	}
	return bytes;
}

static uint64_t scan(char *paths, uint64_t vector, uint64_t seed)
{
	enum { MOST = 8 };
	const char *data[MOST], *names[MOST];
	uint64_t size = ~0ULL, at;
	int columns = 0;

	for (char *path = strtok(paths, ","); path && columns < MOST; path = strtok(NULL, ",")) {
		int fd = open_file(path, O_RDONLY);
		uint64_t length = lseek(fd, 0, SEEK_END);

		names[columns] = path;
		data[columns] = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
		if (data[columns++] == MAP_FAILED)
			die(path);
		size = length < size ? length : size;
		close(fd);
	}
	for (at = 0; at + vector <= size; at += vector)
		for (int i = 0; i < columns; i++)
			check(data[i] + at, vector, at, seed, names[i]);
	return at * columns;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";
	uint64_t began, bytes = 0;
	char path[256];

	if (!strncmp(command, "fill", 4) && argc == 5) {
		fill(argv[2], strtoull(argv[3], 0, 0) << 10, strtoull(argv[4], 0, 0),
		     strcmp(command, "fill-head") ? O_CREAT | O_TRUNC : 0);
		flush(argv[2]);
		return 0;
	}
	if (!strcmp(command, "tree") && argc == 5) {
		mkdir(argv[2], 0755);
		for (unsigned int i = 0; i < strtoul(argv[3], 0, 0); i++) {
			tree_path(path, sizeof(path), argv[2], i);
			fill(path, tree_size(i, strtoull(argv[4], 0, 0)), i, O_CREAT | O_TRUNC);
			flush(path);
		}
		return 0;
	}
	began = now();
	if (!strcmp(command, "read") && argc == 5) {
		bytes = read_whole(argv[2], strtoull(argv[3], 0, 0), strtoull(argv[4], 0, 0));
	} else if (!strcmp(command, "random") && argc == 5) {
		int fd = open_file(argv[2], O_RDONLY);
		uint64_t pages = lseek(fd, 0, SEEK_END) / PAGE, seed = strtoull(argv[4], 0, 0), r = 12345;

		for (unsigned int i = 0; i < strtoul(argv[3], 0, 0); i++) {
			r = mix(r + i);
			if (pread(fd, buffer, PAGE, r % pages * PAGE) != PAGE)
				die(argv[2]);
			check(buffer, PAGE, r % pages * PAGE, seed, argv[2]);
			bytes += PAGE;
		}
	} else if (!strcmp(command, "compare") && argc == 5) {
		bytes = compare(argv[2], argv[3], strtoull(argv[4], 0, 0));
	} else if (!strcmp(command, "diff") && argc == 5) {
		for (unsigned int i = 0; i < strtoul(argv[4], 0, 0); i++) {
			char other[256];

			tree_path(path, sizeof(path), argv[2], i);
			tree_path(other, sizeof(other), argv[3], i);
			bytes += compare(path, other, 32768);
		}
	} else if (!strncmp(command, "grep", 4) && argc == 5) {
		ask_whole = !strcmp(command, "grep-whole");
		for (unsigned int i = 0; i < strtoul(argv[3], 0, 0); i++) {
			tree_path(path, sizeof(path), argv[2], i);
			bytes += read_whole(path, 32768, i);
		}
	} else if (!strcmp(command, "compile") && argc == 5) {
		bytes = compile(argv[2], strtoul(argv[3], 0, 0), argv[4]);
	} else if (!strcmp(command, "scan") && argc == 5) {
		bytes = scan(argv[2], strtoull(argv[3], 0, 0), strtoull(argv[4], 0, 0));
	} else if (!strcmp(command, "postmark") && argc == 5) {
		unsigned int count = strtoul(argv[3], 0, 0);
		uint64_t r = 99;

		for (unsigned int i = 0; i < strtoul(argv[4], 0, 0); i++) {
			r = mix(r + i);
			tree_path(path, sizeof(path), argv[2], r % count);
			bytes += read_whole(path, 4096, r % count);
			if (r >> 32 & 1) {
				tree_path(path, sizeof(path), argv[2], count + i);
				fill(path, 512 + (r >> 40) % 9728, i, O_CREAT | O_TRUNC);
			} else if (i) {
				tree_path(path, sizeof(path), argv[2], count + i - 1);
				unlink(path);
			}
		}
		/* So that the next one begins with the same files. */
		for (unsigned int i = 0; i < strtoul(argv[4], 0, 0); i++) {
			tree_path(path, sizeof(path), argv[2], count + i);
			unlink(path);
		}
	} else {
		fprintf(stderr, "work: bad arguments\n");
		return 2;
	}
	printf("%llu %llu\n", (unsigned long long)(now() - began), (unsigned long long)bytes);
	return 0;
}
