// check FILE…: reads each file, and its bitmap is held against mincore and cachestat. With `hold SECONDS` before: keeps the device open so long.
#include "outrider_test.h"

int main(int argc, char **argv) {
    int device = open_device(), from = 1;
    if (argc > 2 && !strcmp(argv[1], "hold")) {
        sleep(atoi(argv[2]));
        from = 3;
    }
    for (int i = from; i < argc; i++) {
        int fd = open(argv[i], O_RDONLY);
        if (fd < 0) die("open %s", argv[i]);
        // Somebody may drop all caches at any time, and then it would show nothing.
        uint64_t set = 0;
        for (int attempt = 0; !set && attempt < 50; attempt++) {
            static char buffer[1 << 16];
            for (off_t at = 0; pread(fd, buffer, sizeof buffer, at) > 0; at += sizeof buffer) {
            }
            verify(device, fd, argv[i], NULL);
            uint64_t *words;
            struct outrider_readahead_info info = look(device, fd, 1 << 30, &words);
            for (unsigned word = 0; word < info.bitmap_written / 8; word++) set += __builtin_popcountll(words[word]);
            free(words);
        }
        if (!set) die("nothing of %s stays cached", argv[i]);
        close(fd);
    }
    return 0;
}
