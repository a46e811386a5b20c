/* Operations of the differential fuzzer on stdio streams. glibc's stdio reads through internal
 * calls that an interposed read() never sees, so the position of the descriptor below is logged. */
#include "fuzz_core.h"
#include <stdio_ext.h>
#include <wchar.h>

/* Where malloc puts a stream's buffer decides whether direct I/O takes it, and that is nobody's
 * promise: no direct I/O below streams. */
static struct stream *buffered(struct stream *s)
{
	int fd = fileno(s->file);
	long flags = kernel(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0);
	if (flags > 0 && (flags & O_DIRECT))
		kernel(SYS_fcntl, fd, F_SETFL, flags & ~O_DIRECT, 0, 0, 0);
	return s;
}

static struct stream *some_stream(struct ctx *c)
{
	int start = (int)below(c, NSTREAM);
	for (int i = 0; i < NSTREAM; i++) {
		struct stream *s = &c->streams[(start + i) % NSTREAM];
		if (s->file)
			return buffered(s);
	}
	op_fopen(c);
	for (int i = 0; i < NSTREAM; i++)
		if (c->streams[i].file)
			return buffered(&c->streams[i]);
	return NULL;
}

static int stream_name(struct ctx *c, struct stream *s) { return (int)(s - c->streams); }

static void say_stream(struct ctx *c, struct stream *s)
{
	say(c, " eof=%d err=%d", feof(s->file) != 0, ferror(s->file) != 0);
	say_pos(c, fileno(s->file));
}

/* Marks the stream's descriptor, so that other operations leave its number alone. */
static void adopt(struct ctx *c, struct stream *s, enum kind kind)
{
	int fd = fileno(s->file);
	s->kind = kind;
	s->wrote = false;
	slot_set(c, fd, kind);
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind && c->slots[i].fd == fd)
			c->slots[i].stdio = true;
	say(c, " fileno=%d", fd_name(c, fd));
}

static void drop(struct ctx *c, struct stream *s)
{
	int ret, err, fd = fileno(s->file);
	CALL(ret, err, fclose(s->file));
	say(c, " fclose");
	say_ret(c, ret, err);
	slot_forget(c, fd);
	s->file = NULL;
}

void op_fopen(struct ctx *c)
{
	static const char *const modes[] = { "r", "r", "r", "re", "rb", "r+", "w", "w+", "a", "a+", "wx", "r,ccs=",
					     "q", "" };
	struct stream *s = &c->streams[below(c, NSTREAM)];
	char path[NAME_LEN];
	enum kind kind = some_path(c, path);
	const char *mode = PICK(c, modes);
	int err, form = (int)below(c, 5);
	FILE *f;
	/* A fifo would block; an emptied big file would not be worth reading. */
	if (kind == FIFO || (kind == BIG && (c->threaded || mode[0] == 'w')))
		mode = "r";
	if (kind == FIFO)
		kind = big_path(c, path);
	if (s->file && form != 4)
		drop(c, s);
	say(c, " S%d %s %s form=%d", stream_name(c, s), path, mode, form);
	switch (form) {
	case 0:
	case 1: CALL(f, err, fopen(path, mode)); break;
	case 2: CALL(f, err, fopen64(path, mode)); break;
	case 3: {
		struct slot *from = slot_file(c);
		int fd = dup(from->fd);
		kind = from->kind;
		say(c, " fdopen %d", fd_name(c, from->fd));
		CALL(f, err, fdopen(fd, mode));
		if (!f && fd >= 0)
			close(fd);
		break;
	}
	default:
		if (s->file) {
			slot_forget(c, fileno(s->file));
			CALL(f, err, chance(c, 50) ? freopen(path, mode, s->file) : freopen64(path, mode, s->file));
			s->file = NULL;
		} else {
			CALL(f, err, fopen(path, mode));
		}
	}
	say_ret(c, f ? 0 : -1, err);
	if (!f)
		return;
	s->file = f;
	s->append = mode[0] == 'a';
	adopt(c, s, kind);
	if (chance(c, 20)) {
		static const int how[] = { _IONBF, _IOLBF, _IOFBF, _IOFBF };
		int ret, type = PICK(c, how);
		CALL(ret, err, setvbuf(f, NULL, type, 1 + below(c, 70000)));
		say(c, " setvbuf %d", type);
		say_ret(c, ret, err);
	}
}

/* The C standard wants a flush or a seek between writing and reading. */
static void turn(struct stream *s, bool writing)
{
	if (s->wrote != writing)
		fseek(s->file, 0, SEEK_CUR);
	s->wrote = writing;
}

/* Whether a line may be read to its end. The number below may by now be an endless device's, and a line of that takes all memory. A stream without a buffer makes
 * a system call for each byte: millions for a line that is a file of zeros. */
static bool line_is_near(FILE *f, int end)
{
	char buf[PAGE];
	int fd = fileno(f);
	if (true_size(fd) == 0)
		return false;
	if (__fbufsize(f) != 1)
		return true;
	long got = kernel(SYS_pread64, fd, (long)buf, sizeof buf, true_pos(fd), 0, 0);
	return got < (long)sizeof buf || memchr(buf, end, sizeof buf);
}

void op_fread(struct ctx *c)
{
	struct stream *s = some_stream(c);
	char buf[IO_MAX] __attribute__((aligned(PAGE)));
	int err, form = (int)below(c, 12);
	size_t got, len = some_len(c);
	if (!s)
		return say(c, "none");
	FILE *f = s->file;
	turn(s, false);
	int end_of_line = chance(c, 50) ? '\n' : 'e';
	if (form == 5 && !line_is_near(f, end_of_line))
		form = 0;
	say(c, "S%d form=%d len=%zu", stream_name(c, s), form, len);
	switch (form) {
	case 0:
	case 1:
		CALL(got, err, fread(buf, 1, len, f));
		say_ret(c, (long)got, err);
		say_hash(c, buf, got);
		break;
	case 2:
		CALL(got, err, fread_unlocked(buf, 7, len / 7, f));
		say_ret(c, (long)got, err);
		say_hash(c, buf, got * 7);
		break;
	case 3: {
		/* A run of reads, as a program that reads a file through makes it. */
		uint64_t h = 0, sum = 0;
		for (int i = 0; i < 40; i++) {
			got = fread(buf, 1, 16384, f);
			h = hash(h, buf, got);
			sum += got;
			if (got < 16384)
				break;
		}
		say(c, " = %lu h=%08x", (unsigned long)sum, (unsigned)h);
		break;
	}
	case 4: {
		char *line;
		int size = 1 + (int)below(c, 300);
		buf[0] = 0;
		CALL(line, err, chance(c, 50) ? fgets(buf, size, f) : fgets_unlocked(buf, size, f));
		say_ret(c, line ? (long)strlen(buf) : -1, err);
		if (line)
			say_hash(c, buf, strlen(buf));
		break;
	}
	case 5: {
		char *line = NULL;
		size_t room = 0;
		ssize_t n;
		CALL(n, err, end_of_line == '\n' ? getline(&line, &room, f) : getdelim(&line, &room, 'e', f));
		say_ret(c, n, err);
		if (n > 0)
			say_hash(c, line, (size_t)n);
		free(line);
		break;
	}
	case 6: {
		int ch;
		CALL(ch, err, chance(c, 50) ? getc(f) : fgetc_unlocked(f));
		say_ret(c, ch, err);
		if (ch != EOF && chance(c, 50)) {
			CALL(ch, err, ungetc(ch ^ 1, f));
			say_ret(c, ch, err);
		}
		break;
	}
	case 7: {
		int number = 0, n;
		char word[32] = "";
		CALL(n, err, fscanf(f, "%d %31s", &number, word));
		say_ret(c, n, err);
		say(c, " %d", number);
		say_hash(c, word, strlen(word));
		break;
	}
	case 8: {
		long sum = 0;
		int n = 0, ch;
		while (n < 5000 && (ch = getc_unlocked(f)) != EOF) {
			sum = sum * 31 + ch;
			n++;
		}
		say(c, " = %d %lx", n, sum);
		break;
	}
	case 9: {
		int w;
		CALL(w, err, getw(f));
		say_ret(c, w, err);
		break;
	}
	case 10:
		clearerr(f);
		break;
	default: {
		/* Reading the descriptor beside its stream. */
		ssize_t n;
		CALL(n, err, read(fileno(f), buf, len));
		say_ret(c, n, err);
		if (n > 0)
			say_hash(c, buf, (size_t)n);
	}
	}
	say_stream(c, s);
}

void op_fwrite(struct ctx *c)
{
	struct stream *s = some_stream(c);
	char buf[IO_MAX];
	int err, ret, form = (int)below(c, 6);
	size_t put, len = some_len(c);
	if (!s)
		return say(c, "none");
	FILE *f = s->file;
	if (true_size(fileno(f)) > FILE_MAX)
		return say(c, "full");
	turn(s, true);
	fill(c, buf, len);
	say(c, "S%d form=%d len=%zu", stream_name(c, s), form, len);
	switch (form) {
	case 0: CALL(put, err, fwrite(buf, 1, len, f)); say_ret(c, (long)put, err); break;
	case 1: CALL(put, err, fwrite_unlocked(buf, 3, len / 3, f)); say_ret(c, (long)put, err); break;
	case 2: CALL(ret, err, fputs("line of text 42 word\n", f)); say_ret(c, ret, err); break;
	case 3: CALL(ret, err, fprintf(f, "%d %s\n", (int)below(c, 10000), "words")); say_ret(c, ret, err); break;
	case 4: CALL(ret, err, putc('z', f)); say_ret(c, ret, err); break;
	default: CALL(ret, err, fflush(f)); say_ret(c, ret, err); break;
	}
	say_stream(c, s);
}

void op_fseek(struct ctx *c)
{
	static const int whences[] = { SEEK_SET, SEEK_SET, SEEK_CUR, SEEK_END, 9 };
	struct stream *s = some_stream(c);
	if (!s)
		return say(c, "none");
	FILE *f = s->file;
	long off = (long)some_offset(c), pos;
	int whence = PICK(c, whences), ret, err, form = (int)below(c, 7);
	if (off > FILE_MAX || off < -FILE_MAX)
		off = -1;
	if (whence == SEEK_END)
		off = -off;
	say(c, "S%d form=%d off=%ld whence=%d", stream_name(c, s), form, off, whence);
	switch (form) {
	case 0:
	case 1: CALL(ret, err, fseek(f, off, whence)); say_ret(c, ret, err); break;
	case 2: CALL(ret, err, fseeko64(f, off, whence)); say_ret(c, ret, err); break;
	case 3: CALL(pos, err, ftell(f)); say_ret(c, pos, err); break;
	case 4: CALL(pos, err, (long)ftello64(f)); say_ret(c, pos, err); break;
	case 5: {
		fpos_t mark;
		char buf[100];
		CALL(ret, err, fgetpos(f, &mark));
		say_ret(c, ret, err);
		if (ret == 0) {
			turn(s, false);
			size_t got = fread(buf, 1, sizeof buf, f);
			say_hash(c, buf, got);
			CALL(ret, err, fsetpos(f, &mark));
			say_ret(c, ret, err);
		}
		break;
	}
	default: rewind(f); break;
	}
	say_stream(c, s);
}

void op_fclose(struct ctx *c)
{
	struct stream *s = some_stream(c);
	if (!s)
		return say(c, "none");
	say(c, "S%d", stream_name(c, s));
	drop(c, s);
}

static ssize_t cookie_read(void *cookie, char *buf, size_t len)
{
	int fd = *(int *)cookie;
	return pread(fd, buf, len, 100);
}

/* Streams with no descriptor below. */
void op_memstream(struct ctx *c)
{
	char text[] = "12 one\n34 two\n", buf[64], *out = NULL;
	size_t size = 0, got;
	int err, form = (int)below(c, 3), big;
	FILE *f;
	say(c, "form=%d", form);
	switch (form) {
	case 0:
		f = fmemopen(text, sizeof text, "r");
		CALL(got, err, fread(buf, 1, 9, f));
		say_ret(c, (long)got, err);
		say_hash(c, buf, got);
		say(c, " %d", fileno(f));
		break;
	case 1:
		f = open_memstream(&out, &size);
		fputs("memory", f);
		fflush(f);
		say(c, " %zu", size);
		break;
	default:
		big = open("b0", O_RDONLY);
		f = fopencookie(&big, "r", (cookie_io_functions_t){ .read = cookie_read });
		CALL(got, err, fread(buf, 1, sizeof buf, f));
		say_ret(c, (long)got, err);
		say_hash(c, buf, got);
		close(big);
	}
	fclose(f);
	free(out);
}

/* Wide, mapped and temporary streams, each from opening to closing. */
void op_wide(struct ctx *c)
{
	char path[NAME_LEN];
	wchar_t line[100];
	own_path(c, path, "s3");
	FILE *f = fopen(path, "r");
	say(c, "%s", f ? "open" : "absent");
	if (!f)
		return;
	for (int i = 0; i < 3 && fgetws(line, 100, f); i++)
		say_hash(c, line, wcslen(line) * sizeof line[0]);
	say(c, " %d", getwc(f) != WEOF);
	say_pos(c, fileno(f));
	fclose(f);
	/* A stream that maps its file: kept to itself, because it faults if the file is cut short. */
	own_path(c, path, "m");
	f = fopen(path, "rm");
	if (f) {
		char buf[1000];
		for (int i = 0; i < 40; i++) {
			size_t got = fread(buf, 1, sizeof buf, f);
			if (i % 8 == 0)
				say_hash(c, buf, got);
		}
		fseek(f, 150000, SEEK_SET);
		say(c, " %d", getc(f));
		say_pos(c, fileno(f));
		fclose(f);
	}
	f = tmpfile();
	if (f) {
		fputs("7 temporary", f);
		rewind(f);
		int number = 0;
		say(c, " %d %d", fscanf(f, "%d", &number), number);
		fclose(f);
	}
}

void op_popen(struct ctx *c)
{
	char command[PATH_MAX + 64], buf[16384];
	snprintf(command, sizeof command, "'%s' --cat b1", self_path);
	FILE *f = popen(command, "re");
	uint64_t h = 0, sum = 0;
	size_t got;
	/* Reads of a pipe come in any lengths, blocks of a stream are whole up to the last. */
	while (f && (got = fread(buf, 1, sizeof buf, f)) > 0) {
		h = hash(h, buf, got);
		sum += got;
	}
	say(c, "%lu %08x status=%d", (unsigned long)sum, (unsigned)h, f ? pclose(f) : -1);
}
