/* start HOW PROGRAM: starts the program in one of the ways there are, with arguments, and ends as it ends. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int wait_for(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid)
        return 99;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    const char *how = arguments[1], *p = arguments[2];
    char *a[] = {(char *)p, "1", "2", "3", "4", "5", "6", "7", "8", NULL};
    /* An environment of the program's own, larger than the usual one, and without the program's variables but those of the linker. */
    static char *e[400];
    static char text[300][32];
    int n = 0;
    for (int i = 0; i < 300; i++) {
        snprintf(text[i], sizeof text[i], "VARIABLE_%d=%d", i, i);
        e[n++] = text[i];
    }
    for (char **v = environ; *v; v++)
        if (!strncmp(*v, "LD_", 3) || !strncmp(*v, "OUTRIDER_", 9) || !strncmp(*v, "PATH=", 5))
            e[n++] = *v;
    e[n] = NULL;
    char *before = NULL;
    size_t length = 0;
    FILE *all = open_memstream(&before, &length);
    for (char **v = environ; *v; v++)
        fprintf(all, "%p %s\n", (void *)*v, *v);
    fclose(all);

    pid_t pid;
    int r = 98;
    if (!strcmp(how, "execl")) execl(p, p, "1", "2", "3", "4", "5", "6", "7", "8", (char *)NULL);
    else if (!strcmp(how, "execl_short")) execl(p, p, (char *)NULL);
    else if (!strcmp(how, "execlp")) execlp(p, p, "1", "2", "3", "4", "5", "6", "7", "8", (char *)NULL);
    else if (!strcmp(how, "execle")) execle(p, p, "1", "2", "3", "4", "5", "6", "7", "8", (char *)NULL, e);
    else if (!strcmp(how, "execle_short")) execle(p, p, (char *)NULL, e);
    else if (!strcmp(how, "execv")) execv(p, a);
    else if (!strcmp(how, "execve")) execve(p, a, e);
    else if (!strcmp(how, "execvp")) execvp(p, a);
    else if (!strcmp(how, "execvpe")) execvpe(p, a, e);
    else if (!strcmp(how, "fexecve")) fexecve(open(p, O_RDONLY), a, e);
    else if (!strcmp(how, "execveat")) execveat(AT_FDCWD, p, a, e, 0);
    else if (!strcmp(how, "execveat_empty")) execveat(open(p, O_RDONLY), "", a, e, AT_EMPTY_PATH);
    else if (!strcmp(how, "syscall")) syscall(SYS_execve, p, a, e);
    else if (!strcmp(how, "vfork")) {
        if (!(pid = vfork())) {
            execv(p, a);
            _exit(97);
        }
        r = wait_for(pid);
    } else if (!strcmp(how, "fork")) {
        if (!(pid = fork())) {
            execvp(p, a);
            _exit(97);
        }
        r = wait_for(pid);
    } else if (!strcmp(how, "spawn")) {
        if ((errno = posix_spawn(&pid, p, NULL, NULL, a, e)) == 0)
            r = wait_for(pid);
    } else if (!strcmp(how, "spawnp")) {
        if ((errno = posix_spawnp(&pid, p, NULL, NULL, a, environ)) == 0)
            r = wait_for(pid);
    } else if (!strcmp(how, "bad")) {
        /* What the kernel refuses is refused as it does. */
        const void *odd[] = {NULL, (void *)1, (void *)8, (void *)-8, (void *)-4096};
        for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) {
            r = execve("/nowhere", a, (char **)odd[i]);
            printf("%d %s\n", r, strerror(errno));
            r = execve(odd[i], a, e);
            printf("%d %s\n", r, strerror(errno));
        }
        r = 0;
    }
    if (r == 98)
        printf("%s: %s\n", how, strerror(errno));
    /* Whoever is still here has the environment that it had. */
    char *after = NULL;
    all = open_memstream(&after, &length);
    for (char **v = environ; *v; v++)
        fprintf(all, "%p %s\n", (void *)*v, *v);
    fclose(all);
    if (strcmp(before, after))
        printf("the environment has changed\n");
    return r;
}
