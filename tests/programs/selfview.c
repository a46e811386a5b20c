/* selfview FILE: reads FILE, half of it backwards, which is when a prefetcher has most to do, and prints everything a process can learn about itself that
 * a library inside it might have changed. The output is the same in every run without such a library. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void lines_of(const char *path, const char *const *keys)
{
    char line[4096];
    FILE *f = fopen(path, "r");
    if (!f) {
        printf("%s: %s\n", path, strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, f))
        for (const char *const *k = keys; *k; k++)
            if (strncmp(line, *k, strlen(*k)) == 0)
                fputs(line, stdout);
    fclose(f);
}

static int numeric(const struct dirent *e) { return e->d_name[0] != '.'; }

int main(int argc, char **argv)
{
    static char buf[16384];
    int fd = open(argv[1], O_RDONLY);
    unsigned long sum = 0;
    struct stat st;
    fstat(fd, &st);
    for (long at = st.st_size - (long)sizeof buf; at > st.st_size / 2; at -= sizeof buf)
        if (pread(fd, buf, sizeof buf, at) == (ssize_t)sizeof buf)
            sum = sum * 31 + (unsigned char)buf[99];
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            sum = sum * 31 + (unsigned char)buf[i];
    printf("sum %lx, descriptor %d, position %ld, size %ld\n", sum, fd, (long)lseek(fd, 0, SEEK_CUR), (long)st.st_size);

    struct dirent **names;
    int n = scandir("/proc/self/fd", &names, numeric, versionsort);
    for (int i = 0; i < n; i++) {
        char path[300], target[4096];
        snprintf(path, sizeof path, "/proc/self/fd/%s", names[i]->d_name);
        ssize_t len = readlink(path, target, sizeof target - 1);
        target[len < 0 ? 0 : len] = 0;
        const char *base = strrchr(target, '/');
        /* standard output is named after the run */
        printf("fd %s -> %s\n", names[i]->d_name, atoi(names[i]->d_name) < 3 ? "standard" : base ? base + 1 : target);
    }
    n = scandir("/proc/self/task", &names, numeric, versionsort);
    printf("threads %d\n", n);
    errno = 0;
    printf("children %d", waitpid(-1, NULL, WNOHANG));
    printf(" %s\n", strerror(errno));

    lines_of("/proc/self/status", (const char *const[]){ "Name", "Umask", "State", "Threads", "SigBlk", "SigIgn", "SigCgt", "Seccomp:", "NoNewPrivs", "Uid", "Gid", "CapEff", "CapBnd", "THP_enabled", "CoreDumping", NULL });
    lines_of("/proc/self/limits", (const char *const[]){ "Max", NULL });
    for (int which = 0; which < 3; which++) {
        struct itimerval it;
        getitimer(which, &it);
        printf("timer %d: %ld.%06ld\n", which, (long)it.it_value.tv_sec, (long)it.it_value.tv_usec);
    }
    /* The death signal is set: killing the runner with SIGKILL means the program (docs/semantics.md). */
    int subreaper = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
    printf("dumpable %d, subreaper %d, nice %d, policy %d, group leader %d, session leader %d\n",
           prctl(PR_GET_DUMPABLE), subreaper, getpriority(PRIO_PROCESS, 0),
           sched_getscheduler(0), getpgrp() == getpid(), getsid(0) == getpid());
    printf("open gives %d, dup gives %d\n", open("/dev/null", O_RDONLY), dup(0));

    /* The next three fail with EINVAL in a process with more than one thread, or in one whose
     * descriptor table or memory is shared. */
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int a = unshare(CLONE_NEWUSER);
        printf("unshare in the child: %s\n", a ? strerror(errno) : "ok");
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    int r = unshare(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD);
    printf("alone in its memory: %s\n", r ? strerror(errno) : "yes");
    r = unshare(CLONE_NEWUSER);
    printf("unshare: %s\n", r ? strerror(errno) : "ok");
    return 0;
}
