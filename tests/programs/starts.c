/* Reads a file from its end backwards, closes it, and starts another program in some way.
 *
 * starts FILE MIB WAY PROGRAM ARGUMENT: reads MIB MiB in 32 KiB. WAY: fork, call (fork(2) by syscall(2)), vfork, clone (of one that shares the memory), copy
 * (clone(2) of one that doesn't), _fork (_Fork(3)), spawn, pidfd (pidfd_spawn(3)), pidfdp (pidfd_spawnp(3)), system, popen. 77: the C library has no such function.
 * Ends with the other program's exit code. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
extern pid_t _Fork(void) __attribute__((weak));
extern int pidfd_spawn(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *, char *const *) __attribute__((weak));
extern int pidfd_spawnp(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *, char *const *) __attribute__((weak));

/* Ends with the exit code of what another process, which there is a descriptor for, has become. */
static int wait_for(int pidfd)
{
    siginfo_t end;
    return waitid(P_PIDFD, pidfd, &end, WEXITED) == 0 && end.si_code == CLD_EXITED ? end.si_status : 4;
}

static int become(void *arguments)
{
    execv(*(char **)arguments, arguments);
    _exit(126);
}

int main(int argc, char **argv)
{
    static char buffer[32 << 10], stack[64 << 10], command[4096];
    int status = -1;
    pid_t child = -1;
    if (argc != 6)
        return 2;
    const char *way = argv[3];
    char **arguments = argv + 4;
    int fd = open(argv[1], O_RDONLY);
    for (long left = atol(argv[2]) << 20, at = lseek(fd, 0, SEEK_END); left > 0; left -= sizeof buffer) {
        at -= sizeof buffer;
        if (pread(fd, buffer, sizeof buffer, at) != sizeof buffer)
            return 3;
    }
    close(fd);
    snprintf(command, sizeof command, "exec %s %s", argv[4], argv[5]);
    fflush(NULL);
    if (!strcmp(way, "system"))
        status = system(command);
    else if (!strcmp(way, "popen")) {
        FILE *from = popen(command, "r");
        for (int c; from && (c = getc(from)) != EOF;)
            putchar(c);
        status = from ? pclose(from) : -1;
    } else {
        int pidfd;
        if (!strcmp(way, "pidfd") || !strcmp(way, "pidfdp")) {
            int error = ENOSYS;
            if (!strcmp(way, "pidfd") && pidfd_spawn)
                error = pidfd_spawn(&pidfd, arguments[0], NULL, NULL, arguments, environ);
            else if (pidfd_spawnp)
                error = pidfd_spawnp(&pidfd, arguments[0], NULL, NULL, arguments, environ);
            return error == 0 ? wait_for(pidfd) : error == ENOSYS ? 77 : 5;
        }
        if (!strcmp(way, "spawn"))
            posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ);
        else if (!strcmp(way, "clone"))
            child = clone(become, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, arguments);
        else if (!strcmp(way, "copy"))
            child = clone(become, stack + sizeof stack, SIGCHLD, arguments);
        else if (!strcmp(way, "_fork")) {
            if (!_Fork)
                return 77;
            if ((child = _Fork()) == 0)
                become(arguments);
            if (child < 0 && errno == ENOSYS)
                return 77;
        } else if (!strcmp(way, "vfork")) {
            if ((child = vfork()) == 0)
                become(arguments);
        } else {
#ifdef SYS_fork
            child = !strcmp(way, "call") ? syscall(SYS_fork) : fork();
#else
            child = fork();
#endif
            if (child == 0)
                become(arguments);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 4;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
}
