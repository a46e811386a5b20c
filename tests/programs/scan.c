/* scan NAME [FILE]: reads lines "word number word word" with the scanf function of this name, from FILE or from standard input,
 * and prints what they add up to. Nine arguments, so that some are passed on the stack. */
#include "hostile.h"
#include <locale.h>
#include <wchar.h>

int plain_f(FILE *, const char *, ...) __asm__("fscanf");
int plain_s(const char *, ...) __asm__("scanf");
int plain_v(FILE *, const char *, va_list) __asm__("vfscanf");
int c99_f(FILE *, const char *, ...) __asm__("__isoc99_fscanf");
int c99_s(const char *, ...) __asm__("__isoc99_scanf");
int c99_v(FILE *, const char *, va_list) __asm__("__isoc99_vfscanf");

static int listed(FILE *f, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = f ? plain_v(f, format, list) : vscanf(format, list);
    va_end(list);
    return n;
}

static int listed99(FILE *f, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = c99_v(f, format, list);
    va_end(list);
    return n;
}

static int listed_wide(FILE *f, const wchar_t *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = f ? vfwscanf(f, format, list) : vwscanf(format, list);
    va_end(list);
    return n;
}

static uint64_t sum;

static void count(const char *text)
{
    for (; *text; text++)
        sum = sum * 31 + (unsigned char)*text;
}

int main(int argc, char **argv)
{
    const char *name = argv[1];
    FILE *f = argc > 2 ? fopen(argv[2], "r") : NULL;
    char a[64], b[64], c[64], space[4][8];
    long number, lines = 0;
    int n, last = 0;
    CHECK(argc < 3 || f);
    if (!strcmp(name, "getchar") || !strcmp(name, "getchar_unlocked")) {
        while ((n = name[7] ? getchar_unlocked() : getchar()) != EOF)
            sum = sum * 31 + n, lines += n == '\n';
    } else if (!strcmp(name, "fgetwc") || !strcmp(name, "getwchar")) {
        wint_t w;
        setlocale(LC_ALL, "C.UTF-8");
        while ((w = f ? fgetwc(f) : getwchar()) != WEOF)
            sum = sum * 31 + w, lines += w == '\n';
    } else if (!strcmp(name, "fgetws")) {
        wchar_t line[100];
        while (fgetws(line, 100, f))
            for (wchar_t *w = line; *w; w++)
                sum = sum * 31 + *w, lines += *w == '\n';
    } else if (strstr(name, "wscanf")) {
        wchar_t word[64];
        for (;;) {
            if (name[0] == 'v')
                n = listed_wide(f, L"%63ls%ln", word, &number);
            else
                n = f ? fwscanf(f, L"%63ls%ln", word, &number) : wscanf(L"%63ls%ln", word, &number);
            if (n != 1)
                break;
            for (wchar_t *w = word; *w; w++)
                sum = sum * 31 + *w;
            sum += number, lines++;
        }
    } else if (!strcmp(name, "getw")) {
        while (n = getw(f), !feof(f))
            sum = sum * 31 + (unsigned)n;
    } else {
        const char *format = "%63s%7[ ]%ld%7[ ]%63s%7[ ]%63s%7[\n]%n";
#define ARGUMENTS a, space[0], &number, space[1], b, space[2], c, space[3], &last
        for (;;) {
            if (!strcmp(name, "fscanf"))
                n = plain_f(f, format, ARGUMENTS);
            else if (!strcmp(name, "scanf"))
                n = plain_s(format, ARGUMENTS);
            else if (!strcmp(name, "__isoc99_fscanf"))
                n = c99_f(f, format, ARGUMENTS);
            else if (!strcmp(name, "__isoc99_scanf"))
                n = c99_s(format, ARGUMENTS);
            else if (!strcmp(name, "__isoc99_vfscanf"))
                n = listed99(f, format, ARGUMENTS);
            else
                n = listed(f, format, ARGUMENTS);
            if (n != 8)
                break;
            count(a), count(b), count(c), count(space[3]);
            sum = sum * 31 + number + last;
            lines++;
        }
    }
    printf("%ld lines, sum %016llx, end %d %d\n", lines, (unsigned long long)sum, feof(f ? f : stdin), errno);
    return 0;
}
