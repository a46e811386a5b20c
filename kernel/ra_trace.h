/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM outrider_ra

#if !defined(RA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define RA_TRACE_H

#include <linux/tracepoint.h>

/* A window that a policy has chosen. */
TRACE_EVENT(outrider_ra_window,
	TP_PROTO(dev_t dev, unsigned long ino, unsigned long start, const struct ra_request *rq,
		 const struct ra_window *window),
	TP_ARGS(dev, ino, start, rq, window),
	TP_STRUCT__entry(
		__field(dev_t, dev)
		__field(unsigned long, ino)
		__field(unsigned long, start)
		__field(u32, previous)
		__field(u32, pages)
		__field(u32, lookahead)
		__field(u8, location)
		__field(bool, sync)
		__field(bool, stalled)
	),
	TP_fast_assign(
		__entry->dev = dev;
		__entry->ino = ino;
		__entry->start = start;
		__entry->previous = rq->sync ? rq->asked : rq->previous;
		__entry->pages = window->pages;
		__entry->lookahead = window->lookahead;
		__entry->location = window->location;
		__entry->sync = rq->sync;
		__entry->stalled = rq->stalled;
	),
	TP_printk("dev=%d:%d ino=%lu start=%lu %s%s previous=%u pages=%u lookahead=%u case=%u",
		MAJOR(__entry->dev), MINOR(__entry->dev), __entry->ino, __entry->start,
		__entry->sync ? "sync" : "async", __entry->stalled ? " stalled" : "",
		__entry->previous, __entry->pages, __entry->lookahead, __entry->location)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE ra_trace
#include <trace/define_trace.h>
