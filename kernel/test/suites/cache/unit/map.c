// The bitmap's arithmetic against an array of bytes, in random operations; and the limits that its shift has to keep (CP8).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache_map.c"
#include "random_u64.h"

#define CHUNKS 3
#define BITS (CHUNKS * OCACHE_CHUNK_BITS)

#define CHECK(condition, ...)                                  \
    do {                                                       \
        if (!(condition)) {                                    \
            printf("line %d: %s: ", __LINE__, #condition);     \
            printf(__VA_ARGS__);                               \
            printf("\n");                                      \
            exit(1);                                           \
        }                                                      \
    } while (0)

static unsigned char model[BITS + 1000];

static unsigned long rnd(unsigned long below) {
    static uint64_t state = 88172645463325252ull;
    return random_u64(&state) % below;
}

static void shifts(void) {
    CHECK(ocache_shift(0, 32768) == 0, "an empty file");
    CHECK(ocache_shift(32768, 32768) == 0, "as many pages as bits");
    CHECK(ocache_shift(32769, 32768) == 1, "one page too many");
    for (u64 pages = 1; pages < 1ull << 40; pages = pages * 3 + 1) {
        for (u64 most = OCACHE_CHUNK_BITS; most <= 64 * OCACHE_CHUNK_BITS; most *= 2) {
            unsigned shift = ocache_shift(pages, most);
            u64 bits = (pages + (1ull << shift) - 1) >> shift;
            CHECK(shift == OCACHE_MAX_SHIFT || bits <= most, "%lu pages, %lu bits", pages, most);
            CHECK(shift == 0 || ((pages + (1ull << (shift - 1)) - 1) >> (shift - 1)) > most, "%lu pages: coarser than needed", pages);
        }
    }
}

int main(void) {
    shifts();
    struct ocache_map *map = calloc(1, sizeof *map + CHUNKS * sizeof map->chunk[0]);
    map->bits = BITS;
    map->chunks = CHUNKS;
    // The middle one is absent: nothing of it is set.
    map->chunk[0] = calloc(1, PAGE_SIZE);
    map->chunk[2] = calloc(1, PAGE_SIZE);
    for (int round = 0; round < 20000; round++) {
        unsigned long index = rnd(2) * 2, first = rnd(OCACHE_CHUNK_BITS), length = rnd(4) ? 1 + rnd(600) : 1;
        unsigned long end = first + length < OCACHE_CHUNK_BITS ? first + length : OCACHE_CHUNK_BITS, changed = 0;
        unsigned char to = rnd(2);
        for (unsigned long bit = first; bit < end; bit++) {
            unsigned char *at = &model[index * OCACHE_CHUNK_BITS + bit];
            changed += *at != to;
            *at = to;
        }
        unsigned long said = to ? ocache_set(map->chunk[index], first, end) : ocache_clear(map->chunk[index], first, end);
        CHECK(said == changed, "%lu..%lu: %lu instead of %lu changed", first, end, said, changed);

        // Runs may go over chunks, over the absent one, and past the map's end.
        unsigned long from = rnd(BITS), stop = from + 1 + rnd(rnd(2) ? 300 : BITS + 500 - from), expected = from, expected_end;
        while (expected < stop && model[expected]) expected++;
        expected_end = expected;
        while (expected_end < stop && !model[expected_end]) expected_end++;
        unsigned long run = ocache_next_clear(map, from, stop), run_end = ocache_next_set(map, run, stop);
        CHECK(run == expected && run_end == expected_end, "%lu..%lu: run %lu..%lu instead of %lu..%lu", from, stop, run, run_end, expected,
              expected_end);
    }
    free(map->chunk[0]);
    free(map->chunk[2]);
    free(map);
    return 0;
}
