/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which disk holds which sectors of a device that is put together from several, learned from where
 * its requests went. Nothing here knows the kernel: the same file is compiled in user space, where
 * a naive reference checks it. Everything is in sectors of 512 bytes.
 */
#ifndef OUTRIDER_STACK_RUNS_H
#define OUTRIDER_STACK_RUNS_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint32_t u32;
typedef uint64_t u64;
#endif

/* Runs that are remembered; a device of more is a patchwork. */
#define STACK_RUNS	256
/*
 * Volumes are put together from large runs: two places that lie in line on one disk have only that
 * disk between them if they are this near (64 MiB), and what is this near to a known place lies
 * where that does.
 */
#define STACK_NEAR	131072ULL
/* After so many requests to a patchwork it is looked at anew: tables are reloaded. */
#define STACK_ANEW	65536U

/* Sectors @start to @end lie on @disk from @to on. */
struct stack_run {
	u64 start, end, to;
	u32 disk;
};

struct stack_runs {
	u32 count;
	u32 agreed, contradicted;	/* requests to places that were known */
	u32 since;			/* requests to a patchwork */
	u32 last;			/* the disk of the last request */
	bool patchwork;			/* neighbours lie on different disks: stripes, mirrors, caches */
	struct stack_run run[STACK_RUNS];	/* ascending, apart from each other */
};

void stack_learn(struct stack_runs *runs, u64 start, u64 sectors, u32 disk, u64 to);
u64 stack_find(const struct stack_runs *runs, u64 sector, u64 sectors, u32 *disk, u64 *to);

#endif
