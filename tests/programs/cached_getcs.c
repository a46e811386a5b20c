// cached_getcs FILE BYTES: reads BYTES bytes of FILE one by one through a buffer, from the beginning again at its end.
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    FILE *f = argc == 3 ? fopen(argv[1], "r") : NULL;
    if (f == NULL)
        return 2;
    unsigned long sum = 0;
    for (long i = atol(argv[2]); i > 0; i--) {
        int c = getc(f);
        if (c == EOF) {
            rewind(f);
            c = getc(f);
        }
        sum = sum * 31 + (unsigned long)c;
    }
    printf("%lu\n", sum);
    return 0;
}
