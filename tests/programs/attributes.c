/* attributes                      prints every attribute that a process has besides its memory: what exec(2) keeps
 * attributes SET... -- CMD...     gives itself attributes and executes CMD; SET is NAME or NAME=NUMBER, see `settings`
 *
 * Numbers that no two processes share are not printed but compared: with the process's own and with its parent's. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SCHED_CORE
#define PR_SCHED_CORE 62
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif
#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#define PR_GET_IO_FLUSHER 58
#endif

struct attr { /* struct sched_attr */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t util_min, util_max;
};

static void must(long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "attributes: %s: %s\n", what, strerror(errno));
        exit(77);
    }
}

static void ignore(int signal) { (void)signal; }

static void block(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void scheduling(uint32_t policy, uint64_t flags, int nice, uint32_t priority, uint32_t clamp)
{
    struct attr a = { .size = sizeof a, .policy = policy, .flags = flags, .nice = nice, .priority = priority };
    if (policy == 6) {
        a.runtime = 1000000;
        a.deadline = a.period = 20000000;
    }
    if (clamp) {
        a.flags |= 0x60;
        a.util_min = clamp / 2;
        a.util_max = clamp;
    }
    must(syscall(SYS_sched_setattr, 0, &a, 0), "sched_setattr");
}

static int opened(const char *path, int flags, int number)
{
    int fd = open(path, flags, 0600);
    must(fd, path);
    must(dup2(fd, number), "dup2");
    if (fd != number)
        close(fd);
    return number;
}

static void written(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    must(fd, path);
    must(write(fd, text, strlen(text)), path);
    close(fd);
}

static void set(const char *name, long n)
{
    struct itimerval timer = { .it_value.tv_sec = 4000 + n, .it_interval.tv_sec = n };
    union sigval value = { .sival_int = (int)n };
    char text[32];
#define IS(x) (strcmp(name, x) == 0)
    snprintf(text, sizeof text, "%ld", n);
    if (IS("slack")) must(prctl(PR_SET_TIMERSLACK, n, 0, 0, 0), name);
    else if (IS("pdeath")) must(prctl(PR_SET_PDEATHSIG, n), name);
    else if (IS("keepcaps")) must(prctl(PR_SET_KEEPCAPS, 1), name);
    else if (IS("securebits")) must(prctl(PR_SET_SECUREBITS, n), name);
    else if (IS("subreaper")) must(prctl(PR_SET_CHILD_SUBREAPER, 1), name);
    else if (IS("nonewprivs")) must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), name);
    else if (IS("thp")) must(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), name);
    else if (IS("mce")) must(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0), name);
    else if (IS("ioflusher")) must(prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0), name);
    else if (IS("mdwe")) must(prctl(PR_SET_MDWE, 1, 0, 0, 0), name);
    else if (IS("ksm")) must(prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0), name);
    else if (IS("core")) must(prctl(PR_SCHED_CORE, 1, 0, 0, 0), name);
    else if (IS("tsc")) must(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0), name);
    else if (IS("spec")) must(prctl(PR_SET_SPECULATION_CTRL, n, PR_SPEC_DISABLE, 0, 0), name);
    else if (IS("coredump")) written("/proc/self/coredump_filter", text);
    else if (IS("oom")) written("/proc/self/oom_score_adj", text);
    else if (IS("autogroup")) setsid(), written("/proc/self/autogroup", text);
    else if (IS("mempolicy")) {
        unsigned long node = 1;
        must(syscall(SYS_set_mempolicy, 2, &node, 2), name);
    }
    else if (IS("real")) setitimer(ITIMER_REAL, &timer, NULL);
    else if (IS("virtual")) setitimer(ITIMER_VIRTUAL, &timer, NULL);
    else if (IS("prof")) setitimer(ITIMER_PROF, &timer, NULL);
    else if (IS("block")) block(n);
    else if (IS("ignore")) signal(n, SIG_IGN);
    else if (IS("queue")) { block(n); must(sigqueue(getpid(), n, value), name); }
    else if (IS("kill")) { block(n); must(kill(getpid(), n), name); }
    else if (IS("tkill")) { block(n); must(raise(n), name); }
    else if (IS("expire")) { /* an alarm that is over */
        block(SIGALRM);
        struct itimerval soon = { .it_value.tv_usec = 1 };
        setitimer(ITIMER_REAL, &soon, NULL);
        usleep(20000);
    }
    else if (IS("reset")) { /* the policy and what there is beside it */
        uint32_t policy = n;
        int rt = policy == 1 || policy == 2;
        scheduling(policy, 1, policy == 5 ? getpriority(PRIO_PROCESS, 0) : policy == 6 || rt ? 0 : -5, rt ? 7 : 0, 0);
    }
    else if (IS("batchnice")) scheduling(3, 1, 5, 0, 0);
    else if (IS("clamp")) scheduling(0, 1, 0, 0, n);
    else if (IS("clampkept")) scheduling(0, 0, 0, 0, n);
    else if (IS("deadline")) scheduling(6, 0, 0, 0, 0);
    else if (IS("slice")) {
        struct attr a = { .size = sizeof a, .policy = 0, .flags = 1, .runtime = n };
        must(syscall(SYS_sched_setattr, 0, &a, 0), name);
    }
    else if (IS("rtprio")) { struct rlimit l = { n, n }; must(setrlimit(RLIMIT_RTPRIO, &l), name); }
    else if (IS("owner")) { opened("owned", O_RDWR | O_CREAT, n); must(fcntl(n, F_SETOWN, getpid()), name); }
    else if (IS("groupowner")) { opened("owned", O_RDWR | O_CREAT, n); must(fcntl(n, F_SETOWN, -getpgrp()), name); }
    else if (IS("threadowner")) {
        struct f_owner_ex owner = { F_OWNER_TID, getpid() };
        opened("owned", O_RDWR | O_CREAT, n);
        must(fcntl(n, F_SETOWN_EX, &owner), name);
    }
    else if (IS("signalled")) {
        int pair[2];
        must(pipe(pair), name);
        must(dup2(pair[0], n), name);
        must(fcntl(n, F_SETOWN, getpid()), name);
        must(fcntl(n, F_SETSIG, SIGUSR2), name);
        must(fcntl(n, F_SETFL, O_ASYNC), name);
        close(pair[0]);
    }
    else if (IS("lease")) { opened("leased", O_RDONLY | O_CREAT, n); must(fcntl(n, F_SETLEASE, F_RDLCK), name); }
    else if (IS("dnotify")) {
        signal(SIGIO, ignore);
        block(SIGIO);
        opened(".", O_RDONLY, n);
        must(fcntl(n, F_NOTIFY, DN_CREATE | DN_MULTISHOT), name);
    }
    else if (IS("waits")) { /* by epoll, for a signal or for something else */
        struct epoll_event event = { .events = EPOLLIN };
        sigset_t set;
        block(SIGUSR2);
        sigemptyset(&set);
        sigaddset(&set, SIGUSR2);
        int other = n ? signalfd(-1, &set, 0) : eventfd(0, 0);
        must(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, other, &event), name);
    }
    else if (IS("counts")) {
        struct perf_event_attr counted = { .type = PERF_TYPE_SOFTWARE, .size = sizeof counted, .config = PERF_COUNT_SW_TASK_CLOCK };
        must(syscall(SYS_perf_event_open, &counted, 0, -1, -1, 0), name);
    }
    else if (IS("undo")) {
        struct sembuf op = { 0, 5, SEM_UNDO };
        must(semop(n, &op, 1), name);
    }
    else if (IS("keyring")) must(syscall(SYS_keyctl, 1 /* JOIN_SESSION_KEYRING */, NULL, 0, 0, 0), name);
    else if (IS("pidns")) must(unshare(CLONE_NEWPID), name);
    else if (IS("timens")) must(unshare(0x80), name);
    else if (IS("user")) { must(setresgid(n, n, n), name); must(setresuid(n, n, n), name); }
    else { fprintf(stderr, "attributes: %s?\n", name); exit(2); }
}

/* A number that no two processes share. */
static const char *who(long pid)
{
    static char text[32];
    if (pid == 0) return "nobody";
    if (pid == getpid()) return "this process";
    if (pid == getpgrp()) return "its group";
    if (pid == -getpgrp()) return "its group";
    snprintf(text, sizeof text, "another (%s)", kill(pid < 0 ? pid : pid, 0) ? "gone" : "there");
    return text;
}

static void file(const char *path, const char *const *without)
{
    char line[8192];
    FILE *f = fopen(path, "re");
    if (!f) {
        printf("%s: %s\n", path, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, f)) {
        int skip = 0;
        for (const char *const *w = without; w && *w; w++)
            skip |= strncmp(line, *w, strlen(*w)) == 0;
        if (!skip)
            printf("%s: %s%s", path, line, strchr(line, '\n') ? "" : "\n");
    }
    if (ferror(f))
        printf("%s: %s\n", path, strerror(errno));
    fclose(f);
}

/* Differs by nature: see attributes.rs, which names these. */
static const char *const of_status[] = {
    "Pid:", "Tgid:", "PPid:", "Ngid:", "NSpid:", "NStgid:", "NSpgid:", "NSsid:",
    "Vm", "Rss", "HugetlbPages:", "FDSize:", "SigQ:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:", NULL };

static int numeric(const struct dirent *e) { return e->d_name[0] != '.'; }

/* Whether what was made before exec(2) for this process's events still tells of them. */
static void events(int fd, const char *target)
{
    struct epoll_event event;
    uint64_t before = 0, after = 0;
    if (strcmp(target, "anon_inode:[eventpoll]") == 0) {
        raise(SIGUSR2);
        printf("of a signal it tells %d\n", epoll_wait(fd, &event, 1, 0));
    }
    if (strcmp(target, "anon_inode:[perf_event]") == 0) {
        must(read(fd, &before, sizeof before), target);
        for (volatile int i = 0; i < 1000000; i++)
            ;
        must(read(fd, &after, sizeof after), target);
        printf("it counts: %d\n", after > before);
    }
}

static void descriptors(void)
{
    struct dirent **names;
    int n = scandir("/proc/self/fd", &names, numeric, versionsort);
    for (int i = 0; i < n; i++) {
        char path[300], target[4096];
        int fd = atoi(names[i]->d_name);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(path, target, sizeof target - 1);
        if (fcntl(fd, F_GETFD) < 0)
            continue;
        target[len < 0 ? 0 : len] = 0;
        struct f_owner_ex owner = { 0, 0 };
        fcntl(fd, F_GETOWN_EX, &owner);
        printf("descriptor %d: %s flags %o, %d, owner %d %s, signal %d, lease %d, position %ld\n", fd,
               fd < 3 || strncmp(target, "pipe:", 5) == 0 ? "standard" : target, fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), owner.type, who(owner.pid),
               fcntl(fd, F_GETSIG), fcntl(fd, F_GETLEASE), fd < 3 ? 0 : (long)lseek(fd, 0, SEEK_CUR));
        events(fd, target);
    }
}

static void show(void)
{
    int answer = -1;
    unsigned long cookie = 0;
    file("/proc/self/status", of_status);
    char text[4096] = "";
    FILE *f = fopen("/proc/self/stat", "re");
    if (f && fgets(text, sizeof text, f) && strrchr(text, ')')) {
        int field = 3;
        for (char *word = strtok(strrchr(text, ')') + 2, " \n"); word; word = strtok(NULL, " \n"), field++) {
            unsigned long long v = strtoull(word, NULL, 10);
            if (field == 9) /* PF_SUPERPRIV (it has used its privileges once) goes with accounting */
                printf("stat 9: %llx\n", v & ~0x100ull);
            if (field == 7 || (field >= 18 && field <= 21) || field == 25 || (field >= 38 && field != 39 && field <= 41))
                printf("stat %d: %s\n", field, word);
        }
    }
    if (f)
        fclose(f);
    f = fopen("/proc/self/sched", "re");
    while (f && fgets(text, sizeof text, f))
        if (strncmp(text, "policy", 6) == 0 || strncmp(text, "prio", 4) == 0 || strncmp(text, "uclamp", 6) == 0)
            printf("sched %s", text);
    if (f)
        fclose(f);
    const char *files[] = { "limits", "timerslack_ns", "oom_score_adj", "oom_adj", "coredump_filter", "personality",
        "loginuid", "sessionid", "cgroup", "cpuset", "attr/current", "attr/exec", "attr/fscreate", "attr/keycreate", "attr/sockcreate",
        "comm", "cmdline", "uid_map", "gid_map", "setgroups", "timens_offsets", "projid_map", "make-it-fail", "fail-nth", "patch_state" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/%s", files[i]);
        file(path, NULL);
    }
    f = fopen("/proc/self/autogroup", "re");
    if (f && fgets(text, sizeof text, f) && strchr(text, ' '))
        printf("autogroup%s", strchr(text, ' '));
    if (f)
        fclose(f);
    const char *links[] = { "cwd", "root", "exe", "ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts", "ns/time" };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        char path[64], target[4096];
        snprintf(path, sizeof path, "/proc/self/%s", links[i]);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        /* Namespaces of a wrapper's are new in each run. */
        struct stat own, parents;
        snprintf(path, sizeof path, "/proc/%d/%s", (int)getppid(), links[i]);
        if (i < 3)
            printf("%s: %s\n", links[i], target);
        else
            printf("%s: %s\n", links[i], n < 0 ? strerror(errno) : "there");
        (void)own;
        (void)parents;
    }
    static const char *const names[] = { "pid", "time" };
    for (int i = 0; i < 2; i++) {
        char own[64], children[64], a[64] = "", b[64] = "";
        snprintf(own, sizeof own, "/proc/self/ns/%s", names[i]);
        snprintf(children, sizeof children, "/proc/self/ns/%s_for_children", names[i]);
        if (readlink(own, a, 63) < 0 || readlink(children, b, 63) < 0)
            strcpy(b, "none yet");
        printf("%s namespace of children: %s\n", names[i], strcmp(a, b) ? "another" : "this");
    }
    descriptors();

    for (int which = 0; which < 3; which++) {
        struct itimerval it;
        getitimer(which, &it);
        printf("timer %d: set %d, every %ld.%06ld\n", which, it.it_value.tv_sec > 3900, (long)it.it_interval.tv_sec, (long)it.it_interval.tv_usec);
    }
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit l;
        getrlimit(i, &l);
        printf("limit %d: %llx %llx\n", i, (unsigned long long)l.rlim_cur, (unsigned long long)l.rlim_max);
    }

    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int s = 1; s <= SIGRTMAX; s++) {
        struct sigaction action;
        if (sigaction(s, NULL, &action) == 0 && (sigismember(&mask, s) || action.sa_handler != SIG_DFL))
            printf("signal %d: blocked %d, ignored %d\n", s, sigismember(&mask, s), action.sa_handler == SIG_IGN);
    }
    printf("umask %o\n", umask(0));

    prctl(PR_GET_PDEATHSIG, &answer);
    printf("pdeathsig %d\n", answer);
    printf("dumpable %d, keepcaps %d, securebits %d, nonewprivs %d, thp %d, mce %d, ioflusher %d, mdwe %d, ksm %d\n",
           prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
           prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0),
           prctl(PR_GET_MDWE, 0, 0, 0, 0), prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0));
    answer = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &answer);
    printf("subreaper %d\n", answer);
    answer = -1;
    prctl(PR_GET_TSC, &answer);
    printf("tsc %d\n", answer);
    for (int i = 0; i < 3; i++)
        printf("speculation %d: %d\n", i, prctl(PR_GET_SPECULATION_CTRL, i, 0, 0, 0));
    answer = prctl(PR_SCHED_CORE, 0, 0, 0, &cookie);
    printf("core %d, cookie %s\n", answer, cookie ? "set" : "none");
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0);
    printf("timer slack %d, by default %d\n", slack, prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0));
    prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
    for (int cap = 0; cap < 41; cap++)
        printf("capability %d: bound %d, ambient %d\n", cap, prctl(PR_CAPBSET_READ, cap), prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0));
    struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct caps[2] = { { 0 } };
    syscall(SYS_capget, &head, caps);
    printf("caps %x %x %x, %x %x %x\n", caps[0].effective, caps[0].permitted, caps[0].inheritable, caps[1].effective, caps[1].permitted, caps[1].inheritable);
    uid_t u[3];
    gid_t g[3], groups[256];
    getresuid(u, u + 1, u + 2);
    getresgid(g, g + 1, g + 2);
    printf("ids %d %d %d, %d %d %d, groups", u[0], u[1], u[2], g[0], g[1], g[2]);
    int n = getgroups(256, groups);
    for (int i = 0; i < n; i++)
        printf(" %d", groups[i]);
    printf("\n");

    struct attr a = { 0 };
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0)
        printf("sched_getattr policy %u flags %llx nice %d priority %u runtime %llu deadline %llu period %llu util %u %u\n", a.policy,
               (unsigned long long)a.flags, a.nice, a.priority, (unsigned long long)a.runtime, (unsigned long long)a.deadline,
               (unsigned long long)a.period, a.util_min, a.util_max);
    else
        printf("sched_getattr: %s\n", strerror(errno));
    printf("sched_getscheduler %x, nice %d, io priority %lx\n", sched_getscheduler(0), getpriority(PRIO_PROCESS, 0), syscall(SYS_ioprio_get, 1, 0));
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &cpus))
            printf("cpu %d\n", i);
    int mode = -1;
    unsigned long nodes[16] = { 0 };
    syscall(SYS_get_mempolicy, &mode, nodes, 1024, 0, 0);
    printf("mempolicy %x %lx\n", mode, nodes[0]);
    printf("session keyring: %s\n", syscall(SYS_keyctl, 0, -3, 0, 0, 0) >= 0 ? "there" : strerror(errno));
    printf("user session keyring is it: %d\n", syscall(SYS_keyctl, 0, -3, 0, 0, 0) == syscall(SYS_keyctl, 0, -5, 0, 0, 0));

    /* What waits, in the order in which it is delivered, and for whom. */
    fflush(stdout);
    for (;;) {
        siginfo_t info;
        sigset_t all;
        struct timespec now = { 0, 0 };
        file("/proc/self/status", (const char *const[]){ "N", "U", "T", "P", "F", "G", "V", "R", "H", "C", "v", "n", "x", "SigB", "SigI", "SigC", "SigQ", "Se", "St", "M", "K", "Sp", "untag", NULL });
        sigfillset(&all);
        int s = sigtimedwait(&all, &info, &now);
        if (s <= 0)
            break;
        int sent = info.si_code == SI_USER || info.si_code == SI_QUEUE || info.si_code == SI_TKILL;
        printf("waiting: signal %d, code %d, errno %d, value %d, user %d\n", s, info.si_code, info.si_errno, sent ? info.si_value.sival_int : 0,
               sent ? (int)info.si_uid : 0);
    }
    errno = 0;
    printf("children: %d", waitpid(-1, NULL, WNOHANG));
    printf(" %s\n", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct attr c = { 0 };
        syscall(SYS_sched_getattr, 0, &c, sizeof c, 0);
        printf("a child is number %s, policy %u, nice %d, flags %llx\n", getpid() == 1 ? "1" : "any", c.policy, c.nice, (unsigned long long)c.flags);
        fflush(stdout);
        _exit(0);
    }
    if (child < 0)
        printf("fork: %s\n", strerror(errno));
    else
        waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char *value = strchr(argv[i], '=');
        if (value)
            *value++ = 0;
        set(argv[i], value ? strtol(value, NULL, 0) : 0);
    }
    if (i < argc) {
        execvp(argv[i + 1], argv + i + 1);
        perror(argv[i + 1]);
        return 127;
    }
    show();
    return 23;
}
