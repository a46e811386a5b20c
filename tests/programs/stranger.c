/* Speaks to the service without the library, as anybody can who knows the name of its socket.
 *
 * stranger send NAME SECRET   hands over memory, complains, and prints "served N", N being 1 if it was taken in
 * stranger inherit DIR        connects as nobody in a process that ends; its child, also nobody, sends the memory once the number is root's `sleep`, which has
 *                             the first file in DIR open, and tells of all files in DIR as if sleep had opened them
 * stranger names FILE         becomes nobody in namespaces of its own, in which /proc/self/status is a link to FILE, and hands over memory
 * stranger note               hands over memory that notes all that can be lost, and stays until it was looked at
 * stranger turn FILE DIR      runs a program in DIR as nobody, and makes a script of it that FILE is to interpret
 * stranger lend DIR PROGRAM   becomes nobody, hands over memory in a child that at once becomes `PROGRAM hold`, which has rights by its file, and tells of all files in
 *                             DIR as if that had opened them, the first of which it has open; again and again, until it was taken in once
 * stranger claim FILE PROGRAM becomes nobody, hands over memory that says that FILE is open, and wanted, and at once becomes `PROGRAM hold`
 * stranger hold               maps what is open under number 9, as programs do with a file that they are given, and stays
 * stranger watch FILE         prints "watching", and then "opened" when somebody opens the file, until its standard input ends
 * The first two, lend and claim are to be run by root. Offsets are those of shm::Proc. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the versions of the layout that there were and will be one is the service's. */
enum { BYTES = 872448, HEAD = 64, SERVED = 232, CLOSED = 236, NOTES = 352, RING = 512, CELLS = 2048, SLOTS = RING + 65536, FIRST = 12, LAST = 24 };

static uint8_t *memory;
static int shared;

static volatile uint32_t *word(long at) { return (volatile uint32_t *)(memory + at); }
static volatile uint64_t *wide(long at) { return (volatile uint64_t *)(memory + at); }

static void make(void)
{
	shared = memfd_create("outrider", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (ftruncate(shared, BYTES) || fcntl(shared, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW))
		exit(3);
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	memcpy(memory, "forged-name", 12);
}

static int reach(const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	memcpy(a.sun_path + 1, name, 25);
	if (connect(fd, (void *)&a, 2 + 1 + 25))
		exit(4);
	return fd;
}

static void hand(int connection, uint32_t version, uint32_t on_behalf, uint64_t token, int with)
{
	struct { uint32_t version, on_behalf; uint64_t token; } words = {version, on_behalf, token};
	struct iovec part = {&words, sizeof words};
	union { char bytes[CMSG_SPACE(4)]; struct cmsghdr head; } control = {0};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
	if (with >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof control.bytes;
		control.head = (struct cmsghdr){CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), &with, 4);
	}
	sendmsg(connection, &m, MSG_NOSIGNAL);
}

static int waits(void)
{
	for (int i = 0; i < 100 && !*word(SERVED) && !*word(CLOSED); i++)
		usleep(10000);
	return *word(SERVED);
}

static void own(char *name, uint64_t *token)
{
	const char *at = getenv("OUTRIDER_SHM");
	if (!at)
		exit(5);
	memcpy(name, at, 25);
	for (int i = 0; i < 7 && at; i++)
		at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL;
	*token = at ? strtoull(at, NULL, 10) : 0;
}

static void become_nobody(void)
{
	if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, 65534, 65534, 65534)
	    || syscall(SYS_setresuid, 65534, 65534, 65534))
		exit(6);
}

static void tell(int kind, int fd, uint64_t extra, uint64_t offset, uint64_t len)
{
	uint32_t place = *word(HEAD), index = place & (CELLS - 1);
	long cell = RING + index * 32L;
	*word(HEAD) = place + 1;
	*word(cell + 4) = fd | kind << 16 | *word(SLOTS + fd * 64L + 8) << 24;
	*wide(cell + 8) = extra;
	*wide(cell + 16) = offset;
	*wide(cell + 24) = len;
	__sync_synchronize();
	*word(cell) = place - index + 1;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(struct dirent *const *)a)->d_name, (*(struct dirent *const *)b)->d_name);
}

static int inherit(const char *dir)
{
	static struct dirent **entries;
	static struct stat about;
	char name[25], path[4096], first[4096] = "";
	uint64_t token;
	int ready[2], done[2], connections[LAST];
	own(name, &token);
	int n = scandir(dir, &entries, NULL, NULL);
	qsort(entries, n, sizeof *entries, by_name);
	for (int i = 0; i < n && !*first; i++)
		if (entries[i]->d_name[0] != '.')
			snprintf(first, sizeof first, "%s/%s", dir, entries[i]->d_name);
	if (n < 3 || stat(first, &about) || pipe(ready) || pipe(done))
		return 7;
	pid_t child = fork();
	if (!child) {
		become_nobody();
		for (int v = FIRST; v < LAST; v++)
			connections[v] = reach(name);
		if (fork())
			_exit(0);
		make();
		if (read(ready[0], path, 1) != 1 || open(first, O_RDONLY) >= 0)
			_exit(1);
		for (int v = FIRST; v < LAST; v++)
			hand(connections[v], v, 0, token, shared);
		dprintf(1, "served %d\n", waits());
		*word(SLOTS + 4) = 8;
		*word(SLOTS + 8) = 1;
		*wide(SLOTS + 16) = about.st_dev;
		*wide(SLOTS + 24) = about.st_ino;
		*word(SLOTS) = 2;
		for (int i = 0; i < n; i++) {
			tell(11, 0, 1, about.st_dev, entries[i]->d_ino);
			usleep(3000);
		}
		usleep(300000);
		_exit(write(done[1], "", 1) != 1);
	}
	waitpid(child, NULL, 0);
	FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
	if (!last)
		return 8;
	fprintf(last, "%d", child - 1);
	fclose(last);
	pid_t victim = fork();
	if (!victim) {
		close(done[1]);
		int fd = open(first, O_RDONLY);
		dup2(fd, 0);
		execlp("sleep", "sleep", "20", NULL);
		_exit(1);
	}
	close(done[1]);
	usleep(100000);
	dprintf(1, "reused %d\n", victim == child);
	if (write(ready[1], "", 1) != 1 || read(done[0], path, 1) < 0)
		return 9;
	kill(victim, 9);
	return 0;
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		exit(10);
	close(fd);
}

static int names(const char *file)
{
	char name[25], map[64];
	uint64_t token;
	own(name, &token);
	become_nobody();
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (open(file, O_RDONLY) >= 0)
		return 11;
	if (syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS)) {
		puts("no namespaces");
		return 0;
	}
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "0 65534 1");
	put("/proc/self/uid_map", map);
	put("/proc/self/gid_map", map);
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/proc", "tmpfs", 0, NULL)
	    || mkdir("/proc/self", 0755) || symlink(file, "/proc/self/status"))
		return 12;
	make();
	for (int v = FIRST; v < LAST; v++)
		hand(reach(name), v, 0, token, shared);
	waits();
	usleep(300000);
	puts("told");
	return 0;
}

static int note(void)
{
	char name[25];
	uint64_t token;
	own(name, &token);
	make();
	*word(NOTES) = ~0u;
	for (int v = FIRST; v < LAST; v++)
		hand(reach(name), v, 0, token, shared);
	printf("served %d\n", waits());
	for (int i = 0; i < 300 && *word(NOTES); i++)
		usleep(10000);
	return 0;
}

static int turn(const char *file, const char *dir)
{
	char path[4096], buffer[65536];
	ssize_t n;
	become_nobody();
	snprintf(path, sizeof path, "%s/program", dir);
	int from = open("/proc/self/exe", O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
	if (from < 0 || to < 0 || open(file, O_RDONLY) >= 0)
		return 14;
	while ((n = read(from, buffer, sizeof buffer)) > 0)
		if (write(to, buffer, n) != n)
			return 15;
	close(to);
	pid_t child = fork();
	if (!child) {
		execl(path, path, "stay", NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
	to = open(path, O_WRONLY | O_TRUNC);
	if (to < 0 || dprintf(to, "#!%s\n", file) < 0)
		return 16;
	puts("told");
	return 0;
}

static int lend(const char *dir, const char *program)
{
	static struct dirent **entries;
	static struct stat about;
	char name[25], first[4096] = "", last[4096] = "", status[4096] = "";
	uint64_t token;
	int taken = 0, privileged = 0;
	own(name, &token);
	int n = scandir(dir, &entries, NULL, NULL);
	qsort(entries, n, sizeof *entries, by_name);
	for (int i = 0; i < n; i++)
		if (entries[i]->d_name[0] != '.')
			snprintf(*first ? last : first, sizeof last, "%s/%s", dir, entries[i]->d_name);
	become_nobody();
	if (stat(first, &about) || dup2(open(first, O_RDONLY), 0) || open(last, O_RDONLY) >= 0)
		return 17;
	for (int turn = 0; turn < 20 && !taken; turn++) {
		make();
		pid_t child = fork();
		if (!child) {
			for (int v = FIRST; v < LAST; v++)
				hand(reach(name), v, 0, token, shared);
			dup2(shared, 9);
			execl(program, program, "hold", NULL);
			_exit(18);
		}
		for (int i = 0; i < 30 && !*word(SERVED) && !*word(CLOSED); i++)
			usleep(10000);
		/* Long enough for who was taken in before, as nobody, to be found out. */
		for (int i = 0; i < 40 && *word(SERVED) && !*word(CLOSED); i++)
			usleep(10000);
		snprintf(status, sizeof status, "/proc/%d/status", child);
		FILE *file = fopen(status, "r");
		while (file && fgets(status, sizeof status, file))
			privileged |= !strncmp(status, "CapEff:", 7) && strtoull(status + 7, NULL, 16) != 0;
		if (file)
			fclose(file);
		taken = *word(SERVED) && !*word(CLOSED);
		if (taken) {
			*word(SLOTS + 4) = 8;
			*word(SLOTS + 8) = 1;
			*wide(SLOTS + 16) = about.st_dev;
			*wide(SLOTS + 24) = about.st_ino;
			*word(SLOTS) = 2;
			for (int i = 0; i < n; i++) {
				tell(11, 0, 1, about.st_dev, entries[i]->d_ino);
				usleep(3000);
			}
			usleep(300000);
		}
		kill(child, 9);
		waitpid(child, NULL, 0);
		munmap(memory, BYTES);
		close(shared);
	}
	printf("privileged %d taken %d\n", privileged, taken);
	return 0;
}

static int claim(const char *path, const char *program)
{
	struct stat about;
	char name[25];
	uint64_t token;
	own(name, &token);
	become_nobody();
	int file = open(path, O_PATH);
	if (file < 0 || fstat(file, &about) || open(path, O_RDONLY) >= 0)
		return 19;
	make();
	long slot = SLOTS + file * 64L;
	*word(slot + 4) = 8;
	*word(slot + 8) = 1;
	*wide(slot + 16) = about.st_dev;
	*wide(slot + 24) = about.st_ino;
	*word(slot) = 2;
	tell(1, file, 0, about.st_size, 0);
	for (int i = 0; i < 64; i++)
		tell(2, file, 7, i * 4096L, 4096);
	tell(4, file, 0, 0, about.st_size);
	for (int i = 0; i < 1100; i++)
		tell(10, file, 0, about.st_dev, 1000000 + i);
	for (int v = FIRST; v < LAST; v++)
		hand(reach(name), v, 0, token, shared);
	dup2(shared, 9);
	execl(program, program, "hold", NULL);
	return 20;
}

static int watch(const char *file)
{
	int fd = inotify_init1(IN_CLOEXEC);
	char buffer[4096];
	struct pollfd both[2] = {{.fd = fd, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
	if (inotify_add_watch(fd, file, IN_OPEN) < 0)
		return 13;
	printf("watching\n");
	fflush(stdout);
	while (poll(both, 2, -1) > 0 && !both[1].revents)
		if (both[0].revents && read(fd, buffer, sizeof buffer) > 0)
			printf("opened\n");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "send")) {
		uint64_t token = strtoull(argv[3], NULL, 10);
		make();
		for (int v = FIRST; v < LAST; v++)
			hand(reach(argv[2]), v, 0, token, shared);
		/* Everything that can be lost. */
		hand(reach(argv[2]), 0, ~0u, token, -1);
		printf("served %d\n", waits());
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "inherit"))
		return inherit(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "names"))
		return names(argv[2]);
	if (argc == 2 && !strcmp(argv[1], "note"))
		return note();
	if (argc == 2 && !strcmp(argv[1], "hold"))
		return mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, 9, 0) == MAP_FAILED || sleep(5) != 0;
	/* Longer than the runner takes from one look to the next. */
	if (argc == 2 && !strcmp(argv[1], "stay"))
		return sleep(3) != 0;
	if (argc == 4 && !strcmp(argv[1], "turn"))
		return turn(argv[2], argv[3]);
	if (argc == 4 && !strcmp(argv[1], "lend"))
		return lend(argv[2], argv[3]);
	if (argc == 4 && !strcmp(argv[1], "claim"))
		return claim(argv[2], argv[3]);
	if (argc == 3 && !strcmp(argv[1], "watch"))
		return watch(argv[2]);
	return 2;
}
