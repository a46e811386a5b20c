/* The readahead policies' arithmetic (DR3, DR4) against a naive reference, and the device models against made-up devices. */
#include "ra_policy.c"
#include "random_u64.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ULL;
static uint64_t rnd(uint64_t n)
{
	return random_u64(&state) % n;
}

static int failures;
#define EXPECT(condition, ...) do { \
	if (!(condition)) { \
		printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
		printf(__VA_ARGS__); \
		printf("\n"); \
		if (++failures > 20) \
			exit(1); \
	} \
} while (0)

#define MOST_PAGES 100000
static const struct ra_device *page_on[MOST_PAGES];	/* the segments, page by page */

static u32 spread(const struct ra_segment *segments, u32 count)
{
	u32 pages = 0;

	for (u32 i = 0; i < count; i++)
		for (u32 j = 0; j < segments[i].pages && pages < MOST_PAGES; j++)
			page_on[pages++] = segments[i].dev;
	return pages;
}

/* The text of section 4.4, in floating point, page by page. */
static double paper(const struct ra_request *rq, const struct ra_limits *limits, u32 pages, int *location)
{
	double base = rq->sync ? rq->asked : rq->previous, size;
	bool disks = false, ssds = false;
	u32 first_seg_length = 0;
	int kind = -1;

	for (u32 i = 0; i < pages; i++) {
		int is = !page_on[i] ? kind : page_on[i]->positioning_ns >= 1000000;

		if (is == 1)
			disks = true;
		if (is == 0)
			ssds = true;
		if (kind >= 0 && is != kind && page_on[i])
			break;
		kind = is;
		first_seg_length++;
	}
	*location = disks && ssds ? 3 : disks ? 1 : 2;
	if (*location == 1)
		size = base * (rq->sync ? 2 : 4);
	else if (*location == 2)
		size = base * (rq->sync ? 1 : 2);
	else
		size = fmin(base * (rq->sync ? 1 : 2), first_seg_length);
	return fmin(size, *location == 1 ? limits->hdd_pages : limits->ssd_pages);
}

/* How many pages fit if each takes 1/cap of a window. */
static double model_limit(u32 pages, u32 stock_max)
{
	double used = 0;
	u32 i;

	for (i = 0; i < pages && used < 1; i++) {
		const struct ra_device *dev = page_on[i];

		if (dev) {
			double flow = dev->bandwidth / 1e6 / 4096;	/* pages a ns */
			double cap = fmax(fmax(9 * dev->positioning_ns * flow, 2 * dev->latency_ns * flow), 4.0 * stock_max);

			used += 1 / floor(cap);
		}
	}
	return i;
}

static void random_requests(void)
{
	struct ra_device devices[4];

	for (int turn = 0; turn < 30000; turn++) {
		struct ra_limits limits = { 1 + rnd(64), 1 + rnd(300), 1 + rnd(40), 1 + rnd(5000) };
		struct ra_request rq = { .sync = rnd(2), .stalled = rnd(2), .asked = 1 + rnd(100), .previous = 1 + rnd(2000) };
		struct ra_segment segments[8];
		u32 count = 1 + rnd(8), pages;
		struct ra_window window;
		int location;
		double reference;

		for (int i = 0; i < 4; i++) {
			ra_device_init(&devices[i], i & 1);
			devices[i].positioning_ns = i & 1 ? 1000000 + rnd(20000000) : rnd(900000);
			devices[i].latency_ns = rnd(10000000);
			devices[i].bandwidth = 10000 + rnd(1000000);
			devices[i].busy_ns = 1000;
			devices[i].lost_ns = rnd(200);
		}
		for (u32 i = 0; i < count; i++)
			segments[i] = (struct ra_segment){ 1 + rnd(rnd(4) ? 50 : 5000), rnd(6) ? &devices[rnd(4)] : NULL };
		pages = spread(segments, count);

		window = ra_paper_window(&rq, &limits, segments, count);
		reference = paper(&rq, &limits, pages, &location);
		EXPECT(window.location == location, "%d, is %d", location, window.location);
		EXPECT(window.pages == fmax(reference, 1), "%g pages, are %u (case %d)", reference, window.pages, location);
		/* Equations 1 and 2. */
		EXPECT(window.lookahead == (rq.sync ? (window.pages > rq.asked ? window.pages - rq.asked : 0) : window.pages),
		       "marker %u of %u", window.lookahead, window.pages);

		window = ra_model_window(&rq, &limits, segments, count);
		EXPECT(window.pages >= 1 && window.lookahead <= window.pages, "%u %u", window.pages, window.lookahead);
		EXPECT(window.pages <= fmax(fmax(limits.max_pages, limits.stock_max), rq.sync ? rq.asked : 1), "%u", window.pages);
		if (rq.sync) {
			EXPECT(window.pages >= (rq.asked < limits.stock_max ? rq.asked : limits.stock_max), "%u for %u", window.pages, rq.asked);
			continue;
		}
		double limit = fmax(model_limit(pages, limits.stock_max), limits.stock_max);
		double grown = fmax(rq.previous, ra_stock_next(rq.previous, limits.stock_max));
		bool starving = false;
		double used = 0;

		for (u32 i = 0; i < pages && used < 1; i++)
			if (page_on[i]) {
				starving |= page_on[i]->lost_ns * 10 > page_on[i]->busy_ns;
				used += 1.0 / ra_device_cap(page_on[i], limits.stock_max);
			}
		if (rq.stalled && starving && rq.previous >= limits.stock_max)
			grown = 2.0 * rq.previous;
		reference = fmin(fmin(grown, limit), fmax(limits.max_pages, limits.stock_max));
		EXPECT(fabs(window.pages - reference) <= 2 + count + reference / 500, "%g pages, are %u", reference, window.pages);
	}
}

/* A device of one head: positions unless the read goes on where the last one ended, then transfers. */
struct made_up { double positioning, bandwidth; u64 busy_until, end; u64 lost, busy; };

static u64 serve(struct made_up *disk, struct ra_device *dev, u64 queued, u64 pos, u32 bytes)
{
	u64 begun = queued > disk->busy_until ? queued : disk->busy_until;
	double position = pos == disk->end ? 0 : disk->positioning;

	disk->busy_until = begun + position + bytes / disk->bandwidth * 1e6;
	disk->end = pos + bytes;
	disk->lost += position;
	disk->busy += disk->busy_until - begun;
	ra_device_sample(dev, queued, disk->busy_until, pos, bytes);
	return disk->busy_until;
}

/* A window goes to the device in requests of at most 1 MiB, as the block layer cuts it. */
static u64 serve_window(struct made_up *disk, struct ra_device *dev, u64 queued, u64 pos, u32 bytes)
{
	u64 done = queued;

	for (u32 at = 0; at < bytes; at += 1 << 20)
		done = serve(disk, dev, queued, pos + at, bytes - at < 1 << 20 ? bytes - at : 1 << 20);
	return done;
}

/* Positioning and bandwidth are found from a mix of reads, whatever the device was taken for. */
static void devices_are_measured(void)
{
	const struct { double positioning, bandwidth; } kinds[] = {
		{ 8e6, 140000 }, { 4e6, 250000 }, { 15e6, 60000 }, { 1e5, 500000 }, { 2e4, 3000000 },
	};

	for (unsigned int kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++)
		for (int spins = 0; spins < 2; spins++) {
			struct made_up disk = { kinds[kind].positioning, kinds[kind].bandwidth, 0, 0, 0, 0 };
			struct ra_device dev;
			u64 now = 0, pos = 0;

			ra_device_init(&dev, spins);
			for (int i = 0; i < 3000; i++) {
				if (rnd(4))
					pos = rnd(1000000) * 4096;
				/* Two at a time: the second one is queued when the first begins. */
				serve(&disk, &dev, now, pos, 131072);
				now = serve(&disk, &dev, now, pos + 131072, 262144);
				pos += 393216;
				if (rnd(3) == 0)
					now = serve(&disk, &dev, now, rnd(1000000) * 4096, 4096);
			}
			EXPECT(fabs(dev.bandwidth / disk.bandwidth - 1) < 0.1, "%g bytes/ms measured as %llu", disk.bandwidth,
			       (unsigned long long)dev.bandwidth);
			EXPECT(fabs(dev.positioning_ns / disk.positioning - 1) < 0.15, "%g ns measured as %llu", disk.positioning,
			       (unsigned long long)dev.positioning_ns);
			EXPECT(ra_device_is_disk(&dev) == (disk.positioning >= 1e6), "%g", disk.positioning);
		}
}

/* @readers sequential readers by turns on a disk, each with a window in flight; the share of the time lost, at the end. */
static double readers_by_turns(int readers, u32 *window)
{
	struct made_up disk = { 8e6, 140000, 0, 0, 0, 0 };
	struct ra_limits limits = { 32, 128, 8, 4096 };
	struct { u64 at, ready; u32 pages; } of[8];
	struct ra_device dev;
	u64 now = 0;

	ra_device_init(&dev, true);
	for (int i = 0; i < readers; i++) {
		of[i].at = (u64)i << 36;
		of[i].pages = 32;
		of[i].ready = 0;
	}
	for (int round = 0; round < 400; round++)
		for (int i = 0; i < readers; i++) {
			struct ra_segment segment = { 8192, &dev };
			struct ra_request rq = { .previous = of[i].pages, .stalled = of[i].ready > now };
			u64 ready = of[i].ready;

			of[i].pages = ra_model_window(&rq, &limits, &segment, 1).pages;
			of[i].ready = serve_window(&disk, &dev, now, of[i].at, of[i].pages * 4096);
			of[i].at += of[i].pages * 4096;
			now = ready > now ? ready : now;
			now += 1000;
			if (round == 200 && i == 0)
				disk.lost = disk.busy = 0;
		}
	*window = of[0].pages;
	return (double)disk.lost / disk.busy;
}

/* Windows grow where readers take the head from each other, until a tenth of the time is lost; a lone reader's don't. */
static void windows_grow_where_it_pays(void)
{
	u32 window;
	double lost = readers_by_turns(1, &window);

	EXPECT(window == 32 && lost == 0, "alone: %u pages, %g lost", window, lost);
	for (int readers = 2; readers <= 8; readers *= 2) {
		lost = readers_by_turns(readers, &window);
		EXPECT(lost < 0.12, "%d readers lose %g of the disk's time with windows of %u pages", readers, lost, window);
		EXPECT(window <= 4096, "%u", window);
	}
}

int main(void)
{
	random_requests();
	devices_are_measured();
	windows_grow_where_it_pays();
	return failures != 0;
}
