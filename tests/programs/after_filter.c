/* after_filter FILE MS CALL…: reads of FILE, installs a filter of system calls by an instruction of its own, reads for MS milliseconds more, and makes each CALL, of which the
 * filter allows just what it takes without us. Says what each has returned. Its directory has the directory d with another one in it, and the files x and y.
 *
 * Whatever else is called is the end of the process. Only on x86-64. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char bytes[1 << 16];
static int file, other, watches;
static pid_t killed;
static struct sock_filter code[64];
static struct sock_fprog filter = { 0, code };

static long raw(long n, long a, long b, long c)
{
    long r;
    register long r10 asm("r10") = 0;
    register long r8 asm("r8") = 0;
    asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return r;
}

static void allow(int number)
{
    code[filter.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
    code[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
}

static long remount(void) { return mount("none", "d/missing", NULL, MS_REMOUNT | MS_RDONLY, NULL); }
static long wait_for_killed(void) { return waitpid(killed, &(int){ 0 }, 0) > 0; }
static long set_user(void) { return setuid(0); }
static long set_user_by_number(void) { return syscall(SYS_setuid, 0); }
static long set_users(void) { return setresuid(0, 0, 0); }
static long set_groups(void) { return setgroups(0, NULL); }
static long set_file_user(void) { return setfsuid(0); }
static long set_capabilities(void) { return syscall(SYS_capset, 0, 0); }
static long remove_directory(void) { return rmdir("d"); }
static long remove_at(void) { return unlinkat(AT_FDCWD, "d", AT_REMOVEDIR); }
static long rename_onto(void) { return rename("e", "d"); }
static long keep(void) { return renameat2(AT_FDCWD, "x", AT_FDCWD, "y", RENAME_NOREPLACE); }
static long lease(void) { return fcntl(other, F_SETLEASE, F_RDLCK) + fcntl(other, F_SETLEASE, F_UNLCK); }
static long watch(void) { return inotify_add_watch(watches, "d", IN_OPEN) > 0; }
static long notify(void) { return fcntl(watches, F_NOTIFY, 1); }
static long unshare_files(void) { return unshare(CLONE_FILES); }
static long unshare_directory(void) { return unshare(CLONE_FS); }
static long close_unshared(void) { return close_range(40, 50, 2); }
static long unmount(void) { return umount2("d/missing", 0); }
static long give_privileges_up(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }
static long bound(void) { return prctl(PR_CAPBSET_DROP, 38, 0, 0, 0); }
static long filter_more(void)
{
    struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog more = { 1, all };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &more, 0, 0);
}
static long change_root(void) { return chroot("."); }
static long restrict_paths(void) { return syscall(SYS_landlock_restrict_self, -1, 0); }
static long execute(void) { return execve("d/missing", (char *[]){ "missing", NULL }, environ); }
static long duplicate(void) { return dup2(file, 30) == 30; }
static long nothing(void) { return 0; }

static const struct {
    const char *name;
    int number;
    long (*make)(void);
} calls[] = {
    { "nothing", SYS_read, nothing },
    { "wait", SYS_wait4, wait_for_killed },
    { "rmdir", SYS_rmdir, remove_directory },
    { "unlinkat", SYS_unlinkat, remove_at },
    { "rename", SYS_rename, rename_onto },
    { "renameat2", SYS_renameat2, keep },
    { "lease", SYS_fcntl, lease },
    { "inotify", SYS_inotify_add_watch, watch },
    { "dnotify", SYS_fcntl, notify },
    { "umount", SYS_umount2, unmount },
    { "remount", SYS_mount, remount },
    { "exec", SYS_execve, execute },
    { "dup2", SYS_dup2, duplicate },
    { "setuid", SYS_setuid, set_user },
    { "sys_setuid", SYS_setuid, set_user_by_number },
    { "setresuid", SYS_setresuid, set_users },
    { "setgroups", SYS_setgroups, set_groups },
    { "setfsuid", SYS_setfsuid, set_file_user },
    { "capset", SYS_capset, set_capabilities },
    { "bound", SYS_prctl, bound },
    { "chroot", SYS_chroot, change_root },
    { "unshare_fs", SYS_unshare, unshare_directory },
    { "landlock", SYS_landlock_restrict_self, restrict_paths },
    { "no_new_privs", SYS_prctl, give_privileges_up },
    { "seccomp", SYS_prctl, filter_more },
    { "close_range", SYS_close_range, close_unshared },
    { "unshare_files", SYS_unshare, unshare_files },
};
enum { CALLS = sizeof calls / sizeof *calls };

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int count, char **arguments)
{
    int chosen[CALLS], n = 0;
    if (count < 4)
        return 2;
    code[filter.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    allow(SYS_read);
    allow(SYS_write);
    allow(SYS_exit_group);
    for (int a = 3; a < count; a++)
        for (int i = 0; i < CALLS; i++)
            if (!strcmp(arguments[a], calls[i].name)) {
                allow(calls[i].number);
                chosen[n++] = i;
            }
    if (n != count - 3)
        return 2;
    code[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    file = open(arguments[1], O_RDONLY);
    other = open("x", O_RDWR);
    watches = inotify_init();
    if (file < 0 || other < 0 || watches < 0)
        return 3;
    killed = fork();
    if (killed == 0)
        for (;;)
            pause();
    for (int i = 0; i < 100; i++)
        if (read(file, bytes, sizeof bytes) < 0)
            return 4;
    kill(killed, SIGKILL);
    if (raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0) != 0 || raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&filter) != 0)
        return 5;
    for (long begun = now_ms(); now_ms() - begun < atoi(arguments[2]);)
        if (read(file, bytes, sizeof bytes) < 0)
            return 6;
    for (int i = 0; i < n; i++) {
        char text[80];
        errno = 0;
        long r = calls[chosen[i]].make();
        int length = snprintf(text, sizeof text, "%s %ld %d\n", calls[chosen[i]].name, r, errno);
        if (write(1, text, length) != length)
            return 7;
    }
    return 0;
}
