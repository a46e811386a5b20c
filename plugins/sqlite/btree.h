/*
 * Reading pages of SQLite's file format (https://www.sqlite.org/fileformat2.html): no system calls, no allocation, and no
 * byte outside the page, whatever it holds. A page that makes no sense is one without cells.
 */
#ifndef OUTRIDER_SQLITE_BTREE_H
#define OUTRIDER_SQLITE_BTREE_H

#include <stddef.h>
#include <stdint.h>

enum btree_kind {
    BTREE_NONE = 0,
    BTREE_INDEX_INTERIOR = 0x02,
    BTREE_TABLE_INTERIOR = 0x05,
    BTREE_INDEX_LEAF = 0x0a,
    BTREE_TABLE_LEAF = 0x0d
};

/* What the file's header says. */
struct btree_file {
    uint32_t page_size; /* bytes, a power of two from 512 to 65536 */
    uint32_t usable;    /* bytes of a page that b-trees use */
};

/* A page that was recognised as one of a b-tree. `bytes` is borrowed. */
struct btree_page {
    const unsigned char *bytes;
    uint32_t usable;
    uint32_t cells;  /* how many there are */
    uint32_t array;  /* offset of the cells' pointers */
    uint32_t right;  /* interior pages: the last child's page number */
    enum btree_kind kind;
};

/* Reads the first 100 bytes of a file. 0 if that is no database that is understood here (an encrypted one, say). */
int btree_file_parse(struct btree_file *file, const unsigned char *header);

/* What kind of page this may be, from its first byte. `number` counts from 1. */
enum btree_kind btree_kind_of(const unsigned char *bytes, uint32_t number);

/* Reads a page's header; 0 if it is none of a b-tree. `bytes` are file->page_size. */
int btree_page_parse(struct btree_page *page, const struct btree_file *file, const unsigned char *bytes,
                     uint32_t number);

/* The child of an interior page left of cell `i`, or the last for i == cells; 0 if there is none. */
uint32_t btree_child(const struct btree_page *page, uint32_t i);

/* The key of cell `i` of a table's page; 0 if it can't be told. */
int btree_table_key(const struct btree_page *page, uint32_t i, int64_t *rowid);

/* The last column of cell `i` of an index's page as an integer: the rowid that it points to. 0 if it is no integer or not on
 * this page. */
int btree_index_rowid(const struct btree_page *page, uint32_t i, int64_t *rowid);

/* A row of sqlite_schema: what is needed of it. */
struct btree_schema_row {
    char type;              /* 't': table, 'i': index, 0: something else */
    const unsigned char *table; /* name of the table that it belongs to, on the page */
    size_t table_length;    /* bytes */
    uint32_t root;          /* 0: none, as virtual tables and views have */
};

/* Reads cell `i` of a leaf of sqlite_schema; 0 if its first columns are not on this page. */
int btree_schema_row(const struct btree_page *page, uint32_t i, struct btree_schema_row *row);

#endif
