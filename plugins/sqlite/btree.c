#include "btree.h"

#include <string.h>

/* Of a database file's header (section 1.3 of the file format). */
#define HEADER_BYTES 100

static uint32_t get2(const unsigned char *at) {
    return (uint32_t)at[0] << 8 | at[1];
}

static uint32_t get4(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A big-endian integer of 1 to 8 bytes in two's complement. */
static int64_t get_signed(const unsigned char *at, uint32_t bytes) {
    uint64_t value = (at[0] & 0x80) ? UINT64_MAX : 0;
    uint32_t i;
    for (i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return (int64_t)value;
}

/* Reads a varint that begins at `at` and ends before `end`; returns its length, 0 if it doesn't end there. */
static uint32_t varint(const unsigned char *bytes, uint32_t at, uint32_t end, uint64_t *value) {
    uint64_t result = 0;
    uint32_t i;
    for (i = 0; i < 9; i++) {
        if (at + i >= end)
            return 0;
        if (i == 8) {
            *value = result << 8 | bytes[at + i];
            return 9;
        }
        result = result << 7 | (bytes[at + i] & 0x7f);
        if (!(bytes[at + i] & 0x80)) {
            *value = result;
            return i + 1;
        }
    }
    return 0;
}

/* Bytes of a value of this serial type. */
static uint64_t serial_length(uint64_t type) {
    static const unsigned char small[12] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};
    return type < 12 ? small[type] : (type - 12) / 2;
}

/* Reads an integer of this serial type; 0 if the type is another or it doesn't fit before `end`. */
static int serial_integer(const unsigned char *bytes, uint64_t at, uint64_t end, uint64_t type, int64_t *value) {
    uint64_t length = serial_length(type);
    if (type == 8 || type == 9) {
        *value = (int64_t)type - 8;
        return 1;
    }
    if (type < 1 || type > 6 || at > end || end - at < length)
        return 0;
    *value = get_signed(bytes + at, (uint32_t)length);
    return 1;
}

int btree_file_parse(struct btree_file *file, const unsigned char *header) {
    uint32_t size, reserved;
    if (memcmp(header, "SQLite format 3", 16) != 0)
        return 0;
    size = get2(header + 16);
    if (size == 1)
        size = 65536;
    reserved = header[20];
    /* The format wants at least 480 usable bytes, and fixed payload fractions. */
    if (size < 512 || (size & (size - 1)) || size < 480 + reserved || header[21] != 64 || header[22] != 32 ||
        header[23] != 32)
        return 0;
    file->page_size = size;
    file->usable = size - reserved;
    return 1;
}

enum btree_kind btree_kind_of(const unsigned char *bytes, uint32_t number) {
    switch (bytes[number == 1 ? HEADER_BYTES : 0]) {
    case BTREE_INDEX_INTERIOR:
        return BTREE_INDEX_INTERIOR;
    case BTREE_TABLE_INTERIOR:
        return BTREE_TABLE_INTERIOR;
    case BTREE_INDEX_LEAF:
        return BTREE_INDEX_LEAF;
    case BTREE_TABLE_LEAF:
        return BTREE_TABLE_LEAF;
    default:
        return BTREE_NONE;
    }
}

static int is_interior(enum btree_kind kind) {
    return kind == BTREE_INDEX_INTERIOR || kind == BTREE_TABLE_INTERIOR;
}

int btree_page_parse(struct btree_page *page, const struct btree_file *file, const unsigned char *bytes,
                     uint32_t number) {
    uint32_t start = number == 1 ? HEADER_BYTES : 0;
    page->bytes = bytes;
    page->usable = file->usable;
    page->kind = btree_kind_of(bytes, number);
    page->cells = 0;
    page->right = 0;
    if (page->kind == BTREE_NONE)
        return 0;
    page->array = start + (is_interior(page->kind) ? 12 : 8);
    page->cells = get2(bytes + start + 3);
    if (is_interior(page->kind))
        page->right = get4(bytes + start + 8);
    return page->array + 2 * page->cells <= page->usable;
}

/* Offset of cell `i`; 0 if it lies outside. */
static uint32_t cell_at(const struct btree_page *page, uint32_t i) {
    uint32_t at;
    if (i >= page->cells)
        return 0;
    at = get2(page->bytes + page->array + 2 * i);
    return at >= page->array && at + 4 <= page->usable ? at : 0;
}

uint32_t btree_child(const struct btree_page *page, uint32_t i) {
    uint32_t at;
    if (!is_interior(page->kind))
        return 0;
    if (i == page->cells)
        return page->right;
    at = cell_at(page, i);
    return at ? get4(page->bytes + at) : 0;
}

int btree_table_key(const struct btree_page *page, uint32_t i, int64_t *rowid) {
    uint32_t at = cell_at(page, i), length;
    uint64_t value;
    if (!at)
        return 0;
    if (page->kind == BTREE_TABLE_INTERIOR) {
        at += 4;
    } else if (page->kind == BTREE_TABLE_LEAF) {
        length = varint(page->bytes, at, page->usable, &value);
        if (!length)
            return 0;
        at += length;
    } else {
        return 0;
    }
    if (!varint(page->bytes, at, page->usable, &value))
        return 0;
    *rowid = (int64_t)value;
    return 1;
}

/* Where the payload of a cell begins and how much of it is on this page (section 1.6); 0 if that makes no sense. */
static int payload(const struct btree_page *page, uint32_t i, uint32_t *start, uint32_t *local) {
    uint32_t at = cell_at(page, i), length, largest, smallest;
    uint64_t size, rowid, kept;
    if (!at)
        return 0;
    if (page->kind == BTREE_INDEX_INTERIOR)
        at += 4;
    length = varint(page->bytes, at, page->usable, &size);
    if (!length)
        return 0;
    at += length;
    largest = (page->usable - 12) * 64 / 255 - 23;
    smallest = (page->usable - 12) * 32 / 255 - 23;
    if (page->kind == BTREE_TABLE_LEAF) {
        length = varint(page->bytes, at, page->usable, &rowid);
        if (!length)
            return 0;
        at += length;
        largest = page->usable - 35;
    }
    kept = size;
    if (size > largest) {
        kept = smallest + (size - smallest) % (page->usable - 4);
        if (kept > largest)
            kept = smallest;
    }
    if (at > page->usable || kept > page->usable - at)
        return 0;
    *start = at;
    *local = (uint32_t)kept;
    return 1;
}

int btree_index_rowid(const struct btree_page *page, uint32_t i, int64_t *rowid) {
    uint32_t start, local, at, length, end;
    uint64_t header, type = 0, body;
    if (page->kind != BTREE_INDEX_LEAF && page->kind != BTREE_INDEX_INTERIOR)
        return 0;
    if (!payload(page, i, &start, &local))
        return 0;
    end = start + local;
    length = varint(page->bytes, start, end, &header);
    if (!length || header <= length || header > local)
        return 0;
    at = start + length;
    body = start + header;
    /* The rowid is the last column: all others are skipped. */
    while (at < start + header) {
        if (at != start + length) {
            uint64_t skip = serial_length(type);
            if (body > end || skip > end - body)
                return 0;
            body += skip;
        }
        {
            uint32_t step = varint(page->bytes, at, (uint32_t)(start + header), &type);
            if (!step)
                return 0;
            at += step;
        }
    }
    return serial_integer(page->bytes, body, end, type, rowid);
}

int btree_schema_row(const struct btree_page *page, uint32_t i, struct btree_schema_row *row) {
    uint32_t start, local, at, length, end, column;
    uint64_t header, types[4], body, size;
    int64_t root;
    if (page->kind != BTREE_TABLE_LEAF || !payload(page, i, &start, &local))
        return 0;
    end = start + local;
    length = varint(page->bytes, start, end, &header);
    if (!length || header <= length || header > local)
        return 0;
    at = start + length;
    for (column = 0; column < 4; column++) { /* type, name, tbl_name, rootpage */
        length = varint(page->bytes, at, (uint32_t)(start + header), &types[column]);
        if (!length)
            return 0;
        at += length;
    }
    row->type = 0;
    row->table = NULL;
    row->table_length = 0;
    row->root = 0;
    body = start + header;
    for (column = 0; column < 4; column++) {
        size = serial_length(types[column]);
        if (body > end || size > end - body)
            return 0;
        if (column == 0 && types[0] >= 13 && (types[0] & 1)) {
            if (size == 5 && memcmp(page->bytes + body, "table", 5) == 0)
                row->type = 't';
            else if (size == 5 && memcmp(page->bytes + body, "index", 5) == 0)
                row->type = 'i';
        } else if (column == 2 && types[2] >= 13 && (types[2] & 1)) {
            row->table = page->bytes + body;
            row->table_length = (size_t)size;
        } else if (column == 3 && serial_integer(page->bytes, body, end, types[3], &root) && root > 0 &&
                   root <= UINT32_MAX) {
            row->root = (uint32_t)root;
        }
        body += size;
    }
    return row->table != NULL;
}
