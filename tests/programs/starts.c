/* Reads a file from its end backwards, closes it, and starts another program in some way.
 *
 * starts FILE MIB WAY PROGRAM ARGUMENT: reads MIB MiB in 32 KiB. WAY: fork, call (fork(2) by syscall(2)), vfork, clone (of one that shares the memory), spawn, system, popen.
 * Ends with the other program's exit code. */
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
        if (!strcmp(way, "spawn"))
            posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ);
        else if (!strcmp(way, "clone"))
            child = clone(become, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, arguments);
        else if (!strcmp(way, "vfork")) {
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
