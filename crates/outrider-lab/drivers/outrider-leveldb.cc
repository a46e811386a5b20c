// LevelDB under the loads of kv.h.
//
// No filter and no compression: a Get reads one block of each table that may hold the key, newest first, as in
// Foreactor's Figure 4(d). LevelDB would map its tables on a 64-bit machine; Foreactor's reads them with pread, which is the
// default here. Opening a store writes to it (a manifest, a log, tables from the log), so every load wants a clone.

#include "kv.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/write_batch.h>

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

class TableEnv : public leveldb::EnvWrapper {
  public:
    TableEnv(bool map, bool compact) : leveldb::EnvWrapper(leveldb::Env::Default()), map_(map), compact_(compact) {}

    bool compacts() const { return compact_; }

    // What LevelDB does in the background is compaction and nothing else.
    void Schedule(void (*work)(void *), void *of) override {
        if (compact_) {
            target()->Schedule(work, of);
        }
    }

    leveldb::Status NewRandomAccessFile(const std::string &name, leveldb::RandomAccessFile **file) override {
        if (map_) {
            return target()->NewRandomAccessFile(name, file);
        }
        int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            *file = nullptr;
            return errno == ENOENT ? leveldb::Status::NotFound(name, std::strerror(errno))
                                   : leveldb::Status::IOError(name, std::strerror(errno));
        }
        *file = new Pread(name, fd);
        return leveldb::Status::OK();
    }

  private:
    const bool map_;
    const bool compact_;
};

leveldb::Slice slice(const std::string &text) {
    return {text.data(), text.size()};
}

using LevelCursor = lab::IteratorCursor<leveldb::Iterator, leveldb::Slice>;

class Level : public lab::Store {
  public:
    Level(const std::string &dir, uint64_t cache, bool map, bool compact, bool create)
        : env_(map, compact), cache_(leveldb::NewLRUCache(cache)) {
        leveldb::Options options;
        options.env = &env_;
        options.create_if_missing = create;
        options.error_if_exists = create;
        options.info_log = &silent_;
        options.block_cache = cache_.get();
        options.compression = leveldb::kNoCompression;
        leveldb::DB *db = nullptr;
        must(leveldb::DB::Open(options, dir, &db));
        db_.reset(db);
    }

    ~Level() override {
        if (!env_.compacts()) {
            // It would wait for the compaction that it has asked for.
            (void)db_.release();
        }
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

    // The initial load's values of these keys, together: LevelDB lets every write wait where level 0 is long.
    void put_together(const lab::Plan &plan, uint64_t first, uint64_t end) {
        leveldb::WriteBatch batch;
        for (uint64_t index = first; index < end; index++) {
            batch.Put(slice(lab::key_of(index)), slice(lab::value_of(plan, index, 0)));
        }
        must(db_->Write(leveldb::WriteOptions(), &batch));
    }

    uint64_t tables_of_level_0() const {
        std::string count;
        db_->GetProperty("leveldb.num-files-at-level0", &count);
        return std::stoull(count);
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
    TableEnv env_;
    Silent silent_;
    std::unique_ptr<leveldb::Cache> cache_;
    std::unique_ptr<leveldb::DB> db_;
};

// LevelDB's own default.
constexpr uint64_t kDefaultCache = 8 << 20;
// Tables with which level 0 is full: LevelDB takes no writes from there on.
constexpr uint64_t kFullLevel0 = 12;

// Tables of level 0 that the store has, asked in a process of its own, which compacts nothing and puts the keys from `first` on into the log. Opening
// a store makes a table of level 0 of what its log holds.
uint64_t another_table(const std::string &dir, const lab::Plan &plan, uint64_t first, uint64_t end) {
    int ends[2];
    if (::pipe(ends) != 0) {
        throw Failure{std::string("pipe: ") + std::strerror(errno)};
    }
    pid_t child = ::fork();
    if (child < 0) {
        throw Failure{std::string("fork: ") + std::strerror(errno)};
    }
    if (child == 0) {
        int code = lab::guarded("outrider-leveldb", [&] {
            Level level(dir, kDefaultCache, false, false, false);
            uint64_t tables = level.tables_of_level_0();
            if (tables < kFullLevel0) {
                level.put_together(plan, first, end);
            }
            if (::write(ends[1], &tables, sizeof tables) != sizeof tables) {
                throw Failure{std::string("pipe: ") + std::strerror(errno)};
            }
        });
        ::_exit(code);
    }
    uint64_t tables = 0;
    ::close(ends[1]);
    bool told = ::read(ends[0], &tables, sizeof tables) == sizeof tables;
    ::close(ends[0]);
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0 || !told) {
        throw Failure{dir + ": level 0 could not be filled"};
    }
    return tables;
}

// With --level0 BYTES the store has the shape of Foreactor's prototype (its scripts/prepare.py): a base at rest, and above it, loaded last and never
// compacted, twelve tables of level 0 with so many bytes of values each, which all span the whole of the keys.
void load(const std::string &dir, const lab::Plan &plan, const lab::Flags &flags) {
    uint64_t bytes = flags.number("level0", 0, 1ULL << 30);
    lab::fresh(dir, false);
    // At least half of a small store is its base.
    uint64_t each = std::min(bytes / plan.value, plan.keys / (2 * kFullLevel0));
    uint64_t base = plan.keys - each * kFullLevel0;
    {
        Level level(dir, kDefaultCache, false, true, true);
        for (uint64_t index = 0; index < base; index++) {
            level.put(lab::key_of(index), lab::value_of(plan, index, 0));
        }
    }
    // What is still in the log becomes a table when the store is opened again: here, and not in every run.
    uint64_t tables = 0;
    {
        Level level(dir, kDefaultCache, false, true, false);
        level.settle();
        tables = level.tables_of_level_0();
    }
    if (each == 0) {
        return;
    }
    // The tables that the base has in level 0 already are some of the twelve.
    uint64_t parts = kFullLevel0 - tables;
    for (uint64_t part = 0; part <= parts; part++) {
        auto upto = [&](uint64_t n) { return base + (plan.keys - base) * std::min(n, parts) / parts; };
        tables = another_table(dir, plan, upto(part), upto(part + 1));
    }
    if (tables != kFullLevel0) {
        throw Failure{dir + ": level 0 has " + std::to_string(tables) + " tables"};
    }
}

std::unique_ptr<lab::Store> open(const std::string &dir, const lab::Plan &, const lab::Flags &flags) {
    bool map = flags.one_of("io", {"pread", "mmap"}) == "mmap";
    bool compact = flags.one_of("compaction", {"on", "off"}) == "on";
    return std::make_unique<Level>(dir, flags.number("cache", 0, 1ULL << 40), map, compact, false);
}

} // namespace

int main(int count, char **words) {
    return lab::command({"outrider-leveldb",
                         {"readseq", "readreverse", "readrandom", "readwhilescanning"},
                         {{"level0", "0"}},
                         {{"io", "pread"}, {"cache", "1048576"}, {"compaction", "on"}},
                         load,
                         open},
                        count, words);
}
