/* mix STREAM OTHER BYTES READS: a thread reads BYTES of the file STREAM in order, 64 KiB each, and another READS random pages of the file OTHER.
 * Prints what each took, s. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 65536, PAGE = 4096 };

static char **words;
static double begun;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void *stream(void *took) {
  static char block[BLOCK];
  int fd = open(words[1], O_RDONLY);
  long left = atol(words[3]), got;
  while (left > 0 && (got = read(fd, block, BLOCK)) > 0) left -= got;
  *(double *)took = now() - begun;
  return NULL;
}

static void *others(void *took) {
  static char page[PAGE];
  int fd = open(words[2], O_RDONLY);
  struct stat s;
  if (fstat(fd, &s) != 0) exit(1);
  unsigned long x = 88172645463325252UL; /* xorshift */
  for (long i = atol(words[4]); i > 0; i--) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    if (pread(fd, page, PAGE, x % (s.st_size / PAGE) * PAGE) != PAGE) exit(1);
  }
  *(double *)took = now() - begun;
  return NULL;
}

int main(int count, char **given) {
  if (count != 5) return 2;
  words = given;
  double took[2];
  pthread_t threads[2];
  begun = now();
  pthread_create(&threads[0], NULL, stream, &took[0]);
  pthread_create(&threads[1], NULL, others, &took[1]);
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  printf("%.3f %.3f\n", took[0], took[1]);
  return 0;
}
