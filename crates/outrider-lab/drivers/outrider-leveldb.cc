// LevelDB under the loads of kv.h.
//
// No filter and no compression: a Get reads one block of each table that may hold the key, newest first, as in
// Foreactor's Figure 4(d). LevelDB would map its tables on a 64-bit machine; Foreactor's reads them with pread, which is the
// default here. Opening a store writes to it (a manifest, a log, tables from the log), so every load wants a clone.

#include "kv.h"

#include <fcntl.h>
#include <unistd.h>

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/options.h>

namespace {

using lab::Failure;

void must(const leveldb::Status &status) {
    if (!status.ok()) {
        throw Failure{status.ToString()};
    }
}

// Says nothing; LevelDB would write a file LOG into the store.
class Silent : public leveldb::Logger {
  public:
    void Logv(const char *, va_list) override {}
};

// A table that is read with pread through a descriptor of its own.
class Pread : public leveldb::RandomAccessFile {
  public:
    Pread(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}
    ~Pread() override { ::close(fd_); }

    leveldb::Status Read(uint64_t offset, size_t n, leveldb::Slice *result, char *scratch) const override {
        ssize_t got = ::pread(fd_, scratch, n, static_cast<off_t>(offset));
        if (got < 0) {
            return leveldb::Status::IOError(name_, std::strerror(errno));
        }
        *result = leveldb::Slice(scratch, static_cast<size_t>(got));
        return leveldb::Status::OK();
    }

    // Asked by the library with a graph only (plugins/leveldb).
    int Descriptor() const { return fd_; }

  private:
    std::string name_;
    int fd_;
};

class PreadEnv : public leveldb::EnvWrapper {
  public:
    PreadEnv() : leveldb::EnvWrapper(leveldb::Env::Default()) {}

    leveldb::Status NewRandomAccessFile(const std::string &name, leveldb::RandomAccessFile **file) override {
        int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            *file = nullptr;
            return errno == ENOENT ? leveldb::Status::NotFound(name, std::strerror(errno))
                                   : leveldb::Status::IOError(name, std::strerror(errno));
        }
        *file = new Pread(name, fd);
        return leveldb::Status::OK();
    }
};

leveldb::Slice slice(const std::string &text) {
    return {text.data(), text.size()};
}

using LevelCursor = lab::IteratorCursor<leveldb::Iterator, leveldb::Slice>;

class Level : public lab::Store {
  public:
    Level(const std::string &dir, uint64_t cache, bool map, bool create) : cache_(leveldb::NewLRUCache(cache)) {
        leveldb::Options options;
        options.env = map ? leveldb::Env::Default() : &env_;
        options.create_if_missing = create;
        options.error_if_exists = create;
        options.info_log = &silent_;
        options.block_cache = cache_.get();
        options.compression = leveldb::kNoCompression;
        leveldb::DB *db = nullptr;
        must(leveldb::DB::Open(options, dir, &db));
        db_.reset(db);
    }

    bool get(const std::string &key, std::string *value) override {
        auto status = db_->Get(leveldb::ReadOptions(), slice(key), value);
        if (status.IsNotFound()) {
            return false;
        }
        must(status);
        return true;
    }

    void put(const std::string &key, const std::string &value) override {
        must(db_->Put(leveldb::WriteOptions(), slice(key), slice(value)));
    }

    std::unique_ptr<lab::Cursor> cursor() override {
        return std::make_unique<LevelCursor>(db_->NewIterator(leveldb::ReadOptions()));
    }

    // Waits until compaction has left the tables alone for a second.
    void settle() {
        std::string before;
        for (int same = 0; same < 10;) {
            std::string now;
            db_->GetProperty("leveldb.sstables", &now);
            same = now == before ? same + 1 : 0;
            before = now;
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
    }

  private:
    PreadEnv env_;
    Silent silent_;
    std::unique_ptr<leveldb::Cache> cache_;
    std::unique_ptr<leveldb::DB> db_;
};

// LevelDB's own default.
constexpr uint64_t kDefaultCache = 8 << 20;

void load(const std::string &dir, const lab::Plan &plan) {
    {
        Level level(dir, kDefaultCache, false, true);
        for (uint64_t index = 0; index < plan.keys; index++) {
            level.put(lab::key_of(index), lab::value_of(plan, index, 0));
        }
    }
    // What is still in the log becomes a table when the store is opened again: here, and not in every run.
    Level(dir, kDefaultCache, false, false).settle();
}

std::unique_ptr<lab::Store> open(const std::string &dir, const lab::Plan &, const lab::Flags &flags) {
    bool map = flags.one_of("io", {"pread", "mmap"}) == "mmap";
    return std::make_unique<Level>(dir, flags.number("cache", 0, 1ULL << 40), map, false);
}

} // namespace

int main(int count, char **words) {
    return lab::command({"outrider-leveldb",
                         {"readseq", "readreverse", "readrandom", "readwhilescanning"},
                         {{"io", "pread"}, {"cache", "1048576"}},
                         load,
                         open},
                        count, words);
}
