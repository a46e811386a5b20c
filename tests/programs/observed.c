/* observed: what a plug-in's observer is to be told of. In a directory with the file `one`. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    struct stat st;
    char        b[8];
    int         fd = open("one", O_RDONLY);
    errno = 0;
    if (pread(fd, b, 8, 2) != 3 || errno != 0)
        return 1;
    if (open("none", O_RDONLY) >= 0 || errno != ENOENT || lstat("none", &st) == 0 || errno != ENOENT)
        return 2;
    int copy = dup(fd);
    close(fd);
    dup2(copy, 9);
    close(copy);
    DIR *d = opendir("sub");
    while (readdir(d) != NULL)
        ;
    rewinddir(d);
    readdir(d);
    closedir(d);
    mkdir("new", 0700);
    rmdir("new");
    pid_t child = fork();
    if (child == 0) {
        /* Plug-ins leave forked children alone. */
        _exit(lstat("one", &st));
    }
    waitpid(child, NULL, 0);
    return errno == ENOENT ? 0 : 3;
}
