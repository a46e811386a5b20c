#include "db/lookahead.h"

#include <fcntl.h>
#include <outrider_graph.h>

#include <algorithm>

#include "db/table_cache.h"
#include "db/version_set.h"
#include "leveldb/env.h"
#include "leveldb/table.h"

namespace leveldb {

namespace {

// At a fixed distance from the thread's pointer: every Get and every read looks here.
thread_local LookAhead* get_of_thread
    __attribute__((tls_model("initial-exec"))) = nullptr;

}  // namespace

LookAhead::LookAhead(Version* version, const Slice& user_key,
                     const Slice& internal_key)
    : version_(version),
      user_key_(user_key),
      internal_key_(internal_key),
      outer_(get_of_thread) {
  get_of_thread = this;
}

LookAhead::~LookAhead() {
  get_of_thread = outer_;
  if (scope_ == nullptr) return;
  outrider_leave(scope_);
  TableCache* const tables = version_->vset_->table_cache_;
  for (int i = 1; i < blocks_; i++) tables->ForeseenUsed(block_[i].table);
}

Status LookAhead::Read(RandomAccessFile* file, uint64_t offset, size_t n,
                       Slice* result, char* scratch) {
  // A Get may end with any of its reads. Compactions, other Gets and the opening of tables read in between.
  static const outrider_graph* const graph = outrider_graph_generator(
      "leveldb Get", &LookAhead::Next,
      OUTRIDER_PURE | OUTRIDER_AMONG | OUTRIDER_STABLE | OUTRIDER_FETCH);
  LookAhead* const get = get_of_thread;
  const int fd = get == nullptr ? -1 : file->Descriptor();
  if (fd < 0) {
    return file->Read(offset, n, result, scratch);
  }
  if (get->scope_ == nullptr) {
    get->block_[0] = {fd, offset, n, nullptr};
    get->blocks_ = 1;
    get->next_table_ = get->tables_passed_;
    get->scope_ = outrider_enter(graph, get);
  }
  const ssize_t got = outrider_pread(get->scope_, fd, scratch, n,
                                     static_cast<off_t>(offset));
  if (got != static_cast<ssize_t>(n)) {
    // What is wrong is the file's to say.
    return file->Read(offset, n, result, scratch);
  }
  *result = Slice(scratch, n);
  return Status::OK();
}

void LookAhead::FetchEnd(const RandomAccessFile* file, uint64_t size) {
  const int fd = file->Descriptor();
  if (fd < 0) return;
  const uint64_t end = std::min(size, size / kEndShare + kLeastEnd);
  posix_fadvise(fd, static_cast<off_t>(size - end), static_cast<off_t>(end),
                POSIX_FADV_WILLNEED);
}

int LookAhead::Next(void* self, uint64_t i, outrider_op* op) {
  LookAhead* const get = static_cast<LookAhead*>(self);
  while (static_cast<uint64_t>(get->blocks_) <= i) {
    if (!get->FindBlock()) return OUTRIDER_END;
  }
  const Block& block = get->block_[i];
  op->kind = OUTRIDER_PREAD;
  op->fd = block.fd;
  op->offset = static_cast<int64_t>(block.offset);
  op->length = block.size;
  return OUTRIDER_WEAK;
}

// Finds the next block that the Get would have to read. False: there is none.
bool LookAhead::FindBlock() {
  if (tables_ < 0) {
    tables_ = 0;
    version_->ForEachOverlapping(user_key_, internal_key_, this, &Collect);
  }
  while (next_table_ < tables_) {
    Block* const block = &block_[blocks_];
    const FileMetaData* const table = table_[next_table_++];
    if (version_->vset_->table_cache_->Foresee(
            table->number, table->file_size, internal_key_, &block->fd,
            &block->offset, &block->size, &block->table)) {
      blocks_++;
      return true;
    }
  }
  return false;
}

bool LookAhead::Collect(void* self, int level, FileMetaData* table) {
  LookAhead* const get = static_cast<LookAhead*>(self);
  get->table_[get->tables_++] = table;
  return get->tables_ < kMostTables;
}

}  // namespace leveldb
