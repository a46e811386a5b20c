// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/outrider. Calls are described in outrider_uapi.h.
 */
#include <linux/anon_inodes.h>
#include <linux/blkdev.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/memcontrol.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "cache.h"
#include "outrider_uapi.h"

/* Pages after which a call that fetches looks whether it is to die: 2 MiB. */
#define STEP_PAGES 512

/* struct fd keeps its file to itself in later kernels. */
#ifndef fd_file
#define fd_file(f) ((f).file)
#endif

/* Whether a caller may ask for a file that he names, and whether we can follow it. */
static int may_ask(struct file *file)
{
	if (!file || !(file->f_mode & FMODE_READ))
		return -EBADF;
	return ocache_has_readahead(file->f_mapping) ? 0 : -EOPNOTSUPP;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
#define mount_owners(file) file_mnt_idmap(file)
#else
#define mount_owners(file) file_mnt_user_ns(file)
#endif

/*
 * Whether a caller may know what of a file is cached, and who reads it: where mincore(2) and
 * cachestat(2) would tell him. What others have read is not the business of everybody who can read
 * it, too.
 */
static bool may_know(struct file *file)
{
	return file->f_mode & FMODE_WRITE ||
	       inode_owner_or_capable(mount_owners(file), file_inode(file)) ||
	       !file_permission(file, MAY_WRITE);
}

/*
 * The caller's memory cgroup: what it uses, and the least limit up to the root; ~0 if there is
 * none.
 */
static void group_memory(u64 *used, u64 *limit)
{
	*used = 0;
	*limit = ~0ull;
#ifdef CONFIG_MEMCG
	{
		struct mem_cgroup *group;

		rcu_read_lock();
		group = mem_cgroup_from_task(current);
		if (group && parent_mem_cgroup(group))
			*used = (u64)page_counter_read(&group->memory) << PAGE_SHIFT;
		/* The root, which has no parent, has no limit. */
		for (; group && parent_mem_cgroup(group); group = parent_mem_cgroup(group)) {
			u64 max = READ_ONCE(group->memory.max);

			if (max < PAGE_COUNTER_MAX)
				*limit = min(*limit, max << PAGE_SHIFT);
		}
		rcu_read_unlock();
	}
#endif
}

/*
 * What one call may fetch, in pages: at most half of what the caller could keep, because more would
 * only push out its own.
 */
static u64 allowed_pages(u64 budget)
{
	u64 used, limit, bytes = (u64)max_call_kb << 10;

	group_memory(&used, &limit);
	bytes = min(bytes, limit / 2);
	bytes = min(bytes, (u64)max(si_mem_available(), 0l) << PAGE_SHIFT >> 1);
	if (budget)
		bytes = min(bytes, budget);
	return bytes >> PAGE_SHIFT;
}

/*
 * Starts reading the pages of from..end, which the bitmap says are missing; returns how far it
 * came. Not clipped at the device's readahead as readahead(2) is. Pages that came meanwhile are
 * passed over.
 */
static u64 fetch(struct file *file, u64 from, u64 end)
{
	while (from < end) {
		u64 step = min_t(u64, end - from, STEP_PAGES);
		DEFINE_READAHEAD(readahead, file, &file->f_ra, file->f_mapping, from);

		if (fatal_signal_pending(current))
			break;
		page_cache_ra_unbounded(&readahead, step, 0);
		from += step;
		cond_resched();
	}
	return from;
}

/* The first page of first..end that is missing, or `end`. */
static __always_inline u64 next_missing(struct ocache_file *file, u64 first, u64 end)
{
	u64 end_bit = (end + (1ull << file->shift) - 1) >> file->shift, bit;

	rcu_read_lock();
	bit = ocache_next_clear(rcu_dereference(file->map), first >> file->shift, end_bit);
	rcu_read_unlock();
	return bit < end_bit ? max(bit << file->shift, first) : end;
}

/* Where the run of missing pages ends that begins at `page`: behind its granule at least. */
static u64 end_of_missing(struct ocache_file *file, u64 page, u64 end)
{
	u64 end_bit = (end + (1ull << file->shift) - 1) >> file->shift, bit;

	rcu_read_lock();
	bit = ocache_next_set(rcu_dereference(file->map), (page >> file->shift) + 1, end_bit);
	rcu_read_unlock();
	return min(bit << file->shift, end);
}

/* What came of a range, in pages. */
struct looked {
	u64 missing;
	u64 issued;
	/* Where fetching ended. */
	u64 next;
};

/*
 * Counts what is missing up to `end`, and fetches as much of it as is allowed, from the first page
 * that is missing. Apart, because a look-up that finds nothing missing shouldn't make room for this.
 */
static noinline struct looked count_and_fetch(struct file *filp, struct ocache_file *file,
					      u32 flags, u64 budget, u64 from, u64 end)
{
	bool only_look = flags & OUTRIDER_LOOK;
	/* A range that is fetched without telling was cut before it was looked at. */
	u64 allowed = only_look ? 0 : flags & OUTRIDER_BLIND ? end - from : allowed_pages(budget);
	struct looked looked = { .next = end };
	struct blk_plug plug;

	blk_start_plug(&plug);
	for (u64 to; from < end; from = next_missing(file, to, end)) {
		to = end_of_missing(file, from, end);
		looked.missing += to - from;
		if (!only_look && looked.next == end) {
			u64 came = fetch(filp, from, min(to, from + (allowed - looked.issued)));

			looked.issued += came - from;
			if (came < to)
				looked.next = came;
		}
	}
	blk_finish_plug(&plug);
	return looked;
}

/*
 * What goes in and out by one call is a few words here and there: what copy_from_user() and
 * copy_to_user() look up about where they lie, and their loops, would cost more than moving them.
 */
static int copy_words(u64 __user *to, const unsigned long *from, unsigned int count)
{
	if (!user_write_access_begin(to, count * sizeof(u64)))
		return -EFAULT;
	for (; count >= 4; count -= 4, to += 4, from += 4) {
		unsafe_put_user((u64)READ_ONCE(from[0]), to, fault);
		unsafe_put_user((u64)READ_ONCE(from[1]), to + 1, fault);
		unsafe_put_user((u64)READ_ONCE(from[2]), to + 2, fault);
		unsafe_put_user((u64)READ_ONCE(from[3]), to + 3, fault);
	}
	for (; count; count--)
		unsafe_put_user((u64)READ_ONCE(*from++), to++, fault);
	user_write_access_end();
	return 0;
fault:
	user_write_access_end();
	return -EFAULT;
}

/*
 * Copies words of the bitmap from number `word` on: `room` of them, or as many as a file of so many
 * pages has. Returns how many, or an error.
 */
static int copy_bits(struct ocache_file *file, u64 __user *to, u64 word, unsigned int room,
		     u64 file_pages)
{
	u64 bits = (file_pages + (1ull << file->shift) - 1) >> file->shift;
	u64 end_word = DIV_ROUND_UP_ULL(bits, BITS_PER_LONG);
	unsigned int done = 0;

	if (word >= end_word)
		return 0;
	room = min_t(u64, room, end_word - word);
	while (done < room) {
		u64 in_chunk = OCACHE_CHUNK_WORDS - word % OCACHE_CHUNK_WORDS;
		unsigned int count = min_t(u64, room - done, in_chunk);
		unsigned long *chunk = NULL, bit = word * BITS_PER_LONG;
		struct ocache_map *map;

		rcu_read_lock_sched();
		map = rcu_dereference_sched(file->map);
		if (bit < map->bits) {
			count = min_t(u64, count, (map->bits - bit) / BITS_PER_LONG);
			chunk = READ_ONCE(map->chunk[bit / OCACHE_CHUNK_BITS]);
		}
		rcu_read_unlock_sched();
		/* The map may be replaced, its chunks stay as long as the file. */
		if (chunk ? copy_words(to + done, chunk + word % OCACHE_CHUNK_WORDS, count) :
			    clear_user(to + done, count * sizeof(u64)))
			return -EFAULT;
		done += count;
		word += count;
		if (done == room)
			break;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return done;
}

/* What is asked, as the caller has it; what is answered is left as it is. */
static __always_inline int asked(struct outrider_readahead_info *info,
				 struct outrider_readahead_info __user *from)
{
	if (!user_read_access_begin(from, sizeof(*from)))
		return -EFAULT;
	unsafe_get_user(info->size, &from->size, fault);
	unsafe_get_user(info->flags, &from->flags, fault);
	unsafe_get_user(info->fd, &from->fd, fault);
	unsafe_get_user(info->reserved, &from->reserved, fault);
	unsafe_get_user(info->offset, &from->offset, fault);
	unsafe_get_user(info->length, &from->length, fault);
	unsafe_get_user(info->budget, &from->budget, fault);
	unsafe_get_user(info->bitmap, &from->bitmap, fault);
	unsafe_get_user(info->bitmap_offset, &from->bitmap_offset, fault);
	unsafe_get_user(info->bitmap_bytes, &from->bitmap_bytes, fault);
	user_read_access_end();
	return 0;
fault:
	user_read_access_end();
	return -EFAULT;
}

/* Everything that is answered; what was asked is left as it is. */
static __always_inline int answer(struct outrider_readahead_info __user *to,
				  const struct outrider_readahead_info *info)
{
	if (!user_write_access_begin(to, sizeof(*to)))
		return -EFAULT;
	unsafe_put_user(info->bitmap_written, &to->bitmap_written, fault);
	unsafe_put_user(info->bitmap_start, &to->bitmap_start, fault);
	unsafe_put_user(info->shift, &to->shift, fault);
	unsafe_put_user(info->readers, &to->readers, fault);
	unsafe_put_user(info->missing, &to->missing, fault);
	unsafe_put_user(info->issued, &to->issued, fault);
	unsafe_put_user(info->next, &to->next, fault);
	unsafe_put_user(info->cached, &to->cached, fault);
	unsafe_put_user(info->inserted, &to->inserted, fault);
	unsafe_put_user(info->removed, &to->removed, fault);
	unsafe_put_user(info->hits, &to->hits, fault);
	unsafe_put_user(info->misses, &to->misses, fault);
	unsafe_put_user(info->free, &to->free, fault);
	unsafe_put_user(info->available, &to->available, fault);
	unsafe_put_user(info->group_used, &to->group_used, fault);
	unsafe_put_user(info->group_limit, &to->group_limit, fault);
	user_write_access_end();
	return 0;
fault:
	user_write_access_end();
	return -EFAULT;
}

static noinline long readahead_info(struct outrider_readahead_info __user *argument)
{
	struct outrider_readahead_info info;
	u64 file_pages, first, end, from;
	struct looked looked;
	struct ocache_file *file;
	struct file *filp;
	struct fd fd;
	bool blind;
	int error;

	if (asked(&info, argument))
		return -EFAULT;
	if (info.size != sizeof(info) || info.reserved ||
	    (info.flags & ~(OUTRIDER_LOOK | OUTRIDER_MEMORY | OUTRIDER_BLIND)) || info.bitmap_bytes % 8 ||
	    info.bitmap % 8 || info.offset > MAX_LFS_FILESIZE || info.length > MAX_LFS_FILESIZE ||
	    info.bitmap_offset > MAX_LFS_FILESIZE)
		return -EINVAL;
	blind = info.flags & OUTRIDER_BLIND;
	if (blind && (info.flags & OUTRIDER_LOOK || info.bitmap))
		return -EINVAL;
	fd = fdget(info.fd);
	filp = fd_file(fd);
	error = may_ask(filp);
	if (!error && !blind && !may_know(filp))
		error = -EPERM;
	if (error)
		goto no_file;
	file = ocache_get(filp);
	if (!file) {
		error = -ENOMEM;
		goto no_file;
	}

	file_pages = DIV_ROUND_UP_ULL(i_size_read(filp->f_mapping->host), PAGE_SIZE);
	first = min_t(u64, info.offset >> PAGE_SHIFT, file_pages);
	end = file_pages;
	if (info.length)
		end = min(end, DIV_ROUND_UP_ULL(info.offset + info.length, PAGE_SIZE));
	end = max(first, end);
	/* Where the call ends may not depend on what is cached. */
	if (blind)
		end = min(end, first + allowed_pages(info.budget));
	looked = (struct looked){ .next = end };
	from = next_missing(file, first, end);
	if (from < end) {
		looked = count_and_fetch(filp, file, info.flags, info.budget, from, end);
		atomic64_add(looked.missing, &file->misses);
	}
	if (looked.missing < end - first)
		atomic64_add(end - first - looked.missing, &file->hits);
	info.missing = looked.missing << PAGE_SHIFT;
	info.issued = looked.issued << PAGE_SHIFT;
	info.next = looked.next << PAGE_SHIFT;

	info.shift = file->shift;
	info.bitmap_start = info.bitmap_written = 0;
	if (info.bitmap) {
		u64 word = (info.bitmap_offset >> PAGE_SHIFT >> file->shift) / BITS_PER_LONG;
		int words = copy_bits(file, u64_to_user_ptr(info.bitmap), word,
				      info.bitmap_bytes / sizeof(u64), file_pages);

		error = min(words, 0);
		info.bitmap_start = word * BITS_PER_LONG << file->shift << PAGE_SHIFT;
		info.bitmap_written = words * sizeof(u64);
	}
	info.readers = 0;
#ifdef CONFIG_FILE_LOCKING
	info.readers = atomic_read(&file_inode(filp)->i_readcount);
#endif
	info.cached = READ_ONCE(filp->f_mapping->nrpages);
	info.removed = atomic64_read(&file->removed);
	/*
	 * The pages that are there now, less those that were there, and those that came and went.
	 */
	info.inserted = max_t(s64, info.cached + info.removed - file->found, 0);
	info.hits = atomic64_read(&file->hits);
	info.misses = atomic64_read(&file->misses);
	if (blind) {
		info.missing = info.issued = info.readers = 0;
		info.cached = info.inserted = info.removed = info.hits = info.misses = 0;
		info.next = end << PAGE_SHIFT;
	}
	info.free = info.available = info.group_used = info.group_limit = 0;
	if (info.flags & OUTRIDER_MEMORY) {
		u64 used, limit;

		info.free = (u64)global_zone_page_state(NR_FREE_PAGES) << PAGE_SHIFT;
		info.available = (u64)max(si_mem_available(), 0l) << PAGE_SHIFT;
		group_memory(&used, &limit);
		info.group_used = used;
		info.group_limit = limit;
	}
	ocache_put(file);
	if (!error)
		error = answer(argument, &info);
no_file:
	fdput(fd);
	return error;
}

/*
 * A descriptor on which one file's bits can be mapped. The reference to the open file keeps its
 * inode.
 */
struct mappable {
	struct ocache_file *file;
	struct file *filp;
};

static vm_fault_t bits_fault(struct vm_fault *fault)
{
	struct mappable *mappable = fault->vma->vm_private_data;
	u64 pages = DIV_ROUND_UP_ULL(i_size_read(mappable->filp->f_mapping->host), PAGE_SIZE);
	u64 bits = DIV_ROUND_UP_ULL(pages, 1ull << mappable->file->shift);
	struct page *page;

	if (fault->pgoff >= DIV_ROUND_UP_ULL(bits, OCACHE_CHUNK_BITS))
		return VM_FAULT_SIGBUS;
	page = ocache_chunk_page(mappable->file, fault->pgoff);
	/* Not VM_FAULT_OOM: with our memory used up that would be tried again and again. */
	if (!page)
		return VM_FAULT_SIGBUS;
	fault->page = page;
	return 0;
}

static const struct vm_operations_struct bits_vm_operations = {
	.fault = bits_fault,
};

static int bits_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (vma->vm_flags & (VM_WRITE | VM_EXEC))
		return -EPERM;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, VM_DONTEXPAND | VM_DONTDUMP, VM_MAYWRITE | VM_MAYEXEC);
#else
	vma->vm_flags = (vma->vm_flags | VM_DONTEXPAND | VM_DONTDUMP) & ~(VM_MAYWRITE | VM_MAYEXEC);
#endif
	vma->vm_private_data = file->private_data;
	vma->vm_ops = &bits_vm_operations;
	return 0;
}

static int bits_release(struct inode *inode, struct file *file)
{
	struct mappable *mappable = file->private_data;

	ocache_put(mappable->file);
	fput(mappable->filp);
	kfree(mappable);
	return 0;
}

static const struct file_operations bits_operations = {
	.owner = THIS_MODULE,
	.mmap = bits_mmap,
	.release = bits_release,
	.llseek = noop_llseek,
};

static noinline long map_bitmap(void __user *argument)
{
	struct outrider_bitmap request;
	struct mappable *mappable;
	struct file *handle;
	int fd, error;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.size != sizeof(request) || request.reserved)
		return -EINVAL;
	mappable = kmalloc(sizeof(*mappable), GFP_KERNEL_ACCOUNT);
	if (!mappable)
		return -ENOMEM;
	mappable->filp = fget(request.fd);
	error = may_ask(mappable->filp);
	if (!error && !may_know(mappable->filp))
		error = -EPERM;
	if (error)
		goto no_file;
	mappable->file = ocache_get(mappable->filp);
	if (!mappable->file) {
		error = -ENOMEM;
		goto no_file;
	}
	request.shift = mappable->file->shift;
	if (copy_to_user(argument, &request, sizeof(request))) {
		error = -EFAULT;
		goto no_fd;
	}
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0) {
		error = fd;
		goto no_fd;
	}
	handle = anon_inode_getfile("[outrider-bitmap]", &bits_operations, mappable, O_RDONLY);
	if (IS_ERR(handle)) {
		put_unused_fd(fd);
		error = PTR_ERR(handle);
		goto no_fd;
	}
	fd_install(fd, handle);
	return fd;

no_fd:
	ocache_put(mappable->file);
no_file:
	if (mappable->filp)
		fput(mappable->filp);
	kfree(mappable);
	return error;
}

/* The file whose file system is followed is kept open, so the super block stays. */
static int follow_release(struct inode *inode, struct file *file)
{
	struct file *filp = file->private_data;

	ocache_unfollow(file_inode(filp)->i_sb);
	fput(filp);
	return 0;
}

static const struct file_operations follow_operations = {
	.owner = THIS_MODULE,
	.release = follow_release,
	.llseek = noop_llseek,
};

static noinline long follow(void __user *argument)
{
	struct file *filp;
	int fd, error;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (get_user(fd, (int __user *)argument))
		return -EFAULT;
	filp = fget(fd);
	if (!filp)
		return -EBADF;
	error = ocache_follow(file_inode(filp)->i_sb);
	if (error)
		goto no_follow;
	fd = anon_inode_getfd("[outrider-follow]", &follow_operations, filp, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	error = fd;
	ocache_unfollow(file_inode(filp)->i_sb);
no_follow:
	fput(filp);
	return error;
}

static long outrider_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case OUTRIDER_VERSION:
		return OUTRIDER_ABI;
	case OUTRIDER_READAHEAD_INFO:
		return readahead_info((struct outrider_readahead_info __user *)argument);
	case OUTRIDER_BITMAP:
		return map_bitmap((void __user *)argument);
	case OUTRIDER_FOLLOW:
		return follow((void __user *)argument);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = outrider_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

/* For everybody: each call is checked against the descriptor that it names. */
static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "outrider",
	.fops = &device_operations,
	.mode = 0666,
};

int ocache_device_init(void)
{
	return misc_register(&device);
}

void ocache_device_exit(void)
{
	misc_deregister(&device);
}
