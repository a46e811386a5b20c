/* Reads, puts itself under a filter of system calls that lets it read, wait and end, and waits for a child that was killed: exit code 3. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define ALLOW(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
int main(int count, char **words) {
    static char data[65536];
    int file = open(words[1], O_RDONLY), status;
    for (int i = 0; i < 30; i++) read(file, data, sizeof data);
    pid_t child = fork();
    if (child == 0) for (;;) pause();
    kill(child, SIGKILL);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(__NR_wait4), ALLOW(__NR_waitid), ALLOW(__NR_read), ALLOW(__NR_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) return 2;
    for (int i = 0; i < 30; i++) read(file, data, sizeof data);
    return 3;
}
