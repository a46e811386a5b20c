/* setuid_drop SECRET PUBLIC: starts as root, opens a file that only root may read, gives up its
 * rights, and reads on. Nothing it could no longer do may be done for it, and it stays dumpable or
 * not as the kernel decides. */
#include "hostile.h"
#include <grp.h>
#include <sys/prctl.h>

int main(int argc, char **argv)
{
    load_reference(argv[1]);
    int fd = open(argv[1], O_RDONLY);
    unsigned char buf[8192];
    for (int i = 0; i < 200; i++)
        CHECK(read(fd, buf, sizeof buf) == sizeof buf);
    printf("dumpable %d\n", prctl(PR_GET_DUMPABLE));
    CHECK(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    printf("dumpable %d, uid %d\n", prctl(PR_GET_DUMPABLE), (int)getuid());
    printf("the rest through the old descriptor: %d\n", rest_ok(fd, 200 * 8192));
    printf("again by name: %d", open(argv[1], O_RDONLY));
    printf(" errno %d\n", errno);
    int other = open(argv[2], O_RDONLY);
    printf("another file: %d %ld\n", other >= 0, (long)lseek(other, 0, SEEK_END));
    lseek(other, 0, SEEK_SET);
    long total = 0;
    for (ssize_t n; (n = read(other, buf, sizeof buf)) > 0;)
        total += n;
    printf("%ld bytes, setuid back: %d\n", total, setuid(0));
    pid_t child = fork();
    if (child == 0)
        _exit(!pread_ok(fd, 100, 8192));
    int status;
    CHECK(wait(&status) == child);
    printf("child %d\n", status);
    return 0;
}
