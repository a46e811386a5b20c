/* Operations of the differential fuzzer that move bytes: read, write, seek, hints, transfers. */
#include "fuzz_core.h"
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif

/* Public aliases that no header declares. */
extern ssize_t __read(int, void *, size_t);
extern ssize_t __write(int, const void *, size_t);
extern ssize_t __pread64(int, void *, size_t, off64_t);
extern off_t __lseek(int, off_t, int);

/* A byte pattern behind the part of the buffer that a call may fill: a hook that writes past it
 * shows. */
enum { CANARY = 0xa5, CANARY_LEN = 32 };

static void canary_set(char *buf, size_t len) { memset(buf + len, CANARY, CANARY_LEN); }

static void canary_check(struct ctx *c, const char *buf, size_t len)
{
	for (int i = 0; i < CANARY_LEN; i++)
		if ((unsigned char)buf[len + (size_t)i] != CANARY) {
			say(c, " WROTE-PAST-END");
			return;
		}
}

static void say_data(struct ctx *c, const char *buf, ssize_t got)
{
	if (got > 0)
		say_hash(c, buf, (size_t)got);
}

/* Direct I/O needs an aligned buffer and length: give it one most of the time. */
static size_t buffer_skew(struct ctx *c) { return chance(c, 70) ? 0 : below(c, 64); }

/* A direct write goes extent by extent, and one that is not aligned is refused by the first that it doesn't fit: what lies in those before has
 * been written by then. Where extents end is the file system's affair and differs between runs. So a direct write is of whole pages, or
 * of no more than one sector. */
static bool is_direct(int fd)
{
	long flags = kernel(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0);
	return flags >= 0 && flags & O_DIRECT;
}

static size_t direct_len(int fd, size_t len)
{
	if (!is_direct(fd) || len <= SECTOR)
		return len;
	return len < PAGE ? SECTOR : len / PAGE * PAGE;
}

/* Devices look for signals after every page: where a timer's handler interrupts, a longer read may be cut short anywhere. */
static size_t special_len(struct ctx *c, int fd, size_t len)
{
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind == SPECIAL && c->slots[i].fd == fd && len > PAGE)
			return PAGE;
	return len;
}

void op_read(struct ctx *c)
{
	/* An array, not a pointer: the fortified build then calls __read_chk. */
	char buf[IO_MAX + 64 + CANARY_LEN] __attribute__((aligned(PAGE)));
	int fd = some_fd(c), err;
	size_t len = special_len(c, fd, some_len(c)), skew = buffer_skew(c);
	ssize_t got;
	say(c, "fd=%d len=%zu", fd_name(c, fd), len);
	canary_set(buf + skew, len);
	if (chance(c, 20))
		CALL(got, err, __read(fd, buf + skew, len));
	else
		CALL(got, err, read(fd, buf + skew, len));
	say_ret(c, got, err);
	say_data(c, buf + skew, got);
	canary_check(c, buf + skew, len);
	say_pos(c, fd);
}

void op_pread(struct ctx *c)
{
	char buf[IO_MAX + 64 + CANARY_LEN] __attribute__((aligned(PAGE)));
	int fd = some_fd(c), err, form = (int)below(c, 3);
	size_t len = special_len(c, fd, some_len(c)), skew = buffer_skew(c);
	off_t off = some_offset(c);
	ssize_t got;
	say(c, "fd=%d len=%zu off=%ld form=%d", fd_name(c, fd), len, (long)off, form);
	canary_set(buf + skew, len);
	if (form == 0)
		CALL(got, err, pread(fd, buf + skew, len, off));
	else if (form == 1)
		CALL(got, err, pread64(fd, buf + skew, len, off));
	else
		CALL(got, err, __pread64(fd, buf + skew, len, off));
	say_ret(c, got, err);
	say_data(c, buf + skew, got);
	canary_check(c, buf + skew, len);
	say_pos(c, fd);
}

/* Cuts buf..buf+len into up to eight pieces, some of them empty. */
static int cut(struct ctx *c, struct iovec *iov, char *buf, size_t len)
{
	int n = 1 + (int)below(c, 8);
	for (int i = 0; i < n; i++) {
		size_t part = i == n - 1 ? len : below(c, len + 1);
		if (chance(c, 40))
			part &= ~(size_t)511;
		iov[i] = (struct iovec){ buf, part };
		buf += part;
		len -= part;
	}
	return n;
}

/* Now and then the vector itself is wrong. */
static int spoil_vector(struct ctx *c, struct iovec **iov, int n)
{
	if (!chance(c, 4))
		return n;
	switch (below(c, 5)) {
	case 0: return 0;
	case 1: return -1;
	case 2: return IOV_MAX + 1;
	case 3: *iov = opaque((void *)1); return n;
	default: (*iov)[n - 1] = (struct iovec){ opaque((void *)8), 10 }; return n;
	}
}

void op_readv(struct ctx *c)
{
	char buf[IO_MAX + CANARY_LEN] __attribute__((aligned(PAGE)));
	struct iovec vec[8], *iov = vec;
	int fd = some_fd(c), err;
	size_t len = special_len(c, fd, some_len(c));
	int n = spoil_vector(c, &iov, cut(c, vec, buf, len));
	ssize_t got;
	say(c, "fd=%d len=%zu n=%d", fd_name(c, fd), len, n);
	canary_set(buf, len);
	CALL(got, err, readv(fd, iov, n));
	say_ret(c, got, err);
	say_data(c, buf, got);
	canary_check(c, buf, len);
	say_pos(c, fd);
}

void op_preadv(struct ctx *c)
{
	static const int flag[] = { 0, 0, RWF_HIPRI, RWF_NOWAIT, RWF_NOWAIT, 0x80 /* DONTCACHE */,
				    RWF_DSYNC, 0x4000, -1 };
	char buf[IO_MAX + CANARY_LEN] __attribute__((aligned(PAGE)));
	struct iovec vec[8], *iov = vec;
	int fd = some_fd(c), err, form = (int)below(c, 4), flags = PICK(c, flag);
	size_t len = special_len(c, fd, some_len(c));
	off_t off = some_offset(c);
	int n = spoil_vector(c, &iov, cut(c, vec, buf, len));
	ssize_t got;
	/* Whether RWF_NOWAIT reads depends on what is cached, which is ours to change: only errors
	 * that have nothing to do with the cache are compared, and the position must not follow it. */
	bool nowait = form >= 2 && flags == RWF_NOWAIT;
	if (nowait && off == -1)
		off = 0;
	say(c, "fd=%d len=%zu off=%ld n=%d form=%d flags=%d", fd_name(c, fd), len, (long)off, n, form, flags);
	canary_set(buf, len);
	switch (form) {
	case 0: CALL(got, err, preadv(fd, iov, n, off)); break;
	case 1: CALL(got, err, preadv64(fd, iov, n, off)); break;
	case 2: CALL(got, err, preadv2(fd, iov, n, off, flags)); break;
	default: CALL(got, err, preadv64v2(fd, iov, n, off, flags)); break;
	}
	/* A direct read that isn't aligned is refused after a look at whether something there is still to be written. */
	bool refused = err == EINVAL && kernel(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0) & O_DIRECT;
	if (nowait && (got >= 0 || err == EAGAIN || err == EFAULT || refused)) {
		say(c, " nowait");
	} else {
		say_ret(c, got, err);
		say_data(c, buf, got);
	}
	canary_check(c, buf, len);
	say_pos(c, fd);
}

/* Keeps the file that a write through `fd` would extend below FILE_MAX. */
static void tame_position(int fd, off_t *off)
{
	if (off && *off > FILE_MAX && *off != LLONG_MAX)
		*off %= FILE_MAX;
	if (true_pos(fd) > FILE_MAX)
		kernel(SYS_lseek, fd, 0, SEEK_SET, 0, 0, 0);
	if (true_size(fd) > FILE_MAX)
		kernel(SYS_ftruncate, fd, 1000, 0, 0, 0, 0);
}

void op_write(struct ctx *c)
{
	char buf[IO_MAX] __attribute__((aligned(PAGE)));
	int fd = some_fd(c), err;
	size_t len = direct_len(fd, some_len(c));
	ssize_t put;
	fill(c, buf, len);
	tame_position(fd, NULL);
	say(c, "fd=%d len=%zu", fd_name(c, fd), len);
	if (chance(c, 20))
		CALL(put, err, __write(fd, buf, len));
	else
		CALL(put, err, write(fd, buf, len));
	say_ret(c, put, err);
	say_pos(c, fd);
}

void op_pwrite(struct ctx *c)
{
	char buf[IO_MAX] __attribute__((aligned(PAGE)));
	int fd = some_fd(c), err;
	size_t len = direct_len(fd, some_len(c));
	off_t off = some_offset(c);
	ssize_t put;
	fill(c, buf, len);
	tame_position(fd, &off);
	say(c, "fd=%d len=%zu off=%ld", fd_name(c, fd), len, (long)off);
	if (chance(c, 50))
		CALL(put, err, pwrite(fd, buf, len, off));
	else
		CALL(put, err, pwrite64(fd, buf, len, off));
	say_ret(c, put, err);
	say_pos(c, fd);
}

void op_writev(struct ctx *c)
{
	char buf[IO_MAX] __attribute__((aligned(PAGE)));
	struct iovec vec[8], *iov = vec;
	int fd = some_fd(c), err;
	size_t len = direct_len(fd, some_len(c));
	ssize_t put;
	fill(c, buf, len);
	int n = cut(c, vec, buf, len);
	if (is_direct(fd)) {
		vec[0] = (struct iovec){ buf, len };
		n = 1;
	}
	n = spoil_vector(c, &iov, n);
	tame_position(fd, NULL);
	say(c, "fd=%d len=%zu n=%d", fd_name(c, fd), len, n);
	CALL(put, err, writev(fd, iov, n));
	say_ret(c, put, err);
	say_pos(c, fd);
}

void op_pwritev(struct ctx *c)
{
	static const int flag[] = { 0, 0, RWF_DSYNC, RWF_APPEND, RWF_NOAPPEND, 0x4000 };
	char buf[IO_MAX] __attribute__((aligned(PAGE)));
	struct iovec vec[8], *iov = vec;
	int fd = some_fd(c), err, form = (int)below(c, 4), flags = PICK(c, flag);
	size_t len = direct_len(fd, some_len(c));
	off_t off = some_offset(c);
	ssize_t put;
	fill(c, buf, len);
	int n = cut(c, vec, buf, len);
	if (is_direct(fd)) {
		vec[0] = (struct iovec){ buf, len };
		n = 1;
	}
	n = spoil_vector(c, &iov, n);
	tame_position(fd, &off);
	say(c, "fd=%d len=%zu off=%ld n=%d form=%d flags=%d", fd_name(c, fd), len, (long)off, n, form, flags);
	switch (form) {
	case 0: CALL(put, err, pwritev(fd, iov, n, off)); break;
	case 1: CALL(put, err, pwritev64(fd, iov, n, off)); break;
	case 2: CALL(put, err, pwritev2(fd, iov, n, off, flags)); break;
	default: CALL(put, err, pwritev64v2(fd, iov, n, off, flags)); break;
	}
	say_ret(c, put, err);
	say_pos(c, fd);
}

void op_lseek(struct ctx *c)
{
	static const int whences[] = { SEEK_SET, SEEK_SET, SEEK_CUR, SEEK_CUR, SEEK_END, SEEK_DATA,
				       SEEK_HOLE, 7, -1 };
	int fd = some_fd(c), whence = PICK(c, whences), err, form = (int)below(c, 3);
	off_t off = some_offset(c), pos;
	/* The kernel answers these from the pages that happen to be cached wherever an extent was never written, so that no two
	 * runs need agree: the call is made, and only a refusal is compared. */
	if (whence == SEEK_DATA || whence == SEEK_HOLE) {
		CALL(pos, err, lseek(fd, off, whence));
		if (pos < 0 && err == ENXIO)
			err = 0;
		say(c, "fd=%d off=%ld whence=%d err=%d", fd_name(c, fd), (long)off, whence, pos < 0 ? err : 0);
		lseek(fd, 0, SEEK_SET);
		return;
	}
	if (whence == SEEK_CUR && chance(c, 50))
		off = -off;
	say(c, "fd=%d off=%ld whence=%d", fd_name(c, fd), (long)off, whence);
	switch (form) {
	case 0: CALL(pos, err, lseek(fd, off, whence)); break;
	case 1: CALL(pos, err, lseek64(fd, off, whence)); break;
	default: CALL(pos, err, __lseek(fd, off, whence)); break;
	}
	say_ret(c, pos, err);
	say_pos(c, fd);
}

/* ---- runs of reads that a prefetcher takes an interest in ---- */

/* A pattern of 8 to 40 reads; logs the sum of the results, one hash over all bytes and the first
 * error. Cold in two cases out of three, so that there is something to fetch. */
static void read_pattern(struct ctx *c, int fd)
{
	enum { FORWARD, STRIDE, BACKWARD, BACK_STRIDE, TWO_STREAMS, DENSE_RANDOM, PATTERNS };
	static const size_t units[] = { 4096, 8192, 16384, 16384, 65536, 5000 };
	static const char *const names[] = { "forward", "stride", "backward", "back-stride", "two", "random" };
	char buf[IO_MAX] __attribute__((aligned(PAGE)));
	size_t unit = PICK(c, units);
	int pattern = (int)below(c, PATTERNS), count = 8 + (int)below(c, 33), failed = 0;
	bool positioned = chance(c, 40), vector = chance(c, 20);
	off_t size = true_size(fd), base = size > 0 ? (off_t)below(c, (uint64_t)size) : 0;
	off_t step = (off_t)(unit * (2 + below(c, 7)));
	uint64_t h = 0, order = rnd(c);
	long sum = 0;
	if (chance(c, 66))
		make_cold(fd);
	if (pattern == FORWARD && chance(c, 50))
		base = 0;
	if (pattern == BACKWARD || pattern == BACK_STRIDE)
		base = size;
	if (positioned && pattern == FORWARD)
		lseek(fd, base, SEEK_SET);
	for (int i = 0; i < count; i++) {
		off_t at = base;
		switch (pattern) {
		case FORWARD: at = base + i * (off_t)unit; break;
		case STRIDE: at = base + i * step; break;
		case BACKWARD: at = base - (i + 1) * (off_t)unit; break;
		case BACK_STRIDE: at = base - (i + 1) * step; break;
		case TWO_STREAMS: at = (i & 1 ? size / 2 : 0) + (i / 2) * (off_t)unit; break;
		default:
			order = order * 6364136223846793005u + 1442695040888963407u;
			at = size > 0 ? (off_t)((order >> 33) % (uint64_t)size) / 4096 * 4096 : 0;
		}
		if (at < 0)
			at = 0;
		ssize_t got;
		struct iovec iov[2] = { { buf, unit / 2 }, { buf + unit / 2, unit - unit / 2 } };
		if (positioned) {
			if (pattern != FORWARD)
				lseek(fd, at, SEEK_SET);
			got = vector ? readv(fd, iov, 2) : read(fd, buf, unit);
		} else {
			got = vector ? preadv(fd, iov, 2, at) : pread(fd, buf, unit, at);
		}
		if (got < 0 && !failed)
			failed = errno;
		if (got > 0)
			h = hash(h, buf, (size_t)got);
		sum += got;
	}
	say(c, "fd=%d %s%s%s unit=%zu n=%d base=%ld = %ld err=%d h=%08x", fd_name(c, fd), names[pattern],
	    positioned ? " pos" : "", vector ? " vec" : "", unit, count, (long)base, sum, failed, (unsigned)h);
	say_pos(c, fd);
}

static int open_big(struct ctx *c, int flags)
{
	char path[NAME_LEN];
	big_path(c, path);
	int fd = open(path, flags);
	say(c, "%s ", path);
	return fd;
}

void op_burst(struct ctx *c)
{
	int fd = -1;
	for (int i = 0; i < NSLOT && fd < 0; i++)
		if (c->slots[i].kind == BIG && chance(c, 60))
			fd = c->slots[i].fd;
	if (fd < 0 || chance(c, 30)) {
		fd = open_big(c, O_RDONLY | O_CLOEXEC);
		slot_set(c, fd, BIG);
	}
	read_pattern(c, fd);
}

/* Reads, and closes while fetching may still be under way. A prefetcher that holds on to the file
 * must not be noticed: nothing of the descriptor may outlive the close. */
void op_burst_close(struct ctx *c)
{
	int fd = open_big(c, O_RDONLY);
	if (fd < 0) {
		say_fd(c, fd, errno);
		return;
	}
	read_pattern(c, fd);
	int err, ret, way = (int)below(c, 3);
	if (way == 0 && !c->threaded) {
		/* The number is at once another file's. */
		char path[NAME_LEN], buf[64];
		own_path(c, path, "d/i0");
		int other = open(path, O_RDONLY);
		CALL(ret, err, dup2(other, fd));
		say_ret(c, ret, err);
		close(other);
		ssize_t got = read(fd, buf, sizeof buf);
		say(c, " then");
		say_data(c, buf, got);
	} else if (way == 1 && !c->threaded) {
		/* A lock belongs to the open file: it must be free once the last descriptor is gone. */
		int locked = flock(fd, LOCK_SH | LOCK_NB);
		CALL(ret, err, close(fd));
		say_ret(c, ret, err);
		fd = open_big(c, O_RDONLY);
		CALL(ret, err, flock(fd, LOCK_EX | LOCK_NB));
		say(c, " flock %d", locked);
		say_ret(c, ret, err);
		flock(fd, LOCK_UN);
	}
	CALL(ret, err, close(fd));
	say_ret(c, ret, err);
}

/* ---- bad buffers and lengths ---- */

/* One writable page before an inaccessible one: an overlong request faults instead of overrunning. */
static char *edge_page(void)
{
	static __thread char *page;
	if (!page) {
		page = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		mprotect(page, PAGE, PROT_READ | PROT_WRITE);
	}
	return page;
}

void op_bad_buffer(struct ctx *c)
{
	static const size_t huge[] = { SSIZE_MAX, SIZE_MAX, (size_t)SSIZE_MAX + 1, 0x7ffff000, 0x80000000, 0 };
	char *page = edge_page(), *buf;
	int fd = some_fd(c), err, form = (int)below(c, 4), where = (int)below(c, 5);
	size_t len = chance(c, 40) ? PICK(c, huge) : some_len(c);
	size_t inside = below(c, PAGE);
	off_t off = below(c, 100000);
	ssize_t ret;
	switch (where) {
	case 0: buf = opaque((void *)1); break;
	case 1: buf = opaque(NULL); break;
	case 2: buf = page + PAGE; break;
	case 3: buf = opaque((void *)(uintptr_t)0xffff800000000000u); break;
	default: buf = page + inside; break;
	}
	buf = opaque(buf);
	len = opaque_len(len);
	tame_position(fd, NULL);
	memset(page, 0, PAGE);
	say(c, "fd=%d form=%d where=%d+%zu len=%zx off=%ld", fd_name(c, fd), form, where, inside, len, (long)off);
	switch (form) {
	case 0: CALL(ret, err, read(fd, buf, len)); break;
	case 1: CALL(ret, err, pread(fd, buf, len, off)); break;
	case 2: CALL(ret, err, write(fd, buf, len)); break;
	default: CALL(ret, err, pwrite(fd, buf, len, off)); break;
	}
	/* Which of two reasons a direct read is refused for depends on whether what lies there has been written out. */
	if (ret < 0 && err == EINVAL && is_direct(fd))
		err = EFAULT;
	say_ret(c, ret, err);
	say_hash(c, page, PAGE);
	say_pos(c, fd);
}

/* ---- hints ---- */

void op_hints(struct ctx *c)
{
	int fd = some_fd(c), ret, err, form = (int)below(c, 4), advice = (int)below(c, 8) - 1;
	off_t off = some_offset(c), len = chance(c, 30) ? 0 : (off_t)some_len(c) * (1 + (off_t)below(c, 64));
	if (chance(c, 5))
		len = chance(c, 50) ? -5 : LLONG_MAX;
	say(c, "fd=%d form=%d advice=%d off=%ld len=%ld", fd_name(c, fd), form, advice, (long)off, (long)len);
	switch (form) {
	case 0: CALL(ret, err, posix_fadvise(fd, off, len, advice)); break;
	case 1: CALL(ret, err, posix_fadvise64(fd, off, len, advice)); break;
	case 2: CALL(ret, err, (int)readahead(fd, off, (size_t)len)); break;
	default:
		/* The same through the system call, as some programs make it. */
		CALL(ret, err, (int)syscall(SYS_readahead, fd, off, (size_t)len));
		break;
	}
	say_ret(c, ret, err);
	say_pos(c, fd);
}

void op_sync(struct ctx *c)
{
	int fd = some_fd(c), ret, err;
	off_t off = some_offset(c), len = (off_t)some_len(c);
	int form = (int)below(c, 3);
	say(c, "fd=%d form=%d off=%ld", fd_name(c, fd), form, (long)off);
	switch (form) {
	case 0: CALL(ret, err, fsync(fd)); break;
	case 1: CALL(ret, err, fdatasync(fd)); break;
	default: CALL(ret, err, sync_file_range(fd, off, len, (unsigned)below(c, 9))); break;
	}
	say_ret(c, ret, err);
}

/* ---- transfers inside the kernel ---- */

void op_transfer(struct ctx *c)
{
	int in = some_fd(c), out = some_fd(c), err, form = (int)below(c, 5);
	size_t len = some_len(c) * (1 + below(c, 8));
	off_t off_in = some_offset(c), off_out = some_offset(c);
	off_t *pin = chance(c, 50) ? &off_in : NULL, *pout = chance(c, 50) ? &off_out : NULL;
	unsigned flags = chance(c, 90) ? 0 : 1 + (unsigned)below(c, 32);
	ssize_t ret;
	if (off_out > FILE_MAX)
		off_out %= FILE_MAX;
	tame_position(out, NULL);
	if (is_direct(out) && len > SECTOR)
		len = SECTOR;
	say(c, "in=%d out=%d form=%d len=%zu pin=%ld pout=%ld flags=%u", fd_name(c, in), fd_name(c, out), form, len,
	    pin ? (long)off_in : -2L, pout ? (long)off_out : -2L, flags);
	switch (form) {
	case 0: CALL(ret, err, sendfile(out, in, pin, len)); break;
	case 1: CALL(ret, err, sendfile64(out, in, pin, len)); break;
	case 2: CALL(ret, err, copy_file_range(in, pin, out, pout, len, flags)); break;
	case 3: CALL(ret, err, splice(in, pin, out, pout, len, SPLICE_F_NONBLOCK)); break;
	default: CALL(ret, err, tee(in, out, len, SPLICE_F_NONBLOCK)); break;
	}
	say_ret(c, ret, err);
	say(c, " offs=%ld,%ld", (long)off_in, (long)off_out);
	say_pos(c, in);
	say_pos(c, out);
}
