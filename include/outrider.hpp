/*
 * Outrider's foreaction graphs for C++: lambdas for stubs, and scopes that end by themselves. See outrider_graph.h for what holds
 * everywhere.
 *
 *     static outrider::Generator<Blocks> graph("read", [](const Blocks &b, std::uint64_t i) {
 *         if (i == b.count) return outrider::end();
 *         return outrider::weak(outrider::pread(b.fd, 4096, b.offsets[i]));
 *     }, OUTRIDER_PURE);
 *
 *     outrider::Scope scope(graph, blocks);      // the function begins
 *     scope.pread(fd, buffer, 4096, offset);     // as ::pread
 *
 * A stub that throws ends the program: it is called from within the library.
 */
#ifndef OUTRIDER_HPP
#define OUTRIDER_HPP

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "outrider_graph.h"

namespace outrider {

/* What a generator says of its i-th call. */
struct Next {
    int what;
    outrider_op op;
};

inline Next end() noexcept { return {OUTRIDER_END, {}}; }
inline Next not_ready() noexcept { return {OUTRIDER_NOT_READY, {}}; }
inline Next call(const outrider_op &op) noexcept { return {OUTRIDER_CALL, op}; }
inline Next weak(const outrider_op &op) noexcept { return {OUTRIDER_WEAK, op}; }
inline Next link(const outrider_op &op) noexcept { return {OUTRIDER_LINK, op}; }

/* Calls. What is not here is filled in by hand. */
inline outrider_op make(outrider_kind kind, int fd) noexcept
{
    outrider_op op{};
    op.kind = kind;
    op.fd = fd;
    return op;
}

inline outrider_op read(int fd, std::size_t n) noexcept
{
    outrider_op op = make(OUTRIDER_READ, fd);
    op.length = n;
    return op;
}

inline outrider_op pread(int fd, std::size_t n, std::int64_t offset) noexcept
{
    outrider_op op = make(OUTRIDER_PREAD, fd);
    op.length = n;
    op.offset = offset;
    return op;
}

inline outrider_op pwrite(int fd, const void *data, std::size_t n, std::int64_t offset) noexcept
{
    outrider_op op = make(OUTRIDER_PWRITE, fd);
    op.data = data;
    op.length = n;
    op.offset = offset;
    return op;
}

/* A write of what the linked read before it returns. */
inline outrider_op linked_pwrite(int fd, std::int64_t offset) noexcept
{
    outrider_op op = make(OUTRIDER_PWRITE, fd);
    op.linked = 1;
    op.offset = offset;
    return op;
}

inline outrider_op fstatat(int dir, const char *path, int flags) noexcept
{
    outrider_op op = make(OUTRIDER_FSTATAT, dir);
    op.path = path;
    op.flags = flags;
    return op;
}

/* A function with one loop of calls. Context is what its lambda computes them from. Build it once (static). */
template <class Context> class Generator {
public:
    using Function = std::function<Next(const Context &, std::uint64_t)>;

    Generator(const char *name, Function next, unsigned flags = 0)
        : next_(std::move(next)), graph_(outrider_graph_generator(name, &Generator::stub, flags))
    {
        if (graph_ == nullptr)
            throw std::invalid_argument("outrider: a generator without a name, or with unknown flags");
    }
    ~Generator() { outrider_graph_free(graph_); }
    Generator(const Generator &) = delete;
    Generator &operator=(const Generator &) = delete;

    const outrider_graph *get() const noexcept { return graph_; }

    /* What became of its calls, and what is wrong with it. */
    std::string report() const
    {
        std::string text(outrider_graph_report(graph_, nullptr, 0) + 1, '\0');
        text.resize(std::min(outrider_graph_report(graph_, &text[0], text.size()), text.size() - 1));
        return text;
    }

private:
    template <class> friend class Scope;

    /* What the library hands back to the stub. */
    struct Bound {
        const Generator *generator;
        const Context *context;
    };

    static int stub(void *at, std::uint64_t i, outrider_op *op) noexcept
    {
        const Bound *bound = static_cast<const Bound *>(at);
        Next next = bound->generator->next_(*bound->context, i);
        *op = next.op;
        return next.what;
    }

    Function next_;
    outrider_graph *graph_;
};

/* One run of the function, which ends with this object, also when an exception passes. */
template <class Context> class Scope {
public:
    Scope(const Generator<Context> &generator, const Context &context)
        : bound_{&generator, &context}, scope_(outrider_enter(generator.get(), &bound_))
    {
    }
    ~Scope() { outrider_leave(scope_); }
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;

    /* For the calls of outrider_graph.h that have no method here. */
    outrider_scope *get() noexcept { return scope_; }

    ssize_t read(int fd, void *buffer, std::size_t n) noexcept { return outrider_read(scope_, fd, buffer, n); }
    ssize_t pread(int fd, void *buffer, std::size_t n, off_t offset) noexcept
    {
        return outrider_pread(scope_, fd, buffer, n, offset);
    }
    ssize_t write(int fd, const void *bytes, std::size_t n) noexcept { return outrider_write(scope_, fd, bytes, n); }
    ssize_t pwrite(int fd, const void *bytes, std::size_t n, off_t offset) noexcept
    {
        return outrider_pwrite(scope_, fd, bytes, n, offset);
    }
    int fstatat(int dir, const char *path, struct stat *st, int flags) noexcept
    {
        return outrider_fstatat(scope_, dir, path, st, flags);
    }

private:
    typename Generator<Context>::Bound bound_;
    outrider_scope *scope_;
};

} // namespace outrider

#endif
