/* FILE: children in which threads of the library run give up what they may do, each in another way. After each is said how many threads there are beside the
 * program's own, and how many may still do something else than that one. */
#include "check.h"
#include "outrider_graph.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif

int capset(void *header, void *data);

static int fd;

/* What /proc says of a thread's rights. */
static void rights(const char *thread, char *text, size_t room)
{
    char path[300], line[300];
    *text = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "Name:\tiou-", 10) || !strncmp(line, "Uid", 3) || !strncmp(line, "Gid", 3) || !strncmp(line, "Groups", 6) || !strncmp(line, "Cap", 3) ||
            !strncmp(line, "NoNewPrivs", 10) || !strncmp(line, "Seccomp", 7))
            strncat(text, line, room - strlen(text) - 1);
    if (f)
        fclose(f);
}

/* Other threads of the process, and how many of them have other rights than the calling one. The kernel's own for io_uring never run the process's code, and may
 * be there a moment longer. */
static int others(int *differ)
{
    char own[4096], its[4096], name[32];
    int n = 0;
    *differ = 0;
    snprintf(name, sizeof name, "%d", (int)syscall(SYS_gettid));
    rights(name, own, sizeof own);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks && (e = readdir(tasks));)
        if (*e->d_name != '.' && strcmp(e->d_name, name)) {
            rights(e->d_name, its, sizeof its);
            if (!*its || strstr(its, "iou-"))
                continue;
            n++;
            *differ += strcmp(own, its) != 0;
        }
    if (tasks)
        closedir(tasks);
    return n;
}

static int scan(void *ctx, uint64_t i, struct outrider_op *op)
{
    (void)ctx;
    if (i == 64)
        return OUTRIDER_END;
    op->kind = OUTRIDER_PREAD;
    op->fd = fd;
    op->length = 4096;
    op->offset = (int64_t)(i * 37 % 64) * 16384;
    return OUTRIDER_WEAK;
}

static long filter(void)
{
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static void change(const char *how)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}};
    if (!strcmp(how, "setresuid by syscall"))
        syscall(SYS_setresuid, 65534, 65534, 65534);
    else if (!strcmp(how, "setresgid by syscall"))
        syscall(SYS_setresgid, 65534, 65534, 65534);
    else if (!strcmp(how, "setgroups by syscall"))
        syscall(SYS_setgroups, 0, NULL);
    else if (!strcmp(how, "setfsuid"))
        setfsuid(65534);
    else if (!strcmp(how, "setfsgid by syscall"))
        syscall(SYS_setfsgid, 65534);
    else if (!strcmp(how, "capset"))
        capset(&header, none);
    else if (!strcmp(how, "capset by syscall"))
        syscall(SYS_capset, &header, none);
    else if (!strcmp(how, "bounding set"))
        prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0);
    else if (!strcmp(how, "securebits"))
        syscall(SYS_prctl, PR_SET_SECUREBITS, 1, 0, 0, 0);
    else if (!strcmp(how, "no new privileges"))
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    else if (!strcmp(how, "landlock")) {
        uint64_t files[3] = {4, 0, 0};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        int rules = syscall(SYS_landlock_create_ruleset, files, 8, 0);
        syscall(SYS_landlock_restrict_self, rules, 0);
    } else if (!strcmp(how, "seccomp"))
        filter();
    else if (!strcmp(how, "mounts"))
        unshare(CLONE_NEWNS);
    else if (!strcmp(how, "user namespace"))
        /* Refused, where it is allowed at all, to a process of several threads. */
        for (int turn = 0; unshare(CLONE_NEWUSER) != 0 && errno == EINVAL; turn++) {
            CHECK(turn < 1000);
            usleep(1000);
        }
    else if (!strcmp(how, "names"))
        unshare(CLONE_NEWUTS);
    else if (!strcmp(how, "directories"))
        syscall(SYS_unshare, CLONE_FS);
    else if (!strcmp(how, "descriptors"))
        unshare(CLONE_FILES);
    else if (!strcmp(how, "chroot"))
        CHECK(chroot("/proc/self/root") == 0 || errno == EPERM);
    else
        CHECK(0);
}

/* Threads of the library for lists and for graphs, the latter perhaps with nothing to do. */
static void occupy(const outrider_graph *graph)
{
    char page[4096];
    int differ;
    struct outrider_range list[2] = {{0, 1 << 20}, {4 << 20, 1 << 20}};
    CHECK(outrider_declare(fd, list, 2) >= 0);
    make_cold(fd);
    outrider_scope *s = outrider_enter(graph, NULL);
    for (uint64_t i = 0; i < 64; i++)
        CHECK(outrider_pread(s, fd, page, sizeof page, (off_t)(i * 37 % 64) * 16384) == sizeof page);
    outrider_leave(s);
    CHECK(pread(fd, page, sizeof page, 0) == sizeof page);
    for (int i = 0; i < 5000 && others(&differ) < 3; i++)
        usleep(1000);
    CHECK(others(&differ) >= 3 && differ == 0);
}

int main(int argc, char **argv)
{
    static const char *const ways[] = {
        "setresuid by syscall", "setresgid by syscall", "setgroups by syscall", "setfsuid", "setfsgid by syscall", "capset", "capset by syscall",
        "bounding set", "securebits", "no new privileges", "landlock", "seccomp", "mounts", "user namespace", "names", "directories", "descriptors",
        "chroot",
    };
    int differ, status;
    CHECK(argc > 1);
    if (!getenv("OUTRIDER_GRAPH")) {
        setenv("OUTRIDER_GRAPH", "threads", 1);
        execv("/proc/self/exe", argv);
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    outrider_graph *graph = outrider_graph_generator("scan", scan, OUTRIDER_PURE);
    CHECK((fd = open(argv[1], O_RDONLY)) >= 0 && graph);
    for (size_t i = 0; i <= sizeof ways / sizeof *ways; i++) {
        pid_t child = fork();
        if (child == 0) {
            char page[4096];
            /* What stands here ends with the process. */
            occupy(graph);
            if (i < sizeof ways / sizeof *ways) {
                change(ways[i]);
                int n = others(&differ);
                printf("%s: %d\n", ways[i], n);
            } else {
                /* The C library's own functions speak to all threads. */
                if (getuid() == 0)
                    CHECK(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
                int n = others(&differ);
                printf("setresuid: %d of %s\n", differ, n > 0 ? "some" : "none");
            }
            CHECK(pread(fd, page, sizeof page, 1 << 20) == sizeof page);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
