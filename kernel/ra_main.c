// SPDX-License-Identifier: GPL-2.0
/*
 * outrider_ra: device-aware readahead for stock kernels.
 *
 * Where the kernel decides how far to read ahead, in page_cache_sync_ra() (a page is missing) and
 * page_cache_async_ra() (a page marked by the window before is met), ftrace leads the call to us if
 * the file's disk has a policy other than stock (DR1). We work out the window (DR4) and have the
 * kernel read it: through page_cache_ra_unbounded(), or where the file system uses large folios
 * through the kernel's own function, with a state in which it can only choose our window. What we
 * have no opinion on, the kernel's own function does: random reads, files of unknown location, and
 * everything that isn't a regular file on a block device. A call that we hand on carries our mark
 * in its readahead_control and is let through.
 *
 * Unloading: calls can sleep inside of us. Each is counted before it gets here, and after the last
 * one has gone, synchronize_rcu_tasks() waits for those that are still on their way out.
 */
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/vmstat.h>
#include "ra.h"

#define CREATE_TRACE_POINTS
#include "ra_trace.h"

#define MOST_SEGMENTS	32
/* Pages are allocated and submitted in pieces of this many, as force_page_cache_ra() does. */
#define CHUNK_PAGES	512

static DEFINE_PER_CPU(long, calls_in_flight);
static unsigned long handed_on;		/* its address marks calls that are not for us */

static long calls(void)
{
	long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += *per_cpu_ptr(&calls_in_flight, cpu);
	return sum;
}

static bool is_handed_on(const struct readahead_control *rac)
{
	return rac->_pflags == (unsigned long)&handed_on;
}

/*
 * What a window may be: the block device's settings, and a sixteenth of the memory that is free or
 * easily had.
 */
static struct ra_limits limits_of(const struct ra_disk *disk, const struct file_ra_state *ra)
{
	unsigned long memory = (global_zone_page_state(NR_FREE_PAGES) +
				global_node_page_state(NR_INACTIVE_FILE)) / 16;

	return (struct ra_limits){
		.stock_max = ra->ra_pages,
		.hdd_pages = READ_ONCE(disk->hdd_pages),
		.ssd_pages = READ_ONCE(disk->ssd_pages),
		.max_pages = min_t(unsigned long, READ_ONCE(disk->max_kb) >> (PAGE_SHIFT - 10),
				   memory),
	};
}

/* The window from @start on; false if its location isn't known. */
static bool choose(struct readahead_control *rac, struct ra_disk *disk, pgoff_t start,
		   const struct ra_request *rq, struct ra_window *window)
{
	struct inode *inode = rac->mapping->host;
	struct ra_limits limits = limits_of(disk, rac->ra);
	struct ra_segment segments[MOST_SEGMENTS];
	bool paper = READ_ONCE(disk->policy) == RA_PAPER;
	struct ra_disk *usual = disk;
	u32 horizon = (paper ? ra_paper_horizon : ra_model_horizon)(rq, &limits);
	u32 count = 0;

	if (ra_providers_claim(inode->i_sb->s_bdev->bd_disk)) {
		count = ra_map_segments(inode, disk, start, horizon, !paper, segments,
					MOST_SEGMENTS);
		/*
		 * Most files are read whole before anyone could have asked: they lie where those
		 * before them did.
		 */
		usual = paper ? NULL : READ_ONCE(disk->usual);
		if (!count)
			ra_count(disk, RA_UNKNOWN, 1);
		if (!count && !usual)
			return false;
	}
	if (!count) {
		segments[0] = (struct ra_segment){ .pages = horizon, .dev = &usual->model };
		count = 1;
	}
	*window = (paper ? ra_paper_window : ra_model_window)(rq, &limits, segments, count);
	ra_count(disk, RA_CASE1 + window->location - 1, 1);
	ra_count(disk, RA_WINDOWS, 1);
	if (rq->stalled)
		ra_count(disk, RA_STALLS, 1);
	if (!rq->sync && window->pages > rq->previous && rq->previous >= limits.stock_max)
		ra_count(disk, RA_GROWN, 1);
	trace_outrider_ra_window(inode->i_sb->s_dev, inode->i_ino, start, rq, window);
	return true;
}

/* Reads @window from @start on, clipped to the end of the file as do_page_cache_ra() does. */
static void read_window(struct readahead_control *rac, struct ra_disk *disk, pgoff_t start,
			struct ra_window *window)
{
	loff_t size = i_size_read(rac->mapping->host);
	pgoff_t end = DIV_ROUND_UP_ULL(size, PAGE_SIZE);
	u32 pages, at = 0, marker = window->pages - window->lookahead;

	if (start >= end)
		return;
	pages = min_t(pgoff_t, window->pages, end - start);
	ra_count(disk, RA_PAGES, pages);
	while (at < pages) {
		u32 chunk = min_t(u32, pages - at, CHUNK_PAGES);
		bool marked = window->lookahead && marker >= at && marker < at + chunk;
		DEFINE_READAHEAD(mine, rac->file, rac->ra, rac->mapping, start + at);

		page_cache_ra_unbounded(&mine, chunk, marked ? chunk - (marker - at) : 0);
		at += chunk;
	}
}

/*
 * Has page_cache_async_ra() read @pages from @start on, in large folios: to the copy of the
 * reader's state that it sees, the window before ended at @start and was of the largest size
 * allowed, so that it takes the same again.
 */
static void read_large(struct readahead_control *rac, struct folio *folio, pgoff_t start, u32 pages)
{
	struct file_ra_state state = *rac->ra;
	DEFINE_READAHEAD(mine, rac->file, &state, rac->mapping, folio->index);

	state.start = start - pages;
	state.size = pages;
	state.async_size = start - folio->index;
	state.ra_pages = pages;
	mine._pflags = (unsigned long)&handed_on;
	page_cache_async_ra(&mine, folio, 1);
	rac->ra->start = state.start;
	rac->ra->size = state.size;
	rac->ra->async_size = state.async_size;
}

static bool sync_window(struct readahead_control *rac, struct ra_disk *disk, unsigned long asked)
{
	struct file_ra_state *ra = rac->ra;
	pgoff_t index = readahead_index(rac), previous = (u64)ra->prev_pos >> PAGE_SHIFT;
	struct ra_request rq = { .sync = true, .asked = min_t(unsigned long, asked, 1 << 24) };
	struct ra_window window;

	/*
	 * Sequential is what it is to page_cache_sync_ra(): the file's start, or where the last
	 * read ended.
	 */
	if (index && index - previous > 1) {
		ra_count(disk, RA_RANDOM, 1);
		return false;
	}
	rq.thrashed = index > ra->start && index - ra->start < ra->size;
	if (rq.thrashed)
		ra_count(disk, RA_THRASHED, 1);
	if (!choose(rac, disk, index, &rq, &window))
		return false;
	ra->start = index;
	ra->size = window.pages;
	ra->async_size = window.lookahead;
	read_window(rac, disk, index, &window);
	return true;
}

static bool async_window(struct readahead_control *rac, struct ra_disk *disk, struct folio *folio,
			 unsigned long asked)
{
	struct file_ra_state *ra = rac->ra;
	struct ra_request rq = { .stalled = !folio_test_uptodate(folio) };
	struct ra_window window;
	pgoff_t start;

	if (folio_test_writeback(folio))	/* the same bit is PG_reclaim */
		return false;
	if (folio->index ==
	    round_down(ra->start + ra->size - ra->async_size, 1UL << folio_order(folio))) {
		start = ra->start + ra->size;
		rq.previous = ra->size;
	} else {
		/*
		 * Interleaved readers of one descriptor: what is cached from here on tells the
		 * window before.
		 */
		u32 most = max_t(u32, ra->ra_pages, READ_ONCE(disk->max_kb) >> (PAGE_SHIFT - 10));

		rcu_read_lock();
		start = page_cache_next_miss(rac->mapping, folio->index + 1, most);
		rcu_read_unlock();
		if (!start || start - folio->index > most)
			return false;
		rq.previous = start - folio->index + min_t(unsigned long, asked, ra->ra_pages);
	}
	if (!choose(rac, disk, start, &rq, &window))
		return false;
	if (mapping_large_folio_support(rac->mapping) && window.lookahead == window.pages) {
		pgoff_t end = DIV_ROUND_UP_ULL(i_size_read(rac->mapping->host), PAGE_SIZE);

		ra_count(disk, RA_PAGES,
			 start < end ? min_t(pgoff_t, window.pages, end - start) : 0);
		read_large(rac, folio, start, window.pages);
		return true;
	}
	folio_clear_readahead(folio);
	ra->start = start;
	ra->size = window.pages;
	ra->async_size = window.lookahead;
	read_window(rac, disk, start, &window);
	return true;
}

static struct ra_disk *disk_of(const struct readahead_control *rac)
{
	return ra_disk_of(rac->mapping->host->i_sb->s_bdev->bd_disk);
}

/* page_cache_sync_ra() leads here. The disk may have become another's since. */
static void our_sync_ra(struct readahead_control *rac, unsigned long asked)
{
	struct ra_disk *disk = disk_of(rac);

	if (disk)
		ra_count(disk, RA_SYNC, 1);
	if (!disk || !sync_window(rac, disk, asked)) {
		rac->_pflags = (unsigned long)&handed_on;
		page_cache_sync_ra(rac, asked);
	}
	this_cpu_dec(calls_in_flight);
}

/* page_cache_async_ra() leads here. */
static void our_async_ra(struct readahead_control *rac, struct folio *folio, unsigned long asked)
{
	struct ra_disk *disk = disk_of(rac);

	if (disk)
		ra_count(disk, RA_ASYNC, 1);
	if (!disk || !async_window(rac, disk, folio, asked)) {
		rac->_pflags = (unsigned long)&handed_on;
		page_cache_async_ra(rac, folio, asked);
	}
	this_cpu_dec(calls_in_flight);
}

/* Whether a call is for us: no sleeping, no locks. A disk that is not entered yet will be. */
static bool notrace wants(const struct readahead_control *rac)
{
	struct inode *inode = rac->mapping->host;
	struct ra_disk *disk;

	if (is_handed_on(rac) || !inode || !S_ISREG(inode->i_mode) || !inode->i_sb->s_bdev ||
	    IS_DAX(inode))
		return false;
	if (!rac->ra->ra_pages || (rac->file && (rac->file->f_mode & FMODE_RANDOM)))
		return false;
	disk = disk_of(rac);
	return disk && READ_ONCE(disk->policy) != RA_STOCK;
}

static void notrace lead_sync(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			      struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);

	if (regs && wants((struct readahead_control *)regs->di)) {
		this_cpu_inc(calls_in_flight);
		regs->ip = (unsigned long)our_sync_ra;
	}
}

static void notrace lead_async(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			       struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);

	if (regs && wants((struct readahead_control *)regs->di)) {
		this_cpu_inc(calls_in_flight);
		regs->ip = (unsigned long)our_async_ra;
	}
}

static struct ftrace_ops sync_ops = {
	.func = lead_sync,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY,
};
static struct ftrace_ops async_ops = {
	.func = lead_async,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY,
};

/* The address of a symbol, through a kprobe: kallsyms_lookup_name isn't exported. */
static unsigned long address_of(const char *symbol)
{
	struct kprobe probe = { .symbol_name = symbol };
	unsigned long address;

	if (register_kprobe(&probe))
		return 0;
	address = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return address;
}

/* Has @ops called where @symbol begins. */
int ra_redirect(const char *symbol, struct ftrace_ops *ops)
{
	/*
	 * With ENDBR, ftrace's place is behind the symbol's first byte; ftrace_set_filter_ip()
	 * looks for it from there.
	 */
	unsigned long place = address_of(symbol);
	int err = place ? ftrace_set_filter_ip(ops, place, 0, 0) : -ENOENT;

	if (!err) {
		err = register_ftrace_function(ops);
		if (err)
			ftrace_set_filter_ip(ops, place, 1, 0);
	}
	if (err == -EBUSY)
		pr_err("outrider_ra: %s is redirected by another module already\n", symbol);
	else if (err)
		pr_err("outrider_ra: %s cannot be redirected on this kernel (%d)\n", symbol, err);
	return err;
}

void ra_redirect_end(struct ftrace_ops *ops)
{
	unregister_ftrace_function(ops);
	ftrace_free_filter(ops);
}

/* No call comes in any more; waits for those that are here. */
static void drain(void)
{
	while (calls())
		schedule_timeout_uninterruptible(1);
	synchronize_rcu_tasks();
}

static int __init ra_init(void)
{
	int err = ra_disks_init();

	if (err)
		return err;
	err = ra_maps_init();
	if (err)
		goto disks;
	err = ra_redirect("page_cache_sync_ra", &sync_ops);
	if (err)
		goto maps;
	err = ra_redirect("page_cache_async_ra", &async_ops);
	if (!err)
		return 0;
	ra_redirect_end(&sync_ops);
	drain();
maps:
	ra_maps_exit();
disks:
	ra_disks_exit();
	return err;
}

static void __exit ra_exit(void)
{
	ra_redirect_end(&sync_ops);
	ra_redirect_end(&async_ops);
	drain();
	ra_maps_exit();
	ra_disks_exit();
}

module_init(ra_init);
module_exit(ra_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Outrider: device-aware readahead");
