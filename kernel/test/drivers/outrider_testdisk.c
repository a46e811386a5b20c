// SPDX-License-Identifier: GPL-2.0
/*
 * A disk and an SSD whose contents lie in memory and whose times are those of a model, for tests
 * only: /dev/otdisk and /dev/otssd. Nothing else that a guest has will do: null_blk has no seeks,
 * dm-delay counts in jiffies, and a device of the host's takes the host's time.
 *
 * The disk is one head over turning platters. A request costs
 *   - a seek, seek_min_us + (seek_max_us - seek_min_us) * sqrt(distance / size of the disk): the
 *     memory that stands for the disk is spread over the whole stroke, so that a disk of 300 MB has
 *     the seeks of one of 4 TB;
 *   - the wait until its first sector comes by, of a turn of 60 s / rpm. Where a sector lies on the
 *     turn follows from its number; a track holds what passes in a turn, and tracks are skewed so
 *     that a run goes on without a wait;
 *   - the transfer at disk_mbps.
 * After a request the drive reads on into its buffer, disk_lookahead_kb at most, until the next one
 * comes; what is there is had at link_mbps. With disk_lookahead_kb=0, a run whose next request
 * comes a moment too late loses a turn: the way of disks without a buffer of their own, and of
 * disks behind a controller that turns it off. Requests are served in the order of their arrival.
 *
 * The SSD has ssd_channels, over which pages of 16 KiB are dealt by their number. Reading one (or a
 * part of it) occupies its channel for ssd_page_us; ssd_overhead_us pass besides, and the link
 * carries link_mbps. With the defaults: 117 us for 4 KiB alone, 40,000 of them a second together.
 * Writes cost the same as reads on both.
 *
 * debugfs outrider_testdisk/NAME: requests, bytes and what the head did; writing to it sets them to
 * zero.
 */
#include <linux/blk-mq.h>
#include <linux/debugfs.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

static unsigned int disk_mb = 288;
module_param(disk_mb, uint, 0444);
MODULE_PARM_DESC(disk_mb, "size of /dev/otdisk, MiB");
static unsigned int ssd_mb = 320;
module_param(ssd_mb, uint, 0444);
MODULE_PARM_DESC(ssd_mb, "size of /dev/otssd, MiB");
static unsigned int rpm = 7200;
module_param(rpm, uint, 0444);
MODULE_PARM_DESC(rpm, "turns of the disk in a minute");
static unsigned int disk_mbps = 140;
module_param(disk_mbps, uint, 0444);
MODULE_PARM_DESC(disk_mbps, "transfer of the disk, MB/s");
static unsigned int seek_min_us = 1000;
module_param(seek_min_us, uint, 0444);
MODULE_PARM_DESC(seek_min_us, "seek to the next track, us");
static unsigned int seek_max_us = 6500;
module_param(seek_max_us, uint, 0444);
MODULE_PARM_DESC(seek_max_us, "seek over the whole disk, us");
static unsigned int disk_lookahead_kb = 1024;
module_param(disk_lookahead_kb, uint, 0644);
MODULE_PARM_DESC(disk_lookahead_kb, "what the drive reads on by itself, KiB");
static unsigned int link_mbps = 550;
module_param(link_mbps, uint, 0444);
MODULE_PARM_DESC(link_mbps, "transfer over the link of either device, MB/s");
static unsigned int ssd_channels = 4;
module_param(ssd_channels, uint, 0444);
MODULE_PARM_DESC(ssd_channels, "channels of the SSD, 1 to 32");
static unsigned int ssd_page_us = 100;
module_param(ssd_page_us, uint, 0444);
MODULE_PARM_DESC(ssd_page_us, "time that reading a page of 16 KiB takes its channel, us");
static unsigned int ssd_overhead_us = 10;
module_param(ssd_overhead_us, uint, 0444);
MODULE_PARM_DESC(ssd_overhead_us, "time of a request besides, us");

#define MAX_CHANNELS		32
#define SSD_PAGE_SHIFT		14
#define DEPTH			32
/* Skipping at most this share of a turn forward needs no seek: the platter brings it by. */
#define SHORT_SKIP		2

struct test_stats {
	u64 reads, writes, read_bytes, write_bytes;
	/*
	 * the disk's: requests with a seek, with a wait for the platter, and those had from its
	 * buffer without either
	 */
	u64 seeks, turns_waited_ns, buffered;
};

struct test_request {
	struct list_head node;
	u64 done_at;		/* ns of the monotonic clock */
};

struct test_device {
	const char *name;
	bool spins;
	u64 size;		/* bytes */
	u8 *data;
	struct gendisk *disk;
	struct blk_mq_tag_set tags;
	struct hrtimer timer;
	spinlock_t lock;
	struct list_head pending;	/* struct test_request, by done_at */
	u64 busy_until;
	/*
	 * disk: where the head is once it is idle, and from where on its buffer holds what lies
	 * before the head
	 */
	u64 head, buffer_start;
	u64 channel_until[MAX_CHANNELS];
	u64 link_until;
	struct test_stats stats;
	struct dentry *entry;
};

static struct dentry *debug_root;
static struct test_device hard_disk = { .name = "otdisk", .spins = true };
static struct test_device ssd = { .name = "otssd" };

static u64 transfer_ns(u64 bytes, unsigned int mbps)
{
	return div_u64(bytes * 1000, mbps);
}

/* The wait from @when until the sector at byte @pos is under the head, ns. */
static u64 turn_wait(u64 pos, u64 when, u64 turn, u64 turn_bytes)
{
	u64 angle, under_head;

	div64_u64_rem(pos, turn_bytes, &angle);
	angle = transfer_ns(angle, disk_mbps);
	div64_u64_rem(when, turn, &under_head);
	return angle >= under_head ? angle - under_head : turn - (under_head - angle);
}

/* When the disk has done a request that came at @now; moves its head. */
static u64 disk_done_at(struct test_device *dev, u64 pos, u64 bytes, u64 now)
{
	const u64 turn = div_u64(60ULL * NSEC_PER_SEC, rpm);
	const u64 turn_bytes = div_u64(turn * disk_mbps, 1000);
	const u64 lookahead = (u64)disk_lookahead_kb << 10;
	u64 idle = now > dev->busy_until ? now - dev->busy_until : 0;
	u64 when = max(now, dev->busy_until);
	/* The buffer holds buffer_start..ready: the drive has read on since it became idle. */
	u64 read_on = div_u64(min_t(u64, idle, NSEC_PER_SEC) * disk_mbps, 1000);
	u64 ready = min(dev->head + min(read_on, lookahead), dev->size);
	u64 buffered = 0, wait;

	if (pos >= dev->buffer_start && pos <= ready && lookahead) {
		buffered = min(ready - pos, bytes);
		dev->stats.buffered += buffered > 0;
		when += transfer_ns(buffered, link_mbps);
	}
	if (buffered == bytes) {
		dev->head = ready;
		dev->busy_until = when;
		return when;
	}
	pos += buffered;
	bytes -= buffered;
	/*
	 * A run goes on if the next request was there in time, or while the drive still reads on by
	 * itself.
	 */
	if (pos != ready || (idle && read_on > lookahead) || (idle && !lookahead)) {
		u64 distance = pos > ready ? pos - ready : ready - pos;

		if (pos < ready || distance > turn_bytes / SHORT_SKIP) {
			/* of the stroke, in 2^-20 */
			u64 share = div64_u64(distance << 20, dev->size);

			when += NSEC_PER_USEC * (seek_min_us +
				(((u64)(seek_max_us - seek_min_us) * int_sqrt64(share)) >> 10));
			dev->stats.seeks++;
		}
		wait = turn_wait(pos, when, turn, turn_bytes);
		dev->stats.turns_waited_ns += wait;
		when += wait;
		dev->buffer_start = pos;
	}
	when += transfer_ns(bytes, disk_mbps);
	dev->head = pos + bytes;
	if (dev->head - dev->buffer_start > lookahead)
		dev->buffer_start = dev->head - lookahead;
	dev->busy_until = when;
	return when;
}

/* When the SSD has done a request that came at @now. */
static u64 ssd_done_at(struct test_device *dev, u64 pos, u64 bytes, u64 now)
{
	u64 page = pos >> SSD_PAGE_SHIFT, last = (pos + bytes - 1) >> SSD_PAGE_SHIFT;
	u64 done = now;

	for (; page <= last; page++) {
		u64 *until = &dev->channel_until[page % ssd_channels];

		*until = max(*until, now) + ssd_page_us * NSEC_PER_USEC;
		done = max(done, *until);
	}
	dev->link_until = max(dev->link_until, now) + transfer_ns(bytes, link_mbps);
	return max(done, dev->link_until) + ssd_overhead_us * NSEC_PER_USEC;
}

static enum hrtimer_restart requests_done(struct hrtimer *timer)
{
	struct test_device *dev = container_of(timer, struct test_device, timer);
	struct test_request *rq, *next;
	enum hrtimer_restart again = HRTIMER_NORESTART;
	u64 now = ktime_get_ns();
	unsigned long flags;
	LIST_HEAD(done);

	spin_lock_irqsave(&dev->lock, flags);
	list_for_each_entry_safe(rq, next, &dev->pending, node) {
		if (rq->done_at > now) {
			hrtimer_set_expires(timer, ns_to_ktime(rq->done_at));
			again = HRTIMER_RESTART;
			break;
		}
		list_move_tail(&rq->node, &done);
	}
	spin_unlock_irqrestore(&dev->lock, flags);
	list_for_each_entry_safe(rq, next, &done, node)
		blk_mq_end_request(blk_mq_rq_from_pdu(rq), BLK_STS_OK);
	return again;
}

static void copy_data(struct test_device *dev, struct request *rq)
{
	u8 *at = dev->data + (blk_rq_pos(rq) << SECTOR_SHIFT);
	struct req_iterator iter;
	struct bio_vec bvec;

	rq_for_each_segment(bvec, rq, iter) {
		if (req_op(rq) == REQ_OP_WRITE)
			memcpy_from_bvec(at, &bvec);
		else
			memcpy_to_bvec(&bvec, at);
		at += bvec.bv_len;
	}
}

static blk_status_t queue_request(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct test_device *dev = hctx->queue->queuedata;
	struct test_request *mine = blk_mq_rq_to_pdu(bd->rq), *other;
	u64 pos = blk_rq_pos(bd->rq) << SECTOR_SHIFT, bytes = blk_rq_bytes(bd->rq),
	    now = ktime_get_ns();
	enum req_op op = req_op(bd->rq);
	struct list_head *after;
	unsigned long flags;

	blk_mq_start_request(bd->rq);
	if (op != REQ_OP_READ && op != REQ_OP_WRITE) {
		blk_mq_end_request(bd->rq, op == REQ_OP_FLUSH ? BLK_STS_OK : BLK_STS_NOTSUPP);
		return BLK_STS_OK;
	}
	copy_data(dev, bd->rq);
	spin_lock_irqsave(&dev->lock, flags);
	mine->done_at =
		dev->spins ? disk_done_at(dev, pos, bytes, now) : ssd_done_at(dev, pos, bytes, now);
	if (op == REQ_OP_READ) {
		dev->stats.reads++;
		dev->stats.read_bytes += bytes;
	} else {
		dev->stats.writes++;
		dev->stats.write_bytes += bytes;
	}
	after = &dev->pending;
	list_for_each_entry_reverse(other, &dev->pending, node)
		if (other->done_at <= mine->done_at) {
			after = &other->node;
			break;
		}
	list_add(&mine->node, after);
	if (after == &dev->pending)
		hrtimer_start(&dev->timer, ns_to_ktime(mine->done_at), HRTIMER_MODE_ABS);
	spin_unlock_irqrestore(&dev->lock, flags);
	return BLK_STS_OK;
}

static const struct blk_mq_ops queue_ops = { .queue_rq = queue_request };
static const struct block_device_operations disk_ops = { .owner = THIS_MODULE };

static int stats_show(struct seq_file *m, void *v)
{
	struct test_device *dev = m->private;
	struct test_stats s;

	spin_lock_irq(&dev->lock);
	s = dev->stats;
	spin_unlock_irq(&dev->lock);
	seq_printf(m, "reads %llu\nread_bytes %llu\nwrites %llu\nwrite_bytes %llu\n",
		   s.reads, s.read_bytes, s.writes, s.write_bytes);
	if (dev->spins)
		seq_printf(m, "seeks %llu\nturns_waited_us %llu\nbuffered %llu\n",
			   s.seeks, div_u64(s.turns_waited_ns, NSEC_PER_USEC), s.buffered);
	return 0;
}

static int stats_open(struct inode *inode, struct file *file)
{
	return single_open(file, stats_show, inode->i_private);
}

static ssize_t stats_reset(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	struct test_device *dev = file_inode(file)->i_private;

	spin_lock_irq(&dev->lock);
	memset(&dev->stats, 0, sizeof(dev->stats));
	spin_unlock_irq(&dev->lock);
	return len;
}

static const struct file_operations stats_fops = {
	.owner = THIS_MODULE,
	.open = stats_open,
	.read = seq_read,
	.write = stats_reset,
	.llseek = seq_lseek,
	.release = single_release,
};

static void remove_device(struct test_device *dev)
{
	if (!dev->disk)
		return;
	debugfs_remove(dev->entry);
	del_gendisk(dev->disk);
	put_disk(dev->disk);
	blk_mq_free_tag_set(&dev->tags);
	hrtimer_cancel(&dev->timer);
	vfree(dev->data);
}

static int add_device(struct test_device *dev, unsigned int mb)
{
	struct gendisk *disk;
	int err = -ENOMEM;

	dev->size = (u64)mb << 20;
	dev->data = vzalloc(dev->size);
	if (!dev->data)
		return -ENOMEM;
	spin_lock_init(&dev->lock);
	INIT_LIST_HEAD(&dev->pending);
	hrtimer_init(&dev->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	dev->timer.function = requests_done;
	dev->tags.ops = &queue_ops;
	dev->tags.nr_hw_queues = 1;
	dev->tags.queue_depth = DEPTH;
	dev->tags.numa_node = NUMA_NO_NODE;
	dev->tags.cmd_size = sizeof(struct test_request);
	dev->tags.flags = BLK_MQ_F_SHOULD_MERGE;
	err = blk_mq_alloc_tag_set(&dev->tags);
	if (err)
		goto free_data;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
	{
		struct queue_limits limits = {
			.max_hw_sectors = 2560,
			.features = dev->spins ? BLK_FEAT_ROTATIONAL : 0,
		};

		disk = blk_mq_alloc_disk(&dev->tags, &limits, dev);
	}
#else
	disk = blk_mq_alloc_disk(&dev->tags, dev);
#endif
	if (IS_ERR(disk)) {
		err = PTR_ERR(disk);
		goto free_tags;
	}
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 9, 0)
	blk_queue_max_hw_sectors(disk->queue, 2560);
	if (!dev->spins)
		blk_queue_flag_set(QUEUE_FLAG_NONROT, disk->queue);
#endif
	disk->fops = &disk_ops;
	disk->private_data = dev;
	snprintf(disk->disk_name, sizeof(disk->disk_name), "%s", dev->name);
	set_capacity(disk, dev->size >> SECTOR_SHIFT);
	err = add_disk(disk);
	if (err)
		goto put;
	dev->disk = disk;
	dev->entry = debugfs_create_file(dev->name, 0600, debug_root, dev, &stats_fops);
	return 0;
put:
	put_disk(disk);
free_tags:
	blk_mq_free_tag_set(&dev->tags);
free_data:
	vfree(dev->data);
	return err;
}

static void remove_devices(void)
{
	remove_device(&ssd);
	remove_device(&hard_disk);
	debugfs_remove(debug_root);
}

static void __exit testdisk_exit(void)
{
	remove_devices();
}

static int __init testdisk_init(void)
{
	int err;

	if (!ssd_channels || ssd_channels > MAX_CHANNELS || !rpm || !disk_mbps || !link_mbps ||
	    seek_max_us < seek_min_us || !disk_mb || !ssd_mb) {
		pr_err("outrider_testdisk: ssd_channels is 1 to %d, sizes and rates are not 0, seek_min_us <= seek_max_us\n",
		       MAX_CHANNELS);
		return -EINVAL;
	}
	debug_root = debugfs_create_dir("outrider_testdisk", NULL);
	err = add_device(&hard_disk, disk_mb);
	if (!err)
		err = add_device(&ssd, ssd_mb);
	if (err)
		remove_devices();
	return err;
}

module_init(testdisk_init);
module_exit(testdisk_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Disk and SSD models in memory, for Outrider's tests");
