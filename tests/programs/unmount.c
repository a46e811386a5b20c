/* Unmounts a directory, once. Linked statically, so that no library sees it. */
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <sys/mount.h>

int main(int argc, char **argv)
{
    int r = umount2(argv[1], 0);
    printf("%s\n", r ? strerror(errno) : "unmounted");
    return r != 0;
}
