/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/outrider: what of a file is cached, and readahead of what is not.
 *
 * Every call names a file by a descriptor that the caller holds and could read from; EBADF
 * otherwise. EPERM: the caller may read the file but not know what of it is cached; that may, as
 * with mincore(2) and cachestat(2), who owns it, could write to it, has CAP_FOWNER over it, or has
 * it open for writing. EOPNOTSUPP: not a regular file whose pages come from a file system's
 * readahead.
 *
 * Offsets and lengths are bytes; bits stand for granules of PAGE_SIZE << shift bytes, and a set bit
 * says that all of the granule is in the page cache, or on its way there. For all but very large
 * files shift is 0. Bit N of a bitmap is bit N % 64 of its 64-bit word N / 64.
 */
#ifndef OUTRIDER_UAPI_H
#define OUTRIDER_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Changes when a program written for an older one could misunderstand; what is added at the end of
 * a structure does not change it.
 */
#define OUTRIDER_ABI 1

/* Only look, fetch nothing. */
#define OUTRIDER_LOOK (1u << 0)
/* Fill in free, available and the caller's control group, which costs a walk over the zones. */
#define OUTRIDER_MEMORY (1u << 1)
/*
 * Only fetch, and tell nothing of the file, for which a descriptor that could be read from is
 * enough. Every figure of the file is then 0, and `next` follows from the range, `budget` and
 * memory alone. Neither with OUTRIDER_LOOK nor with a bitmap (EINVAL).
 */
#define OUTRIDER_BLIND (1u << 2)

/*
 * One call: look up `offset..offset+length`, start reading what is missing there, copy out a slice
 * of the bitmap, and report.
 */
struct outrider_readahead_info {
	/* In. sizeof(struct outrider_readahead_info) as the caller knows it. */
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 reserved;
	/* In. Length 0 means to the end of the file; what lies behind it is ignored. */
	__u64 offset;
	__u64 length;
	/*
	 * In. At most so many bytes may be fetched; 0 leaves it to the module, which never takes
	 * more than it may (see `next`).
	 */
	__u64 budget;
	/*
	 * In. Where to copy the bits of `bitmap_offset…`, and how many bytes there is room for; 0:
	 * nowhere. Multiples of 8.
	 */
	__u64 bitmap;
	__u64 bitmap_offset;
	__u32 bitmap_bytes;

	/* Out. Bytes of the bitmap that were written. */
	__u32 bitmap_written;
	/*
	 * Out. Offset of the first byte for which bit 0 stands: bitmap_offset, rounded down to 64
	 * granules.
	 */
	__u64 bitmap_start;
	/* Out. log2 of the pages per bit. */
	__u32 shift;
	/* Out. Descriptors on which the file is open for reading only. */
	__u32 readers;
	/*
	 * Out. Bytes of the range that were not cached, and bytes of them whose reading was
	 * started.
	 */
	__u64 missing;
	__u64 issued;
	/*
	 * Out. The range was dealt with up to here; less than its end where the budget, memory or
	 * the limit of a call ran out.
	 */
	__u64 next;
	/*
	 * Out. Of the whole file, in pages: cached now; put into and taken out of the cache since
	 * the module knows the file.
	 */
	__u64 cached;
	__u64 inserted;
	__u64 removed;
	/*
	 * Out. Of all calls for this file, in pages: asked for and cached, asked for and missing.
	 */
	__u64 hits;
	__u64 misses;
	/*
	 * Out, with OUTRIDER_MEMORY. Bytes free and available in the machine; used by the caller's
	 * control group, and its limit or ~0.
	 */
	__u64 free;
	__u64 available;
	__u64 group_used;
	__u64 group_limit;
};

/*
 * A descriptor on which one file's bitmap can be mapped, read-only, from offset 0: page N of it
 * holds the bits of granules N * PAGE_SIZE * 8 …. Pages behind the file's end, and those for which
 * there is no memory, raise SIGBUS. While it is open the file's inode stays in memory. Whether the
 * caller may know is asked when it is made, as for a descriptor that is opened.
 */
struct outrider_bitmap {
	/* In. */
	__u32 size;
	__s32 fd;
	/* Out. */
	__u32 shift;
	__u32 reserved;
};

/* Takes nothing, returns OUTRIDER_ABI. */
#define OUTRIDER_VERSION _IO('o', 0xd0)
#define OUTRIDER_READAHEAD_INFO _IOWR('o', 0xd1, struct outrider_readahead_info)
/* Returns the descriptor. */
#define OUTRIDER_BITMAP _IOWR('o', 0xd2, struct outrider_bitmap)
/*
 * Takes a pointer to a descriptor of any file; returns one which, while it is open, has every
 * regular file of that file system followed from its first cached page. Otherwise a file is
 * followed from the first call that names it, which counts what is cached once. Needs
 * CAP_SYS_ADMIN.
 */
#define OUTRIDER_FOLLOW _IOW('o', 0xd3, __s32)

#endif
