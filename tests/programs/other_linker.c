/* A dynamic linker of nobody's C library: prints the environment that the program was given, an entry a line, and ends as musl's linker
 * does if LD_PRELOAD names a library that it can't load. Also a program, without any C library. */
#if defined(__x86_64__)
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
static long call3(long n, long a, long b, long c)
{
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
enum { WRITE = 1, EXIT = 60 };
#elif defined(__i386__)
__asm__(".globl _start\n_start: mov %esp, %eax\n and $-16, %esp\n sub $12, %esp\n push %eax\n call begin\n");
static long call3(long n, long a, long b, long c)
{
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(n), "b"(a), "c"(b), "d"(c) : "memory");
    return r;
}
enum { WRITE = 4, EXIT = 1 };
#else
__asm__(".globl _start\n_start: mov x0, sp\n bl begin\n");
static long call3(long n, long a, long b, long c)
{
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
enum { WRITE = 64, EXIT = 93 };
#endif

static int begins(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

static void line(const char *text)
{
    long n = 0;
    while (text[n])
        n++;
    call3(WRITE, 1, (long)text, n);
    call3(WRITE, 1, (long)"\n", 1);
}

void begin(const long *stack)
{
    const char *const *at = (const char *const *)stack + 1 + stack[0] + 1;
    int code = 0;
    for (; *at; at++) {
        line(*at);
        if (begins(*at, "LD_PRELOAD="))
            for (const char *p = *at; *p; p++)
                if (begins(p, "liboutrider"))
                    code = 127;
    }
    call3(EXIT, code, 0, 0);
    for (;;)
        ;
}
