/*
 * A function that ends by an exception, or because its thread is cancelled, wrapped by the linker. Compiled three times: PART 1 is the
 * function, 2 its graph, 3 the program: wrapped_throw FILE, of 256 blocks of 4 KiB.
 */
#include <cstdio>
#include <fcntl.h>
#include <outrider_wrap.h>
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>

extern "C" long walk(int fd, int blocks, int throw_at);
extern "C" int   asked;
extern "C" void  report();

#if PART == 1
extern "C" long walk(int fd, int blocks, int throw_at)
{
    char b[4096];
    long sum = 0;
    for (int i = 0; i < blocks; i++) {
        if (i == throw_at)
            throw std::runtime_error("as asked");
        if (pread(fd, b, sizeof b, i * 4096L) != 4096)
            return -1;
        sum += static_cast<unsigned char>(b[i]);
    }
    return sum;
}
#elif PART == 2
struct walking {
    int fd, blocks;
};

int asked;

static int next(void *ctx, uint64_t i, struct outrider_op *op)
{
    auto *w = static_cast<const walking *>(ctx);
    asked++;
    if (i >= static_cast<uint64_t>(w->blocks))
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = w->fd;
    op->length = 4096;
    op->offset = static_cast<int64_t>(i) * 4096;
    return OUTRIDER_WEAK;
}

static outrider_graph *graph = outrider_graph_generator("walk", next, OUTRIDER_PURE);

void report()
{
    char text[1024];
    outrider_graph_report(graph, text, sizeof text);
    std::fputs(text, stdout);
}

extern "C" {
static walking *put(walking *w, int fd, int blocks)
{
    *w = {fd, blocks};
    return w;
}
static thread_local walking now;
OUTRIDER_WRAP(long, walk, (int fd, int blocks, int throw_at), (fd, blocks, throw_at), graph, put(&now, fd, blocks))
}
#else
static void *until_cancelled(void *fd)
{
    for (;;)
        walk(*static_cast<int *>(fd), 200, -1);
}

int main(int argc, char **argv)
{
    int  fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    char b[4096];
    if (walk(fd, 100, -1) != 99 * 100 / 2)
        return 1;
    for (int i = 0; i < 20; i++) {
        try {
            walk(fd, 100, i * 5);
            return 2;
        } catch (const std::runtime_error &) {
        }
        int then = asked;
        for (int k = 0; k < 10; k++)
            if (pread(fd, b, sizeof b, k * 4096L) != 4096)
                return 3;
        if (asked != then)
            return 4;
    }
    pthread_t t;
    if (pthread_create(&t, nullptr, until_cancelled, &fd) != 0 || usleep(20000) != 0 || pthread_cancel(t) != 0 ||
        pthread_join(t, nullptr) != 0 || walk(fd, 100, -1) != 99 * 100 / 2)
        return 5;
    report();
    return 0;
}
#endif
