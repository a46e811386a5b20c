/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How far to read ahead: the arithmetic of the readahead policies and of the device models that
 * they use. Nothing here knows the kernel: the same file is compiled in user space, where a naive
 * reference checks it.
 *
 * Lengths are pages of 4 KiB unless they say otherwise, times nanoseconds, rates bytes per
 * millisecond.
 */
#ifndef OUTRIDER_RA_POLICY_H
#define OUTRIDER_RA_POLICY_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
#endif

enum ra_policy { RA_STOCK, RA_PAPER, RA_MODEL, RA_POLICIES };

/*
 * A device as its own completed reads show it. Until there are some, what its kind (spinning or
 * not) is known for.
 *
 * A read costs the positioning (seek and turn of a disk, what an SSD does before data flows) and
 * the transfer of its bytes. Service is measured from when the device could begin with it: its
 * arrival, or the completion before it.
 */
struct ra_device {
	u64 positioning_ns;	/* of a read that needs it */
	u64 latency_ns;		/* of a read that finds the device idle, without its transfer */
	u64 bandwidth;		/* bytes/ms */
	/* of late: time in service, and its part that was not transfer; both decay */
	u64 busy_ns, lost_ns;
	u64 last_done;		/* when the last read was done */
	u64 last_end;		/* the byte after it */
};

/*
 * A device spends more than 1/RA_LOST_SHARE of its time on positioning: longer requests would pay.
 */
#define RA_LOST_SHARE		10
/* Devices whose positioning takes at least this are of the paper's class HDD. */
#define RA_DISK_POSITIONING_NS	1000000ULL

void ra_device_init(struct ra_device *dev, bool spins);
void ra_device_sample(struct ra_device *dev, u64 queued, u64 done, u64 pos, u32 bytes);
bool ra_device_is_disk(const struct ra_device *dev);
bool ra_device_starving(const struct ra_device *dev);
u32 ra_device_cap(const struct ra_device *dev, u32 stock_max);

/* A run of file pages on one device; dev is NULL for holes, which cost no device anything. */
struct ra_segment {
	u32 pages;
	const struct ra_device *dev;
};

struct ra_limits {
	u32 stock_max;		/* the block device's read_ahead_kb */
	u32 hdd_pages, ssd_pages;	/* the paper's thresholds */
	u32 max_pages;		/* of policy model, after memory */
};

struct ra_request {
	bool sync;		/* a page was missing; otherwise a marked page was met */
	bool stalled;		/* the marked page had not arrived: the reader waits */
	bool thrashed;		/* the missing page had been read ahead and was given up */
	u32 asked;		/* pages that the reader asked for (sync) */
	u32 previous;		/* size of the window before (async) */
};

struct ra_window {
	u32 pages;
	u32 lookahead;		/* the marker lies this far before the end; 0: no marker */
	u8 location;		/* the paper's cases (4.4): 1 all on disks, 2 on SSDs, 3 mixed */
};

u32 ra_paper_horizon(const struct ra_request *rq, const struct ra_limits *limits);
struct ra_window ra_paper_window(const struct ra_request *rq, const struct ra_limits *limits,
				 const struct ra_segment *segments, u32 count);
u32 ra_model_horizon(const struct ra_request *rq, const struct ra_limits *limits);
struct ra_window ra_model_window(const struct ra_request *rq, const struct ra_limits *limits,
				 const struct ra_segment *segments, u32 count);

/* The kernel's own sizes (get_init_ra_size and get_next_ra_size of mm/readahead.c). */
u32 ra_stock_first(u32 asked, u32 max);
u32 ra_stock_next(u32 previous, u32 max);

#endif
