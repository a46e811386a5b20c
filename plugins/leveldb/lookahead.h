// What a Get will read: a foreaction graph for Version::Get.
//
// A Get looks into one data block of each table that may hold its key, the newest first, and ends with the first that has an entry for it. The
// tables and, from their index blocks, which are in memory, the blocks are known when it begins. Those that are not in the block cache are fetched
// together when the first of them is read. Nothing is done before that: a Get that the block cache answers has no scope.

#ifndef STORAGE_LEVELDB_DB_LOOKAHEAD_H_
#define STORAGE_LEVELDB_DB_LOOKAHEAD_H_

#include <cstddef>
#include <cstdint>

#include "leveldb/cache.h"
#include "leveldb/slice.h"
#include "leveldb/status.h"

struct outrider_op;
struct outrider_scope;

namespace leveldb {

class RandomAccessFile;
class Version;
struct FileMetaData;

// One Get, on its thread's stack. While it lives, the thread's reads of blocks go through its graph.
class LookAhead {
 public:
  LookAhead(Version* version, const Slice& user_key, const Slice& internal_key);
  ~LookAhead();

  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;

  // The Get turns to the next table.
  void NextTable() { tables_passed_++; }

  // RandomAccessFile::Read of a block, for the thread's Get if there is one.
  static Status Read(RandomAccessFile* file, uint64_t offset, size_t n,
                     Slice* result, char* scratch);

 private:
  struct Block {
    int fd;
    uint64_t offset;
    size_t size;
    // Keeps the descriptor open; null for the one that the Get read first.
    Cache::Handle* table;
  };

  // More tables than this may hold a key only while compaction lags far behind.
  static constexpr int kMostTables = 16;

  static int Next(void* self, uint64_t i, outrider_op* op);
  static bool Collect(void* self, int level, FileMetaData* table);
  bool FindBlock();

  Version* const version_;
  const Slice user_key_;
  const Slice internal_key_;
  // The thread's Get around this one: none, since a Get makes no other.
  LookAhead* const outer_;
  outrider_scope* scope_ = nullptr;

  // Tables that may hold the key, in the order in which the Get looks into them; -1 until they are asked for.
  int tables_ = -1;
  uint64_t table_numbers_[kMostTables];
  // How many of them the Get has turned to.
  int tables_passed_ = 0;
  // The next one whose block is to be found.
  int next_table_ = 0;
  // Blocks that were found so far, from the one that the Get read first.
  int blocks_ = 0;
  Block block_[kMostTables + 1];
};

}  // namespace leveldb

#endif  // STORAGE_LEVELDB_DB_LOOKAHEAD_H_
