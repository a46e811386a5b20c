#define BLOCK 4096

/* The sum of the bytes of these blocks, -1 if one can't be read. */
long sum_blocks(int fd, const long *blocks, int count);
