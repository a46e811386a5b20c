/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of outrider_ra share. */
#ifndef RA_H
#define RA_H

#include <linux/blkdev.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/kobject.h>
#include <linux/pagemap.h>
#include <linux/spinlock.h>
#include "outrider_ra.h"
#include "ra_policy.h"

#if !defined(CONFIG_X86_64) || !defined(CONFIG_DYNAMIC_FTRACE_WITH_REGS)
#error "outrider_ra redirects calls by ftrace with registers: x86-64 with CONFIG_DYNAMIC_FTRACE_WITH_REGS"
#endif

enum ra_counter {
	RA_SYNC, RA_ASYNC,		/* calls redirected */
	RA_UNKNOWN,			/* left to the kernel: location not known yet */
	RA_RANDOM,			/* left to the kernel: not a sequential read */
	RA_CASE1, RA_CASE2, RA_CASE3,	/* windows by location */
	RA_WINDOWS, RA_PAGES,
	RA_STALLS, RA_GROWN, RA_THRASHED,
	RA_FILLS, RA_FILL_ERRORS,	/* of maps of files on this disk */
	RA_COUNTERS
};

struct ra_counters { u64 of[RA_COUNTERS]; };

/*
 * A disk: what is chosen for the files on it, and what it measures as. Lives until the module goes.
 */
struct ra_disk {
	struct hlist_node node;		/* unhashed: the number belongs to another disk now */
	struct list_head all;
	struct kobject kobj;
	dev_t dev;
	char name[DISK_NAME_LEN];
	const struct gendisk *gd;	/* for comparison only */
	u8 policy;			/* enum ra_policy */
	u32 hdd_pages, ssd_pages, max_kb;
	spinlock_t lock;		/* of model; taken with interrupts off */
	struct ra_device model;
	struct ra_disk *usual;		/* below a layered disk: where files have lain of late */
	struct ra_counters __percpu *counters;
};

#define ra_count(disk, counter, n)	this_cpu_add((disk)->counters->of[counter], n)

/* ra_disk.c */
int ra_disks_init(void);
void ra_disks_exit(void);
struct ra_disk *ra_disk_get(dev_t dev, const char *name, bool spins);
struct ra_disk *ra_disk_of(struct gendisk *gd);
extern struct dentry *ra_debug;

/* ra_map.c */
int ra_maps_init(void);
void ra_maps_exit(void);
u32 ra_map_segments(struct inode *inode, struct ra_disk *disk, pgoff_t start, u32 pages,
		    bool sample, struct ra_segment *segments, u32 most);
bool ra_providers_claim(struct gendisk *disk);

/* ra_main.c */
int ra_redirect(const char *symbol, struct ftrace_ops *ops);
void ra_redirect_end(struct ftrace_ops *ops);

#endif
