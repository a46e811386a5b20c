/* SPDX-License-Identifier: GPL-2.0 */
/*
 * bcache_map_keys(op, set, from, function, flags): bch_btree_map_keys(), whose address is in bcache_map_keys_at.
 *
 * It is reached by a return: bcache never takes that function's address, so that where the processor checks indirect calls
 * (IBT), the kernel has taken its ENDBR away, and a call through a pointer would trap.
 */
#include <linux/linkage.h>
#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

	.text
SYM_CODE_START(bcache_map_keys)
	UNWIND_HINT_FUNC
	pushq	bcache_map_keys_at(%rip)
	UNWIND_HINT_FUNC
	ANNOTATE_UNRET_SAFE
	ret
	int3
SYM_CODE_END(bcache_map_keys)
	.section .note.GNU-stack,"",@progbits
