// Opens so many names, becomes nobody by instructions of its own, so that no hook sees it, waits for so many ms, and then writes a name that it
// may not look up into the log of what the run needs. It says so, and ends when standard input does: whoever looks finds it. Its memory has the layout of
// crates/outrider-core/src/needs.rs.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long bare(long n, long a, long b, long c)
{
#if defined(__x86_64__)
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

int main(int argc, char **argv)
{
    const char *name = getenv("FORGED");
    char line[4096];
    uintptr_t at = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:outrider-needs"))
            at = strtoul(line, NULL, 16);
    fclose(maps);
    if (!at || !name || argc != 3)
        return 2;
    /* Each by a name of its own: "/etc/./././passwd". */
    for (int i = 0; i < atoi(argv[1]); i++) {
        size_t end = strlen(strcpy(line, "/etc"));
        for (int j = 0; j < i % 1000; j++)
            memcpy(line + end, "/.", 2), end += 2;
        strcpy(line + end, "/passwd");
        FILE *f = fopen(line, "r");
        if (!f)
            return 4;
        fclose(f);
    }
    bare(SYS_setgroups, 0, 0, 0);
    bare(SYS_setresgid, 65534, 65534, 65534);
    bare(SYS_setresuid, 65534, 65534, 65534);
    if (access(name, F_OK) == 0)
        return 3;
    usleep(1000 * atoi(argv[2]));
    size_t len = strlen(name);
    uint32_t begin = __atomic_fetch_add((uint32_t *)at, 16 + ((len + 7) & ~7u), __ATOMIC_SEQ_CST);
    uint64_t *entry = (uint64_t *)(at + 64 + begin);
    memcpy(entry + 2, name, len);
    entry[1] = 0;
    __atomic_store_n(entry, 0xA7ull << 56 | 1ull << 48 | len, __ATOMIC_RELEASE);
    puts("written");
    fflush(stdout);
    while (read(0, line, sizeof line) > 0)
        ;
    return 0;
}
