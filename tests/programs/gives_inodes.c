/* gives_inodes DIR: reads the first fifteen of each twenty of the files DIR/f000, DIR/f001, … in order and takes the other five away, in several ways; and says of how many the
 * inode was not free when that was done. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

static long free_inodes(const char *dir)
{
    struct statvfs st;
    if (statvfs(dir, &st))
        exit(1);
    return st.f_ffree;
}

int main(int argc, char **argv)
{
    static char path[4096], other[4096], buffer[1 << 16];
    int gone = 0, late = 0, fd;
    if (argc < 2)
        return 1;
    snprintf(other, sizeof other, "%s/other", argv[1]);
    for (int i = 0;; i++) {
        snprintf(path, sizeof path, "%s/f%03d", argv[1], i);
        if (i % 20 < 15) {
            if ((fd = open(path, O_RDONLY)) < 0)
                break;
            while (read(fd, buffer, sizeof buffer) > 0)
                ;
            close(fd);
            continue;
        }
        int way = i % 4;
        if (way == 3)
            close(open(other, O_CREAT | O_WRONLY, 0600));
        long before = free_inodes(argv[1]);
        if (way == 0)
            unlink(path);
        else if (way == 1)
            unlinkat(AT_FDCWD, path, 0);
        else if (way == 2)
            remove(path);
        else
            rename(other, path);
        late += free_inodes(argv[1]) != before + 1;
        gone++;
    }
    printf("%d gone, %d late\n", gone, late);
}
