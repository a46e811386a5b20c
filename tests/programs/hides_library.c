/*
 * hides_library WHEN WHAT PROGRAM [ARGUMENT...]: in a mount namespace of its own, hides what LD_PRELOAD names (WHAT: library), or another directory (else), and
 * becomes the program. WHEN: announced, by PR_SET_NO_NEW_PRIVS, before; filtered, by a filter that allows everything, afterwards; or neither.
 */
#include <libgen.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

static void need(int answer, const char *what)
{
    if (answer) {
        perror(what);
        _exit(3);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    need(unshare(CLONE_NEWNS), "unshare");
    need(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private");
    if (!strcmp(argv[1], "announced"))
        need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    char *listed = getenv("LD_PRELOAD");
    char *list = strdup(listed ? listed : "");
    for (char *entry = strtok(list, ": "); entry; entry = strtok(NULL, ": "))
        need(mount("tmpfs", strcmp(argv[2], "library") ? "/mnt" : dirname(entry), "tmpfs", 0, NULL), entry);
    if (!strcmp(argv[1], "filtered")) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog all = {1, &allow};
        need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
        need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all, 0, 0), "seccomp");
    }
    execvp(argv[3], argv + 3);
    perror(argv[3]);
    return 3;
}
