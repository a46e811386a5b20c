// Random numbers of tests, in the guest and in programs that are run here.
#ifndef RANDOM_U64_H
#define RANDOM_U64_H

#include <stdint.h>

// xorshift: the same numbers from the same seed.
static inline uint64_t random_u64(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

#endif
