/* Becomes nobody by bare system calls, which no hook sees, and then tells the service whatever it likes through the memory that it still has: that a file
   it may not read is open under some number, was read, and is wanted. argv: FILE SECRET [WHO]. `nobody` as said, `owner` remains who it is, `closed` has had SECRET open
   before, which it closes by a bare system call. Offsets are those of shm::Proc (see its tests). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEAD 64
#define RING 512
#define SLOTS (RING + 65536)
#define CELLS 2048

static volatile uint8_t *memory;

static volatile uint32_t *word(long at) { return (volatile uint32_t *)(memory + at); }
static volatile uint64_t *wide(long at) { return (volatile uint64_t *)(memory + at); }

static long bare(long n, long a, long b, long c)
{
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return r;
}

static void tell(int kind, int fd, uint64_t extra, uint64_t offset, uint64_t len)
{
	uint32_t place = *word(HEAD), index = place & (CELLS - 1);
	long cell = RING + index * 32L;
	*word(HEAD) = place + 1;
	uint32_t generation = *word(SLOTS + fd * 64L + 8);
	*word(cell + 4) = fd | kind << 16 | generation << 24;
	*wide(cell + 8) = extra;
	*wide(cell + 16) = offset;
	*wide(cell + 24) = len;
	__sync_synchronize();
	*word(cell) = place - index + 1;
}

int main(int argc, char **argv)
{
	static char buffer[4096];
	char line[512];
	int file = open(argv[1], O_RDONLY);
	for (int i = 100; i > 0; i--)
		if (pread(file, buffer, sizeof buffer, i * 65536L) < 0)
			return 1;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		unsigned long from;
		if (strstr(line, "memfd:outrider") && sscanf(line, "%lx", &from) == 1)
			memory = (void *)from;
	}
	fclose(maps);
	if (!memory) {
		puts("no memory");
		return argc > 3 ? 0 : 1;
	}
	int closed = argc > 3 && !strcmp(argv[3], "closed"), own = -1;
	if (closed) {
		own = open(argv[2], O_RDONLY);
		if (own < 0 || pread(own, buffer, sizeof buffer, 0) < 0)
			return 4;
		usleep(100000);
	}
	if (closed || argc > 3 && !strcmp(argv[3], "nobody")) {
		bare(SYS_setgroups, 0, 0, 0);
		if (bare(SYS_setresgid, 65534, 65534, 65534) || bare(SYS_setresuid, 65534, 65534, 65534))
			return 1;
		if (open(argv[2], O_RDONLY) >= 0)
			return 2;
	}
	if (closed) {
		bare(SYS_close, own, 0, 0);
		usleep(5000);
		for (int i = 0; i < 8; i++)
			tell(4, own, 0, (8L + i) << 20, 1 << 20);
		usleep(300000);
		puts("told");
		return 0;
	}
	int secret = open(argv[2], O_PATH);
	struct stat st;
	if (secret < 0 || fstat(secret, &st))
		return 3;
	for (int round = 0; round < 20; round++) {
		long slot = SLOTS + secret * 64L;
		*word(slot + 8) += 1;
		*word(slot + 4) = 8;
		*wide(slot + 16) = st.st_dev;
		*wide(slot + 24) = st.st_ino;
		*word(slot) = 2;
		tell(1, secret, 0, st.st_size, 0);
		for (int i = 0; i < 64; i++)
			tell(2, secret, 7, i * 4096L, 4096);
		tell(4, secret, 0, 0, st.st_size);
		tell(11, secret, *word(slot + 8), st.st_dev, st.st_ino);
		tell(12, secret, *word(slot + 8), st.st_dev, st.st_ino);
		usleep(20000);
	}
	puts("told");
	return 0;
}
