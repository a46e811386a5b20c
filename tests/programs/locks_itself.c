/* locks_itself again|number: sets a POSIX lock on its own executable, starts that anew, and says whether the lock is still held: by itself after it has executed the file
 * twice, or after posix_spawn(3), where it was set by its number. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char self[4096];
static struct flock lock = {.l_type = F_RDLCK};

/* Another process sees it. */
static void say(const char *when)
{
    fflush(stdout);
    if (!fork()) {
        struct flock asked = {.l_type = F_WRLCK};
        fcntl(open(self, O_RDONLY), F_GETLK, &asked);
        printf("%s: %s\n", when, asked.l_type == F_UNLCK ? "lost" : "held");
        fflush(stdout);
        _exit(0);
    }
    wait(0);
}

int main(int argc, char **argv)
{
    pid_t child;
    if (argc < 2 || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    if (!strcmp(argv[1], "again")) {
        fcntl(open(self, O_RDONLY), F_SETLK, &lock);
        execl(self, self, "once", (char *)0);
    } else if (!strcmp(argv[1], "once")) {
        say("once");
        execl(self, self, "twice", (char *)0);
    } else if (!strcmp(argv[1], "twice")) {
        say("twice");
    } else if (!strcmp(argv[1], "number")) {
        char *arguments[] = {self, "twice", 0};
        syscall(SYS_fcntl, open(self, O_RDONLY), F_SETLK, &lock);
        posix_spawn(&child, self, 0, 0, arguments, environ);
        waitpid(child, 0, 0);
        say("afterwards");
    }
    return 0;
}
