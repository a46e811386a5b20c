/* pidfd_spawn(3) and pidfd_spawnp(3) for C libraries that don't have them (before glibc 2.39), as a library: without file actions, attributes or a search. Like the C
 * library's they make their system calls themselves, where nobody sees them. */
#include <spawn.h>
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>

static long raw(long n, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
    long r;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return r;
#elif defined(__aarch64__)
    register long x8 asm("x8") = n, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c, x3 asm("x3") = d, x4 asm("x4") = e;
    asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment)
{
    if (actions || attributes)
        return EINVAL;
    long child = raw(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        raw(SYS_execve, (long)path, (long)arguments, (long)environment, 0, 0);
        raw(SYS_exit_group, 127, 0, 0, 0, 0);
    }
    if (child < 0)
        return -child;
    *pidfd = raw(SYS_pidfd_open, child, 0, 0, 0, 0);
    return *pidfd < 0 ? -*pidfd : 0;
}

int pidfd_spawnp(int *pidfd, const char *name, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment)
{
    return pidfd_spawn(pidfd, name, actions, attributes, arguments, environment);
}
