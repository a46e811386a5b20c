// The C++ interface of foreaction graphs: a search that leaves early by an exception, one in a thread that ends, and a linked copy by a graph of
// nodes. Usage: graph FILE
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "outrider.hpp"

struct Blocks {
    int                fd;
    std::vector<off_t> at;
};

static outrider::Next next(const Blocks &b, std::uint64_t i)
{
    if (i == b.at.size())
        return outrider::end();
    return outrider::weak(outrider::pread(b.fd, 4096, b.at[i]));
}

static outrider::Generator<Blocks> exiting("exits", next, OUTRIDER_PURE);

// Its scope's destructor leaves.
static void *exits(void *blocks)
{
    const Blocks           &b = *static_cast<Blocks *>(blocks);
    outrider::Scope<Blocks> scope(exiting, b);
    char                    block[4096];
    for (int i = 0; i < 5; i++)
        if (scope.pread(b.fd, block, sizeof block, b.at[i]) != 4096)
            return blocks;
    pthread_exit(nullptr);
}

struct Copy {
    int                   from, to;
    std::uint64_t         blocks;
    mutable std::uint64_t told;
    mutable ssize_t       written;
};

constexpr std::size_t kBlock = 4096;

// A read, the write of what it returns, and a branch back.
static outrider::Builder<Copy> description(const char *name)
{
    outrider::Builder<Copy> b(name);
    const int in = b.call("in", OUTRIDER_PREAD, [](const Copy &c, const outrider::Epochs &e) {
        return outrider::call(outrider::pread(c.from, kBlock, static_cast<std::int64_t>(e[0] * kBlock)));
    });
    const int out = b.call("out", OUTRIDER_PWRITE, [](const Copy &c, const outrider::Epochs &e) {
        return outrider::call(outrider::linked_pwrite(c.to, static_cast<std::int64_t>(e[0] * kBlock)));
    });
    const int more = b.branch("more", [](const Copy &c, const outrider::Epochs &e) {
        return e.size() == 1 && e[0] + 1 < c.blocks ? 0 : 1;
    });
    b.harvest(out, [](const Copy &c, const outrider::Epochs &e, ssize_t result) {
        c.written += e[0] == c.told++ ? result : -1;
    });
    b.mark(in, OUTRIDER_NODE_LINK);
    b.edge(outrider::start, in);
    b.edge(in, out);
    b.edge(out, more);
    b.edge(more, in, OUTRIDER_EDGE_BACK);
    b.edge(more, outrider::exit);
    return b;
}

template <class Exception, class Does> static bool throws(const char *what, Does does)
{
    try {
        does();
    } catch (const Exception &e) {
        return std::strstr(e.what(), what) != nullptr;
    }
    return false;
}

static bool copies(int from, const std::string &to, outrider::Nodes<Copy> &graph)
{
    const Copy copy{from, open(to.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600), 64, 0, 0};
    {
        outrider::Scope<Copy, outrider::Nodes<Copy>> scope(graph, copy);
        char block[kBlock];
        for (off_t at = 0; at < 64 * static_cast<off_t>(kBlock); at += kBlock)
            if (scope.pread(copy.from, block, kBlock, at) != kBlock || scope.pwrite(copy.to, block, kBlock, at) != kBlock)
                return false;
    }
    if (copy.told != 64 || copy.written != 64 * static_cast<ssize_t>(kBlock))
        return false;
    for (off_t at = 0; at < 64 * static_cast<off_t>(kBlock); at += kBlock) {
        char theirs[kBlock], ours[kBlock];
        if (pread(from, theirs, kBlock, at) != kBlock || pread(copy.to, ours, kBlock, at) != kBlock || std::memcmp(theirs, ours, kBlock) != 0)
            return false;
    }
    return close(copy.to) == 0;
}

// What is wrong is told by exceptions.
static bool refuses()
{
    outrider::Builder<Copy> unfinished("unfinished");
    unfinished.edge(outrider::start, unfinished.branch("b", [](const Copy &, const outrider::Epochs &) { return outrider::unknown; }));
    outrider::Builder<Copy> large("large");
    return throws<std::invalid_argument>("unfinished: ", [&] { outrider::Nodes<Copy> graph(std::move(unfinished)); }) &&
           throws<std::invalid_argument>("unknown flags", [] { outrider::Nodes<Copy> graph(description("flags"), 1u << 30); }) &&
           throws<std::invalid_argument>("unknown node", [&] { large.edge(outrider::start, 7); }) &&
           throws<std::invalid_argument>("unknown node", [&] { large.harvest(outrider::exit, nullptr); }) &&
           throws<std::length_error>("64 nodes", [&] {
               for (int i = 0;; i++)
                   large.branch(std::to_string(i).c_str(), [](const Copy &, const outrider::Epochs &) { return 0; });
           });
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fputs("usage: graph FILE\n", stderr);
        return 2;
    }
    static outrider::Generator<Blocks> graph(
        "search",
        [](const Blocks &b, std::uint64_t i) {
            if (i == b.at.size())
                return outrider::end();
            return outrider::weak(outrider::pread(b.fd, 4096, b.at[i]));
        },
        OUTRIDER_PURE);
    Blocks blocks{open(argv[1], O_RDONLY), {}};
    for (off_t i = 0; i < 64; i++)
        blocks.at.push_back((i * 5 % 64) * 4096);
    long sum = 0, expected = 0;
    for (int stop : {0, 1, 20, 63}) {
        try {
            outrider::Scope<Blocks> scope(graph, blocks);
            for (int i = 0; i < 64; i++) {
                unsigned char ours[4096], plain[4096];
                if (scope.pread(blocks.fd, ours, sizeof ours, blocks.at[i]) != 4096)
                    return 1;
                if (pread(blocks.fd, plain, sizeof plain, blocks.at[i]) != 4096)
                    return 1;
                if (std::memcmp(ours, plain, sizeof ours) != 0)
                    return 1;
                sum += ours[0];
                expected += plain[0];
                if (i == stop)
                    throw stop;
            }
        } catch (int stopped) {
            if (stopped != stop)
                return 1;
        }
    }
    pthread_t thread;
    void     *failed;
    if (pthread_create(&thread, nullptr, exits, &blocks) != 0 || pthread_join(thread, &failed) != 0 || failed != nullptr)
        return 1;
    static outrider::Nodes<Copy> copying(description("copies"));
    if (!copies(blocks.fd, argv[1] + std::string("-copy"), copying) || !refuses())
        return 1;
    std::fputs((graph.report() + exiting.report() + copying.report()).c_str(), stdout);
    return sum == expected ? 0 : 1;
}
