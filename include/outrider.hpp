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
 * Functions with more than one loop of calls have a graph of nodes:
 *
 *     outrider::Builder<Copy> b("copy");
 *     const int in = b.call("read", OUTRIDER_READ, [](const Copy &c, const outrider::Epochs &) {
 *         return outrider::call(outrider::read(c.from, 4096));
 *     });
 *     ...
 *     b.edge(outrider::start, in);
 *     static outrider::Nodes<Copy> graph(std::move(b));
 *
 * A stub that throws ends the program: it is called from within the library. C++14 or later; before C++17 a scope's types are written
 * out: outrider::Scope<Blocks>, outrider::Scope<Copy, outrider::Nodes<Copy>>.
 */
#ifndef OUTRIDER_HPP
#define OUTRIDER_HPP

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

/* Calls, with their arguments in the order of the system call's. */
inline outrider_op make(outrider_kind kind, int fd) noexcept
{
    outrider_op op{};
    op.kind = kind;
    op.fd = fd;
    return op;
}

inline outrider_op openat(int dir, const char *path, int flags, mode_t mode = 0) noexcept
{
    outrider_op op = make(OUTRIDER_OPENAT, dir);
    op.path = path;
    op.flags = flags;
    op.mode = mode;
    return op;
}

inline outrider_op close(int fd) noexcept { return make(OUTRIDER_CLOSE, fd); }

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

inline outrider_op write(int fd, const void *data, std::size_t n) noexcept
{
    outrider_op op = make(OUTRIDER_WRITE, fd);
    op.data = data;
    op.length = n;
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

/* Writes of what the linked read before them returns. */
inline outrider_op linked_write(int fd) noexcept
{
    outrider_op op = make(OUTRIDER_WRITE, fd);
    op.linked = 1;
    return op;
}

inline outrider_op linked_pwrite(int fd, std::int64_t offset) noexcept
{
    outrider_op op = make(OUTRIDER_PWRITE, fd);
    op.linked = 1;
    op.offset = offset;
    return op;
}

inline outrider_op lseek(int fd, std::int64_t offset, int whence) noexcept
{
    outrider_op op = make(OUTRIDER_LSEEK, fd);
    op.offset = offset;
    op.flags = whence;
    return op;
}

inline outrider_op fstat(int fd) noexcept { return make(OUTRIDER_FSTAT, fd); }

inline outrider_op fstatat(int dir, const char *path, int flags) noexcept
{
    outrider_op op = make(OUTRIDER_FSTATAT, dir);
    op.path = path;
    op.flags = flags;
    return op;
}

inline outrider_op statx(int dir, const char *path, int flags, unsigned mask) noexcept
{
    outrider_op op = make(OUTRIDER_STATX, dir);
    op.path = path;
    op.flags = flags;
    op.mode = mask;
    return op;
}

inline outrider_op getdents64(int fd, std::size_t n) noexcept
{
    outrider_op op = make(OUTRIDER_GETDENTS, fd);
    op.length = n;
    return op;
}

inline outrider_op fsync(int fd) noexcept { return make(OUTRIDER_FSYNC, fd); }

inline outrider_op fdatasync(int fd) noexcept
{
    outrider_op op = make(OUTRIDER_FSYNC, fd);
    op.flags = 1;
    return op;
}

inline outrider_op unlinkat(int dir, const char *path, int flags) noexcept
{
    outrider_op op = make(OUTRIDER_UNLINKAT, dir);
    op.path = path;
    op.flags = flags;
    return op;
}

inline outrider_op renameat(int from_dir, const char *from, int to_dir, const char *to) noexcept
{
    outrider_op op = make(OUTRIDER_RENAMEAT, from_dir);
    op.path = from;
    op.fd2 = to_dir;
    op.path2 = to;
    return op;
}

inline outrider_op mkdirat(int dir, const char *path, mode_t mode) noexcept
{
    outrider_op op = make(OUTRIDER_MKDIRAT, dir);
    op.path = path;
    op.mode = mode;
    return op;
}

namespace detail {

/* What has become of a graph's calls, and what is wrong with it. */
inline std::string report(const outrider_graph *graph)
{
    std::string text(outrider_graph_report(graph, nullptr, 0) + 1, '\0');
    text.resize(std::min(outrider_graph_report(graph, &text[0], text.size()), text.size() - 1));
    return text;
}

/* What the library hands back to a stub: the functions of a graph, and the context of a run. */
template <class Functions, class Context> struct Bound {
    const Functions *functions;
    const Context   *context;
};

} // namespace detail

/* A function with one loop of calls. Context is what its lambda computes them from. Build it once (static). */
template <class Context> class Generator {
public:
    using Function = std::function<Next(const Context &, std::uint64_t)>;
    using Functions = Function;

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
    const Function *functions() const noexcept { return &next_; }

    /* What became of its calls, and what is wrong with it. */
    std::string report() const { return detail::report(graph_); }

private:
    static int stub(void *at, std::uint64_t i, outrider_op *op) noexcept
    {
        const auto *bound = static_cast<const detail::Bound<Function, Context> *>(at);
        Next next = (*bound->functions)(*bound->context, i);
        *op = next.op;
        return next.what;
    }

    Function next_;
    outrider_graph *graph_;
};

/* The indices of the loops around a node, outermost first. */
class Epochs {
public:
    Epochs(const std::uint64_t *first, std::size_t n) noexcept : first_(first), n_(n) {}
    std::size_t size() const noexcept { return n_; }
    std::uint64_t operator[](std::size_t i) const noexcept { return first_[i]; }

private:
    const std::uint64_t *first_;
    std::size_t n_;
};

/* A graph's entrance and exit, and what a branch says while it can't tell. */
constexpr int start = OUTRIDER_START;
constexpr int exit = OUTRIDER_EXIT;
constexpr int unknown = -1;

template <class Context> class Nodes;

/* A graph of nodes, while it is described. Its functions return the numbers of new nodes. */
template <class Context> class Builder {
public:
    /* Gives a call's arguments by outrider::call(...), or outrider::not_ready(). */
    using Args = std::function<Next(const Context &, const Epochs &)>;
    /* Gives the number of the edge that is taken, in the order in which they were added, or outrider::unknown. */
    using Choice = std::function<int(const Context &, const Epochs &)>;
    /* Is told what a call returned, or its negated errno. */
    using Harvest = std::function<void(const Context &, const Epochs &, ssize_t)>;

    /* Most nodes besides the entrance and the exit. */
    static constexpr int most = 64;

    explicit Builder(const char *name) : builder_(outrider_builder_new(name)), functions_(new Functions)
    {
        must(builder_ != nullptr);
    }
    ~Builder()
    {
        // It frees what it refuses: a graph without edges.
        if (builder_ != nullptr)
            outrider_builder_build(builder_, 0, nullptr, 0);
    }
    Builder(Builder &&other) noexcept
        : builder_(std::exchange(other.builder_, nullptr)), functions_(std::move(other.functions_))
    {
    }
    Builder(const Builder &) = delete;
    Builder &operator=(const Builder &) = delete;

    int call(const char *name, outrider_kind kind, Args args)
    {
        return add(&Node::args, std::move(args), outrider_builder_call(builder_, name, kind, stubs().args[next()]));
    }
    int branch(const char *name, Choice choice)
    {
        return add(&Node::choice, std::move(choice), outrider_builder_branch(builder_, name, stubs().choice[next()]));
    }
    /* Has `then` told of the calls of a node. */
    void harvest(int node, Harvest then)
    {
        must(node > exit && node <= exit + static_cast<int>(functions_->size()));
        must(outrider_builder_harvest(builder_, node, stubs().harvest[node - exit - 1]) == 0);
        (*functions_)[node - exit - 1].harvest = std::move(then);
    }
    /* OUTRIDER_EDGE_… */
    void edge(int from, int to, unsigned flags = 0) { must(outrider_builder_edge(builder_, from, to, flags) == 0); }
    /* OUTRIDER_NODE_… */
    void mark(int node, unsigned marks) { must(outrider_builder_mark(builder_, node, marks) == 0); }

private:
    friend class Nodes<Context>;

    struct Node {
        Args    args;
        Choice  choice;
        Harvest harvest;
    };
    using Functions = std::vector<Node>;
    using Bound = detail::Bound<Functions, Context>;

    static void must(bool done)
    {
        if (!done)
            throw std::invalid_argument("outrider: a name that is missing, or an unknown node or flag");
    }

    std::size_t next() const
    {
        if (functions_->size() == most)
            throw std::length_error("outrider: a graph has 64 nodes at most");
        return functions_->size();
    }

    template <class Function> int add(Function Node::*which, Function function, int node)
    {
        must(node > exit);
        functions_->emplace_back();
        functions_->back().*which = std::move(function);
        return node;
    }

    /* C's stubs don't know of which node they are asked: each node has stubs of its own. */
    struct Stubs {
        outrider_graph_args    args[most];
        outrider_graph_choice  choice[most];
        outrider_graph_harvest harvest[most];
    };

    static const Stubs &stubs()
    {
        static const Stubs all = table(std::make_index_sequence<most>());
        return all;
    }

    template <std::size_t... N> static Stubs table(std::index_sequence<N...>)
    {
        return {{&Builder::template args_of<N>...}, {&Builder::template choice_of<N>...}, {&Builder::template harvest_of<N>...}};
    }

    template <std::size_t N> static int args_of(void *at, const std::uint64_t *epochs, std::size_t n, outrider_op *op) noexcept
    {
        const Bound *bound = static_cast<const Bound *>(at);
        Next next = (*bound->functions)[N].args(*bound->context, Epochs(epochs, n));
        *op = next.op;
        return next.what == OUTRIDER_CALL;
    }
    template <std::size_t N> static int choice_of(void *at, const std::uint64_t *epochs, std::size_t n) noexcept
    {
        const Bound *bound = static_cast<const Bound *>(at);
        return (*bound->functions)[N].choice(*bound->context, Epochs(epochs, n));
    }
    template <std::size_t N>
    static void harvest_of(void *at, const std::uint64_t *epochs, std::size_t n, ssize_t result) noexcept
    {
        const Bound *bound = static_cast<const Bound *>(at);
        (*bound->functions)[N].harvest(*bound->context, Epochs(epochs, n), result);
    }

    outrider_builder *builder_;
    std::unique_ptr<Functions> functions_;
};

/* A function with a graph of nodes. Build it once (static). Throws std::invalid_argument, which says why, if the graph is refused. */
template <class Context> class Nodes {
public:
    using Functions = typename Builder<Context>::Functions;

    explicit Nodes(Builder<Context> &&builder, unsigned flags = 0) : functions_(std::move(builder.functions_))
    {
        char why[512] = "";
        graph_ = outrider_builder_build(std::exchange(builder.builder_, nullptr), flags, why, sizeof why);
        if (graph_ == nullptr)
            throw std::invalid_argument(std::string("outrider: ") + why);
    }
    ~Nodes() { outrider_graph_free(graph_); }
    Nodes(const Nodes &) = delete;
    Nodes &operator=(const Nodes &) = delete;

    const outrider_graph *get() const noexcept { return graph_; }
    const Functions *functions() const noexcept { return functions_.get(); }

    /* What became of its calls, and what is wrong with it. */
    std::string report() const { return detail::report(graph_); }

private:
    std::unique_ptr<Functions> functions_;
    outrider_graph *graph_;
};

/* One run of the function, which ends with this object, also when an exception passes. Its calls are those of the system. */
template <class Context, class Graph = Generator<Context>> class Scope {
public:
    Scope(const Graph &graph, const Context &context)
        : bound_{graph.functions(), &context}, scope_(outrider_enter(graph.get(), &bound_))
    {
    }
    ~Scope() { outrider_leave(scope_); }
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;

    outrider_scope *get() noexcept { return scope_; }

    /* Has only calls of the C library on these descriptors offered to it (outrider_bind). */
    bool bind(int fd) noexcept { return outrider_bind(scope_, fd) == 0; }

    int openat(int dir, const char *path, int flags, mode_t mode = 0) noexcept
    {
        return outrider_openat(scope_, dir, path, flags, mode);
    }
    int close(int fd) noexcept { return outrider_close(scope_, fd); }
    ssize_t read(int fd, void *buffer, std::size_t n) noexcept { return outrider_read(scope_, fd, buffer, n); }
    ssize_t pread(int fd, void *buffer, std::size_t n, off_t offset) noexcept
    {
        return outrider_pread(scope_, fd, buffer, n, offset);
    }
    ssize_t readv(int fd, const struct iovec *parts, int n) noexcept { return outrider_readv(scope_, fd, parts, n); }
    ssize_t preadv(int fd, const struct iovec *parts, int n, off_t offset) noexcept
    {
        return outrider_preadv(scope_, fd, parts, n, offset);
    }
    ssize_t write(int fd, const void *bytes, std::size_t n) noexcept { return outrider_write(scope_, fd, bytes, n); }
    ssize_t pwrite(int fd, const void *bytes, std::size_t n, off_t offset) noexcept
    {
        return outrider_pwrite(scope_, fd, bytes, n, offset);
    }
    off_t lseek(int fd, off_t offset, int whence) noexcept { return outrider_lseek(scope_, fd, offset, whence); }
    int fstat(int fd, struct stat *st) noexcept { return outrider_fstat(scope_, fd, st); }
    int fstatat(int dir, const char *path, struct stat *st, int flags) noexcept
    {
        return outrider_fstatat(scope_, dir, path, st, flags);
    }
    int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st) noexcept
    {
        return outrider_statx(scope_, dir, path, flags, mask, st);
    }
    ssize_t getdents64(int fd, void *entries, std::size_t n) noexcept
    {
        return outrider_getdents64(scope_, fd, entries, n);
    }
    int fsync(int fd) noexcept { return outrider_fsync(scope_, fd); }
    int fdatasync(int fd) noexcept { return outrider_fdatasync(scope_, fd); }
    int unlinkat(int dir, const char *path, int flags) noexcept { return outrider_unlinkat(scope_, dir, path, flags); }
    int renameat(int from_dir, const char *from, int to_dir, const char *to) noexcept
    {
        return outrider_renameat(scope_, from_dir, from, to_dir, to);
    }
    int mkdirat(int dir, const char *path, mode_t mode) noexcept { return outrider_mkdirat(scope_, dir, path, mode); }

private:
    detail::Bound<typename Graph::Functions, Context> bound_;
    outrider_scope *scope_;
};

} // namespace outrider

#endif
