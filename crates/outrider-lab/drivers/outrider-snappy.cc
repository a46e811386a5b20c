// Compresses many files in parallel with Snappy, as in CrossPrefetch's Figure 9b: a thread takes the next file, reads
// all of it into memory in two reads, compresses it, and moves on.

#include "common.h"

#include <atomic>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <snappy.h>

namespace {

using lab::Failure;

Failure failed(const std::string &what) {
    return Failure{what + ": " + std::strerror(errno)};
}

std::string name_of(uint64_t file) {
    char name[32];
    std::snprintf(name, sizeof name, "%06llu.txt", static_cast<unsigned long long>(file));
    return name;
}

// Words from a vocabulary of 128, eleven letters and a space: Snappy makes a third of it, or so.
std::string contents(uint64_t seed, uint64_t file, uint64_t size) {
    std::string text;
    text.reserve(size + 12);
    for (uint64_t n = 0; text.size() < size; n++) {
        uint64_t letters = lab::mix(seed + lab::draw(seed, file, n) % 128);
        for (int i = 0; i < 11; i++, letters /= 26) {
            text.push_back(static_cast<char>('a' + letters % 26));
        }
        text.push_back(' ');
    }
    text.resize(size);
    return text;
}

void write_all(const std::string &path, const char *data, size_t size) {
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        throw failed(path);
    }
    while (size > 0) {
        ssize_t put = ::write(fd, data, size);
        if (put < 0) {
            ::close(fd);
            throw failed(path);
        }
        data += put;
        size -= static_cast<size_t>(put);
    }
    if (::close(fd) != 0) {
        throw failed(path);
    }
}

void make(const lab::Flags &flags) {
    uint64_t files = flags.number("files", 1, 999999);
    uint64_t size = flags.number("size", 1, 1ULL << 32);
    uint64_t seed = flags.number("seed", 0, ~0ULL);
    std::filesystem::create_directories(flags.word(0));
    for (uint64_t file = 0; file < files; file++) {
        std::string text = contents(seed, file, size);
        write_all(flags.word(0) + "/" + name_of(file), text.data(), text.size());
    }
}

// Reads a file whole, in two reads if none is short.
void read_all(const std::string &path, const std::string &hint, std::vector<char> &buffer, size_t *size) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0 || ::fstat(fd, &about) != 0) {
        throw failed(path);
    }
    if (hint != "none") {
        ::posix_fadvise(fd, 0, 0, hint == "willneed" ? POSIX_FADV_WILLNEED : POSIX_FADV_SEQUENTIAL);
    }
    *size = static_cast<size_t>(about.st_size);
    if (buffer.size() < *size) {
        buffer.resize(*size);
    }
    size_t half = (*size + 1) / 2;
    for (size_t at = 0; at < *size;) {
        ssize_t got = ::read(fd, buffer.data() + at, std::min(half, *size - at));
        if (got <= 0) {
            ::close(fd);
            throw got < 0 ? failed(path) : Failure{path + ": it became shorter"};
        }
        at += static_cast<size_t>(got);
    }
    ::close(fd);
}

void compress(const lab::Flags &flags) {
    uint64_t threads = flags.number("threads", 1, 1024);
    const std::string &hint = flags.one_of("hint", {"none", "sequential", "willneed"});
    const std::string &out = flags.text("out");
    std::vector<std::filesystem::path> files;
    for (const auto &entry : std::filesystem::directory_iterator(flags.word(0))) {
        files.push_back(entry.path());
    }
    if (files.empty()) {
        throw Failure{flags.word(0) + ": no files are there"};
    }
    std::sort(files.begin(), files.end());

    std::atomic<size_t> next{0};
    std::mutex lock;
    std::string wrong;
    lab::Figures all;
    auto work = [&] {
        lab::Figures figures;
        std::vector<char> text;
        std::vector<char> packed;
        try {
            for (size_t file; (file = next.fetch_add(1)) < files.size();) {
                auto since = lab::Clock::now();
                size_t size = 0;
                read_all(files[file].string(), hint, text, &size);
                if (packed.size() < snappy::MaxCompressedLength(size)) {
                    packed.resize(snappy::MaxCompressedLength(size));
                }
                size_t length = 0;
                snappy::RawCompress(text.data(), size, packed.data(), &length);
                figures.digest += lab::mix(lab::hash(packed.data(), length) + lab::mix(file));
                figures.bytes += size;
                if (!out.empty()) {
                    write_all(out + "/" + files[file].filename().string() + ".snappy", packed.data(), length);
                }
                figures.done(since);
            }
        } catch (const Failure &failure) {
            std::lock_guard<std::mutex> held(lock);
            wrong = failure.message;
            next = files.size();
        }
        std::lock_guard<std::mutex> held(lock);
        all.add(figures);
    };
    auto began = lab::Clock::now();
    std::vector<std::thread> running;
    for (uint64_t t = 0; t < threads; t++) {
        running.emplace_back(work);
    }
    for (std::thread &one : running) {
        one.join();
    }
    if (!wrong.empty()) {
        throw Failure{wrong};
    }
    all.tell(std::chrono::duration<double>(lab::Clock::now() - began).count());
}

} // namespace

int main(int count, char **words) {
    return lab::guarded("outrider-snappy", [&] {
        std::string verb = count > 1 ? words[1] : "";
        if (verb == "make") {
            make(lab::Flags(count - 2, words + 2, 1, {{"files", "16"}, {"size", "1048576"}, {"seed", "1"}}));
        } else if (verb == "compress") {
            compress(lab::Flags(count - 2, words + 2, 1, {{"threads", "1"}, {"hint", "none"}, {"out", ""}}));
        } else {
            throw lab::Usage{"'" + verb + "': accepted are make DIR and compress DIR"};
        }
    });
}
