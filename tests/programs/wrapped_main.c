/* wrapped FROM TO COUNT: copies blocks by a function of a shared library. */
#include <fcntl.h>
#include <stdlib.h>

int copy_blocks(int from, int to, int count);

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int count = atoi(argv[3]);
    return copy_blocks(open(argv[1], O_RDONLY), open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600), count) == count ? 0 : 3;
}
