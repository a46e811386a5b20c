// SPDX-License-Identifier: GPL-2.0-only
#include <linux/module.h>
static int __init outrider_cache_init(void) { return 0; }
static void __exit outrider_cache_exit(void) { }
module_init(outrider_cache_init);
module_exit(outrider_cache_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Outrider: what of a file is cached, and readahead of what is not");
