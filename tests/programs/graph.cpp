// The C++ interface of foreaction graphs: a search that leaves early by an exception, and one in a thread that ends. Usage: graph FILE
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
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
    std::fputs((graph.report() + exiting.report()).c_str(), stdout);
    return sum == expected ? 0 : 1;
}
