/* Operations of the differential fuzzer on memory mappings. */
#include "fuzz_core.h"
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static struct mapping *some_map(struct ctx *c)
{
	int start = (int)below(c, NMAP);
	for (int i = 0; i < NMAP; i++) {
		struct mapping *m = &c->maps[(start + i) % NMAP];
		if (m->addr)
			return m;
	}
	return NULL;
}

static int map_name(struct ctx *c, struct mapping *m) { return (int)(m - c->maps); }

void op_mmap(struct ctx *c)
{
	static const int prots[] = { PROT_READ, PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE };
	static const int extra[] = { 0, 0, 0, MAP_POPULATE, MAP_NORESERVE, MAP_NONBLOCK | MAP_POPULATE };
	struct slot *s = slot_file(c);
	struct mapping *m = &c->maps[below(c, NMAP)];
	int prot = PICK(c, prots), flags = PICK(c, extra) | (chance(c, 60) ? MAP_SHARED : MAP_PRIVATE), err;
	size_t len = (1 + below(c, 64)) * PAGE - (chance(c, 30) ? below(c, PAGE) : 0);
	off_t off = (off_t)below(c, 256) * PAGE;
	char *addr;
	if (chance(c, 40))
		off = 0;
	if (m->addr)
		munmap(m->addr, m->len);
	m->addr = NULL;
	say(c, "m%d fd=%d len=%zu off=%ld prot=%d flags=%x", map_name(c, m), fd_name(c, s->fd), len, (long)off, prot, flags);
	if (chance(c, 50))
		CALL(addr, err, mmap(NULL, len, prot, flags, s->fd, off));
	else
		CALL(addr, err, mmap64(NULL, len, prot, flags, s->fd, off));
	say_ret(c, addr == MAP_FAILED ? -1 : 0, err);
	if (addr != MAP_FAILED)
		*m = (struct mapping){ .addr = addr, .len = (len + PAGE - 1) / PAGE * PAGE };
	/* The mapping has to outlive its descriptor. */
	if (chance(c, 25) && !s->stdio) {
		int fd = s->fd, ret;
		CALL(ret, err, close(fd));
		slot_forget(c, fd);
		say_ret(c, ret, err);
	}
}

struct touch { char *addr; size_t len, step; uint64_t h, seen; unsigned char value; };

static void read_all(void *arg)
{
	struct touch *t = arg;
	for (size_t at = 0; at < t->len; at += t->step) {
		size_t part = t->len - at < 512 ? t->len - at : 512;
		t->h = hash(t->h, t->addr + at, part);
		t->seen++;
	}
}

void op_map_read(struct ctx *c)
{
	struct mapping *m = some_map(c);
	if (!m)
		return say(c, "none");
	struct touch t = { .addr = m->addr, .len = m->len, .step = chance(c, 50) ? 512 : PAGE };
	int sig = guarded(read_all, &t);
	say(c, "m%d step=%zu sig=%d pages=%lu h=%08x", map_name(c, m), t.step, sig, (unsigned long)t.seen, (unsigned)t.h);
}

static void write_some(void *arg)
{
	struct touch *t = arg;
	for (size_t at = 0; at < t->len; at += t->step) {
		*(volatile unsigned char *)(t->addr + at) = t->value;
		t->seen++;
	}
}

void op_map_write(struct ctx *c)
{
	struct mapping *m = some_map(c);
	if (!m)
		return say(c, "none");
	/* One byte at the head of a page is inside the file if the page is mapped at all: bytes past
	 * the end of file would be lost or kept as writeback happens to come. */
	struct touch t = { .addr = m->addr, .len = m->len, .step = PAGE * (1 + below(c, 4)) };
	t.value = (unsigned char)rnd(c);
	int sig = guarded(write_some, &t);
	say(c, "m%d step=%zu sig=%d pages=%lu", map_name(c, m), t.step, sig, (unsigned long)t.seen);
}

void op_madvise(struct ctx *c)
{
	/* Not here: hints that poison memory, and MADV_FREE, whose effect is a matter of luck. */
	static const int advices[] = {
		MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_WILLNEED, MADV_WILLNEED, MADV_DONTNEED,
		MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ,
		MADV_POPULATE_WRITE, MADV_MERGEABLE, MADV_NOHUGEPAGE, MADV_REMOVE, -1, 999,
	};
	struct mapping *m = some_map(c);
	if (!m)
		return say(c, "none");
	int advice = PICK(c, advices), ret, err;
	size_t off = below(c, m->len / PAGE) * PAGE, len = m->len - off;
	if (chance(c, 10))
		off += 7;
	if (chance(c, 10))
		len = chance(c, 50) ? 0 : opaque_len(SIZE_MAX - 100);
	m->split |= off > 0;
	say(c, "m%d advice=%d off=%zu len=%zx", map_name(c, m), advice, off, len);
	if (chance(c, 40) && advice < MADV_REMOVE && advice != MADV_DONTNEED && advice >= 0)
		CALL(ret, err, posix_madvise(m->addr + off, len, advice));
	else
		CALL(ret, err, madvise(m->addr + off, len, advice));
	say_ret(c, ret, err);
}

void op_remap(struct ctx *c)
{
	static const int prots[] = { PROT_READ, PROT_READ | PROT_WRITE, PROT_NONE };
	struct mapping *m = some_map(c);
	int ret, err, form = (int)below(c, 5);
	if (!m)
		return say(c, "none");
	/* Whether parts that were advised differently are one area again, so that mremap takes them,
	 * depends on what else the address space holds. */
	if (form == 0 && m->split)
		form = 1;
	say(c, "m%d form=%d", map_name(c, m), form);
	switch (form) {
	case 0: {
		size_t len = (1 + below(c, 64)) * PAGE;
		char *addr;
		CALL(addr, err, mremap(m->addr, m->len, len, MREMAP_MAYMOVE));
		say(c, " len=%zu", len);
		say_ret(c, addr == MAP_FAILED ? -1 : 0, err);
		if (addr != MAP_FAILED) {
			m->addr = addr;
			m->len = len;
		}
		return;
	}
	case 1:
		CALL(ret, err, mprotect(m->addr, m->len, PICK(c, prots)));
		break;
	case 2:
		CALL(ret, err, msync(m->addr, m->len, chance(c, 50) ? MS_SYNC : chance(c, 50) ? MS_ASYNC | MS_INVALIDATE : 77));
		break;
	case 3: {
		/* Another file over the same addresses. */
		struct slot *s = slot_file(c);
		char *addr;
		CALL(addr, err, mmap(m->addr, m->len, PROT_READ, MAP_PRIVATE | MAP_FIXED, s->fd, 0));
		say(c, " fd=%d", fd_name(c, s->fd));
		say_ret(c, addr == m->addr ? 0 : -1, err);
		return;
	}
	default:
		if (m->len <= PAGE)
			return;
		/* Half of it goes. */
		CALL(ret, err, munmap(m->addr + m->len / 2 / PAGE * PAGE, m->len - m->len / 2 / PAGE * PAGE));
		m->len = m->len / 2 / PAGE * PAGE;
	}
	say_ret(c, ret, err);
}

void op_munmap(struct ctx *c)
{
	struct mapping *m = some_map(c);
	int ret, err;
	if (!m)
		return say(c, "none");
	CALL(ret, err, munmap(m->addr, m->len));
	say(c, "m%d", map_name(c, m));
	say_ret(c, ret, err);
	m->addr = NULL;
}

void op_bad_mmap(struct ctx *c)
{
	int fd = some_fd(c), ret, err, which = (int)below(c, 6);
	void *addr = NULL;
	size_t len = PAGE;
	say(c, "which=%d fd=%d", which, fd_name(c, fd));
	switch (which) {
	case 0: len = 0; CALL(addr, err, mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0)); break;
	case 1: CALL(addr, err, mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 100)); break;
	case 2: CALL(addr, err, mmap(NULL, len, PROT_READ, 0, fd, 0)); break;
	case 3: CALL(addr, err, mmap(NULL, len, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0)); break;
	case 4: CALL(addr, err, mmap(NULL, opaque_len(SIZE_MAX / 2), PROT_READ, MAP_SHARED, fd, 0)); break;
	default: CALL(addr, err, mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, -PAGE)); break;
	}
	say_ret(c, addr == MAP_FAILED ? -1 : 0, err);
	if (addr != MAP_FAILED)
		munmap(addr, len);
	CALL(ret, err, munmap(opaque((void *)123), PAGE));
	say_ret(c, ret, err);
}
