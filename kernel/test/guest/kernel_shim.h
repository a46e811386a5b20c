// What the kernel gives the modules' arithmetic, for tests in user space.
#ifndef KERNEL_SHIM_H
#define KERNEL_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef struct {
	long counter;
} atomic_long_t;
struct rcu_head {
	void *next;
};

#define PAGE_SIZE 4096ul
#define BITS_PER_LONG 64
#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define hweight_long(x) ((unsigned long)__builtin_popcountl(x))
#define __ffs(x) ((unsigned long)__builtin_ctzl(x))
#define atomic_long_fetch_or(mask, word) __atomic_fetch_or(&(word)->counter, (long)(mask), __ATOMIC_SEQ_CST)
#define atomic_long_fetch_andnot(mask, word) __atomic_fetch_and(&(word)->counter, ~(long)(mask), __ATOMIC_SEQ_CST)

#endif
