// RocksDB under the loads of kv.h.
//
// Values are not compressed and the block cache is small, so that it is the page cache that counts. Read-only loads
// open the store for reading, so that nothing in it changes.

#include "kv.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

namespace {

using lab::Failure;

// Bytes of a table: a hundredth or so of the rows' data sets, as RocksDB's 64 MB are of a store of several GB.
constexpr uint64_t kTable = 8 << 20;

void must(const rocksdb::Status &status) {
    if (!status.ok()) {
        throw Failure{status.ToString()};
    }
}

rocksdb::Slice slice(const std::string &text) {
    return {text.data(), text.size()};
}

// Says nothing: the store's own log would be a write in a store that is only read.
class Silent : public rocksdb::Logger {
  public:
    using rocksdb::Logger::Logv;
    void Logv(const char *, va_list) override {}
};

using RocksCursor = lab::IteratorCursor<rocksdb::Iterator, rocksdb::Slice>;

class Rocks : public lab::Store {
  public:
    explicit Rocks(rocksdb::DB *db) : db_(db) {}

    bool get(const std::string &key, std::string *value) override {
        auto status = db_->Get(rocksdb::ReadOptions(), slice(key), value);
        if (status.IsNotFound()) {
            return false;
        }
        must(status);
        return true;
    }

    void get_many(const std::vector<std::string> &keys, std::vector<std::string> *values) override {
        std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
        std::vector<rocksdb::PinnableSlice> found(keys.size());
        std::vector<rocksdb::Status> statuses(keys.size());
        db_->MultiGet(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), keys.size(), slices.data(), found.data(),
                      statuses.data());
        values->resize(keys.size());
        for (size_t i = 0; i < keys.size(); i++) {
            must(statuses[i]);
            (*values)[i].assign(found[i].data(), found[i].size());
        }
    }

    void put(const std::string &key, const std::string &value) override {
        must(db_->Put(rocksdb::WriteOptions(), slice(key), slice(value)));
    }

    std::unique_ptr<lab::Cursor> cursor() override {
        return std::make_unique<RocksCursor>(db_->NewIterator(rocksdb::ReadOptions()));
    }

  private:
    std::unique_ptr<rocksdb::DB> db_;
};

// `hints`: with RocksDB's own advice to the kernel (tables are advised as random when they are opened, iterators call
// readahead for growing windows), its default; or with none of it.
rocksdb::Options options(uint64_t cache, bool hints) {
    rocksdb::Options options;
    options.compression = rocksdb::kNoCompression;
    options.target_file_size_base = kTable;
    options.max_bytes_for_level_base = 8 * kTable;
    options.write_buffer_size = 2 * kTable;
    options.info_log = std::make_shared<Silent>();
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(cache);
    if (!hints) {
        options.advise_random_on_open = false;
        options.access_hint_on_compaction_start = rocksdb::DBOptions::AccessHint::NONE;
        table.max_auto_readahead_size = 0;
    }
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    return options;
}

// One sorted run in the last level, in tables of the same size: the same whatever the background did.
void load(const std::string &dir, const lab::Plan &plan, const lab::Flags &) {
    lab::fresh(dir, false);
    rocksdb::Options create = options(8 << 20, false);
    create.create_if_missing = true;
    create.error_if_exists = true;
    rocksdb::DB *db = nullptr;
    must(rocksdb::DB::Open(create, dir, &db));
    std::unique_ptr<rocksdb::DB> holder(db);
    rocksdb::WriteOptions unlogged;
    unlogged.disableWAL = true;
    for (uint64_t index = 0; index < plan.keys; index++) {
        must(db->Put(unlogged, slice(lab::key_of(index)), slice(lab::value_of(plan, index, 0))));
    }
    must(db->Flush(rocksdb::FlushOptions()));
    rocksdb::CompactRangeOptions all;
    all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    must(db->CompactRange(all, nullptr, nullptr));
    must(db->Close());
}

std::unique_ptr<lab::Store> open(const std::string &dir, const lab::Plan &plan, const lab::Flags &flags) {
    bool hints = flags.one_of("hints", {"none", "app"}) == "app";
    uint64_t cache = flags.number("cache", 0, 1ULL << 40);
    bool writes = plan.load.rfind("ycsb-", 0) == 0 && plan.load != "ycsb-c";
    rocksdb::DB *db = nullptr;
    if (writes) {
        must(rocksdb::DB::Open(options(cache, hints), dir, &db));
    } else {
        must(rocksdb::DB::OpenForReadOnly(options(cache, hints), dir, &db));
    }
    return std::make_unique<Rocks>(db);
}

} // namespace

int main(int count, char **words) {
    return lab::command({"outrider-rocksdb",
                         {"readseq", "readreverse", "readrandom", "multireadrandom", "readwhilescanning"},
                         {},
                         {{"hints", "none"}, {"cache", "1048576"}},
                         load,
                         open},
                        count, words);
}
