/* deny RULE[,RULE...] -- CMD ARGS...
 *
 * Runs CMD with a seccomp filter under which chosen system calls fail. A rule is
 *     NAME=ERRNO            every call of NAME; with KILL in the place of an errno it ends the process
 *     NAME:IDX~VALUE=ERRNO  calls whose argument IDX (0..5, low 32 bits) equals VALUE
 *     NAME:IDX&MASK=ERRNO   calls whose argument IDX has a bit of MASK
 * where NAME may be a number, too; for instance  io_uring_setup=EPERM,clone:0&0x10000=EAGAIN,clone3=ENOSYS  (no threads).
 * It vouches for it that the rules let processes be made (OUTRIDER=on); see filter.c for those that don't. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static const struct { const char *name; int number; } calls[] = {
    { "io_uring_setup", SYS_io_uring_setup }, { "io_uring_enter", SYS_io_uring_enter },
    { "io_uring_register", SYS_io_uring_register }, { "pidfd_open", SYS_pidfd_open },
    { "pidfd_getfd", SYS_pidfd_getfd }, { "clone", SYS_clone }, { "clone3", SYS_clone3 },
#ifdef SYS_fork
    { "fork", SYS_fork }, { "vfork", SYS_vfork },
#endif
    { "memfd_create", SYS_memfd_create }, { "cachestat", SYS_cachestat }, { "madvise", SYS_madvise },
    { "mincore", SYS_mincore }, { "readahead", SYS_readahead }, { "fadvise64", SYS_fadvise64 },
    { "mmap", SYS_mmap }, { "close_range", SYS_close_range }, { "unshare", SYS_unshare },
    { "ioprio_set", SYS_ioprio_set }, { "statx", SYS_statx }, { "prctl", SYS_prctl },
    { "futex", SYS_futex }, { "eventfd2", SYS_eventfd2 }, { "process_vm_readv", SYS_process_vm_readv },
    { "ioctl", SYS_ioctl }, { "sched_setscheduler", SYS_sched_setscheduler },
};
static const struct { const char *name; int number; } errors[] = {
    { "EPERM", EPERM }, { "EACCES", EACCES }, { "ENOSYS", ENOSYS }, { "EAGAIN", EAGAIN },
    { "ENOMEM", ENOMEM }, { "EMFILE", EMFILE }, { "EINVAL", EINVAL }, { "EBADF", EBADF }, { "EIO", EIO },
    { "ENOTTY", ENOTTY },
    { "KILL", -1 },
};

static struct sock_filter code[1024];
static int len;

static void emit(int op, unsigned k, int jt, int jf)
{
    code[len++] = (struct sock_filter)BPF_JUMP(op, k, jt, jf);
}

static void rule(char *text)
{
    char *error = strchr(text, '=');
    int number = -1, err = 0, index = -1;
    unsigned value = 0;
    char kind = 0;
    if (!error)
        goto bad;
    *error++ = 0;
    char *argument = strchr(text, ':');
    if (argument) {
        *argument++ = 0;
        if (sscanf(argument, "%d%c%i", &index, &kind, (int *)&value) != 3)
            goto bad;
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, text) == 0)
            number = calls[i].number;
    if (*text >= '0' && *text <= '9')
        number = atoi(text);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(errors[i].name, error) == 0)
            err = errors[i].number;
    if (number < 0 || err == 0)
        goto bad;
    /* Each rule loads what it looks at, and falls through to the next. */
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, number, 0, index < 0 ? 1 : 3);
    if (index >= 0) {
        emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * index, 0, 0);
        emit(BPF_JMP | (kind == '&' ? BPF_JSET : BPF_JEQ) | BPF_K, value, 0, 1);
    }
    emit(BPF_RET | BPF_K, err < 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | err, 0, 0);
    return;
bad:
    fprintf(stderr, "deny: bad rule `%s`\n", text);
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[2], "--") != 0) {
        fprintf(stderr, "usage: deny NAME[:IDX~VALUE|:IDX&MASK]=ERRNO,... -- CMD ARGS...\n");
        return 2;
    }
    for (char *text = strtok(argv[1], ","); text; text = strtok(NULL, ","))
        rule(text);
    emit(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    struct sock_fprog filter = { .len = len, .filter = code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
        perror("deny: seccomp");
        return 77;
    }
    setenv("OUTRIDER", "on", 0);
    execvp(argv[3], argv + 3);
    perror(argv[3]);
    return 127;
}
