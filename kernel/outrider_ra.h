/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What outrider_ra asks of a location provider: a module that knows how a stacked block device
 * spreads its sectors over others (DR3). A disk that no provider claims is a device of its own.
 */
#ifndef OUTRIDER_RA_H
#define OUTRIDER_RA_H

#include <linux/blkdev.h>
#include <linux/list.h>

/* Where a run of sectors lies. */
struct outrider_place {
	dev_t dev;			/* of the whole disk below */
	char name[DISK_NAME_LEN];
	bool spins;
	sector_t sector;		/* on that disk */
	sector_t sectors;		/* how far that holds, at least 1 */
};

struct outrider_provider {
	struct list_head list;		/* outrider_ra's */
	const char *name;
	bool (*claims)(struct gendisk *disk);
	/*
	 * Where @sector of @disk lies, looking no further than @sectors. Called in process context
	 * without locks; may sleep. 0, or a negative error: the location is unknown, and with
	 * -ENOTUNIQ what is known of other places says nothing about it either.
	 */
	int (*locate)(struct gendisk *disk, sector_t sector, sector_t sectors,
		      struct outrider_place *place);
};

int outrider_provider_register(struct outrider_provider *provider);
/* Returns once no call into the provider is under way. */
void outrider_provider_unregister(struct outrider_provider *provider);

#endif
