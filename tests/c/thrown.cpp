// FILE: callbacks and functions of lists that throw, in reads and in the calls that draw a list, and threads that end in them. Afterwards the thread is in
// no callback any more. LP1.
#include "check.h"
#include <pthread.h>

static int file, calls;

static void throws(outrider_client *, void *, const struct outrider_position *)
{
    calls++;
    throw 5;
}

static size_t next(void *, struct outrider_access *, size_t)
{
    calls++;
    throw 6;
}

static void ends(outrider_client *, void *, const struct outrider_position *)
{
    calls++;
    pthread_exit(nullptr);
}

static void *reads(void *)
{
    char c;
    CHECK(pread(file, &c, 1, 0) == 1);
    return &file;
}

template <typename F> static int thrown(F f)
{
    try {
        f();
    } catch (int x) {
        return x;
    }
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (file = open(argv[1], O_RDONLY)) >= 0);
    char c;
    outrider_client *client = outrider_client_new(throws, nullptr);
    CHECK(client && outrider_region_add(client, file, 0, 0) == 0);
    for (int i = 1; i <= 3; i++) {
        CHECK(thrown([&] { pread(file, &c, 1, i * 8192); }) == 5 && calls == i);
    }
    CHECK(outrider_client_free(client) == 0);
    calls = 0;
    for (int i = 1; i <= 3; i++)
        CHECK(thrown([&] { outrider_pull(file, next, nullptr); }) == 6 && calls == i);
    CHECK(outrider_pull(file, nullptr, nullptr) == 0);
    calls = 0;
    client = outrider_client_new(ends, nullptr);
    CHECK(client && outrider_region_add(client, file, 0, 0) == 0);
    void *result;
    pthread_t thread;
    CHECK(!pthread_create(&thread, nullptr, reads, nullptr) && !pthread_join(thread, &result) && !result && calls == 1);
    CHECK(outrider_client_free(client) == 0);
    CHECK(pread(file, &c, 1, 0) == 1);
    puts("left");
    return 0;
}
