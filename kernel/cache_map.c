// SPDX-License-Identifier: GPL-2.0-only
#include "cache_map.h"

unsigned int ocache_shift(u64 pages, u64 max_bits)
{
	unsigned int shift = 0;

	while (shift < OCACHE_MAX_SHIFT && ((pages + (1ull << shift) - 1) >> shift) > max_bits)
		shift++;
	return shift;
}

/* Bits first..end of the word in which `first` lies. */
static unsigned long word_mask(unsigned long first, unsigned long end)
{
	unsigned long base = first - first % BITS_PER_LONG;
	unsigned long mask = ~0ul << (first % BITS_PER_LONG);

	if (end - base < BITS_PER_LONG)
		mask &= ~0ul >> (BITS_PER_LONG - (end - base));
	return mask;
}

unsigned long ocache_set(unsigned long *chunk, unsigned long first, unsigned long end)
{
	unsigned long changed = 0;

	while (first < end) {
		unsigned long mask = word_mask(first, end);
		atomic_long_t *word = (atomic_long_t *)&chunk[first / BITS_PER_LONG];

		changed += hweight_long(mask & ~(unsigned long)atomic_long_fetch_or(mask, word));
		first += BITS_PER_LONG - first % BITS_PER_LONG;
	}
	return changed;
}

unsigned long ocache_clear(unsigned long *chunk, unsigned long first, unsigned long end)
{
	unsigned long changed = 0;

	while (first < end) {
		unsigned long mask = word_mask(first, end);
		atomic_long_t *word = (atomic_long_t *)&chunk[first / BITS_PER_LONG];

		changed += hweight_long(mask & (unsigned long)atomic_long_fetch_andnot(mask, word));
		first += BITS_PER_LONG - first % BITS_PER_LONG;
	}
	return changed;
}

/*
 * The first bit at or after `from` and before `end` that is set, or clear, or `end`. What the map
 * has no room or no chunk for is not set.
 */
static inline unsigned long next_bit(const struct ocache_map *map, unsigned long from,
				     unsigned long end, bool set)
{
	/* A word in which there is nothing to be found. */
	const unsigned long nothing = set ? 0 : ~0ul;

	while (from < end) {
		unsigned long base = from - from % OCACHE_CHUNK_BITS;
		unsigned long stop = base + OCACHE_CHUNK_BITS;
		const unsigned long *chunk = NULL;

		if (from < map->bits) {
			chunk = READ_ONCE(map->chunk[from / OCACHE_CHUNK_BITS]);
			if (stop > map->bits)
				stop = map->bits;
		}
		if (stop > end)
			stop = end;
		if (chunk) {
			const unsigned long *word = chunk + (from - base) / BITS_PER_LONG;
			const unsigned long *last = chunk + (stop - 1 - base) / BITS_PER_LONG;
			unsigned long bits = READ_ONCE(*word) ^ nothing;

			bits &= ~0ul << (from % BITS_PER_LONG);
			while (!bits && word < last)
				bits = READ_ONCE(*++word) ^ nothing;
			if (bits) {
				from = base + (word - chunk) * BITS_PER_LONG + __ffs(bits);
				return from < end ? from : end;
			}
		} else if (!set) {
			return from;
		}
		from = stop;
	}
	return end;
}

unsigned long ocache_next_clear(const struct ocache_map *map, unsigned long from, unsigned long end)
{
	return next_bit(map, from, end, false);
}

unsigned long ocache_next_set(const struct ocache_map *map, unsigned long from, unsigned long end)
{
	return next_bit(map, from, end, true);
}
