// SPDX-License-Identifier: GPL-2.0
/*
 * outrider_stack: tells outrider_ra which disk holds what of a device that is put together from
 * several: logical volumes and other devices of the device mapper, md's arrays, NVMe with several
 * paths (DR3, DR7).
 *
 * None of them exports a look-up, but all say where they send a request: the tracepoint
 * block_bio_remap. What its reads show is remembered as runs (stack_runs.h), so a location is known
 * once something near it has been read. A location that has become wrong costs a window of the
 * wrong size, never wrong data.
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/hash.h>
#include <linux/module.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <trace/events/block.h>
#include "outrider_ra.h"
#include "stack_runs.h"

#define BUCKET_BITS	5
#define MOST_STACKS	64
#define MOST_DISKS	16	/* below one */
#define MOST_LEVELS	4	/* of stacks on stacks */

struct stack_disk {
	dev_t dev;
	char name[DISK_NAME_LEN];
	bool spins;
};

/* A device that sends its requests on. Lives until the module goes, under its number. */
struct stack {
	struct hlist_node node;
	dev_t dev;
	spinlock_t lock;		/* of what follows; taken with interrupts off */
	u32 disks;
	bool kinds_differ;		/* some of them spin */
	struct stack_disk disk[MOST_DISKS];
	struct stack_runs runs;
};

static struct hlist_head stacks[1 << BUCKET_BITS];
static unsigned int stack_count;
static DEFINE_SPINLOCK(stacks_lock);	/* entering */

/* The entry of @dev, or NULL. Any context. */
static struct stack *stack_of(dev_t dev)
{
	struct stack *stack;

	/* Entries are only ever added, at the head. */
	rcu_read_lock();
	hlist_for_each_entry_rcu(stack, &stacks[hash_32(dev, BUCKET_BITS)], node)
		if (stack->dev == dev)
			break;
	rcu_read_unlock();
	return stack;
}

/* The same, entered if it is new; NULL without memory. Any context. */
static struct stack *stack_get(dev_t dev)
{
	struct stack *stack = stack_of(dev), *new;
	unsigned long flags;

	if (stack || READ_ONCE(stack_count) >= MOST_STACKS)
		return stack;
	new = kzalloc(sizeof(*new), GFP_NOWAIT | __GFP_NOWARN);
	if (!new)
		return NULL;
	new->dev = dev;
	spin_lock_init(&new->lock);
	spin_lock_irqsave(&stacks_lock, flags);
	stack = stack_of(dev);
	if (!stack && stack_count < MOST_STACKS) {
		stack = new;
		new = NULL;
		hlist_add_head_rcu(&stack->node, &stacks[hash_32(dev, BUCKET_BITS)]);
		WRITE_ONCE(stack_count, stack_count + 1);
	}
	spin_unlock_irqrestore(&stacks_lock, flags);
	kfree(new);
	return stack;
}

/* The number of a disk below; MOST_DISKS if there are too many. The lock is held. */
static u32 number_of(struct stack *stack, struct gendisk *disk)
{
	struct stack_disk *new;
	u32 i;

	for (i = 0; i < stack->disks; i++)
		if (stack->disk[i].dev == disk_devt(disk))
			return i;
	if (i == MOST_DISKS)
		return i;
	new = &stack->disk[stack->disks++];
	new->dev = disk_devt(disk);
	new->spins = !blk_queue_nonrot(disk->queue);
	strscpy(new->name, disk->disk_name, sizeof(new->name));
	stack->kinds_differ |= new->spins != stack->disk[0].spins;
	return i;
}

/* @bio was for @sector of @dev and has been sent on. */
static void remapped(void *data, struct bio *bio, dev_t dev, sector_t sector)
{
	struct block_device *to = bio->bi_bdev;
	struct stack *stack;
	unsigned long flags;
	u32 disk;

	/* From a partition to its own disk: no stack. */
	if (bio_op(bio) != REQ_OP_READ || !bio_sectors(bio) || to->bd_dev == dev)
		return;
	stack = stack_get(dev);
	if (!stack)
		return;
	spin_lock_irqsave(&stack->lock, flags);
	disk = number_of(stack, to->bd_disk);
	if (disk < MOST_DISKS)
		stack_learn(&stack->runs, sector, bio_sectors(bio), disk,
			    to->bd_start_sect + bio->bi_iter.bi_sector);
	spin_unlock_irqrestore(&stack->lock, flags);
}

static bool claims(struct gendisk *disk)
{
	return stack_of(disk_devt(disk));
}

static int locate_below(struct stack *stack, sector_t sector, sector_t sectors,
			struct outrider_place *place)
{
	bool patchwork;
	u64 found, to;
	u32 disk;

	spin_lock_irq(&stack->lock);
	found = stack_find(&stack->runs, sector, sectors, &disk, &to);
	/* Of a patchwork of disks and SSDs nothing can be said. */
	patchwork = stack->runs.patchwork && stack->kinds_differ;
	if (found && !patchwork) {
		place->dev = stack->disk[disk].dev;
		place->spins = stack->disk[disk].spins;
		strscpy(place->name, stack->disk[disk].name, sizeof(place->name));
		place->sector = to;
		place->sectors = found;
	}
	spin_unlock_irq(&stack->lock);
	return patchwork ? -ENOTUNIQ : found ? 0 : -ENODATA;
}

static int locate(struct gendisk *disk, sector_t sector, sector_t sectors,
		  struct outrider_place *place)
{
	struct stack *stack = stack_of(disk_devt(disk));
	int level, err = -ENODATA;

	for (level = 0; stack && level < MOST_LEVELS; level++) {
		err = locate_below(stack, sector, sectors, place);
		if (err)
			break;
		sector = place->sector;
		sectors = place->sectors;
		stack = stack_of(place->dev);
	}
	return err;
}

static struct outrider_provider provider = { .name = "stack", .claims = claims, .locate = locate };

static void forget(void)
{
	struct hlist_node *next;
	struct stack *stack;
	int i;

	for (i = 0; i < ARRAY_SIZE(stacks); i++)
		hlist_for_each_entry_safe(stack, next, &stacks[i], node)
			kfree(stack);
}

static int __init outrider_stack_init(void)
{
	int err = register_trace_block_bio_remap(remapped, NULL);

	if (err)
		return err;
	err = outrider_provider_register(&provider);
	if (err) {
		unregister_trace_block_bio_remap(remapped, NULL);
		tracepoint_synchronize_unregister();
		forget();
	}
	return err;
}

static void __exit outrider_stack_exit(void)
{
	outrider_provider_unregister(&provider);
	unregister_trace_block_bio_remap(remapped, NULL);
	tracepoint_synchronize_unregister();
	forget();
}

module_init(outrider_stack_init);
module_exit(outrider_stack_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Outrider: where devices made of several disks keep what");
