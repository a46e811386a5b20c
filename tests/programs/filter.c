/* filter HOW NUMBER[,NUMBER...] CMD ARGS...
 *
 * Executes CMD under a seccomp filter that does HOW to the system calls of these numbers: kill-process, kill-thread, trap, or an errno's number. With
 * "only:" before HOW it is done to all but these. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static struct sock_filter code[1024];
    int n = 0;
    if (argc < 4)
        return 2;
    char *how = argv[1];
    int only = strncmp(how, "only:", 5) == 0;
    if (only)
        how += 5;
    unsigned action = strcmp(how, "kill-process") == 0 ? SECCOMP_RET_KILL_PROCESS
        : strcmp(how, "kill-thread") == 0              ? SECCOMP_RET_KILL_THREAD
        : strcmp(how, "trap") == 0                     ? SECCOMP_RET_TRAP
                                                       : SECCOMP_RET_ERRNO | (unsigned)atoi(how);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *text = strtok(argv[2], ","); text && n < 1000; text = strtok(NULL, ",")) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(text), 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, only ? SECCOMP_RET_ALLOW : action);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, only ? action : SECCOMP_RET_ALLOW);
    struct sock_fprog filter = { .len = n, .filter = code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
        perror("filter");
        return 77;
    }
    execv(argv[3], argv + 3);
    _exit(127);
}
