/*
 * Blurs an image that is larger than memory, as the GIMP does it: the image is cut into tiles, which live in a swap file in the
 * order in which they were first written, and each pass takes the tiles by rows or by columns. A pass that goes the other way
 * than the one before reads the swap file in strides, one tile in each.
 *
 *     blur --make WIDTHxHEIGHT [--seed N] SWAPFILE     a swap file with an image of noise and shapes in it
 *     blur [--plain] [--radius PIXELS] SWAPFILE [OUTPUT]
 *
 * The second form blurs it and prints a checksum of the result; OUTPUT gets it as a PAM file. Each pass declares its reads to
 * Outrider before it begins, in the order in which they will come; with --plain it doesn't. The result is the same.
 *
 * Three copies of the image are in the file: A, the original, by rows; B, blurred along rows, by rows; C, blurred along columns as
 * well, by columns.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <outrider.h>

#define SIDE       64 /* pixels of a tile's side, as the GIMP has it */
#define TILE_BYTES (SIDE * SIDE * 4)
#define MAGIC      "outrider blur"

typedef uint32_t pixel; /* red, green, blue, alpha, a byte each */

struct image {
    int fd;
    long width, height;  /* pixels */
    long columns, rows;  /* tiles */
};

enum copy { A, B, C };

static void fail(const char *what) {
    fprintf(stderr, "blur: %s: %s\n", what, errno ? strerror(errno) : "not a swap file of this program");
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory)
        fail("memory");
    return memory;
}

/* Where a tile of a copy is in the file. The first tile's room is the header's. */
static off_t place(const struct image *image, enum copy copy, long column, long row) {
    long count = image->columns * image->rows;
    long index = copy == C ? column * image->rows + row : row * image->columns + column;
    return (off_t)(1 + copy * count + index) * TILE_BYTES;
}

static void read_tile(const struct image *image, enum copy copy, long column, long row, pixel *tile) {
    errno = 0;
    if (pread(image->fd, tile, TILE_BYTES, place(image, copy, column, row)) != TILE_BYTES)
        fail("read");
}

static void write_tile(const struct image *image, enum copy copy, long column, long row, const pixel *tile) {
    if (pwrite(image->fd, tile, TILE_BYTES, place(image, copy, column, row)) != TILE_BYTES)
        fail("write");
}

/* What a pass will read: a copy's tiles, by rows or by columns. */
struct pass {
    const struct image *image;
    enum copy copy;
    bool by_columns;
    struct outrider_range *ranges;
    size_t count, next, declared;
};

static void pass_begin(struct pass *pass, const struct image *image, enum copy copy, bool by_columns, bool plain) {
    long outer = by_columns ? image->columns : image->rows, inner = by_columns ? image->rows : image->columns, i, j;
    *pass = (struct pass){.image = image, .copy = copy, .by_columns = by_columns};
    if (plain)
        return;
    pass->ranges = allocate((size_t)(outer * inner) * sizeof *pass->ranges);
    for (i = 0; i < outer; i++)
        for (j = 0; j < inner; j++)
            pass->ranges[pass->count++] = (struct outrider_range){
                (uint64_t)place(image, copy, by_columns ? i : j, by_columns ? j : i), TILE_BYTES};
}

/* To be called before the next tile is read: declares what is to come, and again once a list as long as it may be is read. */
static void pass_next(struct pass *pass) {
    if (pass->ranges && pass->next == pass->declared) {
        ssize_t taken = outrider_declare(pass->image->fd, pass->ranges + pass->next, pass->count - pass->next);
        if (taken <= 0) {
            /* Nothing is lost but time. */
            free(pass->ranges);
            pass->ranges = NULL;
        } else {
            pass->declared += (size_t)taken;
        }
    }
    pass->next++;
}

static void pass_end(struct pass *pass) {
    free(pass->ranges);
}

/* Averages over 2 * radius + 1 pixels of a line; beyond its ends the last pixel goes on. */
static void blur_line(const pixel *from, pixel *to, long count, long stride, long radius) {
    uint64_t sums[4] = {0, 0, 0, 0};
    long i, channel, width = 2 * radius + 1;
#define AT(k) from[((k) < 0 ? 0 : (k) >= count ? count - 1 : (k)) * stride]
    for (i = -radius; i <= radius; i++)
        for (channel = 0; channel < 4; channel++)
            sums[channel] += AT(i) >> 8 * channel & 0xff;
    for (i = 0; i < count; i++) {
        pixel result = 0;
        for (channel = 0; channel < 4; channel++) {
            result |= (pixel)(sums[channel] / (uint64_t)width) << 8 * channel;
            sums[channel] += (AT(i + radius + 1) >> 8 * channel & 0xff);
            sums[channel] -= (AT(i - radius) >> 8 * channel & 0xff);
        }
        to[i * stride] = result;
    }
#undef AT
}

/* Copies a tile into a strip of pixels with lines of `line` pixels, or back. */
static void into_strip(pixel *strip, long line, const pixel *tile) {
    for (long y = 0; y < SIDE; y++)
        memcpy(strip + y * line, tile + y * SIDE, SIDE * sizeof(pixel));
}

static void out_of_strip(const pixel *strip, long line, pixel *tile) {
    for (long y = 0; y < SIDE; y++)
        memcpy(tile + y * SIDE, strip + y * line, SIDE * sizeof(pixel));
}

static void blur_rows(const struct image *image, long radius, bool plain) {
    long line = image->columns * SIDE, row, column, y;
    pixel *strip = allocate((size_t)line * SIDE * sizeof(pixel)), *blurred = allocate((size_t)line * SIDE * sizeof(pixel));
    pixel tile[SIDE * SIDE];
    struct pass pass;
    pass_begin(&pass, image, A, false, plain);
    for (row = 0; row < image->rows; row++) {
        for (column = 0; column < image->columns; column++) {
            pass_next(&pass);
            read_tile(image, A, column, row, tile);
            into_strip(strip + column * SIDE, line, tile);
        }
        for (y = 0; y < SIDE; y++)
            blur_line(strip + y * line, blurred + y * line, image->width, 1, radius);
        for (column = 0; column < image->columns; column++) {
            out_of_strip(blurred + column * SIDE, line, tile);
            write_tile(image, B, column, row, tile);
        }
    }
    pass_end(&pass);
    free(strip);
    free(blurred);
}

static void blur_columns(const struct image *image, long radius, bool plain) {
    long row, column, x;
    size_t bytes = (size_t)image->rows * TILE_BYTES;
    pixel *strip = allocate(bytes), *blurred = allocate(bytes);
    struct pass pass;
    pass_begin(&pass, image, B, true, plain);
    for (column = 0; column < image->columns; column++) {
        for (row = 0; row < image->rows; row++) {
            pass_next(&pass);
            read_tile(image, B, column, row, strip + row * SIDE * SIDE);
        }
        for (x = 0; x < SIDE; x++)
            blur_line(strip + x, blurred + x, image->height, SIDE, radius);
        for (row = 0; row < image->rows; row++)
            write_tile(image, C, column, row, blurred + row * SIDE * SIDE);
    }
    pass_end(&pass);
    free(strip);
    free(blurred);
}

/* Takes the result by rows: checksum and output. */
static uint64_t deliver(const struct image *image, const char *output, bool plain) {
    long line = image->columns * SIDE, row, column, y, x;
    pixel *strip = allocate((size_t)line * SIDE * sizeof(pixel)), tile[SIDE * SIDE];
    uint64_t sum = 14695981039346656037u; /* FNV-1a, by pixels */
    FILE *file = NULL;
    struct pass pass;
    if (output) {
        file = fopen(output, "w");
        if (!file)
            fail(output);
        fprintf(file, "P7\nWIDTH %ld\nHEIGHT %ld\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\n", image->width,
                image->height);
    }
    pass_begin(&pass, image, C, false, plain);
    for (row = 0; row < image->rows; row++) {
        for (column = 0; column < image->columns; column++) {
            pass_next(&pass);
            read_tile(image, C, column, row, tile);
            into_strip(strip + column * SIDE, line, tile);
        }
        for (y = 0; y < SIDE && row * SIDE + y < image->height; y++) {
            for (x = 0; x < image->width; x++)
                sum = (sum ^ strip[y * line + x]) * 1099511628211u;
            if (file && fwrite(strip + y * line, sizeof(pixel), (size_t)image->width, file) != (size_t)image->width)
                fail(output);
        }
    }
    pass_end(&pass);
    if (file && fclose(file) != 0)
        fail(output);
    free(strip);
    return sum;
}

static void make(struct image *image, uint64_t seed) {
    pixel tile[SIDE * SIDE];
    char *header = allocate(TILE_BYTES);
    long row, column, i;
    snprintf(header, TILE_BYTES, "%s %ld %ld\n", MAGIC, image->width, image->height);
    if (pwrite(image->fd, header, TILE_BYTES, 0) != TILE_BYTES)
        fail("write");
    free(header);
    for (row = 0; row < image->rows; row++)
        for (column = 0; column < image->columns; column++) {
            for (i = 0; i < SIDE * SIDE; i++) {
                uint64_t z = seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
                z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
                z ^= z >> 27;
                tile[i] = (row + column) % 3 ? (pixel)z : (pixel)(row * 0x10305 + column * 0x70b0d) | 0xff000000u;
            }
            write_tile(image, A, column, row, tile);
        }
}

static int usage(const char *wrong) {
    if (wrong)
        fprintf(stderr, "blur: %s\n", wrong);
    fprintf(stderr, "usage: blur --make WIDTHxHEIGHT [--seed N] SWAPFILE\n"
                    "       blur [--plain] [--radius PIXELS] SWAPFILE [OUTPUT]\n");
    return 2;
}

int main(int argc, char **argv) {
    struct image image = {.fd = -1};
    const char *swap = NULL, *output = NULL;
    bool plain = false, making = false;
    long radius = 5;
    uint64_t seed = 1;
    int i;
    for (i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--plain") == 0) {
            plain = true;
        } else if (strcmp(argv[i], "--make") == 0 && i + 1 < argc) {
            char beyond;
            making = true;
            if (sscanf(argv[++i], "%ldx%ld%c", &image.width, &image.height, &beyond) != 2 || image.width < 1 ||
                image.height < 1 || image.width > 1 << 20 || image.height > 1 << 20)
                return usage("--make takes WIDTHxHEIGHT, pixels from 1 to 1048576");
        } else if (strcmp(argv[i], "--radius") == 0 && i + 1 < argc) {
            radius = strtol(argv[++i], &end, 10);
            if (*end || radius < 0 || radius > 1000)
                return usage("--radius takes pixels from 0 to 1000");
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], &end, 10);
            if (*end)
                return usage("--seed takes a number");
        } else if (argv[i][0] == '-' && argv[i][1]) {
            return usage(argv[i]);
        } else if (!swap) {
            swap = argv[i];
        } else if (!output && !making) {
            output = argv[i];
        } else {
            return usage(argv[i]);
        }
    }
    if (!swap)
        return usage("SWAPFILE is missing");
    image.fd = open(swap, making ? O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC : O_RDWR | O_CLOEXEC, 0666);
    if (image.fd < 0)
        fail(swap);
    if (!making) {
        char header[64] = "";
        errno = 0;
        if (pread(image.fd, header, sizeof header - 1, 0) < 0 ||
            sscanf(header, MAGIC " %ld %ld", &image.width, &image.height) != 2 || image.width < 1 ||
            image.height < 1 || image.width > 1 << 20 || image.height > 1 << 20)
            fail(swap);
    }
    image.columns = (image.width + SIDE - 1) / SIDE;
    image.rows = (image.height + SIDE - 1) / SIDE;
    if (making) {
        make(&image, seed);
    } else {
        blur_rows(&image, radius, plain);
        blur_columns(&image, radius, plain);
        printf("%ldx%ld, checksum %016" PRIx64 "\n", image.width, image.height, deliver(&image, output, plain));
    }
    if (close(image.fd) != 0)
        fail(swap);
    return 0;
}
