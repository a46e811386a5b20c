// SPDX-License-Identifier: GPL-2.0
/* See stack_runs.h. */
#ifdef __KERNEL__
#include <linux/minmax.h>
#include <linux/string.h>
#include "stack_runs.h"
#else
#include <string.h>
#include "stack_runs.h"
#define min(a, b) ((a) < (b) ? (a) : (b))
#endif

/* The number of the first run that ends behind @sector. */
static u32 run_behind(const struct stack_runs *runs, u64 sector)
{
	u32 low = 0, high = runs->count;

	while (low < high) {
		u32 middle = (low + high) / 2;

		if (runs->run[middle].end <= sector)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Whether a place of @sector at @to of @disk goes on as @run does. May be before it or behind. */
static bool in_line(const struct stack_run *run, u64 sector, u32 disk, u64 to)
{
	return run->disk == disk && sector - run->start == to - run->to;
}

static void give_up(struct stack_runs *runs)
{
	runs->patchwork = true;
	runs->count = 0;
	runs->since = 0;
}

/* Whether @start, on @disk at @to, is where it was known to be. The odds of it are kept. */
static bool as_known(struct stack_runs *runs, const struct stack_run *run, u64 start, u32 disk,
		     u64 to)
{
	if (in_line(run, start, disk, to)) {
		if (++runs->agreed == 1 << 16) {
			runs->agreed /= 2;
			runs->contradicted /= 2;
		}
		return true;
	}
	runs->contradicted++;
	return false;
}

/* A request for @sectors from @start on went to @disk, to @to. */
void stack_learn(struct stack_runs *runs, u64 start, u64 sectors, u32 disk, u64 to)
{
	struct stack_run *run = runs->run, tail = { };
	u64 end = start + sectors;
	u32 first, behind;

	runs->last = disk;
	if (runs->patchwork) {
		if (++runs->since < STACK_ANEW)
			return;
		runs->patchwork = false;
		runs->agreed = 0;
		runs->contradicted = 0;
	}
	first = run_behind(runs, start);
	if (first < runs->count && run[first].start <= start &&
	    as_known(runs, &run[first], start, disk, to) && end <= run[first].end)
		return;
	if (runs->contradicted > 4 + runs->agreed / 8 || runs->count + 2 > STACK_RUNS) {
		give_up(runs);
		return;
	}
	/* What was known of these sectors is no more; what lies around them stays. */
	if (first < runs->count && run[first].start < start) {
		if (run[first].end > end) {
			tail = run[first];
			tail.to += end - tail.start;
			tail.start = end;
		}
		run[first++].end = start;
	}
	for (behind = first; behind < runs->count && run[behind].end <= end;)
		behind++;
	if (behind < runs->count && run[behind].start < end) {
		run[behind].to += end - run[behind].start;
		run[behind].start = end;
	}
	/* What goes on in line becomes one with it. */
	if (first && in_line(&run[first - 1], start, disk, to) &&
	    start - run[first - 1].end <= STACK_NEAR) {
		first--;
		start = run[first].start;
		to = run[first].to;
	}
	if (behind < runs->count && !tail.end && in_line(&run[behind], start, disk, to) &&
	    run[behind].start - end <= STACK_NEAR)
		end = run[behind++].end;
	memmove(run + first + 1 + !!tail.end, run + behind, (runs->count - behind) * sizeof(*run));
	runs->count = runs->count - (behind - first) + 1 + !!tail.end;
	run[first] = (struct stack_run){ .start = start, .end = end, .to = to, .disk = disk };
	if (tail.end)
		run[first + 1] = tail;
}

/*
 * How many of @sectors from @sector on lie together, as far as is known: on @disk from @to on; 0 if
 * nothing is. Of a patchwork one disk stands for all.
 */
u64 stack_find(const struct stack_runs *runs, u64 sector, u64 sectors, u32 *disk, u64 *to)
{
	const struct stack_run *run = runs->run, *near = NULL;
	u32 behind = run_behind(runs, sector);
	u64 from_last = ~0ULL, to_next = ~0ULL, far = 0;

	if (runs->patchwork) {
		*disk = runs->last;
		*to = sector;
		return sectors;
	}
	if (behind)
		from_last = sector - run[behind - 1].end;
	if (behind < runs->count)
		to_next = run[behind].start > sector ? run[behind].start - sector : 0;
	if (!to_next) {
		near = &run[behind];
		far = near->end - sector;
	} else if (to_next <= from_last && to_next <= STACK_NEAR && run[behind].to >= to_next) {
		near = &run[behind];
		far = to_next;
	} else if (from_last < STACK_NEAR) {
		near = &run[behind - 1];
		far = min(STACK_NEAR - from_last,
			  to_next > from_last ? (to_next - from_last + 1) / 2 : to_next);
	}
	if (!near)
		return 0;
	*disk = near->disk;
	*to = near->to + sector - near->start;
	return min(sectors, far);
}
