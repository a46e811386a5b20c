// SPDX-License-Identifier: GPL-2.0
/*
 * The disks that outrider_ra knows: policy and limits in sysfs, counters in debugfs, and the model
 * of each device, from the completions of its reads (tracepoint block_rq_complete). A disk is
 * entered when a file on it is read or when it has served a request, under its number; from then on
 * the entry stays, so that nothing on the readahead path needs a reference. Numbers are handed out
 * anew when disks are plugged in again: an entry follows its name, for which policies are chosen.
 */
#include <linux/blk-mq.h>
#include <linux/debugfs.h>
#include <linux/hash.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include "ra.h"

#define BUCKET_BITS	6
#define MOST_DISKS	256
#define MOST_WANTED	16

static const char *const policy_names[RA_POLICIES] = { "stock", "paper", "model" };
static const char *const counter_names[RA_COUNTERS] = {
	[RA_SYNC] = "sync",	   [RA_ASYNC] = "async",
	[RA_UNKNOWN] = "unknown",  [RA_RANDOM] = "random",
	[RA_CASE1] = "case_disk",  [RA_CASE2] = "case_ssd",
	[RA_CASE3] = "case_mixed", [RA_WINDOWS] = "windows",
	[RA_PAGES] = "pages",	   [RA_STALLS] = "stalls",
	[RA_GROWN] = "grown",	   [RA_THRASHED] = "thrashed",
	[RA_FILLS] = "fills",	   [RA_FILL_ERRORS] = "fill_errors",
};

static struct hlist_head buckets[1 << BUCKET_BITS];
static LIST_HEAD(all_disks);
static DEFINE_MUTEX(disks_lock);	/* entering */
static unsigned int disks;
static struct kobject *root;
struct dentry *ra_debug;
static u8 default_policy = RA_STOCK;

/* Disks to enter that were met where nothing may sleep. */
static struct wanted {
	dev_t dev;
	char name[DISK_NAME_LEN];
	bool spins;
	const struct gendisk *gd;
} wanted[MOST_WANTED];
static unsigned int wanted_count;
static DEFINE_SPINLOCK(wanted_lock);
static void enter_wanted(struct work_struct *work);
static DECLARE_WORK(wanted_work, enter_wanted);

static int policy_parse(const char *text, u8 *policy)
{
	int i = sysfs_match_string(policy_names, text);

	if (i < 0) {
		pr_err("outrider_ra: policy '%.*s' is none of stock, paper, model\n",
		       (int)min(strcspn(text, "\n"), 16UL), text);
		return -EINVAL;
	}
	*policy = i;
	return 0;
}

static int policy_set(const char *text, const struct kernel_param *kp)
{
	return policy_parse(text, &default_policy);
}

static int policy_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%s\n", policy_names[default_policy]);
}

static const struct kernel_param_ops policy_ops = { .set = policy_set, .get = policy_get };
module_param_cb(policy, &policy_ops, NULL, 0644);
MODULE_PARM_DESC(policy, "policy of disks not entered yet: stock (default), paper or model");

/* The entry of @dev, or NULL. Any context. */
static struct ra_disk *disk_find(dev_t dev)
{
	struct ra_disk *disk;

	/* Entries are added at the head, and taken out only by unhash(). */
	rcu_read_lock();
	hlist_for_each_entry_rcu(disk, &buckets[hash_32(dev, BUCKET_BITS)], node)
		if (disk->dev == dev)
			break;
	rcu_read_unlock();
	return disk;
}

static bool disk_spins(struct gendisk *disk)
{
	return !blk_queue_nonrot(disk->queue);
}

/* sysfs: /sys/kernel/outrider_ra/DISK */

struct ra_attribute {
	struct attribute attr;
	size_t offset;
	u32 most;
};

static ssize_t number_show(struct ra_disk *disk, const struct ra_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(*(u32 *)((char *)disk + attr->offset)));
}

static ssize_t attr_show(struct kobject *kobj, struct attribute *a, char *buf)
{
	struct ra_disk *disk = container_of(kobj, struct ra_disk, kobj);
	const struct ra_attribute *attr = container_of(a, struct ra_attribute, attr);

	if (!attr->most)
		return sysfs_emit(buf, "%s\n", policy_names[READ_ONCE(disk->policy)]);
	return number_show(disk, attr, buf);
}

static ssize_t attr_store(struct kobject *kobj, struct attribute *a, const char *buf, size_t len)
{
	struct ra_disk *disk = container_of(kobj, struct ra_disk, kobj);
	const struct ra_attribute *attr = container_of(a, struct ra_attribute, attr);
	unsigned int value;
	int err;

	if (!attr->most)
		return policy_parse(buf, &disk->policy) ?: len;
	err = kstrtouint(buf, 0, &value);
	if (err || !value || value > attr->most) {
		pr_err("outrider_ra: %s/%s is 1 to %u\n", disk->name, attr->attr.name, attr->most);
		return err ?: -EINVAL;
	}
	WRITE_ONCE(*(u32 *)((char *)disk + attr->offset), value);
	return len;
}

#define RA_NUMBER(field, limit) \
	static struct ra_attribute attr_##field = { \
		.attr = { .name = #field, .mode = 0644 }, \
		.offset = offsetof(struct ra_disk, field), \
		.most = limit, \
	}

static struct ra_attribute attr_policy = { .attr = { .name = "policy", .mode = 0644 } };
RA_NUMBER(hdd_pages, 1 << 16);
RA_NUMBER(ssd_pages, 1 << 16);
RA_NUMBER(max_kb, 1 << 18);

static struct attribute *disk_attrs[] = {
	&attr_policy.attr, &attr_hdd_pages.attr, &attr_ssd_pages.attr, &attr_max_kb.attr, NULL
};
ATTRIBUTE_GROUPS(disk);

static const struct sysfs_ops disk_sysfs_ops = { .show = attr_show, .store = attr_store };

static void disk_release(struct kobject *kobj)
{
	struct ra_disk *disk = container_of(kobj, struct ra_disk, kobj);

	free_percpu(disk->counters);
	kfree(disk);
}

static const struct kobj_type ra_disk_type = {
	.release = disk_release,
	.sysfs_ops = &disk_sysfs_ops,
	.default_groups = disk_groups,
};

/* debugfs: outrider_ra/DISK */

static int disk_stats_show(struct seq_file *m, void *v)
{
	struct ra_disk *disk = m->private;
	struct ra_device model;
	int cpu, i;

	spin_lock_irq(&disk->lock);
	model = disk->model;
	spin_unlock_irq(&disk->lock);
	for (i = 0; i < RA_COUNTERS; i++) {
		u64 sum = 0;

		for_each_possible_cpu(cpu)
			sum += per_cpu_ptr(disk->counters, cpu)->of[i];
		seq_printf(m, "%s %llu\n", counter_names[i], sum);
	}
	seq_printf(m,
		   "positioning_us %llu\nlatency_us %llu\nbandwidth_kb_s %llu\nlost_percent %llu\nclass %s\n",
		   div_u64(model.positioning_ns, NSEC_PER_USEC),
		   div_u64(model.latency_ns, NSEC_PER_USEC), model.bandwidth,
		   model.busy_ns ? div64_u64(100 * model.lost_ns, model.busy_ns) : 0,
		   ra_device_is_disk(&model) ? "disk" : "ssd");
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(disk_stats);

/* The entry of this name, or NULL. disks_lock is held. */
static struct ra_disk *disk_named(const char *name)
{
	struct ra_disk *disk;

	list_for_each_entry(disk, &all_disks, all)
		if (!strcmp(disk->name, name))
			return disk;
	return NULL;
}

/* Takes an entry from its number. disks_lock is held. */
static void unhash(struct ra_disk *disk)
{
	if (hlist_unhashed(&disk->node))
		return;
	hlist_del_init_rcu(&disk->node);
	/* Nobody goes on from it along another chain. */
	synchronize_rcu();
}

/* The entry of this number and name; NULL without memory. May sleep. */
static struct ra_disk *enter(dev_t dev, const char *name, bool spins)
{
	struct ra_disk *disk;

	mutex_lock(&disks_lock);
	disk = disk_find(dev);
	if (disk && !strcmp(disk->name, name))
		goto out;
	if (disk)
		unhash(disk);
	disk = disk_named(name);
	if (disk) {
		unhash(disk);
		/* What was measured may have been another disk. */
		spin_lock_irq(&disk->lock);
		ra_device_init(&disk->model, spins);
		spin_unlock_irq(&disk->lock);
		WRITE_ONCE(disk->usual, NULL);
		disk->dev = dev;
		hlist_add_head_rcu(&disk->node, &buckets[hash_32(dev, BUCKET_BITS)]);
		goto out;
	}
	if (disks >= MOST_DISKS)
		goto out;
	disk = kzalloc(sizeof(*disk), GFP_KERNEL);
	if (!disk)
		goto out;
	disk->counters = alloc_percpu(struct ra_counters);
	if (!disk->counters) {
		kfree(disk);
		disk = NULL;
		goto out;
	}
	disk->dev = dev;
	strscpy(disk->name, name, sizeof(disk->name));
	disk->policy = default_policy;
	disk->hdd_pages = 128;		/* section 4.4.3, exchanged: see ra_policy.c */
	disk->ssd_pages = 8;
	disk->max_kb = 16384;
	spin_lock_init(&disk->lock);
	ra_device_init(&disk->model, spins);
	if (kobject_init_and_add(&disk->kobj, &ra_disk_type, root, "%s", name)) {
		kobject_put(&disk->kobj);
		disk = NULL;
		goto out;
	}
	debugfs_create_file(name, 0400, ra_debug, disk, &disk_stats_fops);
	list_add_tail(&disk->all, &all_disks);
	hlist_add_head_rcu(&disk->node, &buckets[hash_32(dev, BUCKET_BITS)]);
	disks++;
out:
	mutex_unlock(&disks_lock);
	return disk;
}

/* The entry of a disk that a provider names, entered if it is new; NULL without memory. May sleep. */
struct ra_disk *ra_disk_get(dev_t dev, const char *name, bool spins)
{
	return disk_find(dev) ?: enter(dev, name, spins);
}

static void enter_wanted(struct work_struct *work)
{
	struct ra_disk *disk;
	struct wanted one;

	for (;;) {
		spin_lock_irq(&wanted_lock);
		if (!wanted_count) {
			spin_unlock_irq(&wanted_lock);
			return;
		}
		one = wanted[--wanted_count];
		spin_unlock_irq(&wanted_lock);
		disk = enter(one.dev, one.name, one.spins);
		if (disk)
			WRITE_ONCE(disk->gd, one.gd);
	}
}

/*
 * Has @disk entered later. Any context; lost if there are too many at once, until it is met again.
 */
static void disk_want(struct gendisk *gd)
{
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&wanted_lock, flags);
	for (i = 0; i < wanted_count; i++)
		if (wanted[i].dev == disk_devt(gd))
			goto out;
	if (wanted_count == MOST_WANTED)
		goto out;
	wanted[i].dev = disk_devt(gd);
	wanted[i].gd = gd;
	wanted[i].spins = disk_spins(gd);
	strscpy(wanted[i].name, gd->disk_name, DISK_NAME_LEN);
	wanted_count++;
	queue_work(system_unbound_wq, &wanted_work);
out:
	spin_unlock_irqrestore(&wanted_lock, flags);
}

/*
 * The entry of a disk. NULL: it is not entered under its name yet, and will be. Any context, and
 * doesn't sleep.
 */
struct ra_disk *ra_disk_of(struct gendisk *gd)
{
	struct ra_disk *disk = disk_find(disk_devt(gd));

	if (likely(disk && READ_ONCE(disk->gd) == gd))
		return disk;
	disk_want(gd);
	return NULL;
}

/* The device models */

static struct tracepoint *complete_point;

static void read_completed(void *data, struct request *rq, blk_status_t error,
			   unsigned int nr_bytes)
{
	struct gendisk *gd = rq->q->disk;
	struct ra_disk *disk;
	unsigned long flags;

	/*
	 * Without accounting (queue/iostats) a request has no times; a disk without them stays what
	 * its kind is known for.
	 */
	if (req_op(rq) != REQ_OP_READ || error || !gd || !rq->start_time_ns ||
	    blk_rq_is_passthrough(rq))
		return;
	disk = ra_disk_of(gd);
	if (!disk)
		return;
	spin_lock_irqsave(&disk->lock, flags);
	ra_device_sample(&disk->model, rq->start_time_ns, ktime_get_ns(),
			 blk_rq_pos(rq) << SECTOR_SHIFT, nr_bytes);
	spin_unlock_irqrestore(&disk->lock, flags);
}

static void find_point(struct tracepoint *point, void *data)
{
	if (!strcmp(point->name, "block_rq_complete"))
		complete_point = point;
}

int ra_disks_init(void)
{
	int err;

	for_each_kernel_tracepoint(find_point, NULL);
	if (!complete_point) {
		pr_err("outrider_ra: this kernel has no tracepoint block_rq_complete\n");
		return -ENOENT;
	}
	root = kobject_create_and_add("outrider_ra", kernel_kobj);
	if (!root)
		return -ENOMEM;
	ra_debug = debugfs_create_dir("outrider_ra", NULL);
	err = tracepoint_probe_register(complete_point, read_completed, NULL);
	if (err) {
		debugfs_remove(ra_debug);
		kobject_put(root);
	}
	return err;
}

/* Nothing calls in any more but the tracepoint. */
void ra_disks_exit(void)
{
	struct ra_disk *disk, *next;

	tracepoint_probe_unregister(complete_point, read_completed, NULL);
	tracepoint_synchronize_unregister();
	cancel_work_sync(&wanted_work);
	debugfs_remove(ra_debug);
	list_for_each_entry_safe(disk, next, &all_disks, all)
		kobject_put(&disk->kobj);
	kobject_put(root);
}
