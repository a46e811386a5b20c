// SPDX-License-Identifier: GPL-2.0
/*
 * Where the pages of files lie (DR2, DR3): for files on disks that a provider claims, the runs of
 * pages by the device below.
 *
 * The readahead path only ever looks up what is there already, under RCU. Asking is for a worker:
 * FIEMAP takes the inode's locks and reads metadata, and a provider may sleep on locks and reads of
 * its own; from a page fault, with mmap_lock held, either can deadlock. So the first window of a
 * file is the kernel's own, and by the next ones the map is there.
 *
 * The worker calls the file system's own fiemap, with room for no extents: it then only counts
 * them, in fiemap_fill_next_extent, where ftrace leads our calls (known by their argument) to
 * ra_extent(). That works for every file system that has FIEMAP with addresses on the device it is
 * mounted from; btrfs and others with addresses of their own are left out. Nothing is flushed: what
 * is not on a device yet has no location.
 *
 * A map holds as long as the file looks the same (size, blocks, times, version) and for half a
 * second, since a cache manager moves data on its own. A stale map costs a window of the wrong
 * size, never wrong data: the pages are read through the file system.
 */
#include <linux/blkdev.h>
#include <linux/debugfs.h>
#include <linux/fiemap.h>
#include <linux/file.h>
#include <linux/hash.h>
#include <linux/iversion.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include "ra.h"

#define BUCKET_BITS	9
#define MOST_MAPS	1024
#define MOST_RUNS	1024		/* of one map: 16 KiB */
#define MOST_FILLS	64		/* waiting for the worker */
#define FILL_PAGES	8192		/* a map covers this much from where it was asked for */
#define MAP_LIFE	(HZ / 2)
#define SAMPLE		16

struct ra_run {
	u32 end;			/* pages from the map's first to behind the run */
	struct ra_disk *disk;		/* NULL: on no device */
};

/* What changes when a file's blocks may have. */
struct ra_look {
	unsigned long ino;
	u32 generation;
	dev_t dev;
	loff_t size;
	blkcnt_t blocks;
	struct timespec64 mtime, ctime;
	u64 version;
};

struct ra_map {
	struct hlist_node node;
	struct list_head age;
	struct rcu_head rcu;
	const struct inode *inode;	/* for comparison only */
	struct ra_look look;
	unsigned long filled;		/* jiffies */
	pgoff_t start;
	u32 pages, count;
	struct ra_run runs[];
};

struct ra_fill {
	struct inode *inode;
	struct super_block *sb;
	struct ra_disk *disk;
	pgoff_t start;
};

/* One call of a file system's fiemap. */
struct ra_extents {
	struct fiemap_extent_info info;
	struct gendisk *disk;
	u64 offset;		/* of the mounted partition on its disk, bytes */
	pgoff_t start, end, at;
	u32 count;
	bool full, patchwork;
	u64 last_sector;	/* on the device below, of the last page looked up */
	struct ra_run runs[MOST_RUNS];
};

static struct hlist_head maps[1 << BUCKET_BITS];
static LIST_HEAD(maps_by_age);
static unsigned int map_count;
static DEFINE_SPINLOCK(maps_lock);

static struct ra_fill fills[MOST_FILLS];
static unsigned int fill_count;
static const struct inode *filling;		/* what the worker is at */
static DEFINE_SPINLOCK(fills_lock);
static struct workqueue_struct *fill_queue;
static void fill_wanted(struct work_struct *work);
static DECLARE_WORK(fill_work, fill_wanted);
static DEFINE_MUTEX(fill_lock);
static struct ra_extents *extents;		/* under fill_lock */
static struct fiemap_extent_info *asking;	/* set while the worker asks a file system */

static LIST_HEAD(providers);
static DECLARE_RWSEM(providers_sem);		/* calls of locate */
static DEFINE_SPINLOCK(providers_lock);		/* the list, which is read under RCU */

int outrider_provider_register(struct outrider_provider *provider)
{
	if (!provider->claims || !provider->locate)
		return -EINVAL;
	spin_lock(&providers_lock);
	list_add_tail_rcu(&provider->list, &providers);
	spin_unlock(&providers_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(outrider_provider_register);

void outrider_provider_unregister(struct outrider_provider *provider)
{
	spin_lock(&providers_lock);
	list_del_rcu(&provider->list);
	spin_unlock(&providers_lock);
	synchronize_rcu();
	/* A locate that began before has ended when the semaphore is had. */
	down_write(&providers_sem);
	up_write(&providers_sem);
}
EXPORT_SYMBOL_GPL(outrider_provider_unregister);

/* Whether some provider knows where the sectors of @disk lie. Doesn't sleep. */
bool ra_providers_claim(struct gendisk *disk)
{
	struct outrider_provider *provider;
	bool claimed = false;

	rcu_read_lock();
	list_for_each_entry_rcu(provider, &providers, list)
		claimed |= provider->claims(disk);
	rcu_read_unlock();
	return claimed;
}

static int locate(struct gendisk *disk, sector_t sector, sector_t sectors,
		  struct outrider_place *place)
{
	struct outrider_provider *provider;
	int err = -ENOENT;

	down_read(&providers_sem);
	list_for_each_entry_rcu(provider, &providers, list, lockdep_is_held(&providers_sem))
		if (provider->claims(disk)) {
			err = provider->locate(disk, sector, sectors, place);
			break;
		}
	up_read(&providers_sem);
	return err;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
#define inode_mtime(inode)	inode_get_mtime(inode)
#else
#define inode_mtime(inode)	((inode)->i_mtime)
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define inode_ctime(inode)	inode_get_ctime(inode)
#else
#define inode_ctime(inode)	((inode)->i_ctime)
#endif

static void look_at(struct inode *inode, struct ra_look *look)
{
	memset(look, 0, sizeof(*look));
	look->ino = inode->i_ino;
	look->generation = inode->i_generation;
	look->dev = inode->i_sb->s_dev;
	look->size = i_size_read(inode);
	look->blocks = inode->i_blocks;
	look->mtime = inode_mtime(inode);
	look->ctime = inode_ctime(inode);
	look->version = IS_I_VERSION(inode) ? inode_peek_iversion(inode) : 0;
}

static struct hlist_head *bucket_of(const struct inode *inode)
{
	return &maps[hash_ptr(inode, BUCKET_BITS)];
}

/* Adds @pages on @disk to what is being built. */
static void add_run(struct ra_extents *ex, struct ra_disk *disk, pgoff_t pages)
{
	ex->at += pages;
	if (ex->count && ex->runs[ex->count - 1].disk == disk) {
		ex->runs[ex->count - 1].end = ex->at - ex->start;
		return;
	}
	if (ex->count == MOST_RUNS) {
		ex->at -= pages;
		ex->full = true;
		return;
	}
	ex->runs[ex->count++] = (struct ra_run){ .end = ex->at - ex->start, .disk = disk };
}

#define NOT_ON_DEVICE \
	(FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED | \
	 FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_DATA_TAIL | FIEMAP_EXTENT_UNWRITTEN)

/*
 * Stands in for fiemap_fill_next_extent() when the worker asks: an extent of the file. 1 ends the
 * file system's loop.
 */
static int ra_extent(struct fiemap_extent_info *info, u64 logical, u64 phys, u64 len, u32 flags)
{
	struct ra_extents *ex = container_of(info, struct ra_extents, info);
	pgoff_t from = max_t(pgoff_t, logical >> PAGE_SHIFT, ex->at);
	pgoff_t to = min_t(pgoff_t, (logical + len + PAGE_SIZE - 1) >> PAGE_SHIFT, ex->end);

	if (from >= ex->end || ex->full)
		return 1;
	if (from > ex->at)
		add_run(ex, NULL, from - ex->at);
	while (ex->at < to && !ex->full) {
		struct outrider_place place;
		struct ra_disk *disk = NULL;
		pgoff_t pages = to - ex->at;
		u64 at = max((u64)ex->at << PAGE_SHIFT, logical);
		sector_t sector = (ex->offset + phys + at - logical) >> SECTOR_SHIFT;

		if (!(flags & NOT_ON_DEVICE)) {
			/*
			 * The worker must not hold the file system's locks for longer than a
			 * provider takes for an extent.
			 */
			int err = locate(ex->disk, sector,
					 (sector_t)pages << (PAGE_SHIFT - SECTOR_SHIFT), &place);

			if (err) {
				ex->full = true;
				ex->patchwork = err == -ENOTUNIQ;
				break;
			}
			disk = ra_disk_get(place.dev, place.name, place.spins);
			pages = clamp_t(pgoff_t, place.sectors >> (PAGE_SHIFT - SECTOR_SHIFT), 1,
					pages);
			ex->last_sector = place.sector;
		}
		add_run(ex, disk, pages);
	}
	return ex->full || (flags & FIEMAP_EXTENT_LAST);
}

static void notrace lead_extent(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
				struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);

	if (regs && READ_ONCE(asking) && (struct fiemap_extent_info *)regs->di == READ_ONCE(asking))
		regs->ip = (unsigned long)ra_extent;
}

static struct ftrace_ops extent_ops = {
	.func = lead_extent,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY,
};

static bool can_be_asked(struct inode *inode)
{
	struct super_block *sb = inode->i_sb;

	/* Their addresses are not those of the device that they are mounted from. */
	if (sb->s_magic == BTRFS_SUPER_MAGIC || sb->s_magic == F2FS_SUPER_MAGIC || IS_DAX(inode))
		return false;
	return sb->s_bdev && inode->i_op->fiemap && S_ISREG(inode->i_mode);
}

/* Asks for @pages of @inode from @start. fill_lock is held. */
static int ask(struct inode *inode, pgoff_t start, u32 pages)
{
	struct ra_extents *ex = extents;
	struct block_device *bdev = inode->i_sb->s_bdev;
	int err;

	if (!can_be_asked(inode))
		return -EOPNOTSUPP;
	*ex = (struct ra_extents){
		.disk = bdev->bd_disk,
		.offset = (u64)bdev->bd_start_sect << SECTOR_SHIFT,
		.start = start, .at = start, .end = start + pages,
	};
	WRITE_ONCE(asking, &ex->info);
	err = inode->i_op->fiemap(inode, &ex->info, (u64)start << PAGE_SHIFT,
				  (u64)pages << PAGE_SHIFT);
	WRITE_ONCE(asking, NULL);
	return err < 0 ? err : ex->count ? 0 : -ENODATA;
}

/* The disk that most of what was asked for lies on. fill_lock is held. */
static struct ra_disk *usual_of(const struct ra_extents *ex)
{
	struct ra_disk *on[2] = { };
	u32 i, j, pages[2] = { }, before = 0;

	/* Two are enough: a cache and what it caches. */
	for (i = 0; i < ex->count; i++) {
		for (j = 0; j < 2; j++)
			if (ex->runs[i].disk && (!on[j] || on[j] == ex->runs[i].disk)) {
				on[j] = ex->runs[i].disk;
				pages[j] += ex->runs[i].end - before;
				break;
			}
		before = ex->runs[i].end;
	}
	return on[pages[1] > pages[0]];
}

static void drop_map(struct ra_map *map)
{
	hlist_del_rcu(&map->node);
	list_del(&map->age);
	map_count--;
	kfree_rcu(map, rcu);
}

static void fill(const struct ra_fill *fill)
{
	struct ra_map *map = NULL, *old;
	struct hlist_node *next;
	struct ra_look look;

	mutex_lock(&fill_lock);
	look_at(fill->inode, &look);
	if (ask(fill->inode, fill->start, FILL_PAGES)) {
		ra_count(fill->disk, RA_FILL_ERRORS, 1);
		if (extents->patchwork)
			WRITE_ONCE(fill->disk->usual, NULL);
	} else {
		map = kmalloc(struct_size(map, runs, extents->count), GFP_KERNEL);
		ra_count(fill->disk, RA_FILLS, 1);
		WRITE_ONCE(fill->disk->usual, usual_of(extents));
	}
	if (map) {
		map->inode = fill->inode;
		map->look = look;
		map->filled = jiffies;
		map->start = fill->start;
		map->pages = extents->at - extents->start;
		map->count = extents->count;
		memcpy(map->runs, extents->runs, extents->count * sizeof(map->runs[0]));
	}
	mutex_unlock(&fill_lock);
	if (!map)
		return;
	spin_lock(&maps_lock);
	hlist_for_each_entry_safe(old, next, bucket_of(fill->inode), node)
		if (old->inode == fill->inode)
			drop_map(old);
	if (map_count == MOST_MAPS)
		drop_map(list_first_entry(&maps_by_age, struct ra_map, age));
	hlist_add_head_rcu(&map->node, bucket_of(fill->inode));
	list_add_tail(&map->age, &maps_by_age);
	map_count++;
	spin_unlock(&maps_lock);
}

static void fill_wanted(struct work_struct *work)
{
	struct ra_fill one;

	for (;;) {
		spin_lock(&fills_lock);
		if (!fill_count) {
			filling = NULL;
			spin_unlock(&fills_lock);
			return;
		}
		one = fills[0];
		filling = one.inode;
		memmove(fills, fills + 1, --fill_count * sizeof(fills[0]));
		spin_unlock(&fills_lock);
		fill(&one);
		iput(one.inode);
		deactivate_super(one.sb);
	}
}

/*
 * Has the worker ask for @inode from page @start on. Doesn't sleep. The reference to the super
 * block keeps an unmounting from finding the inode busy: it is then finished by the worker.
 */
static void want_fill(struct inode *inode, struct ra_disk *disk, pgoff_t start)
{
	struct super_block *sb = inode->i_sb;
	unsigned int i;

	if (!can_be_asked(inode))
		return;
	spin_lock(&fills_lock);
	if (filling == inode)
		goto out;
	for (i = 0; i < fill_count; i++)
		if (fills[i].inode == inode)
			goto out;
	if (fill_count == MOST_FILLS || !atomic_inc_not_zero(&sb->s_active))
		goto out;
	if (!igrab(inode)) {
		/* The reader's own reference keeps this from being the last one. */
		atomic_dec(&sb->s_active);
		goto out;
	}
	fills[fill_count++] =
		(struct ra_fill){ .inode = inode, .sb = sb, .disk = disk, .start = start };
	queue_work(fill_queue, &fill_work);
out:
	spin_unlock(&fills_lock);
}

static bool same_look(const struct ra_look *a, const struct ra_look *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/*
 * The segments of @inode from page @start on, up to @pages; returns how many there are, 0 if the
 * location of @start is not known. Has the map filled where it is missing, old or about to end; if
 * @sample, for one in SAMPLE only of the files that this window ends. Doesn't sleep.
 */
u32 ra_map_segments(struct inode *inode, struct ra_disk *disk, pgoff_t start, u32 pages,
		    bool sample, struct ra_segment *segments, u32 most)
{
	static unsigned int small_files;
	u32 known = 0, used = 0, ahead = 0, low, high;
	struct ra_look look;
	struct ra_map *map;

	look_at(inode, &look);
	rcu_read_lock();
	hlist_for_each_entry_rcu(map, bucket_of(inode), node)
		if (map->inode == inode)
			break;
	if (map && start >= map->start && start - map->start < map->pages &&
	    same_look(&map->look, &look) && time_before(jiffies, map->filled + MAP_LIFE)) {
		u32 at = start - map->start;

		ahead = map->pages - at;
		for (low = 0, high = map->count - 1; low < high;) {
			u32 middle = (low + high) / 2;

			if (map->runs[middle].end <= at)
				low = middle + 1;
			else
				high = middle;
		}
		for (; low < map->count && known < pages && used < most; low++) {
			const struct ra_run *run = &map->runs[low];
			u32 here = min(run->end - at, pages - known);

			segments[used].pages = here;
			segments[used++].dev = run->disk ? &run->disk->model : NULL;
			known += here;
			at += here;
		}
	}
	rcu_read_unlock();
	/*
	 * The next window is asked for before it is needed; at the end of the file there is nothing
	 * more to ask.
	 */
	if (ahead >= 2 * pages || start + ahead >= DIV_ROUND_UP(look.size, PAGE_SIZE))
		return used;
	if (!sample || start + pages < DIV_ROUND_UP(look.size, PAGE_SIZE) ||
	    !(READ_ONCE(small_files) % SAMPLE))
		want_fill(inode, disk, start);
	if (sample)
		WRITE_ONCE(small_files, small_files + 1);
	return used;
}

/*
 * debugfs outrider_ra/locate: "FD PAGE" asks where that page of the writer's open file lies, past
 * every map; reading it says "DEVICE SECTOR", or "unknown".
 */
struct question { struct mutex lock; char answer[DISK_NAME_LEN + 24]; };

static ssize_t locate_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	struct question *question = file->private_data;
	unsigned long page;
	unsigned int number;
	struct file *about;
	char text[48];

	if (len >= sizeof(text) || copy_from_user(text, buf, len))
		return len >= sizeof(text) ? -EINVAL : -EFAULT;
	text[len] = 0;
	if (sscanf(text, "%u %lu", &number, &page) != 2)
		return -EINVAL;
	about = fget(number);
	if (!about)
		return -EBADF;
	mutex_lock(&fill_lock);
	mutex_lock(&question->lock);
	if (ask(file_inode(about), page, 1) || !extents->runs[0].disk)
		strscpy(question->answer, "unknown\n", sizeof(question->answer));
	else
		snprintf(question->answer, sizeof(question->answer), "%s %llu\n",
			 extents->runs[0].disk->name, extents->last_sector);
	mutex_unlock(&question->lock);
	mutex_unlock(&fill_lock);
	fput(about);
	return len;
}

static ssize_t locate_read(struct file *file, char __user *buf, size_t len, loff_t *pos)
{
	struct question *question = file->private_data;
	ssize_t done;

	mutex_lock(&question->lock);
	done = simple_read_from_buffer(buf, len, pos, question->answer, strlen(question->answer));
	mutex_unlock(&question->lock);
	return done;
}

static int locate_open(struct inode *inode, struct file *file)
{
	struct question *question = kzalloc(sizeof(*question), GFP_KERNEL);

	if (!question)
		return -ENOMEM;
	mutex_init(&question->lock);
	file->private_data = question;
	return 0;
}

static int locate_release(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

static const struct file_operations locate_fops = {
	.owner = THIS_MODULE,
	.open = locate_open,
	.read = locate_read,
	.write = locate_write,
	.release = locate_release,
};

int ra_maps_init(void)
{
	int err;

	extents = kvzalloc(sizeof(*extents), GFP_KERNEL);
	fill_queue = alloc_ordered_workqueue("outrider_ra", 0);
	if (!extents || !fill_queue) {
		err = -ENOMEM;
		goto free;
	}
	err = ra_redirect("fiemap_fill_next_extent", &extent_ops);
	if (err)
		goto free;
	debugfs_create_file("locate", 0600, ra_debug, NULL, &locate_fops);
	return 0;
free:
	if (fill_queue)
		destroy_workqueue(fill_queue);
	kvfree(extents);
	return err;
}

/*
 * Nothing asks for segments any more, and no provider is registered: each holds a reference to this
 * module.
 */
void ra_maps_exit(void)
{
	struct ra_map *map, *next;

	destroy_workqueue(fill_queue);
	debugfs_lookup_and_remove("locate", ra_debug);
	ra_redirect_end(&extent_ops);
	list_for_each_entry_safe(map, next, &maps_by_age, age)
		drop_map(map);
	kvfree(extents);
}
