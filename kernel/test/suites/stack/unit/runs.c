/* What outrider_stack learns of a device made of several disks (DR3, DR7), against the table that a made-up device really has. */
#include "stack_runs.c"
#include "random_u64.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 88172645463325252ULL;
static uint64_t rnd(uint64_t n)
{
	return random_u64(&state) % n;
}

#define EXPECT(condition, ...) do { \
	if (!(condition)) { \
		printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
		printf(__VA_ARGS__); \
		printf("\n"); \
		exit(1); \
	} \
} while (0)

/* A table as the device mapper's: targets one behind the other. */
#define MOST_TARGETS 8
static struct target { u64 end, to; u32 disk; } table[MOST_TARGETS];
static u32 targets;
static u64 size;

/* Targets of 1 to 9 times STACK_NEAR, on disks and at places of which no two follow each other. */
static void make_table(void)
{
	targets = 1 + rnd(MOST_TARGETS);
	size = 0;
	for (u32 i = 0; i < targets; i++) {
		size += STACK_NEAR + rnd(8 * STACK_NEAR);
		table[i] = (struct target){ .end = size, .to = rnd(1ULL << 32), .disk = rnd(3) };
	}
}

static const struct target *target_of(u64 sector, u64 *to)
{
	u64 start = 0;

	for (u32 i = 0; i < targets; i++) {
		*to = table[i].to + sector - start;
		if (sector < table[i].end)
			return &table[i];
		start = table[i].end;
	}
	abort();
}

/* A read, cut at the targets' boundaries as the device mapper does. */
static void request(struct stack_runs *runs, u64 start, u64 sectors)
{
	u64 end = start + sectors < size ? start + sectors : size, to;

	while (start < end) {
		const struct target *target = target_of(start, &to);
		u64 here = (end < target->end ? end : target->end) - start;

		stack_learn(runs, start, here, target->disk, to);
		start += here;
	}
}

static void is_in_order(const struct stack_runs *runs)
{
	EXPECT(runs->count <= STACK_RUNS, "%u", runs->count);
	for (u32 i = 0; i < runs->count; i++) {
		EXPECT(runs->run[i].start < runs->run[i].end, "run %u", i);
		EXPECT(!i || runs->run[i - 1].end <= runs->run[i].start, "run %u", i);
	}
}

/* What is said of @sector is so. Returns how many sectors it is said of. */
static u64 is_right(const struct stack_runs *runs, u64 sector, u64 sectors)
{
	u32 disk;
	u64 to, really, found = stack_find(runs, sector, sectors, &disk, &to);
	const struct target *target = target_of(sector, &really);

	EXPECT(found <= sectors, "%llu of %llu", (unsigned long long)found, (unsigned long long)sectors);
	if (found)
		EXPECT(disk == target->disk && to == really, "sector %llu: disk %u, not %u", (unsigned long long)sector, disk, target->disk);
	return found;
}

/* Everything that was read is known; what was not, as far as nothing but one target lies between it and the next known place. */
static void tables_are_learned(void)
{
	static struct stack_runs runs;
	u64 ignored;

	memset(&runs, 0, sizeof(runs));
	make_table();
	for (int i = 0; i < 2000; i++) {
		u64 start = rnd(size), sectors = 1 + rnd(2048);

		request(&runs, start, sectors);
		is_in_order(&runs);
		if (runs.patchwork)	/* boundaries that were guessed wrongly, too often for so few reads */
			return;
		EXPECT(is_right(&runs, start, 1) == 1, "a place that was just read");
	}
	/* In order, so that each boundary is met. */
	for (u64 at = 0; at < size; at += 2048)
		request(&runs, at, 2048);
	EXPECT(!runs.patchwork && runs.count <= targets, "%u runs of %u targets", runs.count, targets);
	for (int i = 0; i < 2000; i++) {
		u64 sector = rnd(size), sectors = 1 + rnd(1 << 20), at = sector;
		const struct target *target = target_of(sector, &ignored);

		/* Run by run until behind what was asked for. */
		while (at < sector + sectors && at < size) {
			u64 found = is_right(&runs, at, sector + sectors - at);

			EXPECT(found, "nothing is known of sector %llu", (unsigned long long)at);
			at += found;
		}
		EXPECT(is_right(&runs, sector, sectors) == (target->end - sector < sectors ? target->end - sector : sectors) ||
		       target + 1 == table + targets || target[1].disk == target->disk, "a run ends early");
	}
	/* Another table is loaded, of the same size. */
	ignored = size;
	make_table();
	if (size > ignored)
		return;
	/* Two passes: in the first it may have become a patchwork, and is looked at anew only after a while. */
	for (u32 pass = 0, known = 0; known < 2; known = runs.patchwork ? 0 : known + 1) {
		EXPECT(pass++ < 3 * STACK_ANEW, "a patchwork for ever");
		for (u64 at = 0; at < size; at += 2048)
			request(&runs, at, 2048);
	}
	for (int i = 0; i < 2000; i++)
		EXPECT(is_right(&runs, rnd(size), 1) == 1, "of the new table");
}

static void stripes_are_a_patchwork(void)
{
	static struct stack_runs runs;
	u32 disk;
	u64 to, i;

	memset(&runs, 0, sizeof(runs));
	for (i = 0; i < 2000; i++) {
		u64 chunk = rnd(100000);

		stack_learn(&runs, chunk * 128, 128, chunk % 2, chunk / 2 * 128);
		is_in_order(&runs);
	}
	EXPECT(runs.patchwork && !runs.count, "%u runs", runs.count);
	EXPECT(stack_find(&runs, 77, 1000, &disk, &to) == 1000 && disk == runs.last, "one disk for all");
	/* Until it has become something else. */
	for (i = 0; i < STACK_ANEW; i++)
		stack_learn(&runs, i * 8, 8, 1, i * 8 + 64);
	EXPECT(!runs.patchwork && runs.count == 1, "%u runs", runs.count);
	EXPECT(stack_find(&runs, (STACK_ANEW - 1) * 8, 8, &disk, &to) == 8 && disk == 1 && to == (STACK_ANEW - 1) * 8 + 64, "%u", disk);
}

/* Requests that go anywhere, sector by sector: where each was last seen is what is said of it. */
static void the_last_answer_holds(void)
{
	enum { SECTORS = 1 << 12, LINE = 1 << 20 };
	static struct stack_runs runs;
	static struct { bool known; u32 disk; u64 to; } last[SECTORS];
	u32 steps = 0;

	for (int i = 0; i < 20000; i++) {
		u64 start = rnd(SECTORS - 64), sectors = 1 + rnd(64), to = rnd(2) ? start + 7 : rnd(1 << 16);
		u32 disk = rnd(2);

		if (runs.patchwork || !runs.count) {
			memset(&runs, 0, sizeof(runs));
			memset(last, 0, sizeof(last));
		}
		/* Enough that is as known for it not to become a patchwork soon. */
		for (int j = 0; j < 12; j++)
			stack_learn(&runs, LINE, 8, 0, LINE);
		stack_learn(&runs, start, sectors, disk, to);
		is_in_order(&runs);
		if (runs.patchwork)
			continue;
		for (u64 j = 0; j < sectors; j++) {
			last[start + j].known = true;
			last[start + j].disk = disk;
			last[start + j].to = to + j;
		}
		for (u64 j = i % 16; j < SECTORS; j += 16) {
			u32 said_disk = 9;
			u64 said_to = 0;

			if (!last[j].known)
				continue;
			steps++;
			EXPECT(stack_find(&runs, j, 1, &said_disk, &said_to) == 1 && said_disk == last[j].disk && said_to == last[j].to,
			       "sector %llu: disk %u at %llu, not disk %u at %llu", (unsigned long long)j, said_disk, (unsigned long long)said_to,
			       last[j].disk, (unsigned long long)last[j].to);
		}
	}
	EXPECT(steps > 100000, "only %u answers", steps);
}

/* A place speaks for what is near it, and no farther. */
static void nearness_has_an_end(void)
{
	static struct stack_runs runs;
	u32 disk;
	u64 to;

	memset(&runs, 0, sizeof(runs));
	stack_learn(&runs, 0, 8, 0, 100);
	stack_learn(&runs, 10 * STACK_NEAR, 8, 1, 20 * STACK_NEAR);
	EXPECT(stack_find(&runs, 8, 2 * STACK_NEAR, &disk, &to) == STACK_NEAR && disk == 0 && to == 108, "behind");
	EXPECT(stack_find(&runs, 8 + STACK_NEAR, 8, &disk, &to) == 0, "too far behind");
	EXPECT(stack_find(&runs, 9 * STACK_NEAR - 1, 8, &disk, &to) == 0, "too far before");
	EXPECT(stack_find(&runs, 9 * STACK_NEAR, 2 * STACK_NEAR, &disk, &to) == STACK_NEAR && disk == 1 && to == 19 * STACK_NEAR, "before");
	/* In line, but not near: what lies between them stays unknown. */
	stack_learn(&runs, 10 * STACK_NEAR + 9 + 8, 8, 1, 20 * STACK_NEAR + 9 + 8);
	EXPECT(runs.count == 2, "%u runs", runs.count);
	stack_learn(&runs, 12 * STACK_NEAR, 8, 1, 22 * STACK_NEAR);
	EXPECT(runs.count == 3, "%u runs", runs.count);
}

int main(void)
{
	nearness_has_an_end();
	for (int i = 0; i < 300; i++)
		tables_are_learned();
	stripes_are_a_patchwork();
	the_last_answer_holds();
	return 0;
}
