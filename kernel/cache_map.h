/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Arithmetic of one file's bitmap. No locks and no allocation in here: bits are changed with atomic
 * operations, chunks of a page are hung in by the caller. Compiled into the module, and in user
 * space by test/suites/cache/unit/map.c.
 */
#ifndef OUTRIDER_CACHE_MAP_H
#define OUTRIDER_CACHE_MAP_H

#ifdef __KERNEL__
#include <linux/bitops.h>
#include <linux/types.h>
#include <linux/rcupdate.h>
#else
#include "kernel_shim.h"
#endif

/*
 * Bits in a chunk: a page of them, so that a chunk can be mapped. 32768 bits stand for 128 MiB of a
 * file where a bit is a page.
 */
#define OCACHE_CHUNK_BITS (PAGE_SIZE * 8)
#define OCACHE_CHUNK_WORDS (OCACHE_CHUNK_BITS / BITS_PER_LONG)
/* Bits of a small file, which lie in its own structure: 2 MiB. */
#define OCACHE_SMALL_BITS 512ul
/* A bit never stands for more than 2^10 pages: 4 MiB. */
#define OCACHE_MAX_SHIFT 10

struct ocache_map {
	struct rcu_head rcu;
	/* Bits that the chunks have room for. */
	unsigned long bits;
	/*
	 * Bits that a page's insertion may set without looking any further: all of them, or none
	 * where a bit is several pages or may be moved.
	 */
	unsigned long quick_bits;
	unsigned int chunks;
	/* NULL: no bit of it is set. */
	unsigned long *chunk[];
};

/* The least shift with which `pages` pages need at most `max_bits` bits. */
unsigned int ocache_shift(u64 pages, u64 max_bits);

/* Sets or clears bits first..end, which lie within one chunk; returns how many it changed. */
unsigned long ocache_set(unsigned long *chunk, unsigned long first, unsigned long end);
unsigned long ocache_clear(unsigned long *chunk, unsigned long first, unsigned long end);

/* The first bit of from..end that is clear, or set; `end` if there is none. */
unsigned long ocache_next_clear(const struct ocache_map *map, unsigned long from,
				unsigned long end);
unsigned long ocache_next_set(const struct ocache_map *map, unsigned long from, unsigned long end);

#endif
