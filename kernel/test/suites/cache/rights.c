// rights DIRECTORY: SPEC B16: who may know what of a file is cached is the kernel's decision. Callers of several kinds ask for files of several kinds; the
// oracles are mincore(2), which says of every page that it is cached to whom it doesn't tell, and cachestat(2) where there is one. Who may only read a file
// can have it fetched, and learns nothing by that. Run as root.
#include "outrider_test.h"

#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PAGES 64u
#define NOBODY 65534
#define GROUP 4242
#define EXPECT(what, is, should)                                                                                                           \
    do {                                                                                                                                   \
        unsigned long long is_ = (is), should_ = (should);                                                                                 \
        if (is_ != should_) die("%s: %s is %llu, not %llu", name, what, is_, should_);                                                     \
    } while (0)

static const struct {
    const char *name;
    uid_t owner;
    gid_t group;
    mode_t mode;
    // The caller.
    uid_t uid;
    int in_group, capable;
    // How root opens the file that the caller inherits; -1: he opens it himself.
    int inherited;
    int idmapped;
    // Whether he may know what is cached.
    int known;
} cases[] = {
    {"root's file, root", 0, 0, 0600, 0, 0, 0, -1, 0, 1},
    {"one's own file", NOBODY, NOBODY, 0444, NOBODY, 0, 0, -1, 0, 1},
    {"root's file", 0, 0, 0644, NOBODY, 0, 0, -1, 0, 0},
    {"another user's file", 1000, 1000, 0644, NOBODY, 0, 0, -1, 0, 0},
    {"a file that all may write", 0, 0, 0666, NOBODY, 0, 0, -1, 0, 1},
    {"a file that one's group may write", 0, GROUP, 0664, NOBODY, 1, 0, -1, 0, 1},
    {"a file that one's group may read", 0, GROUP, 0644, NOBODY, 1, 0, -1, 0, 0},
    {"CAP_FOWNER", 0, 0, 0644, NOBODY, 0, 1, -1, 0, 1},
    {"an inherited descriptor for reading", 0, 0, 0600, NOBODY, 0, 0, O_RDONLY, 0, 0},
    {"an inherited descriptor for writing, too", 0, 0, 0600, NOBODY, 0, 0, O_RDWR, 0, 1},
    {"root's file on a mount where it is one's own", 0, 0, 0644, NOBODY, 0, 0, -1, 1, 1},
    {"one's own file on a mount where it is root's", NOBODY, NOBODY, 0644, NOBODY, 0, 0, -1, 1, 0},
};

static const char *name = "setting up";

// A second mount of `directory` at `at`, on which root's files are nobody's and nobody's are root's.
static void swapped(const char *directory, const char *at) {
    const char *map = "0 65534 1\n65534 0 1\n";
    char path[64];
    int ready[2];
    if (pipe(ready)) die("pipe");
    pid_t holder = fork();
    if (holder == 0) {
        if (unshare(CLONE_NEWUSER)) die("unshare");
        if (write(ready[1], "", 1) != 1) die("write");
        pause();
    }
    if (read(ready[0], path, 1) != 1) die("no user namespace");
    const char *const kinds[] = {"uid_map", "gid_map"};
    for (int i = 0; i < 2; i++) {
        sprintf(path, "/proc/%d/%s", holder, kinds[i]);
        int fd = open(path, O_WRONLY);
        if (fd < 0 || write(fd, map, strlen(map)) != (ssize_t)strlen(map)) die("%s", path);
        close(fd);
    }
    sprintf(path, "/proc/%d/ns/user", holder);
    int users = open(path, O_RDONLY | O_CLOEXEC);
    struct {
        uint64_t set, clear, propagation, userns;
    } attributes = {0x00100000 /* MOUNT_ATTR_IDMAP */, 0, 0, users};
    int tree = syscall(428 /* open_tree */, AT_FDCWD, directory, 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC);
    if (users < 0 || tree < 0) die("open_tree");
    if (syscall(442 /* mount_setattr */, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes)) die("mount_setattr");
    if (syscall(429 /* move_mount */, tree, "", AT_FDCWD, at, 4 /* MOVE_MOUNT_F_EMPTY_PATH */)) die("move_mount");
    close(tree);
    close(users);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
}

static void become(uid_t uid, int in_group, int capable) {
    gid_t group = GROUP;
    if (uid == 0) return;
    if (setgroups(in_group, &group) || prctl(PR_SET_KEEPCAPS, capable) || setgid(uid) || setuid(uid)) die("%s: setuid", name);
    if (capable) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct data[2] = {{1u << CAP_FOWNER, 1u << CAP_FOWNER, 0}, {0, 0, 0}};
        if (syscall(SYS_capset, &header, data)) die("%s: capset", name);
    }
}

static uint64_t cached(int fd) {
    unsigned char *bytes = resident(fd, PAGES * PAGE);
    uint64_t count = 0;
    for (unsigned page = 0; page < PAGES; page++) count += bytes[page] & 1;
    free(bytes);
    return count;
}

static int ask(int device, struct outrider_readahead_info *info) {
    if (!ioctl(device, OUTRIDER_READAHEAD_INFO, info)) return 0;
    return errno;
}

// What the caller sees. A sixteenth of the file is cached: pages 16 to 19.
static void as_caller(unsigned number, const char *path, int fd) {
    become(cases[number].uid, cases[number].in_group, cases[number].capable);
    int device = open_device();
    if (fd < 0) fd = open(path, O_RDONLY);
    if (fd < 0) die("%s: open", name);
    // Of mincore and cachestat only the latter, since Linux 6.5, minds whose the file is on this mount, and what it was opened for.
    struct {
        uint64_t offset, length;
    } range = {0, 0};
    uint64_t stat[5];
    int may = cases[number].known, told = !syscall(451 /* cachestat */, fd, &range, stat, 0);
    if (told || errno != ENOSYS) EXPECT("cachestat's rule", told, may);
    if (cases[number].inherited < 0 && !cases[number].idmapped) EXPECT("mincore's rule", cached(fd) < PAGES, may);

    // What is asked is answered, or not touched.
    uint64_t bits[2] = {0x5a5a, 0x5a5a};
    struct outrider_readahead_info info = info_of(fd, 0, 0, OUTRIDER_LOOK), asked;
    info.bitmap = (uintptr_t)bits;
    info.bitmap_bytes = sizeof bits;
    asked = info;
    EXPECT("a look", ask(device, &info), may ? 0 : EPERM);
    EXPECT("the bits", bits[0], may ? 0xf0000 : 0x5a5a);
    EXPECT("that an answer was written", !!memcmp(&asked, &info, sizeof info), may);
    struct outrider_bitmap request = {.size = sizeof request, .fd = fd};
    int handle = ioctl(device, OUTRIDER_BITMAP, &request);
    EXPECT("a descriptor for the bitmap", handle < 0 ? errno : 0, may ? 0 : EPERM);
    if (!may) {
        const uint32_t flags[] = {0, OUTRIDER_MEMORY, OUTRIDER_LOOK | OUTRIDER_MEMORY};
        for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
            asked = info = info_of(fd, 0, 0, flags[i]);
            EXPECT("a call that tells", ask(device, &info), EPERM);
            EXPECT("what it wrote", memcmp(&asked, &info, sizeof info), 0);
        }
    }

    // What tells nothing fetches for everybody, and answers the same whether it is cached or not.
    info = info_of(fd, 0, 0, OUTRIDER_BLIND | OUTRIDER_LOOK);
    EXPECT("a blind look", ask(device, &info), EINVAL);
    info = info_of(fd, 0, 0, OUTRIDER_BLIND);
    info.bitmap = (uintptr_t)bits;
    info.bitmap_bytes = sizeof bits;
    EXPECT("a blind look at bits", ask(device, &info), EINVAL);
    struct outrider_readahead_info first[3];
    for (int round = 0; round < 2; round++)
        for (unsigned i = 0; i < 3; i++) {
            info = info_of(fd, 12 * PAGE, i == 1 ? 0 : 40 * PAGE, OUTRIDER_BLIND);
            if (i == 0) info.budget = 8 * PAGE;
            if (i == 2) info = info_of(fd, 0, 0, OUTRIDER_BLIND);
            EXPECT("a blind call", ask(device, &info), 0);
            EXPECT("missing", info.missing | info.issued | info.readers, 0);
            EXPECT("its figures", info.cached | info.inserted | info.removed | info.hits | info.misses, 0);
            EXPECT("where it ended", info.next, (i == 0 ? 20 : PAGES) * PAGE);
            if (round == 0) first[i] = info;
            EXPECT("difference when all is cached", memcmp(&first[i], &info, sizeof info), 0);
        }
    exit(0);
}

int main(int argc, char **argv) {
    if (argc < 2) die("usage: rights DIRECTORY");
    char plain[256], mapped[256];
    sprintf(plain, "%s/rights", argv[1]);
    sprintf(mapped, "%s/rights-mapped", argv[1]);
    if (mkdir(plain, 0755) || mkdir(mapped, 0755)) die("mkdir");
    swapped(plain, mapped);
    for (unsigned number = 0; number < sizeof cases / sizeof *cases; number++) {
        char path[300], seen[300];
        static char page[PAGE];
        name = cases[number].name;
        sprintf(path, "%s/%u", plain, number);
        sprintf(seen, "%s/%u", cases[number].idmapped ? mapped : plain, number);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0) die("%s: open", name);
        for (unsigned i = 0; i < PAGES; i++)
            if (pwrite(fd, page, PAGE, i * PAGE) != (ssize_t)PAGE) die("%s: pwrite", name);
        if (fchown(fd, cases[number].owner, cases[number].group) || fchmod(fd, cases[number].mode)) die("%s: fchown", name);
        if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM)) die("%s: fsync", name);
        for (unsigned i = 16; i < 20; i++)
            if (pread(fd, page, PAGE, i * PAGE) != (ssize_t)PAGE) die("%s: pread", name);
        EXPECT("cached", cached(fd), 4);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int inherited = cases[number].inherited < 0 ? -1 : open(seen, cases[number].inherited);
            close(fd);
            as_caller(number, seen, inherited);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) die("%s: the caller ended with status %d", name, status);
        // The pages are fetched, or on their way.
        for (int attempt = 0; cached(fd) < PAGES; attempt++) {
            if (attempt == 1000) die("%s: of %u pages %llu were fetched", name, PAGES, (unsigned long long)cached(fd));
            usleep(10000);
        }
        close(fd);
    }
    if (umount(mapped)) die("umount");
    return 0;
}
