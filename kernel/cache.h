/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef OUTRIDER_CACHE_H
#define OUTRIDER_CACHE_H

#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>

#include "cache_map.h"

/*
 * What is known of one file. Found by its address_space, without locks (RCU), from the probes.
 * Lives as long as the table or somebody else holds a reference; the inode may be gone before it:
 * then all its bits are clear, because eviction takes out every page, and they are right for
 * whichever inode comes to lie at the same address.
 */
struct ocache_file {
	struct hlist_node node;
	struct address_space *mapping;
	struct ocache_map __rcu *map;
	/* log2 of the pages per bit. */
	unsigned int shift;
	/* Bits may be missing for pages that are cached: count them before the next answer. */
	bool incomplete;
	/* One for the table, one for each call and each descriptor that uses it. */
	refcount_t references;
	/* Bits that are set. */
	atomic_long_t set;
	/*
	 * Guards the hanging in of chunks and the replacing of the map; never taken by the probe of
	 * deletion.
	 */
	spinlock_t lock;
	/* Jiffies at which the last bit was cleared. */
	unsigned long idle_since;
	/* Whose counts these are: another inode may come to lie at the same address. */
	unsigned long inode;
	u32 generation;
	/*
	 * Pages that were cached when it became known, and pages taken out since. What was put in
	 * since follows from these.
	 */
	unsigned long found;
	atomic64_t removed;
	/* Pages asked for, cached and not. */
	atomic64_t hits;
	atomic64_t misses;
	struct rcu_head rcu;
	unsigned long small[OCACHE_SMALL_BITS / BITS_PER_LONG];
};

/* Module parameters, see cache_main.c. */
extern unsigned int max_files;
extern unsigned long memory_kb;
extern unsigned int max_bitmap_kb;
extern unsigned int max_call_kb;
extern unsigned int forget_after;

/* Whether a file's pages are read by readahead and kept in the tree. */
static inline bool ocache_has_readahead(const struct address_space *mapping)
{
	const struct inode *inode = mapping->host;

	return inode && S_ISREG(inode->i_mode) && !IS_DAX(inode) && mapping->a_ops &&
	       (mapping->a_ops->readahead || mapping->a_ops->read_folio) &&
	       inode->i_sb->s_magic != TMPFS_MAGIC && inode->i_sb->s_magic != HUGETLBFS_MAGIC;
}

/* cache_files.c */
int ocache_files_init(void);
void ocache_files_exit(void);
void ocache_inserted(void *data, struct folio *folio);
void ocache_removed(void *data, struct folio *folio);
struct ocache_file *ocache_get(struct file *file);
void ocache_put(struct ocache_file *file);
struct page *ocache_chunk_page(struct ocache_file *file, unsigned long chunk);
int ocache_follow(struct super_block *sb);
void ocache_unfollow(struct super_block *sb);
unsigned long ocache_memory_bytes(void);
unsigned long ocache_files_known(void);
unsigned long ocache_refused(void);

/* cache_device.c */
int ocache_device_init(void);
void ocache_device_exit(void);

#endif
