/* Operations of the differential fuzzer on descriptors themselves: opening, duplicating, closing,
 * passing, locking. */
#include "fuzz_core.h"
#include <linux/openat2.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- open ---- */

static int some_flags(struct ctx *c, enum kind kind)
{
	static const int access[] = { O_RDONLY, O_RDONLY, O_RDWR, O_RDWR, O_WRONLY, O_ACCMODE };
	static const struct { int flag, percent; } extra[] = {
		{ O_CREAT, 30 }, { O_EXCL, 6 }, { O_TRUNC, 6 }, { O_APPEND, 12 }, { O_DIRECT, 6 },
		{ O_CLOEXEC, 40 }, { O_PATH, 3 }, { O_DIRECTORY, 4 }, { O_NOFOLLOW, 8 }, { O_NOATIME, 8 },
		{ O_NONBLOCK, 10 }, { O_SYNC, 2 }, { O_DSYNC, 2 }, { O_LARGEFILE, 10 }, { O_NOCTTY, 5 },
	};
	int flags = PICK(c, access);
	for (unsigned i = 0; i < sizeof extra / sizeof extra[0]; i++)
		if (chance(c, extra[i].percent))
			flags |= extra[i].flag;
	/* A fifo without O_NONBLOCK would wait for the other end. */
	if (kind == FIFO)
		flags |= O_NONBLOCK;
	/* Threads share the big files: nobody changes them. */
	if (kind == BIG && c->threaded)
		flags &= ~(O_ACCMODE | O_CREAT | O_TRUNC | O_EXCL);
	/* What is worth prefetching should seldom be emptied. */
	if (kind == BIG && chance(c, 80))
		flags &= ~O_TRUNC;
	return flags;
}

static void opened(struct ctx *c, int fd, int err, enum kind kind, int flags)
{
	say_fd(c, fd, err);
	if (fd < 0)
		return;
	if (flags & O_PATH)
		kind = PATHONLY;
	else if (kind != DIRECTORY && kind != FIFO && (flags & O_DIRECTORY))
		kind = DIRECTORY;
	say(c, " fl=%lo fd=%ld", kernel(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0), kernel(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0));
	slot_set(c, fd, kind);
}

void op_open(struct ctx *c)
{
	char path[NAME_LEN];
	enum kind kind = some_path(c, path);
	int flags = some_flags(c, kind), fd, err, form = (int)below(c, 7), at = AT_FDCWD;
	int mode = chance(c, 80) ? 0644 : 0600;
	if (chance(c, 20)) {
		struct slot *s = slot_any(c);
		at = s ? s->fd : -1;
	}
	if (form == 4 && kind == FIFO)
		form = 0; /* creat opens for writing and has no O_NONBLOCK */
	if (form == 4 && kind == BIG)
		form = 1;
	if (form == 4 && !c->threaded && chance(c, 50))
		form = 5;
	say(c, "%s flags=%o form=%d at=%d", path, flags, form, form == 2 || form == 3 ? fd_name(c, at) : 0);
	switch (form) {
	case 0: CALL(fd, err, open(path, flags, mode)); break;
	case 1: CALL(fd, err, open64(path, flags, mode)); break;
	case 2: CALL(fd, err, openat(at, path, flags, mode)); break;
	case 3: CALL(fd, err, openat64(at, path, flags, mode)); break;
	case 4: flags = O_WRONLY; CALL(fd, err, creat(path, (mode_t)mode)); break;
	case 5: CALL(fd, err, (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode)); break;
	default: {
		extern int __open(const char *, int, ...);
		CALL(fd, err, __open(path, flags, mode));
	}
	}
	opened(c, fd, err, kind, flags);
}

/* Without a mode argument and with flags that the compiler does not know, the fortified build calls
 * __open_2, __open64_2, __openat_2, __openat64_2; the plain build calls them by name. */
void op_open2(struct ctx *c)
{
	char path[NAME_LEN];
	enum kind kind = some_path(c, path);
	int flags = some_flags(c, kind) & ~(O_CREAT | O_EXCL), fd, err, form = (int)below(c, 8);
	extern int __open_2(const char *, int), __open64_2(const char *, int);
	extern int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
	say(c, "%s flags=%o form=%d", path, flags, form);
	switch (form) {
	case 0: CALL(fd, err, open(path, flags)); break;
	case 1: CALL(fd, err, open64(path, flags)); break;
	case 2: CALL(fd, err, openat(AT_FDCWD, path, flags)); break;
	case 3: CALL(fd, err, openat64(AT_FDCWD, path, flags)); break;
	case 4: CALL(fd, err, __open_2(path, flags)); break;
	case 5: CALL(fd, err, __open64_2(path, flags)); break;
	case 6: CALL(fd, err, __openat_2(AT_FDCWD, path, flags)); break;
	default: CALL(fd, err, __openat64_2(AT_FDCWD, path, flags)); break;
	}
	opened(c, fd, err, kind, flags);
}

void op_openat2(struct ctx *c)
{
	static const uint64_t resolve[] = { 0, 0, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT, 1 << 20 };
	char path[NAME_LEN];
	enum kind kind = some_path(c, path);
	int fd, err;
	/* What lies behind the structure counts, too, where more is said to be its length. */
	struct { struct open_how how; char beyond[64]; } arg = { .how.resolve = PICK(c, resolve) };
	struct open_how *how = &arg.how;
	how->flags = (uint64_t)some_flags(c, kind);
	if (how->flags & O_CREAT)
		how->mode = 0644;
	size_t size = chance(c, 95) ? sizeof *how : below(c, 64);
	arg.beyond[0] = chance(c, 30);
	say(c, "%s flags=%llo resolve=%llx size=%zu", path, how->flags, how->resolve, size);
	CALL(fd, err, (int)syscall(SYS_openat2, AT_FDCWD, path, how, size));
	opened(c, fd, err, kind, (int)how->flags);
}

void op_tmpfile(struct ctx *c)
{
	char path[NAME_LEN];
	int fd, err, ret;
	if (chance(c, 30)) {
		/* The name is random, so it is not logged and not left behind. */
		own_path(c, path, "d/tmp-XXXXXX");
		CALL(fd, err, chance(c, 50) ? mkstemp(path) : mkostemp64(path, O_CLOEXEC | O_APPEND));
		say(c, "mkstemp");
		unlink(path);
		opened(c, fd, err, SCRATCH, 0);
		return;
	}
	own_path(c, path, "d");
	CALL(fd, err, open(path, O_TMPFILE | (chance(c, 20) ? O_RDONLY : O_RDWR), 0600));
	say(c, "O_TMPFILE");
	opened(c, fd, err, SCRATCH, 0);
	if (fd >= 0 && chance(c, 50)) {
		char link[64], to[NAME_LEN];
		snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
		scratch_path(c, to);
		CALL(ret, err, linkat(AT_FDCWD, link, AT_FDCWD, to, AT_SYMLINK_FOLLOW));
		say(c, " link %s", to);
		say_ret(c, ret, err);
	}
}

/* Files that are none of a prefetcher's business. */
void op_special(struct ctx *c)
{
	static const char *const paths[] = {
		"/dev/null", "/dev/zero", "/dev/full", "/proc/version", "/proc/filesystems", "/proc/self/cmdline",
		"/sys/kernel/mm/transparent_hugepage/enabled", "/proc/self/fd/1", "/proc", "/dev/fd/99",
	};
	int fd, err;
	if (chance(c, 30)) {
		CALL(fd, err, memfd_create("fuzz", chance(c, 50) ? MFD_CLOEXEC : MFD_ALLOW_SEALING));
		say(c, "memfd");
		opened(c, fd, err, MEMFD, 0);
		return;
	}
	if (chance(c, 20)) {
		CALL(fd, err, eventfd((unsigned)below(c, 3), EFD_NONBLOCK | (chance(c, 50) ? EFD_CLOEXEC : 0)));
		say(c, "eventfd");
		opened(c, fd, err, EVENT, 0);
		return;
	}
	/* The last is a number of this process's table, which means nothing in threads. */
	const char *path = paths[below(c, sizeof paths / sizeof paths[0] - c->threaded)];
	/* The log itself is only ever opened to be looked at. */
	int flags = strcmp(path, "/proc/self/fd/1") ? O_RDONLY : O_PATH;
	flags |= strcmp(path, "/proc/self/cmdline") ? 0 : O_PATH;
	say(c, "%s", path);
	CALL(fd, err, open(path, flags | (chance(c, 50) ? O_CLOEXEC : 0)));
	opened(c, fd, err, SPECIAL, flags);
}

void op_bad_path(struct ctx *c)
{
	static char longest[PATH_MAX + 10];
	const char *path;
	int fd, err, which = (int)below(c, 6);
	if (!longest[0])
		memset(longest, 'a', sizeof longest - 1);
	switch (which) {
	case 0: path = NULL; break;
	case 1: path = (const char *)1; break;
	case 2: path = ""; break;
	case 3: path = longest; break;
	case 4: path = longest + sizeof longest - 258; break;
	default: path = (const char *)(uintptr_t)0xffff800000000000u; break;
	}
	path = opaque(path);
	say(c, "which=%d", which);
	CALL(fd, err, open(path, O_RDONLY));
	say_ret(c, fd, err);
	CALL(fd, err, openat64(AT_FDCWD, path, O_RDWR | O_CREAT, 0600));
	say_ret(c, fd, err);
	CALL(fd, err, creat(path, 0600));
	say_ret(c, fd, err);
	if (which >= 2 && which < 5) {
		FILE *f;
		CALL(f, err, fopen(path, "r"));
		say_ret(c, f ? 0 : -1, err);
	}
}

/* ---- duplicate, control, close ---- */

static enum kind kind_of(struct ctx *c, int fd)
{
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind && c->slots[i].fd == fd)
			return c->slots[i].kind;
	return FREE;
}

void op_dup(struct ctx *c)
{
	int fd = some_fd(c), to = -1, ret, err, form = (int)below(c, 6);
	enum kind kind = kind_of(c, fd);
	if (c->threaded) {
		/* dup2 may only hit what is ours: another thread could own any other number. */
		struct slot *s = slot_file(c);
		to = s->fd;
	} else {
		static const int far[] = { 900, 61, 1023, 255, 256, 5000, -1 };
		to = chance(c, 15) ? PICK(c, far) : some_fd(c);
	}
	if (chance(c, 5))
		to = fd;
	/* Standard output carries the log. */
	if (to >= 0 && to < 3)
		to = 3;
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind && c->slots[i].stdio && c->slots[i].fd == to)
			to = -1;
	say(c, "fd=%d to=%d form=%d", fd_name(c, fd), form >= 1 && form <= 3 ? fd_name(c, to) : -1, form);
	switch (form) {
	case 0: CALL(ret, err, dup(fd)); break;
	case 1: CALL(ret, err, dup2(fd, to)); break;
	case 2: CALL(ret, err, dup3(fd, to, chance(c, 50) ? O_CLOEXEC : 0)); break;
	case 3: CALL(ret, err, dup3(fd, to, 1)); break;
	case 4: CALL(ret, err, fcntl(fd, F_DUPFD, chance(c, 80) ? 0 : 100)); break;
	default: CALL(ret, err, fcntl64(fd, F_DUPFD_CLOEXEC, chance(c, 80) ? 10 : -1)); break;
	}
	say_fd(c, ret, err);
	if (ret >= 0 && kind && !(form == 1 && fd == to))
		slot_set(c, ret, kind);
	else if (ret > 2 && !kind && !c->threaded)
		slot_set(c, ret, SPECIAL);
}

void op_fcntl(struct ctx *c)
{
	int fd = some_fd(c), ret, err, form = (int)below(c, 10);
	enum kind kind = kind_of(c, fd);
	say(c, "fd=%d form=%d", fd_name(c, fd), form);
	switch (form) {
	case 0: CALL(ret, err, fcntl(fd, F_GETFL)); break;
	case 1: CALL(ret, err, fcntl(fd, F_GETFD)); break;
	case 2: CALL(ret, err, fcntl(fd, F_SETFD, (int)below(c, 2))); break;
	case 3: {
		int flags = (chance(c, 30) ? O_APPEND : 0) | (chance(c, 20) ? O_DIRECT : 0) |
			    (chance(c, 20) ? O_NOATIME : 0) | (chance(c, 20) ? O_NONBLOCK : 0);
		if (!is_file(kind))
			flags = (flags | O_NONBLOCK) & ~O_DIRECT; /* never let a pipe block, nor turn into packets */
		CALL(ret, err, fcntl(fd, F_SETFL, flags));
		break;
	}
	case 4: CALL(ret, err, fcntl(fd, F_GETPIPE_SZ)); break;
	case 5: CALL(ret, err, fcntl(fd, F_GET_SEALS)); break;
	case 6: CALL(ret, err, fcntl(fd, F_GETOWN)); break;
	case 7: CALL(ret, err, fcntl64(fd, F_GETSIG)); break;
	case 8: CALL(ret, err, fcntl(fd, 12345, 0)); break;
	default: CALL(ret, err, fcntl(fd, F_GETLEASE)); break;
	}
	say_ret(c, ret, err);
}

void op_close(struct ctx *c)
{
	int fd = some_fd(c), ret, err;
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind && c->slots[i].stdio && c->slots[i].fd == fd)
			return say(c, "stream");
	say(c, "fd=%d", fd_name(c, fd));
	if (fd >= 0 && fd < 3)
		return;
	extern int __close(int);
	if (chance(c, 20))
		CALL(ret, err, __close(fd));
	else
		CALL(ret, err, close(fd));
	say_ret(c, ret, err);
	slot_forget(c, fd);
	/* Closing twice is a fault of the program's that must stay visible; a thread must not do it to
	 * a number that may be another's by now. */
	if (!c->threaded && chance(c, 15)) {
		CALL(ret, err, close(fd));
		say_ret(c, ret, err);
	}
}

void op_close_range(struct ctx *c)
{
	unsigned first = 3 + (unsigned)below(c, 40), last = first + (unsigned)below(c, 8);
	int ret, err, form = (int)below(c, 4);
	unsigned flags = form == 1 ? CLOSE_RANGE_CLOEXEC : 0;
	if (form == 2)
		last = chance(c, 50) ? first - 1 : UINT_MAX;
	if (form == 3) {
		first = 25 + (unsigned)below(c, 20);
		last = UINT_MAX;
		say(c, "closefrom %u", first);
		CALL(ret, err, (closefrom((int)first), 0));
	} else {
		say(c, "%u..%u flags=%u", first, last, flags);
		CALL(ret, err, close_range(first, last, flags));
	}
	say_ret(c, ret, err);
	for (int i = 0; i < NSLOT && !ret && !flags; i++)
		if (c->slots[i].kind && (unsigned)c->slots[i].fd >= first && (unsigned)c->slots[i].fd <= last)
			c->slots[i].kind = FREE;
}

/* ---- pipes and sockets ---- */

void op_pipe(struct ctx *c)
{
	int ends[2] = { -1, -1 }, ret, err;
	CALL(ret, err, pipe2(ends, O_NONBLOCK | (chance(c, 50) ? O_CLOEXEC : 0)));
	say_ret(c, ret, err);
	if (ret)
		return;
	say_fd(c, ends[0], SENTINEL);
	say_fd(c, ends[1], SENTINEL);
	slot_set(c, ends[0], FIFO);
	slot_set(c, ends[1], FIFO);
}

void op_socket(struct ctx *c)
{
	static const int types[] = { SOCK_STREAM, SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
	int ends[2] = { -1, -1 }, ret, err;
	CALL(ret, err, socketpair(AF_UNIX, PICK(c, types) | SOCK_NONBLOCK, 0, ends));
	say_ret(c, ret, err);
	if (ret)
		return;
	say_fd(c, ends[0], SENTINEL);
	say_fd(c, ends[1], SENTINEL);
	slot_set(c, ends[0], SOCKET);
	slot_set(c, ends[1], SOCKET);
}

/* A descriptor that arrives by message was never opened here. */
void op_rights(struct ctx *c)
{
	int ends[2], ret, err, got = -1;
	struct slot *s = slot_file(c);
	int fd = s->fd;
	enum kind kind = s->kind;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
		say(c, "no socket");
		return;
	}
	union { char buf[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { 0 };
	char byte = 'x';
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof control.buf };
	struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &fd, sizeof fd);
	say(c, "fd=%d", fd_name(c, fd));
	CALL(ret, err, (int)sendmsg(ends[0], &msg, 0));
	say_ret(c, ret, err);
	if (ret < 1)
		goto out;
	if (chance(c, 50)) {
		say(c, " closed");
		close(fd);
		slot_forget(c, fd);
	}
	memset(&control, 0, sizeof control);
	msg.msg_controllen = sizeof control.buf;
	CALL(ret, err, (int)recvmsg(ends[1], &msg, chance(c, 50) ? MSG_CMSG_CLOEXEC : 0));
	say_ret(c, ret, err);
	cm = CMSG_FIRSTHDR(&msg);
	if (cm && cm->cmsg_type == SCM_RIGHTS)
		memcpy(&got, CMSG_DATA(cm), sizeof got);
	say_fd(c, got, SENTINEL);
	if (got >= 0) {
		char buf[512] __attribute__((aligned(PAGE)));
		CALL(ret, err, (int)read(got, buf, sizeof buf));
		say_ret(c, ret, err);
		if (ret > 0)
			say_hash(c, buf, (size_t)ret);
		say_pos(c, got);
	}
out:
	close(ends[0]);
	close(ends[1]);
	slot_set(c, got, kind);
}

void op_ioctl(struct ctx *c)
{
	int fd = some_fd(c), ret, err, value = -1, form = (int)below(c, 4);
	say(c, "fd=%d form=%d", fd_name(c, fd), form);
	switch (form) {
	case 0: CALL(ret, err, ioctl(fd, FIONREAD, &value)); break;
	case 1: CALL(ret, err, ioctl(fd, FIOCLEX)); break;
	case 2: CALL(ret, err, ioctl(fd, FIONCLEX)); break;
	default: CALL(ret, err, ioctl(fd, TCGETS, opaque((char[256]){ 0 }))); break;
	}
	say_ret(c, ret, err);
	say(c, " v=%d", value);
}

void op_poll(struct ctx *c)
{
	struct pollfd fds[4];
	int n = 1 + (int)below(c, 4), ret, err;
	for (int i = 0; i < n; i++)
		fds[i] = (struct pollfd){ .fd = some_fd(c), .events = POLLIN | POLLOUT };
	CALL(ret, err, poll(fds, (nfds_t)n, 0));
	say_ret(c, ret, err);
	for (int i = 0; i < n; i++)
		say(c, " %d:%x", fd_name(c, fds[i].fd), (unsigned)fds[i].revents);
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN }, out[4];
	CALL(ret, err, epoll_ctl(ep, EPOLL_CTL_ADD, fds[0].fd, &ev));
	say_ret(c, ret, err);
	CALL(ret, err, epoll_wait(ep, out, 4, 0));
	say_ret(c, ret, err);
	close(ep);
}

/* ---- locks ---- */

static struct flock some_lock(struct ctx *c)
{
	static const short types[] = { F_RDLCK, F_WRLCK, F_WRLCK, F_UNLCK };
	struct flock fl = { .l_type = PICK(c, types), .l_whence = SEEK_SET };
	fl.l_start = (off_t)below(c, 8) * 100;
	fl.l_len = chance(c, 20) ? 0 : (off_t)(1 + below(c, 4)) * 100;
	return fl;
}

/* Whether the whole machine has one inode for what `fd` leads to: event descriptors, devices and files of /proc. Any other program's lock is seen there. */
static bool is_everybodys(struct ctx *c, int fd)
{
	struct stat st;
	enum kind kind = kind_of(c, fd);
	return kind == SPECIAL || kind == EVENT || (fstat(fd, &st) == 0 && !(st.st_mode & S_IFMT));
}

/* A lock of the open file lasts as long as any mapping of it, and the memory of a child that has ended lasts a moment longer
 * where somebody looks at it in /proc. A child of another thread has one until it ends, and may wait for a processor. */
static int ask_for_lock(struct ctx *c, int fd, int cmd, struct flock *fl, int *err)
{
	int ret;
	for (int tries = 0; tries < (c->threaded ? 400 : 20); tries++) {
		CALL(ret, *err, fcntl(fd, cmd, fl));
		if (ret == 0 || *err != EAGAIN)
			break;
		usleep(5000);
	}
	return ret;
}

void op_lock(struct ctx *c)
{
	static const int commands[] = { F_SETLK, F_SETLK, F_SETLK, F_GETLK, F_OFD_SETLK, F_OFD_GETLK };
	int fd = some_fd(c), cmd = PICK(c, commands), ret, err;
	struct flock fl = some_lock(c);
	/* Threads are one owner of locks: not on the files they share. A lock of the open file lasts as
	 * long as a child of another thread holds it. */
	if ((c->threaded && kind_of(c, fd) == BIG) || is_everybodys(c, fd))
		fl.l_type = F_UNLCK;
	if (c->threaded)
		cmd = cmd == F_OFD_SETLK ? F_SETLK : cmd == F_OFD_GETLK ? F_GETLK : cmd;
	say(c, "fd=%d cmd=%d %d %ld+%ld", fd_name(c, fd), cmd, fl.l_type, (long)fl.l_start, (long)fl.l_len);
	if (chance(c, 15)) {
		CALL(ret, err, lockf(fd, fl.l_type == F_WRLCK ? F_TLOCK : F_ULOCK, (off_t)below(c, 1000)));
		say(c, " lockf");
	} else {
		ret = ask_for_lock(c, fd, cmd, &fl, &err);
	}
	say_ret(c, ret, err);
	/* A child of another thread may have it locked just now, through a link to a file that threads share. */
	if ((cmd == F_GETLK || cmd == F_OFD_GETLK) && !c->threaded)
		say(c, " %d %ld+%ld", fl.l_type, (long)fl.l_start, (long)fl.l_len);
}

/* Who holds what is seen from another process: closing any descriptor of a file drops the process's
 * POSIX locks on it, so a prefetcher that opens and closes behind the program loses them. */
void op_lock_probe(struct ctx *c)
{
	struct { int fd; } probe[6];
	int n = 0, status;
	for (int i = 0; i < NSLOT && n < 6; i++)
		if (is_file(c->slots[i].kind) && !(c->threaded && c->slots[i].kind == BIG))
			probe[n++].fd = c->slots[i].fd;
	/* Mostly there is a lock to be seen, on a file that is read: a sequence that only happens to read what it has locked shows a loss in one of eight. */
	if (n > 0 && chance(c, 60)) {
		char buf[4096] __attribute__((aligned(PAGE)));
		int fd = probe[below(c, (uint64_t)n)].fd, ret, err;
		struct flock fl = some_lock(c);
		if (fl.l_type == F_UNLCK)
			fl.l_type = F_RDLCK;
		say(c, " lock fd=%d %d %ld+%ld", fd_name(c, fd), fl.l_type, (long)fl.l_start, (long)fl.l_len);
		ret = ask_for_lock(c, fd, F_SETLK, &fl, &err);
		say_ret(c, ret, err);
		lseek(fd, 0, SEEK_SET);
		for (int i = 0; i < 8; i++)
			if (read(fd, buf, sizeof buf) < 0)
				break;
		say_pos(c, fd);
	}
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 0; i < n; i++) {
			say(c, " fd=%d:", fd_name(c, probe[i].fd));
			off_t at = 0;
			for (int round = 0; round < 12; round++) {
				struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at };
				if (fcntl(probe[i].fd, F_GETLK, &fl) < 0 || fl.l_type == F_UNLCK)
					break;
				say(c, " %d,%ld+%ld,%s", fl.l_type, (long)fl.l_start, (long)fl.l_len,
				    fl.l_pid == getppid() ? "parent" : fl.l_pid == -1 ? "ofd" : "other");
				if (!fl.l_len)
					break;
				at = fl.l_start + fl.l_len;
			}
			struct flock fl = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 150, .l_len = 100 };
			int ret, err;
			CALL(ret, err, fcntl(probe[i].fd, F_SETLK, &fl));
			say_ret(c, ret, err);
		}
		_exit(0);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	say(c, " status=%d", status);
}

void op_flock(struct ctx *c)
{
	static const int how[] = { LOCK_SH, LOCK_EX, LOCK_UN, 77 };
	int fd = some_fd(c), cmd = PICK(c, how) | LOCK_NB, ret, err;
	say(c, "fd=%d cmd=%d", fd_name(c, fd), cmd);
	CALL(ret, err, flock(fd, cmd));
	/* Who had the file locked before may have it still: the memory of a child that has ended and descriptors under
	 * way in a socket go in the kernel's own time. That our closes give up locks is burstclose's to show. */
	if (ret < 0 && err == EWOULDBLOCK)
		(ret = 0, err = SENTINEL);
	say_ret(c, ret, err);
}

static volatile sig_atomic_t lease_breaks;
static void on_lease(int sig) { (void)sig; lease_breaks++; }

/* A lease is refused or broken by any other open of the file, ours included. */
void op_lease(struct ctx *c)
{
	static const int types[] = { F_RDLCK, F_WRLCK };
	char buf[8192];
	int type = PICK(c, types), ret, err;
	signal(SIGIO, on_lease);
	lease_breaks = 0;
	int fd = open("lease", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < 20; i++)
		if (read(fd, buf, sizeof buf) < 0)
			break;
	CALL(ret, err, fcntl(fd, F_SETLEASE, type));
	say(c, "type=%d", type);
	say_ret(c, ret, err);
	for (int i = 0; i < 8; i++)
		if (pread(fd, buf, sizeof buf, i * 65536) < 0)
			break;
	CALL(ret, err, fcntl(fd, F_GETLEASE));
	say_ret(c, ret, err);
	int other;
	CALL(other, err, open("lease", O_RDWR | O_NONBLOCK | O_CLOEXEC));
	say_ret(c, other, err);
	if (other >= 0)
		close(other);
	say(c, " breaks=%d", (int)lease_breaks);
	CALL(ret, err, fcntl(fd, F_SETLEASE, F_UNLCK));
	say_ret(c, ret, err);
	close(fd);
	/* Closed means closed: a writer's lease needs that nobody else has the file open. */
	fd = open("lease", O_RDWR | O_CLOEXEC);
	CALL(ret, err, fcntl(fd, F_SETLEASE, F_WRLCK));
	say_ret(c, ret, err);
	close(fd);
	signal(SIGIO, SIG_IGN);
}

/* ---- limits and listings ---- */

void op_limit(struct ctx *c)
{
	struct rlimit old, low;
	int ret, err, fds[8], n = 0;
	char path[NAME_LEN], buf[4096];
	getrlimit(RLIMIT_NOFILE, &old);
	int probe = dup(1);
	if (probe < 0) {
		say(c, "no probe");
		return;
	}
	close(probe);
	low = old;
	low.rlim_cur = (rlim_t)probe + 3;
	CALL(ret, err, setrlimit(RLIMIT_NOFILE, &low));
	say(c, "at=%d", probe);
	say_ret(c, ret, err);
	do {
		big_path(c, path);
		CALL(fds[n], err, open(path, O_RDONLY));
		say_ret(c, fds[n], err);
	} while (fds[n] >= 0 && ++n < 8);
	/* Reading on has to work with no number left. */
	for (int i = 0; i < n; i++)
		for (int j = 0; j < 6; j++) {
			ret = (int)pread(fds[i], buf, sizeof buf, j * 16384);
			if (ret > 0)
				say_hash(c, buf, (size_t)ret);
		}
	CALL(ret, err, dup(1));
	say_ret(c, ret, err);
	FILE *f;
	CALL(f, err, fopen("b0", "r"));
	say_ret(c, f ? 0 : -1, err);
	for (int i = 0; i < n; i++)
		close(fds[i]);
	CALL(ret, err, setrlimit(RLIMIT_NOFILE, &old));
	say_ret(c, ret, err);
	/* A file size limit shows as a signal and EFBIG. */
	struct rlimit size = { 100000, RLIM_INFINITY }, size_old;
	getrlimit(RLIMIT_FSIZE, &size_old);
	size.rlim_max = size_old.rlim_max;
	setrlimit(RLIMIT_FSIZE, &size);
	struct slot *s = slot_file(c);
	CALL(ret, err, (int)pwrite(s->fd, "limit", 5, 99998));
	say_ret(c, ret, err);
	CALL(ret, err, (int)pwrite(s->fd, "limit", 5, 100001));
	say_ret(c, ret, err);
	setrlimit(RLIMIT_FSIZE, &size_old);
}

void op_descriptors(struct ctx *c) { say_descriptors(c); }
