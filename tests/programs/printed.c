/* printed: dprintf(3) and its fortified form with more arguments than registers hold, general ones and of floating point in turn, and with none. */
#include "hostile.h"

int fortified(int, int, const char *, ...) __asm__("__dprintf_chk");

#define FORMAT "%s %d %f %ld %g %c %.3f %s %x %e %llu %f %d %f %f %f %s %Lf\n"
#define ARGUMENTS "a", -1, 0.5, 1L << 40, 1e-9, 'c', 2.0 / 3, "word", 0xbeefu, 6.5e22, 1ull << 63, 4.0, 13, 5.0, 6.0, 7.0, "end", 8.25L

int main(void)
{
    CHECK(dprintf(1, "none\n") == 5 && fortified(1, 1, "none\n") == 5);
    int plain = dprintf(1, FORMAT, ARGUMENTS), same = fortified(1, 1, FORMAT, ARGUMENTS);
    CHECK(plain > 0 && same == plain);
    CHECK(dprintf(-1, "%d", 1) == -1 && errno == EBADF);
    return 0;
}
