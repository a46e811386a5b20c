// What a Get will read: a foreaction graph for Version::Get.
//
// A Get looks into one data block of each table that may hold its key, the newest first, and ends with the first that has an entry for it. The
// tables and, from their index blocks, which are in memory, the blocks are known when it begins. Those that are not in the block cache are fetched
// together when the first of them is read. Nothing is done before that: a Get that the block cache answers has no scope.
//
// The block of a table that is not open yet is not known. What it takes to open one, the footer and the index, lies at its end and is fetched in
// one piece, with the blocks of the other tables.

#ifndef STORAGE_LEVELDB_DB_LOOKAHEAD_H_
#define STORAGE_LEVELDB_DB_LOOKAHEAD_H_

#include <cstddef>
#include <cstdint>

#include "db/dbformat.h"
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

  // Has the footer and the index of a table of "size" bytes fetched.
  static void FetchEnd(const RandomAccessFile* file, uint64_t size);

 private:
  struct Block {
    int fd;
    uint64_t offset;
    size_t size;
    // Keeps the descriptor open; null for the one that the Get read first.
    Cache::Handle* table;
  };

  // A key may be in each of level 0, which takes no more than twelve, and in one of each other level.
  static constexpr int kMostTables =
      config::kL0_StopWritesTrigger + config::kNumLevels - 1;
  // An index has about 40 bytes for a block of 4 KiB, a hundredth of the table; the bytes of its end that are fetched: that and half as much again, and
  // what a small table needs.
  static constexpr uint64_t kEndShare = 64;
  static constexpr uint64_t kLeastEnd = 4096;

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
  const FileMetaData* table_[kMostTables];
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
