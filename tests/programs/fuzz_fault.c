/* Preloads that do to a program what Outrider must never do, one each by -DFAULT=n. The fuzzer has to
 * notice all of them but 0, which passes everything through. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { NONE, SHORT_PREAD, ERRNO, LOCKS, DESCRIPTOR, POSITION };

static atomic_int calls;

__attribute__((unused)) static int each(int n) { return atomic_fetch_add(&calls, 1) % n == n - 1; }

ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
#if FAULT == 1
	/* One byte less, every fiftieth time. */
	if (len > 1 && each(50))
		len--;
#endif
	return syscall(SYS_pread64, fd, buf, len, off);
}

ssize_t pread64(int fd, void *buf, size_t len, off64_t off) { return pread(fd, buf, len, off); }

ssize_t read(int fd, void *buf, size_t len)
{
	ssize_t got = syscall(SYS_read, fd, buf, len);
#if FAULT == 2
	/* A success that leaves its mark on errno. */
	if (got > 0 && each(20))
		errno = EAGAIN;
#elif FAULT == 3
	/* A look at the file through a second descriptor: closing that drops the program's locks. */
	if (got > 0 && each(5)) {
		int saved = errno;
		syscall(SYS_close, syscall(SYS_dup, fd));
		errno = saved;
	}
#elif FAULT == 4
	/* A descriptor kept for later, far from the program's own. */
	static atomic_int kept;
	if (got > 4096 && !atomic_exchange(&kept, 1)) {
		int saved = errno;
		syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 800);
		errno = saved;
	}
#elif FAULT == 5
	/* A position moved and put back one byte off, where only the next call sees it. */
	if (got > 4096 && each(50))
		syscall(SYS_lseek, fd, 1, SEEK_CUR);
#endif
	return got;
}

/* What compilers that fortify call. */
ssize_t __read_chk(int fd, void *buf, size_t len, size_t size)
{
	(void)size;
	return read(fd, buf, len);
}

ssize_t __pread_chk(int fd, void *buf, size_t len, off_t off, size_t size)
{
	(void)size;
	return pread(fd, buf, len, off);
}
