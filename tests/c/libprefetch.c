/*
 * libprefetch's interface as its paper describes it, on FILE of at least 256 pages. Compiled as C and as C++. Prints what was
 * read and seen; a line with `wrong` says what the interface didn't keep.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libprefetch.h>

#define PAGE  4096
#define PAGES 256
#define BATCH 16

static int wrong;

static void check(int holds, const char *what) {
    if (!holds) {
        printf("wrong: %s (errno %d)\n", what, errno);
        wrong = 1;
    }
}

struct plan {
    client_t client;
    int fd, calls, last_mark_fd, next;
    libprefetch_off last_mark, requested;
};

/* The i-th page that is read: a permutation of them all. */
static libprefetch_off page(int i) {
    return (libprefetch_off)(i * 37 % PAGES) * PAGE;
}

static void more(void *arg, int markFD, libprefetch_off markOffset, int requestedFD, libprefetch_off requestedOffset) {
    struct plan *plan = (struct plan *)arg;
    struct access_entry entries[BATCH];
    char byte;
    int n = 0;
    plan->calls++;
    plan->last_mark_fd = markFD;
    plan->last_mark = markOffset;
    plan->requested = requestedOffset;
    check(requestedFD == plan->fd, "the descriptor of the read");
    /* What a callback reads is not followed, and only its own list is its business. */
    check(pread(plan->fd, &byte, 1, 0) == 1, "a read in a callback");
    check(register_client(NULL, NULL) == NULL && errno == EDEADLK, "register_client in a callback");
    check(unregister_client(plan->client) == -1 && errno == EDEADLK, "unregister_client in a callback");
    while (n < BATCH && plan->next < PAGES) {
        memset(&entries[n], 0, sizeof entries[n]);
        entries[n].page_offset = page(plan->next) + 5; /* any byte of the page */
        entries[n].fd = plan->fd;
        entries[n].marked = plan->next % 4 == 0;
        n++;
        plan->next++;
    }
    check(request_prefetching(plan->client, entries, (size_t)n, PF_APPEND | PF_DONE) == n, "request_prefetching");
}

int main(int argc, char **argv) {
    struct plan plan;
    struct access_entry entry;
    struct outrider_stats stats;
    char bytes[PAGE];
    uint64_t sum = 14695981039346656037u;
    region_t region, rest;
    client_t other;
    struct access_entry *many;
    size_t count = OUTRIDER_LIST_MAX + 10;
    ssize_t taken;
    int i, k, before;
    memset(&plan, 0, sizeof plan);
    plan.fd = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    if (plan.fd < 0)
        return 2;

    plan.client = register_client(more, &plan);
    check(plan.client != NULL, "register_client");
    region = register_region(plan.client, plan.fd, 0, PAGES * PAGE);
    check(region != NULL, "register_region");

    /* Reads in the order of the list: the callback is called whenever it runs out. */
    for (i = 0; i < PAGES; i++) {
        check(pread(plan.fd, bytes, PAGE, page(i)) == PAGE, "pread");
        if (i == 0)
            check(plan.calls == 1 && plan.last_mark_fd == -1 && plan.requested == page(0), "the first call");
        for (k = 0; k < PAGE; k++)
            sum = (sum ^ (unsigned char)bytes[k]) * 1099511628211u;
    }
    check(plan.next == PAGES, "the callback was not asked for all");
    check(plan.last_mark_fd == plan.fd && plan.last_mark % PAGE == 0, "the marked page");
    check(plan.calls >= PAGES / BATCH, "calls");
    check(outrider_stats(&stats, sizeof stats) == 0 && stats.declared_bytes == PAGES * PAGE, "declared bytes");
    check(stats.callbacks == (uint64_t)plan.calls, "callbacks counted");

    /* Ignored reads call nobody; others outside the list do. */
    memset(&entry, 0, sizeof entry);
    entry.pageOffset = 3 * PAGE;
    entry.fd = plan.fd;
    entry.mark = true;
    check(request_prefetching(plan.client, &entry, 1, PF_SET | PF_DONE) == 1, "PF_SET");
    before = plan.calls;
    check(ignore_accesses(plan.client) == 0 && ignore_accesses(plan.client) == 0, "ignore_accesses");
    check(pread(plan.fd, bytes, PAGE, 100 * PAGE) == PAGE, "pread");
    check(unignore_accesses(plan.client) == 0 && unignore_accesses(plan.client) == 0, "unignore_accesses");
    check(plan.calls == before, "an ignored read");
    check(unignore_accesses(plan.client) == -1 && errno == EINVAL, "unignore_accesses without the other");
    check(pread(plan.fd, bytes, PAGE, 200 * PAGE) == PAGE && plan.calls == before + 1, "a read outside the list");
    check(plan.requested == 200 * PAGE, "the offset of that read");

    /* Misuse. */
    check(request_prefetching(plan.client, &entry, 1, PF_DONE) == -1 && errno == EINVAL, "no type");
    check(request_prefetching(plan.client, &entry, 1, PF_SET | PF_APPEND) == -1 && errno == EINVAL, "two types");
    check(request_prefetching(plan.client, NULL, 1, PF_SET) == -1 && errno == EINVAL, "no entries");
    check(request_prefetching(plan.client, NULL, 0, PF_SET_FROM_MARK | PF_DONE) == 0, "PF_SET_FROM_MARK of nothing");
    check(register_region(plan.client, plan.fd, 8, 8) == NULL && errno == EINVAL, "an empty region");
    check(register_region(plan.client, plan.fd, 4096, 8192) == NULL && errno == EEXIST, "overlapping regions");
    check(register_region(plan.client, -1, 0, 8192) == NULL && errno == EBADF, "a region of no file");
    check(unregister_region(plan.client, NULL) == -1 && errno == EINVAL, "no region");
    rest = register_region(plan.client, plan.fd, PAGES * PAGE, PAGES * PAGE + 1);
    check(rest != NULL, "a second region");

    /* Of more than a list holds, the rest is not taken. Entries outside of regions are taken and left out. */
    many = (struct access_entry *)calloc(count, sizeof *many);
    check(many != NULL, "memory");
    for (i = 0; many && (size_t)i < count; i++) {
        many[i].fd = plan.fd;
        many[i].page_offset = page(i % PAGES);
    }
    taken = many ? request_prefetching(plan.client, many, count, PF_SET | PF_DONE) : 0;
    check(taken == OUTRIDER_LIST_MAX, "a list that is too long");
    for (i = 0; many && i < PAGES; i++)
        many[i].page_offset = (libprefetch_off)1 << (i % 63);
    check(many && request_prefetching(plan.client, many, PAGES, PF_SET | PF_DONE) == PAGES, "entries beyond the end");
    free(many);

    other = register_client(NULL, NULL);
    check(other != NULL && unregister_region(other, region) == -1 && errno == ENOENT, "another client's region");
    check(unregister_region(plan.client, region) == 0, "unregister_region");
    check(register_region(other, plan.fd, 0, PAGE) != NULL, "a region that was freed");
    check(unregister_client(other) == 0 && unregister_client(plan.client) == 0, "unregister_client");
    check(unregister_client(NULL) == -1 && errno == EINVAL, "no client");

    printf("%d pages, checksum %016llx\n", PAGES, (unsigned long long)sum);
    return wrong;
}
