// SPDX-License-Identifier: GPL-2.0
/*
 * The policies' arithmetic; see ra_policy.h.
 *
 * Policy `paper` is "A New Readahead Framework for SSD-based Caching Storage in IoT Systems",
 * section 4.4, with two corrections: its thresholds are exchanged in its text (the disk's is the
 * large one), and equation 5 divides by the user's read size.
 *
 * Policy `model` asks what a window is for. It has to keep the device from idling while the reader
 * computes, for which the kernel's own window nearly always suffices; and where the device loses
 * time before each request, because its head has to come back from another reader's or because a
 * turn was missed, the window has to be long enough that this loss is small against the transfer.
 * So a window is the kernel's own until a reader waits for a device that loses more than a tenth of
 * its time; then it doubles, up to where the loss is a tenth: 9 * positioning * bandwidth. A device
 * that streams without loss is left alone, however fast its reader: longer windows would not make
 * it faster, only take memory.
 */
#ifdef __KERNEL__
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include "ra_policy.h"
#else
#include "ra_policy.h"
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
static inline u64 div64_u64(u64 a, u64 b) { return a / b; }
static inline u32 roundup_pow_of_two(u32 n)
{
	u32 power = 1;

	while (power < n)
		power <<= 1;
	return power;
}
#endif

#define PAGE_BYTES	4096ULL
#define NS_PER_MS	1000000ULL
/* Samples of this many bytes or more say something about bandwidth. */
#define LONG_READ	65536U
/* A read that took longer than this was held up by something else than the device's mechanics. */
#define OUTLIER_NS	1000000000ULL
/* busy_ns is halved there, so that the share lost is that of the last half second or so of work. */
#define BUSY_WINDOW_NS	500000000ULL

void ra_device_init(struct ra_device *dev, bool spins)
{
	*dev = (struct ra_device){
		.positioning_ns = spins ? 8 * NS_PER_MS : NS_PER_MS / 10,
		.latency_ns = spins ? 8 * NS_PER_MS : NS_PER_MS / 10,
		.bandwidth = spins ? 120000 : 400000,
	};
}

static u64 moved(u64 from, u64 to, u32 weight)
{
	return to >= from ? from + (to - from) / weight : from - (from - to) / weight;
}

/* A read of @bytes at byte @pos that was queued at @queued is done at @done. */
void ra_device_sample(struct ra_device *dev, u64 queued, u64 done, u64 pos, u32 bytes)
{
	bool idle = queued >= dev->last_done;
	bool contiguous = pos == dev->last_end;
	u64 begun = idle ? queued : dev->last_done;
	u64 service, transfer, lost;

	dev->last_end = pos + bytes;
	if (done <= begun || done - begun > OUTLIER_NS) {
		dev->last_done = max(done, dev->last_done);
		return;
	}
	dev->last_done = done;
	service = done - begun;
	/*
	 * A run that was waiting when the request before it ended is transfer only. A run that came
	 * late may have been in the drive's own buffer, and says nothing about the platter.
	 * Whatever else beats the rate known is a better rate.
	 */
	if (bytes >= LONG_READ && !(contiguous && idle)) {
		u64 rate = max(div64_u64(bytes * NS_PER_MS, service), 1ULL);

		if (rate > dev->bandwidth)
			dev->bandwidth = moved(dev->bandwidth, rate, 4);
		else if (contiguous && service < dev->positioning_ns)
			dev->bandwidth = moved(dev->bandwidth, rate, 8);
	}
	transfer = div64_u64(bytes * NS_PER_MS, dev->bandwidth);
	lost = service > transfer ? service - transfer : 0;
	if (!contiguous || lost > dev->positioning_ns / 4)
		dev->positioning_ns = moved(dev->positioning_ns, lost, 16);
	if (idle)
		dev->latency_ns = moved(dev->latency_ns, lost, 16);
	dev->busy_ns += service;
	dev->lost_ns += lost;
	if (dev->busy_ns >= BUSY_WINDOW_NS) {
		dev->busy_ns /= 2;
		dev->lost_ns /= 2;
	}
}

bool ra_device_is_disk(const struct ra_device *dev)
{
	return dev->positioning_ns >= RA_DISK_POSITIONING_NS;
}

bool ra_device_starving(const struct ra_device *dev)
{
	return dev->lost_ns * RA_LOST_SHARE > dev->busy_ns;
}

static u32 pages_in(const struct ra_device *dev, u64 ns)
{
	return min(div64_u64(div64_u64(ns * dev->bandwidth, NS_PER_MS), PAGE_BYTES),
		   (u64)(1U << 24));
}

/*
 * The longest window that is worth it on @dev: the transfer is RA_LOST_SHARE - 1 times the
 * positioning, or twice what flows during its latency. Not below four times the kernel's own, so
 * that a device can show that it is better than it looked.
 */
u32 ra_device_cap(const struct ra_device *dev, u32 stock_max)
{
	u32 amortised = pages_in(dev, (RA_LOST_SHARE - 1) * dev->positioning_ns);
	u32 pipe = pages_in(dev, 2 * dev->latency_ns);

	return max(max(amortised, pipe), 4 * stock_max);
}

u32 ra_stock_first(u32 asked, u32 max)
{
	u32 size = roundup_pow_of_two(max(asked, 1U));

	if (size <= max / 32)
		return size * 4;
	if (size <= max / 4)
		return size * 2;
	return max;
}

u32 ra_stock_next(u32 previous, u32 max)
{
	if (previous < max / 16)
		return 4 * previous;
	if (previous <= max / 2)
		return 2 * previous;
	return max;
}

/*
 * The paper's case (section 4.4) of the @segments to be read, and how many pages its first run on
 * one kind of device has. Holes belong to the run that they interrupt.
 */
static u8 location_of(const struct ra_segment *segments, u32 count, u32 *first_run)
{
	bool known = false, disk = false;
	u32 i;

	*first_run = 0;
	for (i = 0; i < count; i++) {
		if (segments[i].dev) {
			bool is_disk = ra_device_is_disk(segments[i].dev);

			if (known && is_disk != disk)
				return 3;
			known = true;
			disk = is_disk;
		}
		*first_run += segments[i].pages;
	}
	return disk ? 1 : 2;
}

/* The pages whose location decides: as many as the window can become. */
u32 ra_paper_horizon(const struct ra_request *rq, const struct ra_limits *limits)
{
	u64 pages = rq->sync ? 2ULL * rq->asked : 4ULL * rq->previous;

	return max(min(pages, (u64)max(limits->hdd_pages, limits->ssd_pages)), 1ULL);
}

/* Equations 4 to 7 with the thresholds of section 4.4.3, and equations 1 and 2 for the marker. */
struct ra_window ra_paper_window(const struct ra_request *rq, const struct ra_limits *limits,
				 const struct ra_segment *segments, u32 count)
{
	u32 first_run, base = max(rq->sync ? rq->asked : rq->previous, 1U);
	struct ra_window window = { .location = location_of(segments, count, &first_run) };
	u64 pages;

	switch (window.location) {
	case 1:
		pages = (rq->sync ? 2ULL : 4ULL) * base;
		break;
	case 2:
		pages = (rq->sync ? 1ULL : 2ULL) * base;
		break;
	default:
		pages = min((rq->sync ? 1ULL : 2ULL) * base, (u64)first_run);
		break;
	}
	pages = min(pages, (u64)(window.location == 1 ? limits->hdd_pages : limits->ssd_pages));
	window.pages = max(pages, 1ULL);
	if (rq->sync)
		window.lookahead = window.pages > rq->asked ? window.pages - rq->asked : 0;
	else
		window.lookahead = window.pages;
	return window;
}

/*
 * A reader's first window where the kernel would take fewer: whoever reads no more than the head of
 * a file pays a quarter of the positioning more; whoever reads all of it saves up to one
 * positioning for each of the kernel's small first windows. Where positioning is nothing, four
 * times what was asked for (the kernel: twice, if that was much), if that is transferred in twice
 * the latency that another request would have.
 */
static u32 first_on(const struct ra_device *dev, u32 asked, u32 stock_max)
{
	u32 head = min(pages_in(dev, dev->positioning_ns / 4), 4 * stock_max);
	u32 bulk = min(min((u64)pages_in(dev, 2 * dev->latency_ns), 4ULL * asked), (u64)stock_max);

	return max(head, bulk);
}

/* The window before, doubled: no request grows faster once it is beyond the kernel's own sizes. */
u32 ra_model_horizon(const struct ra_request *rq, const struct ra_limits *limits)
{
	u64 pages = max(rq->sync ? rq->asked : rq->previous, 1U);

	return max(min(2 * pages, (u64)limits->max_pages), 4ULL * limits->stock_max);
}

struct ra_window ra_model_window(const struct ra_request *rq, const struct ra_limits *limits,
				 const struct ra_segment *segments, u32 count)
{
	u32 first_run, pages, i, limit = 0, longest = max(limits->max_pages, limits->stock_max);
	struct ra_window window = { .location = location_of(segments, count, &first_run) };
	const struct ra_device *first = NULL;
	bool starving = false;
	u64 used = 0;	/* of one window, in 2^-20 */

	/* Each segment may fill the window up to what is worth it on its own device. */
	for (i = 0; i < count && used < 1 << 20; i++) {
		const struct ra_device *dev = segments[i].dev;
		u32 fits = segments[i].pages;

		if (dev) {
			u32 cap = ra_device_cap(dev, limits->stock_max);
			u64 room = ((1 << 20) - used) * cap >> 20;

			fits = min((u64)fits, max(room, 1ULL));
			used += ((u64)fits << 20) / cap + 1;
			if (!first)
				first = dev;
			if (ra_device_starving(dev))
				starving = true;
		}
		limit += fits;
		if (fits < segments[i].pages)
			break;
	}
	if (rq->sync) {
		u32 stock = ra_stock_first(rq->asked, limits->stock_max);

		pages = max(stock, rq->asked);
		if (first && !rq->thrashed)
			pages = max(pages, first_on(first, rq->asked, limits->stock_max));
		window.pages = min(pages, max(longest, rq->asked));
		/*
		 * As the kernel does it; but pages that are our own guess don't prove a stream
		 * before half of them are read.
		 */
		window.lookahead =
			window.pages > rq->asked ? window.pages - rq->asked : window.pages / 2;
		if (window.pages > stock)
			window.lookahead = min(window.lookahead, window.pages / 2);
		return window;
	}
	pages = max(rq->previous, ra_stock_next(max(rq->previous, 1U), limits->stock_max));
	if (rq->stalled && rq->previous >= limits->stock_max && starving)
		pages = min(2 * (u64)rq->previous, (u64)1 << 24);
	pages = min(pages, max(limit, limits->stock_max));
	window.pages = max(min(pages, longest), 1U);
	window.lookahead = window.pages;
	return window;
}
