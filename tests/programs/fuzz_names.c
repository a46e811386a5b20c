/* Operations of the differential fuzzer on names, sizes and directories, and the tree it works in. */
#include "fuzz_core.h"
#include <dirent.h>
#include <ftw.h>
#include <sys/inotify.h>
#include <sys/xattr.h>

/* ---- the tree ---- */

enum { RANDOM_BYTES, TEXT, SPARSE };

static char *put_number(char *at, uint64_t n, unsigned base)
{
	char digits[32];
	int count = 0;
	do
		digits[count++] = "0123456789abcdef"[n % base];
	while (n /= base);
	while (count)
		*at++ = digits[--count];
	return at;
}

/* "NUMBER wordNUMBER HEX" and the end of the line. By hand: printf would take most of the time in which a tree is made. */
static char *put_line(struct ctx *c, char *at)
{
	uint64_t roll = rnd(c);
	at = put_number(at, roll % 100000, 10);
	at = stpcpy(at, " word");
	at = put_number(at, (roll >> 20) % 99, 10);
	*at++ = ' ';
	at = put_number(at, roll >> 32, 16);
	*at++ = '\n';
	return at;
}

void make_file(struct ctx *c, const char *name, size_t size, int style)
{
	char path[NAME_LEN];
	static char buf[1 << 20];
	own_path(c, path, name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (fd < 0)
		abort();
	for (size_t at = 0; at < size;) {
		size_t part = size - at < sizeof buf ? size - at : sizeof buf;
		if (style == TEXT) {
			char *end = buf;
			while ((size_t)(end - buf) + 40 < part)
				end = put_line(c, end);
			memset(end, '\n', part - (size_t)(end - buf));
		} else {
			fill(c, buf, part);
		}
		/* A sparse file has data in every fourth stretch only. */
		if (style == SPARSE)
			part = part < 256 * 1024 ? part : 256 * 1024;
		if (style != SPARSE || (at / (256 * 1024)) % 4 == 0)
			if (pwrite(fd, buf, part, (off_t)at) != (ssize_t)part)
				abort();
		at += part;
	}
	if (style == SPARSE && ftruncate(fd, (off_t)size))
		abort();
	make_cold(fd);
	close(fd);
}

static void make_private(struct ctx *c)
{
	char path[NAME_LEN];
	make_file(c, "s0", 100, RANDOM_BYTES);
	make_file(c, "s1", 0, RANDOM_BYTES);
	make_file(c, "s2", 65536, RANDOM_BYTES);
	make_file(c, "s3", 300000, TEXT);
	make_file(c, "s4", 4096 * 33 + 1, RANDOM_BYTES);
	make_file(c, "p0", 200000, RANDOM_BYTES);
	own_path(c, path, "d"), mkdir(path, 0755);
	make_file(c, "m", 200000, TEXT);
	make_file(c, "d/i0", 20000, TEXT);
	make_file(c, "d/i1", 5000, RANDOM_BYTES);
	own_path(c, path, "w"), mkdir(path, 0755);
	own_path(c, path, "l0"), symlink("s0", path) ? abort() : (void)0;
	own_path(c, path, "l1"), symlink("s8", path) ? abort() : (void)0;
	own_path(c, path, "l2"), symlink("l2", path) ? abort() : (void)0;
	own_path(c, path, "l3"), symlink("d", path) ? abort() : (void)0;
	own_path(c, path, "ff"), mkfifo(path, 0644);
}

void make_tree(struct ctx *c)
{
	if (c->root[0]) {
		char path[NAME_LEN];
		own_path(c, path, "");
		mkdir(path, 0755);
		make_private(c);
		return;
	}
	make_file(c, "b0", ((size_t)1 << 20) + below(c, 3 << 20), RANDOM_BYTES);
	make_file(c, "b1", ((size_t)1 << 20) + below(c, 7 << 20) / 4096 * 4096, TEXT);
	make_file(c, "b2", (size_t)4 << 20, SPARSE);
	make_file(c, "h", 64, TEXT);
	make_file(c, "lease", 600000, RANDOM_BYTES);
	make_private(c);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Everything below `path`, in order of name, read past libc so that it is the truth. */
void say_tree(struct ctx *c, const char *path)
{
	char *names[200], full[PATH_MAX], link[256];
	static char buf[1 << 20];
	int n = 0;
	DIR *dir = opendir(path);
	if (!dir)
		return;
	for (struct dirent *e; (e = readdir(dir)) && n < 200;)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			names[n++] = strdup(e->d_name);
	closedir(dir);
	qsort(names, (size_t)n, sizeof names[0], by_name);
	for (int i = 0; i < n; i++) {
		struct stat st;
		snprintf(full, sizeof full, "%s/%s", path, names[i]);
		free(names[i]);
		if (lstat(full, &st))
			continue;
		say(c, "%s mode=%o nlink=%lu", full, st.st_mode, (unsigned long)st.st_nlink);
		if (S_ISREG(st.st_mode)) {
			uint64_t h = 0;
			long got, fd = kernel(SYS_openat, AT_FDCWD, (long)full, O_RDONLY, 0, 0, 0);
			while ((got = kernel(SYS_read, fd, (long)buf, sizeof buf, 0, 0, 0)) > 0)
				h = hash(h, buf, (size_t)got);
			kernel(SYS_close, fd, 0, 0, 0, 0, 0);
			say(c, " size=%ld h=%016lx", (long)st.st_size, (unsigned long)h);
		} else if (S_ISLNK(st.st_mode)) {
			ssize_t got = readlink(full, link, sizeof link - 1);
			say(c, " -> %.*s", (int)(got > 0 ? got : 0), link);
		}
		say(c, "\n");
		if (S_ISDIR(st.st_mode))
			say_tree(c, full);
	}
}

/* ---- sizes ---- */

void op_truncate(struct ctx *c)
{
	char path[NAME_LEN];
	int ret, err, form = (int)below(c, 5);
	off_t size = some_offset(c);
	if (size > FILE_MAX)
		size %= FILE_MAX;
	if (form < 3) {
		struct slot *s = slot_file(c);
		int fd = chance(c, 90) ? s->fd : some_fd(c);
		say(c, "fd=%d size=%ld", fd_name(c, fd), (long)size);
		if (form)
			CALL(ret, err, ftruncate(fd, size));
		else
			CALL(ret, err, ftruncate64(fd, size));
	} else {
		enum kind kind = some_path(c, path);
		if (kind == BIG)
			scratch_path(c, path);
		say(c, "%s size=%ld", path, (long)size);
		if (form == 3)
			CALL(ret, err, truncate(path, size));
		else
			CALL(ret, err, truncate64(path, size));
	}
	say_ret(c, ret, err);
}

void op_fallocate(struct ctx *c)
{
	char path[NAME_LEN];
	int ret, err, form = (int)below(c, 5);
	off_t off = (off_t)below(c, 1 << 20), len = (off_t)below(c, 300000);
	if (chance(c, 5))
		off = -1;
	if (chance(c, 50)) {
		off &= ~(off_t)4095;
		len &= ~(off_t)4095;
	}
	/* Only the files made for it get unwritten extents (see op_lseek). A hole is no such thing. */
	if (form == 0) {
		struct slot *s = slot_file(c);
		say(c, "fd=%d punch %ld+%ld", fd_name(c, s->fd), (long)off, (long)len);
		CALL(ret, err, fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len));
		say_ret(c, ret, err);
		return;
	}
	if (form == 1) {
		int fd = some_fd(c);
		say(c, "fd=%d bad", fd_name(c, fd));
		CALL(ret, err, fallocate64(fd, FALLOC_FL_PUNCH_HOLE, off, len));
		say_ret(c, ret, err);
		return;
	}
	snprintf(path, NAME_LEN, "%sp%d", c->root, (int)below(c, 2));
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	say(c, "%s form=%d %ld+%ld", path, form, (long)off, (long)len);
	if (form == 2)
		CALL(ret, err, posix_fallocate(fd, off, len));
	else if (form == 3)
		CALL(ret, err, fallocate(fd, FALLOC_FL_ZERO_RANGE, off, len));
	else
		CALL(ret, err, fallocate(fd, chance(c, 50) ? FALLOC_FL_KEEP_SIZE : 0, off, len));
	say_fd(c, ret ? -1 : 0, err);
	say(c, " %d", ret);
	slot_set(c, fd, PREALLOC);
}

/* ---- names ---- */

void op_rename(struct ctx *c)
{
	char from[NAME_LEN], to[NAME_LEN];
	int ret, err, form = (int)below(c, 4);
	scratch_path(c, from);
	scratch_path(c, to);
	if (chance(c, 10))
		own_path(c, to, "d");
	say(c, "%s %s form=%d", from, to, form);
	switch (form) {
	case 0:
	case 1: CALL(ret, err, rename(from, to)); break;
	case 2: CALL(ret, err, renameat(AT_FDCWD, from, AT_FDCWD, to)); break;
	default: CALL(ret, err, renameat2(AT_FDCWD, from, AT_FDCWD, to, 1 + (unsigned)below(c, 2))); break;
	}
	say_ret(c, ret, err);
}

void op_unlink(struct ctx *c)
{
	char path[NAME_LEN];
	int ret, err;
	scratch_path(c, path);
	if (chance(c, 15))
		own_path(c, path, chance(c, 50) ? "d" : "none");
	say(c, "%s", path);
	if (chance(c, 60))
		CALL(ret, err, unlink(path));
	else
		CALL(ret, err, unlinkat(AT_FDCWD, path, chance(c, 10) ? AT_REMOVEDIR : 0));
	say_ret(c, ret, err);
}

void op_link(struct ctx *c)
{
	char from[NAME_LEN], to[NAME_LEN];
	int ret, err;
	scratch_path(c, from);
	scratch_path(c, to);
	say(c, "%s %s", from, to);
	CALL(ret, err, link(from, to));
	say_ret(c, ret, err);
}

static void say_stat(struct ctx *c, int ret, int err, mode_t mode, long size, long nlink)
{
	say_ret(c, ret, err);
	/* A directory's size and link count are the file system's own business. */
	if (ret == 0 && S_ISREG(mode))
		say(c, " %o %ld %ld", mode, size, nlink);
	else if (ret == 0)
		say(c, " %o", mode);
}

void op_stat(struct ctx *c)
{
	char path[NAME_LEN];
	struct stat st = { 0 };
	struct stat64 st64 = { 0 };
	struct statx sx = { 0 };
	int ret, err, form = (int)below(c, 6), fd = some_fd(c);
	some_path(c, path);
	/* A tracked number only: what else is open is not the same object in every run. */
	say(c, "%s fd=%d form=%d", path, fd_name(c, fd), form);
	switch (form) {
	case 0: CALL(ret, err, fstat(fd, &st)); break;
	case 1: CALL(ret, err, stat(path, &st)); break;
	case 2: CALL(ret, err, lstat(path, &st)); break;
	case 3: CALL(ret, err, fstatat(AT_FDCWD, path, &st, chance(c, 50) ? AT_SYMLINK_NOFOLLOW : 0)); break;
	case 4:
		CALL(ret, err, statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &sx));
		say_stat(c, ret, err, sx.stx_mode, (long)sx.stx_size, (long)sx.stx_nlink);
		return;
	default:
		CALL(ret, err, fstat64(fd, &st64));
		say_stat(c, ret, err, st64.st_mode, (long)st64.st_size, (long)st64.st_nlink);
		return;
	}
	say_stat(c, ret, err, st.st_mode, (long)st.st_size, (long)st.st_nlink);
}

static __thread uint64_t walked;

/* Order within a directory is not compared: the sum does not depend on it. */
static int on_walk(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	walked += hash((uint64_t)type, path + at->base, strlen(path + at->base));
	return 0;
}

void op_dir(struct ctx *c)
{
	char path[NAME_LEN];
	int err, ret, form = (int)below(c, 4), n = 0;
	uint64_t sum = 0;
	own_path(c, path, chance(c, 50) ? "d" : chance(c, 80) ? "." : "s0");
	say(c, "%s form=%d", path, form);
	if (form == 0) {
		struct dirent **list;
		CALL(n, err, scandir(path, &list, NULL, alphasort));
		say_ret(c, n, n < 0 ? err : SENTINEL);
		for (int i = 0; i < n; i++) {
			say_hash(c, list[i]->d_name, strlen(list[i]->d_name));
			free(list[i]);
		}
		if (n >= 0)
			free(list);
		return;
	}
	if (form == 1) {
		walked = 0;
		ret = nftw(path, on_walk, 10, FTW_PHYS);
		say(c, " = %d %lx", ret, (unsigned long)walked);
		return;
	}
	DIR *dir;
	if (form == 2) {
		CALL(dir, err, opendir(path));
	} else {
		int fd = open(path, O_RDONLY | O_DIRECTORY);
		CALL(dir, err, fdopendir(fd));
		if (!dir && fd >= 0)
			close(fd);
	}
	say_ret(c, dir ? 0 : -1, err);
	if (!dir)
		return;
	for (int round = 0; round < 2; round++) {
		errno = 0;
		for (struct dirent *e; (e = readdir(dir)); n++)
			sum += hash(0, e->d_name, strlen(e->d_name));
		say(c, " n=%d errno=%d %lx", n, errno, (unsigned long)sum);
		rewinddir(dir);
	}
	say(c, " fd=%d", c->threaded ? 0 : dirfd(dir));
	CALL(ret, err, closedir(dir));
	say_ret(c, ret, err);
}

void op_mkdir(struct ctx *c)
{
	char path[NAME_LEN];
	int ret, err;
	own_path(c, path, chance(c, 50) ? "e0" : "d/e1");
	say(c, "%s", path);
	CALL(ret, err, chance(c, 50) ? mkdir(path, 0755) : rmdir(path));
	say_ret(c, ret, err);
}

void op_chdir(struct ctx *c)
{
	char buf[600], small[2];
	int ret, err, fd, back = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	CALL(ret, err, chdir("d"));
	say_ret(c, ret, err);
	CALL(fd, err, open("../b1", O_RDONLY));
	say_fd(c, fd, err);
	for (int i = 0; i < 5; i++) {
		ssize_t got = read(fd, buf, sizeof buf);
		if (got > 0)
			say_hash(c, buf, (size_t)got);
	}
	close(fd);
	CALL(fd, err, open("i1", O_RDONLY));
	say_fd(c, fd, err);
	if (fd >= 0)
		close(fd);
	char *p;
	CALL(p, err, getcwd(opaque(small), opaque_len(sizeof small)));
	say_ret(c, p ? 0 : -1, err);
	CALL(ret, err, fchdir(back));
	say_ret(c, ret, err);
	close(back);
}

void op_attr(struct ctx *c)
{
	struct slot *s = slot_file(c);
	char path[NAME_LEN], value[64] = "";
	int ret, err;
	scratch_path(c, path);
	say(c, "%s fd=%d", path, fd_name(c, s->fd));
	CALL(ret, err, access(path, (int)below(c, 8)));
	say_ret(c, ret, err);
	if (s->kind == BIG)
		return; /* shared between threads */
	CALL(ret, err, fsetxattr(s->fd, "user.fuzz", "value", 1 + below(c, 5), 0));
	say_ret(c, ret, err);
	CALL(ret, err, (int)fgetxattr(s->fd, "user.fuzz", value, sizeof value));
	say_ret(c, ret, err);
	say(c, " %s", value);
	CALL(ret, err, fchmod(s->fd, 0600 | (mode_t)below(c, 64)));
	say_ret(c, ret, err);
	CALL(ret, err, futimens(s->fd, NULL));
	say_ret(c, ret, err);
	CALL(ret, err, (int)readlink(path, value, sizeof value));
	say_ret(c, ret, err);
}

/* What a watcher of the directory sees: every event that is not the program's own would be in the list, and so would
 * a close that comes late. */
void op_inotify(struct ctx *c)
{
	char path[NAME_LEN], buf[16384] __attribute__((aligned(8))), block[32768];
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), err, n;
	own_path(c, path, "w");
	/* Whoever asks for opens and closes makes the helper stop opening files, for the rest of the run: rarely. */
	uint32_t mask = IN_ALL_EVENTS & ~(uint32_t)(IN_OPEN | IN_ACCESS | IN_CLOSE_NOWRITE);
	if (below(c, 64) == 0)
		mask = IN_ALL_EVENTS;
	int wd = inotify_add_watch(watch, path, mask);
	say(c, "wd=%d", wd);
	own_path(c, path, "w/f");
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	fill(c, block, sizeof block);
	for (int i = 0; i < 8; i++)
		n = (int)write(fd, block, sizeof block);
	make_cold(fd);
	lseek(fd, 0, SEEK_SET);
	while (read(fd, block, 1 + below(c, sizeof block)) > 0)
		;
	close(fd);
	int reader = open(path, O_RDONLY);
	n = 1 + (int)below(c, 30);
	for (int i = 0; i < n; i++)
		if (pread(reader, block, 4096, (off_t)below(c, 64) * 4096) < 0)
			break;
	switch (below(c, 4)) {
	case 0: close(reader); unlink(path); break;
	case 1: unlink(path); close(reader); break;
	case 2: close(reader); n = truncate(path, 100); break;
	default: {
		char to[NAME_LEN];
		own_path(c, to, "w/g");
		rename(path, to);
		close(reader);
	}
	}
	ssize_t got;
	CALL(got, err, read(watch, buf, sizeof buf));
	for (char *p = buf; got > 0 && p < buf + got;) {
		struct inotify_event *e = (struct inotify_event *)p;
		say(c, " %x:%s", e->mask, e->len ? e->name : "");
		p += sizeof *e + e->len;
	}
	CALL(got, err, read(watch, buf, sizeof buf));
	say_ret(c, got, err);
	close(watch);
}
