// Loads on a key-value store: those of db_bench, and YCSB's A to F.
//
// Keys are the sixteen hexadecimal digits of mix(i), so that neighbours in the store are strangers in order of
// insertion; the value of key i in version v is incompressible, begins with i and v, and is otherwise a function of
// the seed, i and v. What operation number n does is a function of the seed and n alone.
//
// Read-only loads deal the operations out to the threads in turn. In YCSB's, a key's operations all belong to one
// thread, in order, so that what a read finds does not depend on how threads interleave; scans look only at keys of
// the initial load, whose versions nobody changes in the one load that scans.
#pragma once

#include "common.h"

#include <cmath>
#include <memory>
#include <string_view>
#include <thread>

namespace lab {

// A position in a store, in order of keys.
struct Cursor {
    virtual ~Cursor() = default;
    virtual void last() = 0;
    // To the first key that is not smaller.
    virtual void seek(const std::string &key) = 0;
    virtual void next() = 0;
    virtual void prev() = 0;
    // False at either end; throws if that is because of an error.
    virtual bool valid() = 0;
    virtual std::string_view key() = 0;
    virtual std::string_view value() = 0;
};

// LevelDB's iterator, or RocksDB's, which descends from it.
template <typename Iterator, typename Slice>
class IteratorCursor : public Cursor {
  public:
    explicit IteratorCursor(Iterator *iterator) : iterator_(iterator) {}
    void last() override { iterator_->SeekToLast(); }
    void seek(const std::string &key) override { iterator_->Seek(Slice(key)); }
    void next() override { iterator_->Next(); }
    void prev() override { iterator_->Prev(); }
    bool valid() override {
        if (!iterator_->Valid() && !iterator_->status().ok()) {
            throw Failure{iterator_->status().ToString()};
        }
        return iterator_->Valid();
    }
    std::string_view key() override { return view(iterator_->key()); }
    std::string_view value() override { return view(iterator_->value()); }

  private:
    static std::string_view view(Slice slice) { return {slice.data(), slice.size()}; }

    std::unique_ptr<Iterator> iterator_;
};

// A store; used by several threads at once.
struct Store {
    virtual ~Store() = default;
    // False if there is no such key.
    virtual bool get(const std::string &key, std::string *value) = 0;
    // As get, for several at once; throws if one is missing.
    virtual void get_many(const std::vector<std::string> &keys, std::vector<std::string> *values) {
        values->resize(keys.size());
        for (size_t i = 0; i < keys.size(); i++) {
            if (!get(keys[i], &(*values)[i])) {
                throw Failure{"key " + keys[i] + " is missing"};
            }
        }
    }
    virtual void put(const std::string &key, const std::string &value) = 0;
    virtual std::unique_ptr<Cursor> cursor() = 0;
};

// Keys in a call of get_many.
constexpr uint64_t kBatch = 16;
// The longest scan of YCSB's E, entries.
constexpr uint64_t kLongestScan = 100;

// What is in the store, and what is done to it.
struct Plan {
    std::string load;
    uint64_t keys = 0;  // of the initial load
    uint64_t value = 0; // bytes
    uint64_t ops = 0;
    uint64_t threads = 1;
    uint64_t seed = 1;
    double zipf = 0.99; // exponent
    uint64_t span = 100; // per cent of the key space that readseq, readreverse and the scanner cover
};

inline std::string hex(uint64_t n) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(n));
    return text;
}

inline std::string key_of(uint64_t index) {
    return hex(mix(index));
}

inline std::string value_of(const Plan &plan, uint64_t index, uint64_t version) {
    std::string value(plan.value, '\0');
    uint64_t state = mix(mix(plan.seed + version) + index);
    for (uint64_t at = 0; at < plan.value; at += 8) {
        uint64_t word = at == 0 ? index : at == 8 ? version : mix(state + at);
        std::memcpy(&value[at], &word, 8);
    }
    return value;
}

inline uint64_t index_in(std::string_view value) {
    uint64_t index = ~0ULL;
    if (value.size() >= 16) {
        std::memcpy(&index, value.data(), 8);
    }
    return index;
}

inline void check(const Plan &plan, std::string_view key, std::string_view value) {
    if (value.size() != plan.value || key != key_of(index_in(value))) {
        throw Failure{"key " + std::string(key) + " has a value that was never written to it"};
    }
}

// Ranks 0..n with probabilities proportional to 1/(rank+1)^exponent.
class Zipf {
  public:
    Zipf(uint64_t n, double exponent) {
        double sum = 0;
        for (uint64_t rank = 0; rank < n; rank++) {
            sum += 1.0 / std::pow(static_cast<double>(rank + 1), exponent);
            upto_.push_back(sum);
        }
    }

    uint64_t rank(uint64_t random) const {
        double at = unit(random) * upto_.back();
        uint64_t rank = std::upper_bound(upto_.begin(), upto_.end(), at) - upto_.begin();
        return std::min<uint64_t>(rank, upto_.size() - 1);
    }

  private:
    std::vector<double> upto_;
};

enum class Kind { kRead, kUpdate, kInsert, kScan, kModify };

// An operation of a YCSB load.
struct Operation {
    Kind kind;
    uint64_t index;  // of its key
    uint64_t length; // of a scan, entries
};

// The operations of a YCSB load, one after the other.
class Ycsb {
  public:
    explicit Ycsb(const Plan &plan, const Zipf &zipf) : plan_(plan), zipf_(zipf), count_(plan.keys) {}

    Operation next() {
        uint64_t n = n_++;
        double share = unit(draw(plan_.seed, n, 0));
        uint64_t rank = zipf_.rank(draw(plan_.seed, n, 1));
        // Popular keys lie all over the store; only in D are they the newest.
        uint64_t popular = mix(rank + plan_.seed) % plan_.keys;
        switch (plan_.load.back()) {
        case 'a':
            return {share < 0.5 ? Kind::kRead : Kind::kUpdate, popular, 0};
        case 'b':
            return {share < 0.95 ? Kind::kRead : Kind::kUpdate, popular, 0};
        case 'c':
            return {Kind::kRead, popular, 0};
        case 'd':
            return share < 0.95 ? Operation{Kind::kRead, count_ - 1 - rank, 0} : Operation{Kind::kInsert, count_++, 0};
        case 'e':
            return share < 0.95 ? Operation{Kind::kScan, popular, 1 + draw(plan_.seed, n, 2) % kLongestScan}
                                : Operation{Kind::kInsert, count_++, 0};
        default:
            return {share < 0.5 ? Kind::kRead : Kind::kModify, popular, 0};
        }
    }

  private:
    const Plan &plan_;
    const Zipf &zipf_;
    uint64_t n_ = 0;
    uint64_t count_; // keys inserted so far
};

// A load under way.
class Run {
  public:
    Run(const Plan &plan, Store &store) : plan_(plan), store_(store), zipf_(plan.keys, plan.zipf) {}

    // Runs all threads to their end; digest and figures go to standard output and error.
    void run() {
        uint64_t threads = plan_.threads;
        bool beside = plan_.load == "readwhilescanning";
        std::vector<Figures> figures(threads + (beside ? 1 : 0));
        std::vector<std::string> wrong(figures.size());
        std::vector<std::thread> running;
        auto began = Clock::now();
        for (uint64_t t = 0; t < figures.size(); t++) {
            running.emplace_back([this, t, &figures, &wrong] {
                try {
                    thread(t, figures[t]);
                } catch (const Failure &failure) {
                    wrong[t] = failure.message;
                }
            });
        }
        for (std::thread &one : running) {
            one.join();
        }
        double seconds = std::chrono::duration<double>(Clock::now() - began).count();
        Figures all;
        for (size_t t = 0; t < figures.size(); t++) {
            if (!wrong[t].empty()) {
                throw Failure{wrong[t]};
            }
            all.add(figures[t]);
        }
        all.tell(seconds);
    }

  private:
    void thread(uint64_t t, Figures &figures) {
        if (plan_.load == "readseq") {
            scan(t, plan_.threads, false, figures);
        } else if (plan_.load == "readreverse") {
            scan(t, plan_.threads, true, figures);
        } else if (plan_.load == "readrandom") {
            random(t, figures);
        } else if (plan_.load == "multireadrandom") {
            batches(t, figures);
        } else if (plan_.load == "readwhilescanning") {
            // One thread more reads everything in order beside those that read at random.
            t == plan_.threads ? scan(0, 1, false, figures) : random(t, figures);
        } else {
            ycsb(t, figures);
        }
    }

    // The part of the key space that is the t-th of so many, in order or in reverse.
    void scan(uint64_t t, uint64_t parts, bool backwards, Figures &figures) {
        auto bound = [this, parts](uint64_t part) {
            unsigned __int128 at = (static_cast<unsigned __int128>(part * plan_.span) << 64) / (parts * 100);
            // Past the last key there is none that begins with a g.
            return at >> 64 ? std::string("g") : hex(static_cast<uint64_t>(at));
        };
        std::string from = bound(t);
        std::string end = bound(t + 1);
        auto cursor = store_.cursor();
        auto since = Clock::now();
        if (backwards) {
            cursor->seek(end);
            cursor->valid() ? cursor->prev() : cursor->last();
        } else {
            cursor->seek(from);
        }
        std::string before;
        while (cursor->valid() && (backwards ? cursor->key() >= from : cursor->key() < end)) {
            if (!before.empty() && (backwards ? cursor->key() >= before : cursor->key() <= before)) {
                throw Failure{"key " + std::string(cursor->key()) + " is out of order"};
            }
            before = cursor->key();
            check(plan_, before, cursor->value());
            figures.digest += mix(hash(cursor->value().data(), cursor->value().size()));
            figures.bytes += cursor->value().size();
            backwards ? cursor->prev() : cursor->next();
            figures.done(since);
            since = Clock::now();
        }
    }

    uint64_t uniform(uint64_t n) const { return draw(plan_.seed, n, 0) % plan_.keys; }

    void found(uint64_t n, const std::string &key, std::string_view value, Figures &figures) {
        check(plan_, key, value);
        figures.digest += mix(hash(value.data(), value.size()) + mix(n));
        figures.bytes += value.size();
    }

    void read(uint64_t n, uint64_t index, Figures &figures) {
        std::string key = key_of(index);
        if (!store_.get(key, &value_)) {
            throw Failure{"key " + key + " is missing"};
        }
        found(n, key, value_, figures);
    }

    void random(uint64_t t, Figures &figures) {
        for (uint64_t n = t; n < plan_.ops; n += plan_.threads) {
            auto since = Clock::now();
            read(n, uniform(n), figures);
            figures.done(since);
        }
    }

    void batches(uint64_t t, Figures &figures) {
        std::vector<std::string> keys;
        std::vector<std::string> values;
        for (uint64_t first = t * kBatch; first < plan_.ops; first += plan_.threads * kBatch) {
            auto since = Clock::now();
            keys.clear();
            for (uint64_t n = first; n < std::min(first + kBatch, plan_.ops); n++) {
                keys.push_back(key_of(uniform(n)));
            }
            store_.get_many(keys, &values);
            for (size_t i = 0; i < keys.size(); i++) {
                found(first + i, keys[i], values[i], figures);
            }
            figures.done(since);
        }
    }

    void ycsb(uint64_t t, Figures &figures) {
        Ycsb operations(plan_, zipf_);
        std::unique_ptr<Cursor> cursor;
        for (uint64_t n = 0; n < plan_.ops; n++) {
            Operation operation = operations.next();
            if (mix(operation.index) % plan_.threads != t) {
                continue;
            }
            auto since = Clock::now();
            std::string key = key_of(operation.index);
            switch (operation.kind) {
            case Kind::kRead:
                read(n, operation.index, figures);
                break;
            case Kind::kModify:
                read(n, operation.index, figures);
                [[fallthrough]];
            case Kind::kUpdate:
            case Kind::kInsert:
                // Versions are numbered by the operation; 0 is the initial load's.
                store_.put(key, value_of(plan_, operation.index, n + 1));
                break;
            case Kind::kScan:
                cursor = store_.cursor();
                cursor->seek(key);
                for (uint64_t left = operation.length; left > 0 && cursor->valid(); cursor->next()) {
                    std::string_view value = cursor->value();
                    // What others insert meanwhile lies between and is not counted.
                    if (index_in(value) < plan_.keys) {
                        found(n, std::string(cursor->key()), value, figures);
                        left--;
                    }
                }
                break;
            }
            figures.done(since);
        }
    }

    const Plan &plan_;
    Store &store_;
    Zipf zipf_;
    static thread_local std::string value_;
};

inline thread_local std::string Run::value_;

// Makes the directory that is to hold a store. One that is there must be empty, or a store that may be replaced.
inline void fresh(const std::string &dir, bool replace) {
    if (replace && std::filesystem::exists(dir + "/CURRENT")) {
        std::filesystem::remove_all(dir);
    }
    std::filesystem::create_directories(dir);
    if (!std::filesystem::is_empty(dir)) {
        throw Failure{dir + ": it is not empty"};
    }
}

// A second store with the same contents: tables, which are never changed once written, are shared by hard links; logs
// and manifests, which are appended to, are copied.
inline void clone(const std::string &from, const std::string &to) {
    if (!std::filesystem::exists(from + "/CURRENT")) {
        throw Failure{from + ": no store is there"};
    }
    fresh(to, true);
    for (const auto &entry : std::filesystem::directory_iterator(from)) {
        auto path = entry.path();
        auto target = std::filesystem::path(to) / path.filename();
        if (path.extension() == ".sst" || path.extension() == ".ldb") {
            std::filesystem::create_hard_link(path, target);
        } else {
            std::filesystem::copy_file(path, target);
        }
    }
}

// The flags that describe a store and a load, with their defaults.
inline std::map<std::string, std::string> plan_flags() {
    return {{"keys", "1000"}, {"value", "1024"}, {"seed", "1"}};
}

inline Plan plan_from(const Flags &flags) {
    Plan plan;
    plan.keys = flags.number("keys", 1, 1ULL << 32);
    plan.value = flags.number("value", 16, 1ULL << 24);
    if (plan.value % 8 != 0) {
        throw Usage{"--value '" + flags.text("value") + "': a multiple of 8 is accepted"};
    }
    plan.seed = flags.number("seed", 0, ~0ULL);
    return plan;
}

// What differs between stores.
struct Engine {
    const char *name;
    // Loads, beside YCSB's.
    std::vector<std::string> loads;
    // Further flags of `load` and of `run`, with their defaults.
    std::map<std::string, std::string> load_flags;
    std::map<std::string, std::string> flags;
    // Makes a store in a directory that is made, or empty (fresh), from the initial load, and brings it to rest.
    void (*load)(const std::string &dir, const Plan &plan, const Flags &flags);
    // Opens it for a load.
    std::unique_ptr<Store> (*open)(const std::string &dir, const Plan &plan, const Flags &flags);
};

// The command: `load DIR`, `clone FROM TO`, `run DIR`.
inline int command(const Engine &engine, int count, char **words) {
    return guarded(engine.name, [&] {
        std::string verb = count > 1 ? words[1] : "";
        if (verb == "load") {
            auto accepted = plan_flags();
            accepted.insert(engine.load_flags.begin(), engine.load_flags.end());
            Flags flags(count - 2, words + 2, 1, accepted);
            engine.load(flags.word(0), plan_from(flags), flags);
        } else if (verb == "clone") {
            Flags flags(count - 2, words + 2, 2, {});
            clone(flags.word(0), flags.word(1));
        } else if (verb == "run") {
            auto accepted = plan_flags();
            accepted.insert({{"load", "readrandom"}, {"ops", "1000"}, {"threads", "1"}, {"zipf", "0.99"}, {"span", "100"}});
            accepted.insert(engine.flags.begin(), engine.flags.end());
            Flags flags(count - 2, words + 2, 1, accepted);
            Plan plan = plan_from(flags);
            auto loads = engine.loads;
            for (char letter = 'a'; letter <= 'f'; letter++) {
                loads.push_back(std::string("ycsb-") + letter);
            }
            plan.load = flags.one_of("load", loads);
            plan.ops = flags.number("ops", 1, 1ULL << 32);
            plan.threads = flags.number("threads", 1, 1024);
            plan.span = flags.number("span", 1, 100);
            plan.zipf = flags.real("zipf", 0, 4);
            if (!std::filesystem::exists(flags.word(0) + "/CURRENT")) {
                throw Failure{flags.word(0) + ": no store is there"};
            }
            auto store = engine.open(flags.word(0), plan, flags);
            Run(plan, *store).run();
        } else {
            throw Usage{"'" + verb + "': accepted are load DIR, clone FROM TO and run DIR"};
        }
    });
}

} // namespace lab
