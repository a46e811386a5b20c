/* rights_in_fork FILE RUNS: children declare what they read of FILE and make children of their own one after the other, until a signal's handler has the
 * thread give up all capabilities. Says how many declared, and in how many another thread was there when it had.
 *
 * The signal comes at a random moment, mostly within fork(3), which has the locks of malloc(3) then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DECLARED = 1, OTHERS = 2 };

struct range {
    unsigned long offset, length;
};

static volatile sig_atomic_t gave, others;

static void give_up(int signal)
{
    struct __user_cap_header_struct of = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0 } };
    struct stat st;
    (void)signal;
    if (syscall(SYS_capset, &of, none) != 0 || stat("/proc/self/task", &st) != 0)
        _exit(64);
    /* The directory, its own name, and a thread each. */
    others = st.st_nlink > 3;
    gave = 1;
}

static int child(const char *name, int number)
{
    ssize_t (*declare)(int, struct range *, size_t) = dlsym(RTLD_DEFAULT, "outrider_declare");
    static char bytes[65536];
    int fd = open(name, O_RDONLY), declared = 0;
    signal(SIGUSR1, give_up);
    /* What is cold has threads started when the signal comes. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (int i = 0; i < 8; i++) {
        struct range range = { i * 20ul << 20, 10 << 20 };
        declared += declare && declare(fd, &range, 1) >= 0;
        if (pread(fd, bytes, sizeof bytes, range.offset) < 0)
            return 65;
    }
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
    srand(number * 7919);
    struct itimerspec once = { .it_value.tv_nsec = 1000000 + rand() % 4000 * 1000 };
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &once, NULL))
        return 66;
    while (!gave) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        waitpid(pid, NULL, 0);
    }
    return (declared ? DECLARED : 0) | (others ? OTHERS : 0);
}

int main(int count, char **arguments)
{
    int declared = 0, accompanied = 0;
    if (count < 3)
        return 2;
    for (int i = 0; i < atoi(arguments[2]); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(arguments[1], i));
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) > 3)
            return 3;
        declared += (WEXITSTATUS(status) & DECLARED) != 0;
        accompanied += (WEXITSTATUS(status) & OTHERS) != 0;
    }
    printf("%d declared, %d accompanied\n", declared, accompanied);
    return 0;
}
