// What the drivers share: flags, a random stream that is a function of the operation's number, values that are
// functions of their key, and the line of figures that `outrider-lab run` collects.
//
// Everything that a driver reads goes into a digest that does not depend on how threads interleave: a sum over
// operations. So two runs that print the same digest have read the same bytes, and a test can compute it without
// a database.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lab {

// Bad input: exit code 2, one line.
struct Usage {
    std::string message;
};

// The machine refused or the data is wrong: exit code 1, one line.
struct Failure {
    std::string message;
};

// The finaliser of SplitMix64: a bijection of 64 bits that mixes well.
inline uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// The k-th random number of operation i.
inline uint64_t draw(uint64_t seed, uint64_t i, uint64_t k) {
    return mix(mix(mix(seed) + i) + k);
}

// In [0, 1), 53 bits.
inline double unit(uint64_t random) {
    return static_cast<double>(random >> 11) * 0x1p-53;
}

// FNV-1a over words of eight bytes, for speed; bytes that are left over count as a word of their own.
inline uint64_t hash(const char *data, size_t size) {
    uint64_t h = 0xcbf29ce484222325u ^ size;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        std::memcpy(&word, data, 8);
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 29;
    }
    if (size > 0) {
        uint64_t word = 0;
        std::memcpy(&word, data, size);
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 29;
    }
    return h;
}

// Words `--name value` after the positional ones; every flag has a default, and no other is accepted.
class Flags {
  public:
    Flags(int count, char **words, size_t positional, std::map<std::string, std::string> defaults)
        : values_(std::move(defaults)) {
        for (int i = 0; i < count; i++) {
            std::string word = words[i];
            if (word.rfind("--", 0) != 0) {
                if (positional_.size() == positional) {
                    throw Usage{"unexpected '" + word + "'"};
                }
                positional_.push_back(word);
                continue;
            }
            auto flag = values_.find(word.substr(2));
            if (flag == values_.end()) {
                throw Usage{"unknown flag '" + word + "'; accepted are " + names()};
            }
            if (++i == count) {
                throw Usage{word + " needs a value"};
            }
            flag->second = words[i];
        }
        if (positional_.size() < positional) {
            throw Usage{"a directory is missing"};
        }
    }

    const std::string &word(size_t i) const { return positional_[i]; }

    const std::string &text(const std::string &name) const { return values_.at(name); }

    uint64_t number(const std::string &name, uint64_t least, uint64_t most) const {
        const std::string &value = values_.at(name);
        char *end = nullptr;
        errno = 0;
        uint64_t n = std::strtoull(value.c_str(), &end, 10);
        bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
        if (!digits || errno != 0 || n < least || n > most) {
            throw Usage{"--" + name + " '" + value + "': a number from " + std::to_string(least) + " to " +
                        std::to_string(most) + " is accepted"};
        }
        return n;
    }

    double real(const std::string &name, double least, double most) const {
        const std::string &value = values_.at(name);
        char *end = nullptr;
        double n = std::strtod(value.c_str(), &end);
        if (value.empty() || *end != '\0' || !(n >= least && n <= most)) {
            throw Usage{"--" + name + " '" + value + "': a number from " + std::to_string(least) + " to " +
                        std::to_string(most) + " is accepted"};
        }
        return n;
    }

    // One of the words.
    const std::string &one_of(const std::string &name, const std::vector<std::string> &words) const {
        const std::string &value = values_.at(name);
        std::string list;
        for (const std::string &word : words) {
            if (word == value) {
                return value;
            }
            list += (list.empty() ? "" : ", ") + word;
        }
        throw Usage{"--" + name + " '" + value + "': accepted are " + list};
    }

  private:
    std::string names() const {
        std::string list;
        for (const auto &flag : values_) {
            list += (list.empty() ? "--" : ", --") + flag.first;
        }
        return list.empty() ? "none" : list;
    }

    std::map<std::string, std::string> values_;
    std::vector<std::string> positional_;
};

using Clock = std::chrono::steady_clock;

// Operations of a thread, or of all: how long each took, what they moved, and the digest of what they read.
struct Figures {
    std::vector<float> took; // µs
    uint64_t bytes = 0;
    uint64_t digest = 0;

    // An operation that began at `since` has just ended.
    void done(Clock::time_point since) {
        took.push_back(std::chrono::duration<float, std::micro>(Clock::now() - since).count());
    }

    void add(const Figures &other) {
        took.insert(took.end(), other.took.begin(), other.took.end());
        bytes += other.bytes;
        digest += other.digest;
    }

    // The digest on standard output; on standard error the line that the lab collects.
    void tell(double seconds) {
        std::printf("%zu operations, %llu bytes, digest %016llx\n", took.size(),
                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(digest));
        std::sort(took.begin(), took.end());
        auto at = [this](double share) {
            return took.empty() ? 0.0F : took[static_cast<size_t>(static_cast<double>(took.size() - 1) * share + 0.5)];
        };
        // An operation over 40 µs has waited for the device: the fastest modelled one takes 80 µs.
        size_t waited = took.end() - std::upper_bound(took.begin(), took.end(), 40.0F);
        std::fprintf(stderr,
                     "outrider-work: {\"ops\":%zu,\"bytes\":%llu,\"ops_per_s\":%.3f,\"p50_us\":%.3f,\"p99_us\":%.3f,"
                     "\"waited_permille\":%.3f}\n",
                     took.size(), static_cast<unsigned long long>(bytes),
                     static_cast<double>(took.size()) / std::max(seconds, 1e-9), at(0.5), at(0.99),
                     took.empty() ? 0.0 : 1e3 * static_cast<double>(waited) / static_cast<double>(took.size()));
    }
};

// Runs a driver: what it throws becomes one line and an exit code.
template <typename Body> int guarded(const char *name, Body body) {
    try {
        body();
        if (std::fflush(stdout) != 0) {
            throw Failure{std::string("standard output: ") + std::strerror(errno)};
        }
        return 0;
    } catch (const Usage &usage) {
        std::fprintf(stderr, "%s: %s\n", name, usage.message.c_str());
        return 2;
    } catch (const Failure &failure) {
        std::fprintf(stderr, "%s: %s\n", name, failure.message.c_str());
        return 1;
    } catch (const std::exception &other) {
        std::fprintf(stderr, "%s: %s\n", name, other.what());
        return 1;
    }
}

} // namespace lab
