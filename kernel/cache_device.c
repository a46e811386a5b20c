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
	return ocache_can_follow(file) ? 0 : -EOPNOTSUPP;
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
static u64 allowed_pages(const struct outrider_readahead_info *info)
{
	u64 used, limit, bytes = (u64)max_call_kb << 10;

	group_memory(&used, &limit);
	bytes = min(bytes, limit / 2);
	bytes = min(bytes, (u64)max(si_mem_available(), 0l) << PAGE_SHIFT >> 1);
	if (info->budget)
		bytes = min(bytes, info->budget);
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

/* Goes through pages first..end: counts what is missing and fetches as much of it as is allowed. */
static void look_and_fetch(struct file *filp, struct ocache_file *file,
			   struct outrider_readahead_info *info, u64 first, u64 end)
{
	bool only_look = info->flags & OUTRIDER_LOOK;
	u64 allowed = only_look ? 0 : allowed_pages(info), issued = 0, missing = 0, next = end;
	u64 bit = first >> file->shift, end_bit = (end + (1ull << file->shift) - 1) >> file->shift;
	struct blk_plug plug;
	bool plugged = false;

	while (bit < end_bit) {
		unsigned long run_end;
		u64 from, to;

		rcu_read_lock();
		bit = ocache_next_clear(rcu_dereference(file->map), bit, end_bit, &run_end);
		rcu_read_unlock();
		if (bit >= end_bit)
			break;
		from = max(bit << file->shift, first);
		to = min((u64)run_end << file->shift, end);
		missing += to - from;
		if (!only_look && next == end) {
			u64 stop = min(to, from + (allowed - issued)), came;

			if (from < stop && !plugged) {
				blk_start_plug(&plug);
				plugged = true;
			}
			came = fetch(filp, from, stop);
			issued += came - from;
			if (came < to)
				next = came;
		}
		bit = run_end;
	}
	if (plugged)
		blk_finish_plug(&plug);
	atomic64_add(missing, &file->misses);
	atomic64_add(end - first - missing, &file->hits);
	info->missing = missing << PAGE_SHIFT;
	info->issued = issued << PAGE_SHIFT;
	info->next = next << PAGE_SHIFT;
}

/*
 * Mostly a few words: what copy_to_user() looks up about where they lie would cost more than
 * copying them.
 */
static int copy_words(u64 __user *to, const unsigned long *from, unsigned int count)
{
	if (!user_write_access_begin(to, count * sizeof(u64)))
		return -EFAULT;
	unsafe_copy_to_user((char __user *)to, (const char *)from, count * sizeof(u64), fault);
	user_write_access_end();
	return 0;
fault:
	user_write_access_end();
	return -EFAULT;
}

/* Copies the bits that the caller asked for. */
static int copy_bits(struct ocache_file *file, struct outrider_readahead_info *info, u64 file_pages)
{
	u64 word = (info->bitmap_offset >> PAGE_SHIFT >> file->shift) / BITS_PER_LONG;
	u64 bits = DIV_ROUND_UP_ULL(file_pages, 1ull << file->shift);
	u64 end_word = DIV_ROUND_UP_ULL(bits, BITS_PER_LONG);
	u64 __user *to = u64_to_user_ptr(info->bitmap);
	unsigned int room = info->bitmap_bytes / sizeof(u64), done = 0;

	info->bitmap_start = word * BITS_PER_LONG << file->shift << PAGE_SHIFT;
	while (done < room && word < end_word) {
		u64 in_chunk = OCACHE_CHUNK_WORDS - word % OCACHE_CHUNK_WORDS;
		unsigned int count = min3((u64)(room - done), in_chunk, end_word - word);
		unsigned long *chunk = NULL, bit = word * BITS_PER_LONG;
		struct ocache_map *map;

		rcu_read_lock();
		map = rcu_dereference(file->map);
		if (bit < map->bits) {
			count = min_t(u64, count, (map->bits - bit) / BITS_PER_LONG);
			chunk = READ_ONCE(map->chunk[bit / OCACHE_CHUNK_BITS]);
		}
		rcu_read_unlock();
		/* The map may be replaced, its chunks stay as long as the file. */
		if (chunk ? copy_words(to + done, chunk + word % OCACHE_CHUNK_WORDS, count) :
			    clear_user(to + done, count * sizeof(u64)))
			return -EFAULT;
		done += count;
		word += count;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	info->bitmap_written = done * sizeof(u64);
	return 0;
}

#define ANSWER offsetof(struct outrider_readahead_info, bitmap_written)

static int answer(char __user *to, const char *from)
{
	if (!user_write_access_begin(to, sizeof(struct outrider_readahead_info) - ANSWER))
		return -EFAULT;
	unsafe_copy_to_user(to, from, sizeof(struct outrider_readahead_info) - ANSWER, fault);
	user_write_access_end();
	return 0;
fault:
	user_write_access_end();
	return -EFAULT;
}

static long readahead_info(void __user *argument)
{
	struct outrider_readahead_info info = {};
	u64 file_pages, first, end;
	struct ocache_file *file;
	struct file *filp;
	struct fd fd;
	int error;

	/* What is asked comes in, what is answered goes out. */
	if (copy_from_user(&info, argument, ANSWER))
		return -EFAULT;
	if (info.size != sizeof(info) || info.reserved ||
	    (info.flags & ~(OUTRIDER_LOOK | OUTRIDER_MEMORY)) || info.bitmap_bytes % 8 ||
	    info.bitmap % 8 || info.offset > MAX_LFS_FILESIZE || info.length > MAX_LFS_FILESIZE ||
	    info.bitmap_offset > MAX_LFS_FILESIZE)
		return -EINVAL;
	fd = fdget(info.fd);
	filp = fd_file(fd);
	error = may_ask(filp);
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
	look_and_fetch(filp, file, &info, first, end);

	info.shift = file->shift;
	if (info.bitmap)
		error = copy_bits(file, &info, file_pages);
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
	if (info.flags & OUTRIDER_MEMORY) {
		info.free = (u64)global_zone_page_state(NR_FREE_PAGES) << PAGE_SHIFT;
		info.available = (u64)max(si_mem_available(), 0l) << PAGE_SHIFT;
		group_memory(&info.group_used, &info.group_limit);
	}
	ocache_put(file);
	if (!error)
		error = answer((char __user *)argument + ANSWER, (char *)&info + ANSWER);
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

static long map_bitmap(void __user *argument)
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

static long follow(void __user *argument)
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
		return readahead_info((void __user *)argument);
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
