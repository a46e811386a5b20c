// SPDX-License-Identifier: GPL-2.0
/*
 * outrider_bcache: tells outrider_ra which sectors of a bcache device are on the SSD and which on
 * the disk (DR3, DR5).
 *
 * bcache exports nothing. Its look-up, bch_btree_map_keys(), is found by a kprobe, and where its
 * structures keep what we need is taken from the BTF of the very bcache.ko that this module is
 * built for (bcache_layout.sh); a bcache with another build ID is refused. Keys are in sectors of
 * the backing device, which begins with cache_sb.data_offset sectors of bcache's own. The look-up
 * takes no write locks and changes nothing: unlike a read it doesn't freshen a bucket's priority.
 */
#include <linux/blkdev.h>
#include <linux/fs.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/refcount.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include "outrider_ra.h"
#include "bcache_layout.h"

/* A key as on the SSD (bcache_ondisk.h): an extent of @low - size .. @low of device `inode`. */
struct bcache_key {
	u64 high, low, ptr[];
};
#define KEY_DEVICE(key)		((key)->high & 0xfffff)
#define KEY_SECTORS(key)	((key)->high >> 20 & 0xffff)
#define KEY_HIGH(device)	(1ULL << 63 | (device))
/* What the function that is called for keys answers. */
#define MAP_DONE		0
#define MAP_CONTINUE		1
#define MAP_END_KEY		1

struct lookup {
	u8 op[BTREE_OP_SIZE] __aligned(8);
	u32 device;
	u64 sector, sectors;
	bool cached;
};

typedef int map_keys_fn(void *op, void *btree, struct bcache_key *key);

unsigned long bcache_map_keys_at;	/* for bcache_call.S */
int bcache_map_keys(void *op, void *cache_set, struct bcache_key *from, map_keys_fn *fn, int flags);

static void *member(void *structure, size_t offset)
{
	return (char *)structure + offset;
}

static void *pointer(void *structure, size_t offset)
{
	return READ_ONCE(*(void **)member(structure, offset));
}

/* The first key that ends behind the sector; see cache_lookup_fn() of bcache's request.c. */
static int key_found(void *op, void *btree, struct bcache_key *key)
{
	struct lookup *lookup = container_of(op, struct lookup, op);
	u64 start = key->low - KEY_SECTORS(key);

	if (KEY_DEVICE(key) < lookup->device ||
	    (KEY_DEVICE(key) == lookup->device && key->low <= lookup->sector))
		return MAP_CONTINUE;
	if (KEY_DEVICE(key) != lookup->device)
		return MAP_DONE;
	if (start > lookup->sector) {
		lookup->sectors = min(lookup->sectors, start - lookup->sector);
		return MAP_DONE;
	}
	if (!KEY_SECTORS(key))
		return MAP_CONTINUE;
	lookup->cached = true;
	lookup->sectors = min(lookup->sectors, key->low - lookup->sector);
	return MAP_DONE;
}

static bool is_gone;			/* bcache was unloaded: what is loaded now may be another */
/* bcache's, of backing devices: volumes on the SSD alone have another */
static unsigned long submit_bio_at;

static bool claims(struct gendisk *disk)
{
	unsigned long at = (unsigned long)disk->fops->submit_bio;

	/* The kprobe that has found it lies behind its ENDBR, if it has one. */
	return (at == submit_bio_at || at + 4 == submit_bio_at) && !READ_ONCE(is_gone);
}

static void place_on(struct block_device *bdev, sector_t sector, sector_t sectors,
		     struct outrider_place *place)
{
	struct gendisk *disk = bdev->bd_disk;

	place->dev = disk_devt(disk);
	strscpy(place->name, disk->disk_name, sizeof(place->name));
	place->spins = !blk_queue_nonrot(disk->queue);
	place->sector = bdev->bd_start_sect + sector;
	place->sectors = sectors;
}

static int locate(struct gendisk *disk, sector_t sector, sector_t sectors,
		  struct outrider_place *place)
{
	/* struct bcache_device, within the struct cached_dev of a backing device */
	void *device = disk->private_data;
	void *dc = (char *)device - CACHED_DEV_DISK;
	refcount_t *count = member(dc, CACHED_DEV_COUNT);
	struct lookup lookup = {
		.device = *(u32 *)member(device, BCACHE_DEVICE_ID),
		.sectors = sectors,
	};
	struct block_device *backing = pointer(dc, CACHED_DEV_BDEV);
	struct bcache_key *from;
	u64 key[2];
	void *set;
	int err;

	lookup.sector = sector + *(u64 *)member(dc, CACHED_DEV_DATA_OFFSET);
	/*
	 * Detaching the cache waits for the count, as for every read (cached_dev_get). Without one,
	 * all is on the disk.
	 */
	if (!refcount_inc_not_zero(count)) {
		place_on(backing, lookup.sector, sectors, place);
		return 0;
	}
	smp_mb__after_atomic();
	set = pointer(device, BCACHE_DEVICE_SET);
	init_wait((struct wait_queue_entry *)member(lookup.op, BTREE_OP_WAIT));
	*(short *)member(lookup.op, BTREE_OP_LOCK) = -1;	/* read locks on every level */
	key[0] = KEY_HIGH(lookup.device);
	key[1] = lookup.sector;
	from = (struct bcache_key *)key;
	err = bcache_map_keys(lookup.op, set, from, key_found, MAP_END_KEY);
	if (err == MAP_DONE || err == MAP_CONTINUE) {
		struct block_device *on = backing;

		err = 0;
		if (lookup.cached)
			on = pointer(pointer(set, CACHE_SET_CACHE), CACHE_BDEV);
		/* Where on the SSD is of no use to anyone. */
		place_on(on, lookup.sector, lookup.sectors, place);
	}
	if (refcount_dec_and_test(count))
		schedule_work(member(dc, CACHED_DEV_DETACH));
	return err;
}

static struct outrider_provider provider = { .name = "bcache", .claims = claims, .locate = locate };

static int module_changed(struct notifier_block *block, unsigned long state, void *data)
{
	struct module *module = data;

	if (state == MODULE_STATE_GOING && !strcmp(module->name, "bcache")) {
		pr_info("outrider_bcache: bcache is unloaded; load outrider_bcache again after it\n");
		WRITE_ONCE(is_gone, true);
	}
	return NOTIFY_OK;
}

static struct notifier_block module_block = { .notifier_call = module_changed };

/* Whether the bcache that is loaded is the one that this module was built for. */
static int check_build(void)
{
	static const char path[] = "/sys/module/bcache/notes/.note.gnu.build-id";
	u8 note[64];
	char id[2 * sizeof(note) + 1] = "";
	struct file *file = filp_open(path, O_RDONLY, 0);
	loff_t pos = 0;
	ssize_t length;

	if (IS_ERR(file)) {
		pr_err("outrider_bcache: bcache is not loaded, or has no build ID (%s: %ld)\n",
		       path, PTR_ERR(file));
		return -ENOENT;
	}
	length = kernel_read(file, note, sizeof(note), &pos);
	filp_close(file, NULL);
	/* Three words of header and "GNU" come before it. */
	if (length > 16)
		bin2hex(id, note + 16, length - 16);
	if (strcmp(id, BCACHE_BUILD_ID)) {
		pr_err("outrider_bcache: built for the bcache with build ID %s, but %s is loaded: build outrider_bcache for this kernel\n",
		       BCACHE_BUILD_ID, id);
		return -EINVAL;
	}
	return 0;
}

/*
 * The address of a function of bcache's, 0 if there is none: kallsyms_lookup_name isn't exported.
 */
static unsigned long address_of(const char *symbol)
{
	struct kprobe probe = { .symbol_name = symbol };
	int err = register_kprobe(&probe);

	if (err) {
		pr_err("outrider_bcache: bcache has no %s (%d)\n", symbol, err);
		return 0;
	}
	unregister_kprobe(&probe);
	return (unsigned long)probe.addr;
}

static int __init outrider_bcache_init(void)
{
	int err = check_build();

	if (err)
		return err;
	bcache_map_keys_at = address_of("bch_btree_map_keys");
	submit_bio_at = address_of("cached_dev_submit_bio");
	if (!bcache_map_keys_at || !submit_bio_at)
		return -ENOENT;
	err = register_module_notifier(&module_block);
	if (err)
		return err;
	err = outrider_provider_register(&provider);
	if (err)
		unregister_module_notifier(&module_block);
	return err;
}

static void __exit outrider_bcache_exit(void)
{
	outrider_provider_unregister(&provider);
	unregister_module_notifier(&module_block);
}

module_init(outrider_bcache_init);
module_exit(outrider_bcache_exit);
MODULE_LICENSE("GPL");
MODULE_SOFTDEP("pre: bcache");
MODULE_DESCRIPTION("Outrider: where bcache keeps what");
