// hostile SECONDS DIRECTORY: a client without privileges that calls /dev/outrider wrongly in every way it can think of. First what has to be refused and how,
// then at random: bad ranges, bad pointers, descriptors of anything, closing while mapped, truncating what is mapped, dying in the middle.
#include "outrider_test.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define KINDS 14

static const char *directory;
static int device;

static void expect(const char *what, long result, int error) {
    if (error ? result != -1 || errno != error : result < 0) die("%s: result %ld, expected errno %d", what, result, error);
}

static long ask(int fd, uint64_t offset, uint64_t length) {
    struct outrider_readahead_info info = info_of(fd, offset, length, 0);
    return ioctl(device, OUTRIDER_READAHEAD_INFO, &info);
}

static void refusals(void) {
    char path[256];
    sprintf(path, "%s/own", directory);
    int both = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (both < 0) die("open %s", path);
    if (ftruncate(both, 3 << 20)) die("ftruncate");
    int writable = open(path, O_WRONLY), path_only = open(path, O_PATH), readable = open(path, O_RDONLY), pair[2];
    expect("a readable file", ask(readable, 0, 0), 0);
    expect("a descriptor for writing", ask(writable, 0, 0), EBADF);
    expect("a descriptor of the path", ask(path_only, 0, 0), EBADF);
    expect("no descriptor", ask(-1, 0, 0), EBADF);
    expect("a number too high", ask(1 << 20, 0, 0), EBADF);
    expect("a directory", ask(open(directory, O_RDONLY), 0, 0), EOPNOTSUPP);
    expect("a character device", ask(open("/dev/zero", O_RDONLY), 0, 0), EOPNOTSUPP);
    expect("the device itself", ask(device, 0, 0), EOPNOTSUPP);
    expect("a file of tmpfs", ask(open("/dev/shm/there", O_RDWR | O_CREAT, 0600), 0, 0), EOPNOTSUPP);
    expect("a file of procfs", ask(open("/proc/self/status", O_RDONLY), 0, 0), EOPNOTSUPP);
    if (pipe(pair)) die("pipe");
    expect("a pipe", ask(pair[0], 0, 0), EOPNOTSUPP);
    // A file of somebody else's that can't be opened can't be asked for either: a path alone is not enough.
    expect("somebody else's file", open("/mnt/secret", O_RDONLY), EACCES);
    expect("its path", ask(open("/mnt/secret", O_PATH), 0, 0), EBADF);
    expect("following a file system", ioctl(device, OUTRIDER_FOLLOW, &readable), EPERM);
    expect("an unknown command", ioctl(device, _IO('o', 0xdf)), ENOTTY);
    expect("no structure", ioctl(device, OUTRIDER_READAHEAD_INFO, NULL), EFAULT);
    expect("the kernel's memory", ioctl(device, OUTRIDER_READAHEAD_INFO, 0xffff888000100000ul), EFAULT);

    struct outrider_readahead_info info = info_of(readable, 0, 0, 1u << 31);
    expect("an unknown flag", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), EINVAL);
    info = info_of(readable, ~0ull, 4096, 0);
    expect("an offset over all files", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), EINVAL);
    info = info_of(readable, 0, 0, 0);
    info.size = 8;
    expect("another structure", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), EINVAL);
    info = info_of(readable, 0, 0, 0);
    info.bitmap = 0xffff888000100000ul;
    info.bitmap_bytes = 64;
    expect("bits into the kernel's memory", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), EFAULT);
    // Memory that ends, or can't be written, in the middle of what is asked, of the answer, and of the bits.
    char *edge = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (edge == MAP_FAILED || mprotect(edge + PAGE, PAGE, PROT_NONE)) die("memory with an edge");
    info = info_of(readable, 0, 0, OUTRIDER_LOOK);
    for (size_t whole = 4; whole < sizeof info; whole += 4) {
        memcpy(edge + PAGE - whole, &info, whole);
        expect("a structure that is cut off", ioctl(device, OUTRIDER_READAHEAD_INFO, edge + PAGE - whole), EFAULT);
    }
    memcpy(edge + PAGE - sizeof info, &info, sizeof info);
    expect("a structure at the edge", ioctl(device, OUTRIDER_READAHEAD_INFO, edge + PAGE - sizeof info), 0);
    for (unsigned words = 1; words <= 12; words++) {
        info = info_of(readable, 0, 0, OUTRIDER_LOOK);
        info.bitmap = (uintptr_t)(edge + PAGE - words * 8);
        info.bitmap_bytes = words * 8;
        expect("bits up to the edge", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), 0);
        if (info.bitmap_written != words * 8) die("%u bytes of %u words of bits", info.bitmap_written, words);
        info.bitmap += 8;
        expect("bits over the edge", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), EFAULT);
    }
    info = info_of(readable, 0, 0, OUTRIDER_LOOK);
    memcpy(edge, &info, sizeof info);
    if (mprotect(edge, PAGE, PROT_READ)) die("mprotect");
    expect("an answer to what can't be written", ioctl(device, OUTRIDER_READAHEAD_INFO, edge), EFAULT);
    info.bitmap = (uintptr_t)(edge + 1024);
    info.bitmap_bytes = 64;
    expect("bits to what can't be written", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), EFAULT);
    munmap(edge, 2 * PAGE);
    info = info_of(readable, 1ull << 40, 1 << 20, 0);
    expect("behind the end", ioctl(device, OUTRIDER_READAHEAD_INFO, &info), 0);
    if (info.missing || info.issued || info.bitmap_written) die("behind the end there are %llu bytes", info.missing);

    struct outrider_bitmap request = {.size = sizeof request, .fd = writable};
    expect("the bitmap of what can't be read", ioctl(device, OUTRIDER_BITMAP, &request), EBADF);
    request.fd = readable;
    int handle = ioctl(device, OUTRIDER_BITMAP, &request);
    expect("a bitmap", handle, 0);
    expect("mapping to write", mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0) == MAP_FAILED ? -1 : 0, EACCES);
    expect("mapping a copy to write", mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, handle, 0) == MAP_FAILED ? -1 : 0, EPERM);
    expect("mapping to run", mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, handle, 0) == MAP_FAILED ? -1 : 0, EPERM);
    uint64_t *bits = mmap(NULL, 4096, PROT_READ, MAP_SHARED, handle, 0);
    if (bits == MAP_FAILED) die("mapping");
    expect("writing afterwards", mprotect(bits, 4096, PROT_READ | PROT_WRITE), EACCES);
    // It goes on after everything that it came from is closed.
    close(handle);
    close(readable);
    static char page[4096];
    if (pread(both, page, sizeof page, 8192) != sizeof page) die("pread");
    if (!BIT(bits, 2)) die("page 2 was read and its bit is not set");
    munmap(bits, 4096);
}

static __thread sigjmp_buf back;
static void bus(int signal) { siglongjmp(back, signal); }

// Looks at every part of it and may write to it; what comes of that is a signal.
static __attribute__((noinline)) void touch(volatile char *map, size_t length, int write) {
    if (sigsetjmp(back, 1)) return;
    for (size_t at = 0; at < length; at += 512) (void)map[at];
    if (write) map[0] = 1;
}

static int any_descriptor(uint64_t *state) {
    char path[256];
    sprintf(path, "%s/f%d", directory, (int)(random_u64(state) % 4));
    switch (random_u64(state) % KINDS) {
    case 0: return open(path, O_WRONLY | O_CREAT, 0600);
    case 1: return open(path, O_PATH);
    case 2: return open(directory, O_RDONLY);
    case 3: return open("/dev/zero", O_RDONLY);
    case 4: return open("/proc/self/maps", O_RDONLY);
    case 5: return dup(device);
    case 6: return socket(AF_UNIX, SOCK_STREAM, 0);
    case 7: return open("/dev/shm/there", O_RDONLY);
    case 8: return (int)random_u64(state);
    default: return open(path, O_RDWR | O_CREAT, 0600);
    }
}

static uint64_t any_number(uint64_t *state) {
    switch (random_u64(state) % 6) {
    case 0: return 0;
    case 1: return random_u64(state) % 4096;
    case 2: return random_u64(state) % (64 << 20);
    case 3: return ~0ull - random_u64(state) % 8192;
    case 4: return 1ull << (random_u64(state) % 64);
    default: return random_u64(state);
    }
}

static void *attack(void *argument) {
    uint64_t state = (uintptr_t)argument * 0x9e3779b97f4a7c15ull + 99;
    // The last page cannot be written, and behind it is nothing.
    char *memory = mmap(NULL, 4 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory + 8192, 4096, PROT_READ);
    munmap(memory + 12288, 4096);
    for (;;) {
        int fd = any_descriptor(&state), handle = -1;
        uint64_t kind = random_u64(&state) % 8;
        if (kind < 4) {
            struct outrider_readahead_info *info = (void *)(memory + (kind == 0 ? 8192 - random_u64(&state) % 256 : 0));
            struct outrider_readahead_info made = info_of(fd, any_number(&state), any_number(&state), random_u64(&state) % 4);
            if (random_u64(&state) % 16 == 0) made.flags = random_u64(&state);
            if (random_u64(&state) % 16 == 0) made.size = random_u64(&state);
            made.budget = any_number(&state);
            made.bitmap_offset = any_number(&state);
            if (random_u64(&state) % 2) {
                made.bitmap = random_u64(&state) % 4 ? (uintptr_t)memory + random_u64(&state) % (4 << 12) / 8 * 8 : any_number(&state);
                made.bitmap_bytes = random_u64(&state) % 2 ? random_u64(&state) % 8192 / 8 * 8 : any_number(&state);
            }
            if (info == (void *)memory) memcpy(info, &made, sizeof made);
            ioctl(device, OUTRIDER_READAHEAD_INFO, info);
        } else if (kind == 4) {
            ioctl(device, random_u64(&state) % 2 ? (unsigned)random_u64(&state) : _IOC(3, 'o', 0xd0 + random_u64(&state) % 8, any_number(&state) % 300),
                  any_number(&state));
        } else if (kind < 7) {
            struct outrider_bitmap request = {.size = sizeof request, .fd = fd};
            handle = ioctl(device, OUTRIDER_BITMAP, &request);
            size_t length = (1 + random_u64(&state) % 8) << 12;
            volatile char *map = handle < 0 ? MAP_FAILED
                                            : mmap(NULL, length, random_u64(&state) % 8 ? PROT_READ : (int)(random_u64(&state) % 8),
                                                   random_u64(&state) % 4 ? MAP_SHARED : MAP_PRIVATE, handle, any_number(&state) & ~4095ull);
            if (map != MAP_FAILED) {
                if (random_u64(&state) % 2) close(handle), handle = -1;
                if (random_u64(&state) % 2) (void)!ftruncate(fd, any_number(&state) % (400 << 20));
                touch(map, length, 0);
                mprotect((void *)map, length, random_u64(&state) % 8);
                touch(map, length, random_u64(&state) % 8 == 0);
                if (random_u64(&state) % 16) munmap((void *)map, length);
            }
        } else {
            char path[256];
            sprintf(path, "%s/f%d", directory, (int)(random_u64(&state) % 4));
            if (random_u64(&state) % 2) unlink(path);
            else if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        if (handle >= 0) close(handle);
        if (fd > 2 && fd != device) close(fd);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: hostile SECONDS DIRECTORY");
    directory = argv[2];
    if (setgid(65534) || setuid(65534)) die("setuid");
    device = open_device();
    refusals();
    // Processes of three threads each, which are killed wherever they are.
    int64_t end = now_ns() + atoll(argv[1]) * INT64_C(1000000000);
    for (int generation = 0; now_ns() < end; generation++) {
        pid_t child = fork();
        if (child == 0) {
            struct sigaction action = {.sa_handler = bus, .sa_flags = SA_NODEFER};
            sigaction(SIGBUS, &action, NULL);
            sigaction(SIGSEGV, &action, NULL);
            pthread_t thread;
            for (uintptr_t i = 0; i < 2; i++) pthread_create(&thread, NULL, attack, (void *)(uintptr_t)(generation * 3 + i));
            attack((void *)(uintptr_t)(generation * 3 + 2));
        }
        usleep(300000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        if (!WIFSIGNALED(status)) die("a client ended by itself with status %d", status);
        if (WTERMSIG(status) != SIGKILL) printf("a client died of signal %d\n", WTERMSIG(status));
    }
    return 0;
}
