/* Starts programs with arguments and environments that can't be read, and prints what the calls say. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY(call)                                                             \
    do {                                                                      \
        fflush(stdout);                                                       \
        pid_t child = fork();                                                 \
        if (child == 0) {                                                     \
            errno = 0;                                                        \
            long r = (call);                                                  \
            printf("%d %s: %ld, %d\n", i, #call, r, errno);                   \
            fflush(stdout);                                                   \
            _exit(0);                                                         \
        }                                                                     \
        int status = 0;                                                       \
        waitpid(child, &status, 0);                                           \
        if (status)                                                           \
            printf("%d %s: status %d\n", i, #call, status);                   \
    } while (0)

int main(void)
{
    extern char **environ;
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE))
        return 1;
    /* A string without an end, and an array without one. */
    pages[page - 2] = 'A', pages[page - 1] = '=';
    char **endless = (char **)(pages + page - 16);
    endless[0] = "A=1";
    char *bad[] = {(char *)7, (char *)0xdead000000, (char *)-1, pages + page, pages + page - 2};
    char *fine[] = {"true", NULL};
    int fd = open("/bin/true", O_RDONLY);
    for (int i = 0; i < 5; i++) {
        char *one[] = {"LC_ALL=C", bad[i], NULL};
        pid_t pid;
        if (i == 4)
            pages[page - 8] = 'x', pages[page - 7] = 'y';
        TRY(execve("/bin/true", fine, one));
        TRY(execve("/bin/true", one, fine));
        TRY(execve("/bin/true", one, environ));
        TRY(execve(bad[i], fine, environ));
        TRY(execve("/bin/true", fine, (char **)bad[i]));
        TRY(execve("/bin/true", (char **)bad[i], fine));
        TRY(execvpe("true", fine, one));
        TRY(fexecve(fd, fine, one));
        TRY(posix_spawn(&pid, "/bin/true", NULL, NULL, fine, one));
        TRY(syscall(SYS_execve, "/bin/true", fine, one));
        TRY(syscall(SYS_execveat, fd, "", fine, one, AT_EMPTY_PATH));
    }
    int i = 5;
    endless[0] = "A=1", endless[1] = "B=1";
    TRY(execve("/bin/true", fine, endless));
    TRY(execve("/lib64/ld-linux-x86-64.so.2", endless, environ));
    return 0;
}
