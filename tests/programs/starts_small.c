/* starts_small clone|spawn|vfork BYTES PROGRAM VARIABLES: starts a program where there is a stack of so many bytes, with so many variables more in the environment, and says
 * how it ended. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char **given;

static int execute(void *unused)
{
    char *arguments[] = {given[3], 0};
    (void)unused;
    execve(given[3], arguments, environ);
    _exit(77);
}

static void say(pid_t child)
{
    int status = 0;
    waitpid(child, &status, 0);
    printf("ended %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void *start(void *unused)
{
    char *arguments[] = {given[3], 0};
    pid_t child = -1;
    (void)unused;
    if (!strcmp(given[1], "spawn"))
        posix_spawn(&child, given[3], 0, 0, arguments, environ);
    else if (!(child = vfork()))
        execute(0);
    say(child);
    return 0;
}

int main(int argc, char **argv)
{
    given = argv;
    if (argc < 5)
        return 1;
    size_t bytes = atol(argv[2]);
    for (int i = 0; i < atoi(argv[4]); i++) {
        char name[32];
        sprintf(name, "VARIABLE_%d", i);
        setenv(name, "1", 1);
    }
    if (!strcmp(argv[1], "clone")) {
        /* Below it nothing may be touched. */
        char *memory = mmap(0, 65536 + bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(memory + 65536, bytes, PROT_READ | PROT_WRITE);
        say(clone(execute, memory + 65536 + bytes, CLONE_VM | CLONE_VFORK | SIGCHLD, 0));
    } else {
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, bytes);
        pthread_create(&thread, &attributes, start, 0);
        pthread_join(thread, 0);
    }
    return 0;
}
