// SPDX-License-Identifier: GPL-2.0-only
/*
 * The files that are known, and their bitmaps.
 *
 * Who may do what, where:
 *   - the probe of removal runs under i_pages' lock with interrupts off. It looks up (RCU) and
 *     clears bits, nothing else;
 *   - the probe of insertion runs with preemption off. It may also hang in a chunk, under
 *     file->lock with interrupts off, with memory that is to be had at once. If there is none the
 *     file is marked incomplete, and the next call counts again;
 *   - calls sleep, and hold a reference to the file and to its inode (through the descriptor).
 */
#include <linux/hash.h>
#include <linux/jiffies.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "cache.h"

#define FOLLOWED_FILE_SYSTEMS 16

/*
 * Chains of four where as many files are known as may be by default. Static, so that a probe
 * doesn't look up where it is.
 */
#define TABLE_ORDER 14
static struct hlist_head table[1 << TABLE_ORDER];
/* Guards the table's chains against each other's writers, and the list of followed file systems. */
static DEFINE_SPINLOCK(table_lock);
static struct kmem_cache *file_cache;
static atomic_long_t memory_bytes = ATOMIC_LONG_INIT(0);
static atomic_long_t files_known = ATOMIC_LONG_INIT(0);
/* How often memory, or room for one more file, was refused. */
static atomic_long_t refused = ATOMIC_LONG_INIT(0);
static unsigned long memory_limit;

static struct super_block *followed[FOLLOWED_FILE_SYSTEMS];
static unsigned int followed_count;

static void forget_idle(struct work_struct *work);
static DECLARE_DELAYED_WORK(forget_work, forget_idle);
static bool forget_armed;

unsigned long ocache_memory_bytes(void)
{
	return atomic_long_read(&memory_bytes);
}

unsigned long ocache_files_known(void)
{
	return atomic_long_read(&files_known);
}

unsigned long ocache_refused(void)
{
	return atomic_long_read(&refused);
}

static u64 max_bits(void)
{
	return (u64)(max_bitmap_kb / (PAGE_SIZE / 1024)) * OCACHE_CHUNK_BITS;
}

static bool charge(unsigned long bytes)
{
	if (atomic_long_add_return(bytes, &memory_bytes) <= memory_limit)
		return true;
	atomic_long_sub(bytes, &memory_bytes);
	atomic_long_inc(&refused);
	return false;
}

static void uncharge(unsigned long bytes)
{
	atomic_long_sub(bytes, &memory_bytes);
}

/*
 * Memory at once or not at all, whoever asks: a bitmap is not worth waiting, nor the emergency
 * reserves.
 */
#define AT_ONCE (GFP_NOWAIT | __GFP_NOWARN | __GFP_ZERO)

static unsigned long *new_chunk(void)
{
	unsigned long *chunk;

	if (!charge(PAGE_SIZE))
		return NULL;
	chunk = (unsigned long *)__get_free_page(AT_ONCE);
	if (!chunk)
		uncharge(PAGE_SIZE);
	return chunk;
}

static size_t map_bytes(unsigned int chunks)
{
	return struct_size((struct ocache_map *)NULL, chunk, chunks);
}

static struct ocache_map *new_map(unsigned int chunks, unsigned long bits)
{
	struct ocache_map *map;

	if (!charge(map_bytes(chunks)))
		return NULL;
	map = kzalloc(map_bytes(chunks), AT_ONCE);
	if (!map) {
		uncharge(map_bytes(chunks));
		return NULL;
	}
	map->chunks = chunks;
	map->bits = bits;
	return map;
}

static void free_map_later(struct ocache_map *map)
{
	uncharge(map_bytes(map->chunks));
	kfree_rcu(map, rcu);
}

/* Pages that are still mapped by somebody stay with him. */
static void free_file(struct ocache_file *file)
{
	struct ocache_map *map = rcu_dereference_protected(file->map, true);
	unsigned int i;

	for (i = 0; i < map->chunks; i++) {
		if (!map->chunk[i] || map->chunk[i] == file->small)
			continue;
		free_page((unsigned long)map->chunk[i]);
		uncharge(PAGE_SIZE);
	}
	uncharge(map_bytes(map->chunks) + sizeof(*file));
	kfree(map);
	kmem_cache_free(file_cache, file);
	atomic_long_dec(&files_known);
}

static void free_file_rcu(struct rcu_head *rcu)
{
	free_file(container_of(rcu, struct ocache_file, rcu));
}

void ocache_put(struct ocache_file *file)
{
	if (refcount_dec_and_test(&file->references))
		call_rcu(&file->rcu, free_file_rcu);
}

static struct hlist_head *chain(struct address_space *mapping)
{
	return &table[hash_ptr(mapping, TABLE_ORDER)];
}

/* Under rcu_read_lock(), or the table's lock. */
static struct ocache_file *find(struct address_space *mapping)
{
	struct ocache_file *file;

	hlist_for_each_entry_rcu(file, chain(mapping), node, lockdep_is_held(&table_lock))
		if (file->mapping == mapping)
			return file;
	return NULL;
}

static void arm_forgetting(void)
{
	if (!READ_ONCE(forget_armed) && !xchg(&forget_armed, true))
		queue_delayed_work(system_unbound_wq, &forget_work,
				   max(HZ / 2, forget_after * HZ / 4));
}

/* A file that knows nothing yet, with the references of the table and the caller. */
static struct ocache_file *new_file(struct address_space *mapping, gfp_t gfp)
{
	struct ocache_file *file;
	struct ocache_map *map;

	if (atomic_long_inc_return(&files_known) > max_files) {
		atomic_long_inc(&refused);
		goto too_many;
	}
	if (!charge(sizeof(*file)))
		goto too_many;
	file = kmem_cache_zalloc(file_cache, gfp);
	if (!file)
		goto no_file;
	map = new_map(1, OCACHE_SMALL_BITS);
	if (!map)
		goto no_map;
	map->chunk[0] = file->small;
	RCU_INIT_POINTER(file->map, map);
	file->mapping = mapping;
	file->shift = ocache_shift(DIV_ROUND_UP_ULL(i_size_read(mapping->host), PAGE_SIZE),
				   max_bits());
	file->incomplete = true;
	file->inode = mapping->host->i_ino;
	file->generation = mapping->host->i_generation;
	file->found = mapping->nrpages;
	file->idle_since = jiffies;
	refcount_set(&file->references, 2);
	spin_lock_init(&file->lock);
	return file;

no_map:
	kmem_cache_free(file_cache, file);
no_file:
	uncharge(sizeof(*file));
too_many:
	atomic_long_dec(&files_known);
	return NULL;
}

/*
 * Puts it into the table; if another was quicker, returns that one, with a reference for the
 * caller.
 */
static struct ocache_file *publish(struct ocache_file *file)
{
	struct ocache_file *other;
	unsigned long flags;

	spin_lock_irqsave(&table_lock, flags);
	other = find(file->mapping);
	if (other && refcount_inc_not_zero(&other->references)) {
		spin_unlock_irqrestore(&table_lock, flags);
		free_file(file);
		return other;
	}
	hlist_add_head_rcu(&file->node, chain(file->mapping));
	spin_unlock_irqrestore(&table_lock, flags);
	arm_forgetting();
	return file;
}

/* Takes it out of the table if nobody else uses it. Under the table's lock. */
static bool unpublish_idle(struct ocache_file *file)
{
	if (!refcount_dec_if_one(&file->references))
		return false;
	hlist_del_rcu(&file->node);
	call_rcu(&file->rcu, free_file_rcu);
	return true;
}

static void count_again(struct ocache_file *file, pgoff_t first, pgoff_t last, bool may_sleep);

/*
 * Room for a bit: the chunk in which it lies, or NULL if there is no memory for it or the file is
 * not followed so far. With `mappable` the chunk is a page of its own and not the few words of a
 * small file.
 */
static unsigned long *make_room(struct ocache_file *file, unsigned long bit, bool mappable)
{
	unsigned long index = bit / OCACHE_CHUNK_BITS, flags;
	struct ocache_map *map, *wider = NULL;
	unsigned long *chunk = NULL, moved = 0;
	bool was_small;
	unsigned int i;

	if (bit >= max_bits())
		return NULL;
	spin_lock_irqsave(&file->lock, flags);
	map = rcu_dereference_protected(file->map, lockdep_is_held(&file->lock));
	was_small = map->chunk[0] == file->small;
	if (bit >= map->bits || (mappable && was_small)) {
		/* Twice as many at a time: a file that grows is not copied for every chunk. */
		unsigned long twice = min_t(unsigned long, 2ul * map->chunks,
					    max_bits() / OCACHE_CHUNK_BITS);
		unsigned int chunks = max_t(unsigned long, index + 1,
					    was_small ? 1 : twice);

		wider = new_map(chunks, chunks * OCACHE_CHUNK_BITS);
		if (!wider)
			goto out;
		wider->quick_bits = file->shift ? 0 : wider->bits;
		if (was_small) {
			wider->chunk[0] = new_chunk();
			if (!wider->chunk[0]) {
				free_map_later(wider);
				wider = NULL;
				goto out;
			}
		} else {
			memcpy(wider->chunk, map->chunk, map->chunks * sizeof(map->chunk[0]));
		}
	}
	if (!wider || index) {
		struct ocache_map *to = wider ?: map;

		chunk = to->chunk[index];
		if (!chunk) {
			chunk = new_chunk();
			/* Who finds it has to find it cleared. */
			smp_store_release(&to->chunk[index], chunk);
		}
	} else {
		chunk = wider->chunk[0];
	}
	if (wider) {
		rcu_assign_pointer(file->map, wider);
		free_map_later(map);
		if (was_small) {
			/*
			 * Whoever sets a bit in the old place from now on sees the new map
			 * afterwards, and takes it back: set_in().
			 */
			smp_mb();
			for (i = 0; i < ARRAY_SIZE(file->small); i++)
				moved += hweight_long(xchg(&file->small[i], 0));
			atomic_long_sub(moved, &file->set);
		}
	}
out:
	spin_unlock_irqrestore(&file->lock, flags);
	if (wider && was_small)
		count_again(file, 0, (OCACHE_SMALL_BITS << file->shift) - 1, false);
	return chunk;
}

/* Sets bits first..end; false if there was no room for some of them. */
static bool set_bits(struct ocache_file *file, unsigned long first, unsigned long end)
{
	bool complete = true;

	/* What lies behind the last bit that a file may have counts as missing for good. */
	end = min_t(u64, end, max_bits());
	while (first < end) {
		struct ocache_map *map = rcu_dereference(file->map);
		unsigned long stop =
			min(end, round_down(first, OCACHE_CHUNK_BITS) + OCACHE_CHUNK_BITS);
		unsigned long *chunk = NULL;

		if (likely(first < map->bits)) {
			stop = min(stop, map->bits);
			chunk = READ_ONCE(map->chunk[first / OCACHE_CHUNK_BITS]);
		}
		if (unlikely(!chunk)) {
			if (!make_room(file, first, false)) {
				complete = false;
				first = stop;
			}
			continue;
		}
		atomic_long_add(ocache_set(chunk, first % OCACHE_CHUNK_BITS,
					   (stop - 1) % OCACHE_CHUNK_BITS + 1),
				&file->set);
		if (unlikely(chunk == file->small && rcu_access_pointer(file->map) != map)) {
			/*
			 * The small file grew meanwhile: make_room() either moved these bits or has
			 * to find them gone.
			 */
			atomic_long_sub(ocache_clear(chunk, first, stop), &file->set);
			continue;
		}
		first = stop;
	}
	return complete;
}

static void clear_bits(struct ocache_file *file, unsigned long first, unsigned long end)
{
	struct ocache_map *map = rcu_dereference(file->map);
	unsigned long changed = 0;

	end = min(end, map->bits);
	while (first < end) {
		unsigned long stop =
			min(end, round_down(first, OCACHE_CHUNK_BITS) + OCACHE_CHUNK_BITS);
		unsigned long *chunk = READ_ONCE(map->chunk[first / OCACHE_CHUNK_BITS]);

		if (chunk)
			changed += ocache_clear(chunk, first % OCACHE_CHUNK_BITS,
						(stop - 1) % OCACHE_CHUNK_BITS + 1);
		first = stop;
	}
	if (changed && atomic_long_sub_and_test(changed, &file->set)) {
		WRITE_ONCE(file->idle_since, jiffies);
		arm_forgetting();
	}
}

/* Whether all pages of first..=last are in the tree. Under its lock. */
static bool all_cached(struct address_space *mapping, pgoff_t first, pgoff_t last)
{
	XA_STATE(xas, &mapping->i_pages, last);
	struct folio *folio = xas_load(&xas);

	/* Files are read forwards, so the last page of a granule is mostly what is missing. */
	if (!folio || xa_is_value(folio))
		return false;
	xas_set(&xas, first);
	xas_for_each(&xas, folio, last) {
		if (xas_retry(&xas, folio))
			continue;
		if (xa_is_value(folio) || folio->index > first)
			return false;
		first = folio->index + folio_nr_pages(folio);
	}
	return first > last;
}

/*
 * Where a bit stands for several pages it says that all of them are cached, and only the tree
 * knows. It is asked under its lock: no page can leave between the look and the setting of the bit.
 */
static bool set_granules(struct ocache_file *file, struct address_space *mapping, pgoff_t first,
			 pgoff_t end)
{
	unsigned long bit, last = (end - 1) >> file->shift, flags;
	bool complete = true;

	for (bit = first >> file->shift; bit <= last; bit++) {
		pgoff_t start = (pgoff_t)bit << file->shift;

		if (bit >= max_bits())
			break;
		/* Room first: what is made under the tree's lock must not want that lock. */
		if (!make_room(file, bit, false)) {
			complete = false;
			continue;
		}
		xa_lock_irqsave(&mapping->i_pages, flags);
		if (all_cached(mapping, start, start + (1ul << file->shift) - 1))
			complete &= set_bits(file, bit, bit + 1);
		xa_unlock_irqrestore(&mapping->i_pages, flags);
	}
	return complete;
}

/* Whether a bit can be set without making room. Room that is there stays. */
static bool has_room(struct ocache_file *file, unsigned long bit)
{
	struct ocache_map *map = rcu_dereference(file->map);

	return bit < map->bits && READ_ONCE(map->chunk[bit / OCACHE_CHUNK_BITS]);
}

/*
 * Sets the bits of what is cached of pages first..=last. The tree's lock is held for a thousand
 * folios at a time; under it none of them can be taken out, so no bit stays that shouldn't. Called
 * by who keeps the inode: a caller with its descriptor, who may sleep in between, or a probe with
 * its folio, who may not and asks for few pages.
 */
static void count_again(struct ocache_file *file, pgoff_t first, pgoff_t last, bool may_sleep)
{
	struct address_space *mapping = file->mapping;
	XA_STATE(xas, &mapping->i_pages, first);
	bool complete = true;
	pgoff_t next = first;

	last = min_t(u64, last, (max_bits() << file->shift) - 1);
	while (next <= last) {
		pgoff_t start = 0, end = 0;
		unsigned long flags, batch = 0;
		struct folio *folio;

		rcu_read_lock();
		xa_lock_irqsave(&mapping->i_pages, flags);
		xas_set(&xas, next);
		xas_for_each(&xas, folio, last) {
			if (xas_retry(&xas, folio) || xa_is_value(folio))
				continue;
			start = folio->index;
			end = start + folio_nr_pages(folio);
			/* Nothing that is made for these may be made under this lock. */
			if (file->shift || ++batch > 1024 || !has_room(file, start) ||
			    !has_room(file, end - 1))
				break;
			complete &= set_bits(file, start, end);
			next = end;
		}
		xa_unlock_irqrestore(&mapping->i_pages, flags);
		if (!folio) {
			rcu_read_unlock();
			break;
		}
		if (file->shift) {
			complete &= set_granules(file, mapping, start, end);
			next = round_up(end, 1ul << file->shift);
		} else if (!make_room(file, end - 1, false) || !make_room(file, start, false)) {
			complete = false;
			next = end;
		}
		rcu_read_unlock();
		if (may_sleep)
			cond_resched();
	}
	if (!complete)
		WRITE_ONCE(file->incomplete, true);
}

static bool is_followed(struct super_block *sb)
{
	unsigned int i, count = READ_ONCE(followed_count);

	for (i = 0; i < count; i++)
		if (READ_ONCE(followed[i]) == sb)
			return true;
	return false;
}

/* The first page of a file that is followed because its file system is. */
static struct ocache_file *follow_new(struct address_space *mapping)
{
	struct ocache_file *file;

	if (!ocache_has_readahead(mapping) || !is_followed(mapping->host->i_sb))
		return NULL;
	file = new_file(mapping, GFP_NOWAIT | __GFP_NOWARN);
	if (!file)
		return NULL;
	file = publish(file);
	ocache_put(file);
	return file;
}

/*
 * Tracepoints call their probes with preemption off, which is as good as rcu_read_lock(), and the
 * probes run for every page of every file: a few instructions count.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
static inline void enter_probe(void) {}
static inline void leave_probe(void) {}
#else
static inline void enter_probe(void) { rcu_read_lock(); }
static inline void leave_probe(void) { rcu_read_unlock(); }
#endif

/*
 * What is rare: files that are not known yet, bits of several pages, large folios, chunks that are
 * missing.
 */
static noinline void insert_slowly(struct ocache_file *file, struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	unsigned long pages = folio_nr_pages(folio);
	bool complete;

	if (!file) {
		file = follow_new(mapping);
		if (!file)
			return;
		/* Nothing to count where this folio is all there is. */
		smp_mb();
		if (READ_ONCE(mapping->nrpages) == pages)
			WRITE_ONCE(file->incomplete, false);
	}
	if (likely(!file->shift))
		complete = set_bits(file, folio->index, folio->index + pages);
	else
		complete = set_granules(file, mapping, folio->index, folio->index + pages);
	if (unlikely(!complete))
		WRITE_ONCE(file->incomplete, true);
}

/* Sets the bit of a single page. False: the long way has to be taken. */
static __always_inline bool insert_quickly(struct ocache_file *file, pgoff_t index)
{
	struct ocache_map *map = rcu_dereference(file->map);
	unsigned long *chunk;

	if (unlikely(index >= map->quick_bits))
		return false;
	chunk = READ_ONCE(map->chunk[index / OCACHE_CHUNK_BITS]);
	if (unlikely(!chunk))
		return false;
	if (likely(!test_and_set_bit(index % OCACHE_CHUNK_BITS, chunk)))
		atomic_long_inc(&file->set);
	return true;
}

void ocache_inserted(void *data, struct folio *folio)
{
	struct ocache_file *file;

	enter_probe();
	file = find(folio->mapping);
	if (file ? folio_test_large(folio) || !insert_quickly(file, folio->index) :
		   unlikely(READ_ONCE(followed_count)))
		insert_slowly(file, folio);
	leave_probe();
}

void ocache_removed(void *data, struct folio *folio)
{
	struct ocache_file *file;

	enter_probe();
	file = find(folio->mapping);
	if (file) {
		unsigned long pages = folio_nr_pages(folio);

		atomic64_add(pages, &file->removed);
		clear_bits(file, folio->index >> file->shift,
			   ((folio->index + pages - 1) >> file->shift) + 1);
	}
	leave_probe();
}

/*
 * The file behind a descriptor, with all that is cached of it, for a caller who holds the
 * descriptor. NULL: no memory.
 */
struct ocache_file *ocache_get(struct file *filp)
{
	struct address_space *mapping = filp->f_mapping;
	u64 pages = DIV_ROUND_UP_ULL(i_size_read(mapping->host), PAGE_SIZE);
	struct ocache_file *file;
	unsigned long flags;

	rcu_read_lock_sched();
	file = find(mapping);
	if (file && !refcount_inc_not_zero(&file->references))
		file = NULL;
	rcu_read_unlock_sched();

	if (file && file->shift < OCACHE_MAX_SHIFT && unlikely(pages > max_bits() << file->shift)) {
		/*
		 * It outgrew its bits. Begin anew with coarser ones, unless somebody has these
		 * mapped.
		 */
		ocache_put(file);
		spin_lock_irqsave(&table_lock, flags);
		file = find(mapping);
		if (file && !unpublish_idle(file) && refcount_inc_not_zero(&file->references)) {
			spin_unlock_irqrestore(&table_lock, flags);
		} else {
			spin_unlock_irqrestore(&table_lock, flags);
			file = NULL;
		}
	}
	if (!file) {
		file = new_file(mapping, GFP_KERNEL);
		if (!file)
			return NULL;
		file = publish(file);
	}
	if (unlikely(file->inode != mapping->host->i_ino ||
		     file->generation != mapping->host->i_generation)) {
		/*
		 * Another file lay here, whose counts are nobody's business. The caller keeps this
		 * one here.
		 */
		spin_lock_irqsave(&file->lock, flags);
		file->inode = mapping->host->i_ino;
		file->generation = mapping->host->i_generation;
		file->found = mapping->nrpages;
		atomic64_set(&file->removed, 0);
		atomic64_set(&file->hits, 0);
		atomic64_set(&file->misses, 0);
		spin_unlock_irqrestore(&file->lock, flags);
	}
	if (unlikely(READ_ONCE(file->incomplete))) {
		WRITE_ONCE(file->incomplete, false);
		smp_mb();
		count_again(file, 0, ULONG_MAX, true);
	}
	return file;
}

/* A page of bits, to be mapped: with a reference for the caller. NULL: no memory. */
struct page *ocache_chunk_page(struct ocache_file *file, unsigned long chunk)
{
	unsigned long *bits = make_room(file, chunk * OCACHE_CHUNK_BITS, true);
	struct page *page;

	if (!bits)
		return NULL;
	page = virt_to_page(bits);
	get_page(page);
	return page;
}

static void forget_idle(struct work_struct *work)
{
	unsigned int i, idle = 0;

	WRITE_ONCE(forget_armed, false);
	for (i = 0; i < 1u << TABLE_ORDER; i++) {
		struct ocache_file *file;
		struct hlist_node *next;

		if (hlist_empty(&table[i]))
			continue;
		spin_lock_irq(&table_lock);
		hlist_for_each_entry_safe(file, next, &table[i], node) {
			if (atomic_long_read(&file->set))
				continue;
			if (time_before(jiffies, READ_ONCE(file->idle_since) + forget_after * HZ) ||
			    !unpublish_idle(file))
				idle++;
		}
		spin_unlock_irq(&table_lock);
		cond_resched();
	}
	if (idle)
		arm_forgetting();
}

int ocache_follow(struct super_block *sb)
{
	int error = -ENOSPC;

	spin_lock_irq(&table_lock);
	if (followed_count < FOLLOWED_FILE_SYSTEMS) {
		WRITE_ONCE(followed[followed_count], sb);
		smp_store_release(&followed_count, followed_count + 1);
		error = 0;
	}
	spin_unlock_irq(&table_lock);
	return error;
}

void ocache_unfollow(struct super_block *sb)
{
	unsigned int i;

	spin_lock_irq(&table_lock);
	for (i = 0; i < followed_count; i++) {
		if (followed[i] == sb) {
			WRITE_ONCE(followed[i], followed[followed_count - 1]);
			WRITE_ONCE(followed_count, followed_count - 1);
			break;
		}
	}
	spin_unlock_irq(&table_lock);
}

int ocache_files_init(void)
{
	memory_limit = memory_kb ? memory_kb * 1024 : totalram_pages() * PAGE_SIZE / 512;
	file_cache = kmem_cache_create("outrider_cache_file", sizeof(struct ocache_file), 0, 0,
				       NULL);
	return file_cache ? 0 : -ENOMEM;
}

/* No probe runs any more, and nobody is in a call. */
void ocache_files_exit(void)
{
	unsigned int i;

	cancel_delayed_work_sync(&forget_work);
	for (i = 0; i < 1u << TABLE_ORDER; i++) {
		struct ocache_file *file;
		struct hlist_node *next;

		hlist_for_each_entry_safe(file, next, &table[i], node) {
			hlist_del_rcu(&file->node);
			ocache_put(file);
		}
	}
	rcu_barrier();
	WARN_ON(atomic_long_read(&files_known) || atomic_long_read(&memory_bytes));
	kmem_cache_destroy(file_cache);
}
