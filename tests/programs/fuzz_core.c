/* Generator, log, tables and guards: see fuzz_core.h. */
#include "fuzz_core.h"
#include <sys/mman.h>

char self_path[PATH_MAX];
char root_path[PATH_MAX];

uint64_t rnd(struct ctx *c)
{
	/* splitmix64: any seed gives a good sequence, and a child's is split off by one draw. */
	uint64_t z = (c->rng += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

uint64_t below(struct ctx *c, uint64_t n) { return n ? rnd(c) % n : 0; }

bool chance(struct ctx *c, int percent) { return (int)below(c, 100) < percent; }

void fill(struct ctx *c, void *buf, size_t len)
{
	char *p = buf;
	for (; len >= 8; p += 8, len -= 8) {
		uint64_t word = rnd(c);
		memcpy(p, &word, 8);
	}
	uint64_t word = rnd(c);
	memcpy(p, &word, len);
}

long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
#else
	int saved = errno;
	long ret = syscall(nr, a, b, c, d, e, f);
	if (ret < 0)
		ret = -errno;
	errno = saved;
	return ret;
#endif
}

off_t true_pos(int fd) { return kernel(SYS_lseek, fd, 0, SEEK_CUR, 0, 0, 0); }

off_t true_size(int fd)
{
	struct statx sx;
	if (kernel(SYS_statx, fd, (long)"", AT_EMPTY_PATH, STATX_SIZE, (long)&sx, 0) < 0)
		return 0;
	return (off_t)sx.stx_size;
}

void make_cold(int fd)
{
	/* Not fsync: that waits for the journal, and nothing here has to survive a crash. */
	kernel(SYS_sync_file_range, fd, 0, 0,
	       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER, 0, 0);
	kernel(SYS_fadvise64, fd, 0, 0, POSIX_FADV_DONTNEED, 0, 0);
}

void *opaque(const void *p)
{
	__asm__ volatile("" : "+r"(p));
	return (void *)(uintptr_t)p;
}

size_t opaque_len(size_t n)
{
	__asm__ volatile("" : "+r"(n));
	return n;
}

/* ---- log ---- */

struct log *log_new(size_t cap)
{
	struct log *log = mmap(NULL, sizeof *log + cap, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (log == MAP_FAILED)
		abort();
	log->cap = cap;
	return log;
}

void say(struct ctx *c, const char *fmt, ...)
{
	struct log *log = c->log;
	va_list args;
	va_start(args, fmt);
	int n = vsnprintf(log->text + log->len, log->cap - log->len, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= log->cap - log->len)
		abort();
	log->len += (size_t)n;
}

/* A direct read that isn't aligned is refused with EIO in place of EINVAL where the file has blocks that
 * are only reserved, and whether it has is a matter of when it was written back. */
static void say_errno(struct ctx *c, int err)
{
	const char *name = strerrorname_np(err == EIO ? EINVAL : err);
	if (name)
		say(c, "%s", name);
	else
		say(c, "%d", err);
}

void say_ret(struct ctx *c, long ret, int err)
{
	say(c, " = %ld", ret);
	if (ret < 0 || err != SENTINEL) {
		say(c, ret < 0 ? " " : " errno=");
		say_errno(c, err);
	}
}

int fd_name(struct ctx *c, int fd)
{
	if (!c->threaded || fd < 0)
		return fd;
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind && c->slots[i].fd == fd)
			return i;
	return 999;
}

void say_fd(struct ctx *c, int fd, int err)
{
	if (fd >= 0 && c->threaded)
		say_ret(c, 0, err);
	else
		say_ret(c, fd, err);
}

/* Four sums side by side, so that a processor needs not wait for each multiplication: hashing what was read would else take longer than reading it. */
uint64_t hash(uint64_t seed, const void *buf, size_t len)
{
	const uint64_t by = 0xff51afd7ed558ccdu;
	const char *p = buf;
	uint64_t h = seed ^ (len * 0x9e3779b97f4a7c15u), lanes[4] = { h, h + 1, h + 2, h + 3 };
	for (; len >= 32; p += 32, len -= 32)
		for (int i = 0; i < 4; i++) {
			uint64_t word;
			memcpy(&word, p + 8 * i, 8);
			lanes[i] = (lanes[i] ^ word) * by;
			lanes[i] ^= lanes[i] >> 32;
		}
	for (int i = 0; i < 4; i++) {
		h = (h ^ lanes[i]) * by;
		h ^= h >> 32;
	}
	for (; len >= 8; p += 8, len -= 8) {
		uint64_t word;
		memcpy(&word, p, 8);
		h = (h ^ word) * by;
		h ^= h >> 32;
	}
	uint64_t word = 0;
	memcpy(&word, p, len);
	h = (h ^ word) * by;
	return h ^ (h >> 29);
}

void say_hash(struct ctx *c, const void *buf, size_t len)
{
	say(c, " h=%08x", (unsigned)hash(1, buf, len));
}

void say_pos(struct ctx *c, int fd)
{
	long pos = true_pos(fd);
	if (pos >= 0)
		say(c, " pos=%ld", pos);
}

void log_flush(struct ctx *c)
{
	struct log *log = c->log;
	while (log->flushed < log->len) {
		long n = kernel(SYS_write, 1, (long)(log->text + log->flushed),
				(long)(log->len - log->flushed), 0, 0, 0);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			_exit(90);
		log->flushed += (size_t)n;
	}
	log->len = log->flushed = 0;
}

/* ---- tables ---- */

bool is_file(enum kind k) { return k == BIG || k == SCRATCH || k == PREALLOC || k == MEMFD; }

void slot_forget(struct ctx *c, int fd)
{
	for (int i = 0; i < NSLOT; i++)
		if (c->slots[i].kind && c->slots[i].fd == fd)
			c->slots[i].kind = FREE;
}

struct slot *slot_new(struct ctx *c)
{
	for (int i = 0; i < NSLOT; i++)
		if (!c->slots[i].kind)
			return &c->slots[i];
	struct slot *s;
	do
		s = &c->slots[below(c, NSLOT)];
	while (s->stdio);
	close(s->fd);
	s->kind = FREE;
	return s;
}

void slot_set(struct ctx *c, int fd, enum kind kind)
{
	if (fd < 0)
		return;
	slot_forget(c, fd);
	*slot_new(c) = (struct slot){ .fd = fd, .kind = kind };
}

struct slot *slot_any(struct ctx *c)
{
	int start = (int)below(c, NSLOT);
	for (int i = 0; i < NSLOT; i++) {
		struct slot *s = &c->slots[(start + i) % NSLOT];
		if (s->kind)
			return s;
	}
	return NULL;
}

struct slot *slot_file(struct ctx *c)
{
	int start = (int)below(c, NSLOT);
	for (int i = 0; i < NSLOT; i++) {
		struct slot *s = &c->slots[(start + i) % NSLOT];
		if (s->kind && is_file(s->kind) && !s->stdio)
			return s;
	}
	char path[NAME_LEN];
	scratch_path(c, path);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		fd = memfd_create("spare", MFD_CLOEXEC);
	struct slot *s = slot_new(c);
	*s = (struct slot){ .fd = fd, .kind = SCRATCH };
	return s;
}

int some_fd(struct ctx *c)
{
	/* In a threaded run a stale number may be another thread's descriptor. */
	static const int bad[] = { -1, -100, INT_MAX, 1 << 20, 2000 };
	if (chance(c, 3))
		return PICK(c, bad);
	if (!c->threaded && chance(c, 2))
		return 3 + (int)below(c, 60);
	struct slot *s = chance(c, 75) ? slot_file(c) : slot_any(c);
	return s ? s->fd : -1;
}

/* ---- names ---- */

void own_path(struct ctx *c, char out[NAME_LEN], const char *name)
{
	snprintf(out, NAME_LEN, "%s%s", c->root, name);
}

void scratch_path(struct ctx *c, char out[NAME_LEN])
{
	snprintf(out, NAME_LEN, "%ss%d", c->root, (int)below(c, 9));
}

enum kind big_path(struct ctx *c, char out[NAME_LEN])
{
	snprintf(out, NAME_LEN, "b%d", (int)below(c, 3));
	return BIG;
}

enum kind some_path(struct ctx *c, char out[NAME_LEN])
{
	static const struct { const char *name; enum kind kind; } other[] = {
		{ "d", DIRECTORY }, { "d/i0", SCRATCH }, { "d/i1", SCRATCH }, { "d/../d/i2", SCRATCH },
		{ "l0", SCRATCH }, { "l1", SCRATCH }, { "l2", SCRATCH }, { "l3", DIRECTORY },
		{ "l3/i1", SCRATCH }, { "ff", FIFO }, { "none/x", SCRATCH }, { "s0/x", SCRATCH },
		{ ".", DIRECTORY },
	};
	unsigned roll = (unsigned)below(c, 100);
	if (roll < 45) {
		scratch_path(c, out);
		return SCRATCH;
	}
	/* Threads share the big files for reading only: the open of a big one for writing is left to
	 * the single-threaded runs (see op_open). */
	if (roll < 70)
		return big_path(c, out);
	if (roll < 80) {
		snprintf(out, NAME_LEN, "%sp%d", c->root, (int)below(c, 2));
		return PREALLOC;
	}
	unsigned i;
	do
		i = (unsigned)below(c, sizeof other / sizeof other[0]);
	while (c->threaded && other[i].kind == FIFO); /* who has its other end open is a matter of luck */
	own_path(c, out, other[i].name);
	return other[i].kind;
}

off_t some_offset(struct ctx *c)
{
	switch (below(c, 10)) {
	case 0: return 0;
	case 1: return (off_t)below(c, 100);
	case 2: return (off_t)below(c, 256) * PAGE;
	case 3: return (off_t)below(c, FILE_MAX);
	case 4: return (off_t)below(c, 2048) * 512;
	case 5: {
		static const off_t edge[] = { -1, -4096, LLONG_MAX, LLONG_MIN, (off_t)1 << 62 };
		return chance(c, 30) ? PICK(c, edge) : 4095;
	}
	default: return (off_t)below(c, 2 << 20);
	}
}

size_t some_len(struct ctx *c)
{
	switch (below(c, 8)) {
	case 0: return below(c, 16);
	case 1: return 4096;
	case 2: return (1 + below(c, 16)) * PAGE;
	case 3: return IO_MAX;
	case 4: return (1 + below(c, 100)) * 512;
	default: return below(c, 8192);
	}
}

/* ---- faults ---- */

static __thread sigjmp_buf *landing;

static void on_fault(int sig)
{
	if (landing)
		siglongjmp(*landing, sig);
	signal(sig, SIG_DFL);
}

void *alt_stack(void)
{
	/* Small on purpose: a hook that needs much stack in a handler overruns it. */
	static const size_t size = 32 * 1024;
	char *stack = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(stack, PAGE, PROT_NONE);
	stack_t ss = { .ss_sp = stack + PAGE, .ss_size = size };
	sigaltstack(&ss, NULL);
	return stack;
}

void fault_handlers(void)
{
	struct sigaction sa = { .sa_handler = on_fault, .sa_flags = SA_ONSTACK };
	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	alt_stack();
}

int guarded(void (*body)(void *), void *arg)
{
	sigjmp_buf here;
	int sig = sigsetjmp(here, 1);
	if (!sig) {
		landing = &here;
		body(arg);
	}
	landing = NULL;
	return sig;
}
