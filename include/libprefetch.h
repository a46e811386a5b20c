/*
 * libprefetch's interface as printed in its paper (VanDeBogart, Frost, Kohler: Reducing Seek Overhead with
 * Application-Directed Prefetching, USENIX ATC '09, Figures 6 and 7), over outrider.h. An entry is one page of 4096 bytes
 * that contains the byte `page_offset`. Link with -loutrider.
 */
#ifndef LIBPREFETCH_H
#define LIBPREFETCH_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "outrider.h"
#endif
