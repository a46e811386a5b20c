// SPDX-License-Identifier: GPL-2.0-only
/*
 * outrider_cache: a bitmap per file of what the page cache holds, and /dev/outrider.
 *
 * The kernel tells of every page that enters or leaves the cache by two tracepoints. Their probes
 * keep the bitmaps:
 *
 *   mm_filemap_add_to_page_cache       after the folio was put into the tree, before its lock is
 *                                      released
 *   mm_filemap_delete_from_page_cache  under the tree's lock, interrupts off, before the folio is
 *                                      taken out
 *
 * A folio can only be taken out by who holds its lock, so the two never come in the wrong order for
 * one folio; and of two folios at one index the first is gone before the second comes. Nothing else
 * is needed for the bits to be right: the probes take no lock and change them atomically. What was
 * cached before a file was known is counted once, under the tree's lock, under which nothing can
 * leave.
 */
#include <linux/module.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "cache.h"
#include "outrider_uapi.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "outrider_cache needs Linux 6.1 or later: older kernels' tracepoints of the page cache don't tell folios"
#endif

unsigned int max_files = 65536;
module_param(max_files, uint, 0444);
MODULE_PARM_DESC(max_files, "files that are followed at once, at most");

unsigned long memory_kb;
module_param(memory_kb, ulong, 0444);
MODULE_PARM_DESC(memory_kb, "memory for bitmaps, at most, in KiB; 0: 1/512 of the machine's");

unsigned int max_bitmap_kb = 4096;
module_param(max_bitmap_kb, uint, 0444);
MODULE_PARM_DESC(max_bitmap_kb,
		 "memory for one file's bitmap, at most, in KiB: larger files get coarser bits (4096: files over 128 GiB)");

unsigned int max_call_kb = 65536;
module_param(max_call_kb, uint, 0644);
MODULE_PARM_DESC(max_call_kb, "what one call fetches, at most, in KiB");

unsigned int forget_after = 30;
module_param(forget_after, uint, 0644);
MODULE_PARM_DESC(forget_after, "seconds after which a file without cached pages is forgotten");

static struct tracepoint *insertion, *removal;
static struct dentry *debug;

static void find_tracepoint(struct tracepoint *tracepoint, void *data)
{
	if (!strcmp(tracepoint->name, "mm_filemap_add_to_page_cache"))
		insertion = tracepoint;
	else if (!strcmp(tracepoint->name, "mm_filemap_delete_from_page_cache"))
		removal = tracepoint;
}

static int state_show(struct seq_file *out, void *data)
{
	seq_printf(out, "files %lu\nbytes %lu\nrefused %lu\n", ocache_files_known(),
		   ocache_memory_bytes(), ocache_refused());
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(state);

static int __init outrider_cache_init(void)
{
	int error;

	for_each_kernel_tracepoint(find_tracepoint, NULL);
	if (!insertion || !removal) {
		pr_err("outrider_cache: this kernel has no tracepoint %s\n",
		       insertion ? "mm_filemap_delete_from_page_cache" :
				   "mm_filemap_add_to_page_cache");
		return -ENODEV;
	}
	if (!max_files || max_bitmap_kb < PAGE_SIZE / 1024) {
		pr_err("outrider_cache: max_files=%u, max_bitmap_kb=%u: at least 1 and %lu are needed\n",
		       max_files, max_bitmap_kb,
		       PAGE_SIZE / 1024);
		return -EINVAL;
	}
	error = ocache_files_init();
	if (error)
		return error;
	error = tracepoint_probe_register(insertion, ocache_inserted, NULL);
	if (error)
		goto no_insertion;
	error = tracepoint_probe_register(removal, ocache_removed, NULL);
	if (error)
		goto no_removal;
	/* Last: from here on there are callers. */
	error = ocache_device_init();
	if (error)
		goto no_device;
	debug = debugfs_create_dir("outrider_cache", NULL);
	debugfs_create_file("state", 0400, debug, NULL, &state_fops);
	return 0;

no_device:
	tracepoint_probe_unregister(removal, ocache_removed, NULL);
no_removal:
	tracepoint_probe_unregister(insertion, ocache_inserted, NULL);
no_insertion:
	tracepoint_synchronize_unregister();
	ocache_files_exit();
	return error;
}

/*
 * Nobody is in a call or holds a descriptor of ours: those hold the module. Probes may still be
 * running.
 */
static void __exit outrider_cache_exit(void)
{
	debugfs_remove_recursive(debug);
	ocache_device_exit();
	tracepoint_probe_unregister(removal, ocache_removed, NULL);
	tracepoint_probe_unregister(insertion, ocache_inserted, NULL);
	tracepoint_synchronize_unregister();
	ocache_files_exit();
}

module_init(outrider_cache_init);
module_exit(outrider_cache_exit);
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The Outrider developers");
MODULE_DESCRIPTION("Outrider: what of a file is cached, and readahead of what is not");
MODULE_VERSION("0.1.0");
