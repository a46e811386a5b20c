/*
 * The callback of the paper's Figure 7 (VanDeBogart, Frost, Kohler: Reducing Seek Overhead with Application-Directed
 * Prefetching, USENIX ATC '09), as printed, and around it as much of an image program as it needs: an image whose tiles lie row
 * by row in a swap file, walked column by column.
 *
 *     figure7 SWAPFILE [COLUMNS]
 *
 * reads the file as an image of tiles of 4096 bytes, COLUMNS in a row (64 by default), and prints a checksum over the tiles in
 * the order of the walk.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <libprefetch.h>

#define TILE_SIZE  4096
#define BATCH_SIZE 256

enum order { ROW_MAJOR, COLUMN_MAJOR };

typedef struct imageInfo {
    int swap_file;
    long columns, rows;
    enum order accessOrder;
    struct tileInfo *tiles; /* row by row, and behind them the end of a walk */
} imageInfo_t;

typedef struct tileInfo {
    imageInfo_t *imageInfo;
    loff_t swap_offset;
} tileInfo_t;

struct state {
    client_t client;
};

static imageInfo_t image;

static tileInfo_t *getTileInfo(int fd, loff_t offset) {
    long count = image.columns * image.rows, index = (long)(offset / TILE_SIZE);
    return &image.tiles[fd == image.swap_file && index < count ? index : count];
}

static int lastTile(tileInfo_t *tile) {
    return tile == &image.tiles[image.columns * image.rows];
}

static tileInfo_t *nextTile(tileInfo_t *tile, enum order order) {
    imageInfo_t *img = tile->imageInfo;
    long index = tile - img->tiles, count = img->columns * img->rows;
    if (order == ROW_MAJOR)
        index++;
    else if (index + img->columns < count)
        index += img->columns;
    else
        index = index % img->columns + 1 < img->columns ? index % img->columns + 1 : count;
    return &img->tiles[index];
}

/* The paper leaves the parameters' types out, and so does this old form of a definition in the line that it prints. */
void callback(state, markFd, markOffset, reqFd, reqOffset)
    struct state *state;
    int markFd, reqFd;
    loff_t markOffset, reqOffset;
{
    struct access_entry accesses[BATCH_SIZE];
    int accepted, full, n = 0;
    int mode = PF_SET;
    tileInfo_t *tile = getTileInfo(reqFd, reqOffset);
    imageInfo_t *img = tile->imageInfo;

    for (; !lastTile(tile); tile = nextTile(tile, img->accessOrder) ) {
        accesses[n].page_offset = tile->swap_offset;
        accesses[n].fd = img->swap_file;
        accesses[n++].marked = 0;
        if (n == BATCH_SIZE) {
            accepted = request_prefetching(state->client,
                accesses, n, mode);
            full = (accepted < n);
            mode = PF_APPEND;
            n = 0;
            if (full)
                break;
    } }
    request_prefetching(state->client, accesses, n,
        mode | PF_DONE);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    struct state state;
    struct stat about;
    region_t region;
    tileInfo_t *tile;
    uint64_t sum = 14695981039346656037u; /* FNV-1a */
    long i, count;

    image.columns = argc > 2 ? atol(argv[2]) : 64;
    if (argc < 2 || argc > 3 || image.columns < 1) {
        fprintf(stderr, "usage: figure7 SWAPFILE [COLUMNS]\n");
        return 2;
    }
    image.swap_file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (image.swap_file < 0 || fstat(image.swap_file, &about) != 0)
        fail(argv[1]);
    image.rows = about.st_size / TILE_SIZE / image.columns;
    image.accessOrder = COLUMN_MAJOR;
    count = image.columns * image.rows;
    image.tiles = calloc((size_t)count + 1, sizeof *image.tiles);
    if (!image.tiles)
        fail("memory");
    for (i = 0; i <= count; i++) {
        image.tiles[i].imageInfo = &image;
        image.tiles[i].swap_offset = (loff_t)i * TILE_SIZE;
    }
    if (count == 0) {
        fprintf(stderr, "%s: smaller than a row of %ld tiles\n", argv[1], image.columns);
        return 1;
    }

    state.client = register_client((callback_t)callback, &state);
    if (!state.client)
        fail("register_client");
    region = register_region(state.client, image.swap_file, 0, (loff_t)count * TILE_SIZE);
    if (!region)
        fail("register_region");

    for (tile = image.tiles; !lastTile(tile); tile = nextTile(tile, image.accessOrder)) {
        unsigned char pixels[TILE_SIZE];
        if (pread(image.swap_file, pixels, sizeof pixels, tile->swap_offset) != (ssize_t)sizeof pixels)
            fail(argv[1]);
        for (i = 0; i < TILE_SIZE; i++)
            sum = (sum ^ pixels[i]) * 1099511628211u;
    }
    printf("%ld tiles, checksum %016" PRIx64 "\n", count, sum);

    if (unregister_region(state.client, region) != 0 || unregister_client(state.client) != 0)
        fail("unregister");
    free(image.tiles);
    close(image.swap_file);
    return 0;
}
