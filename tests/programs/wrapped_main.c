/* wrapped FROM TO COUNT [TIMES]: copies blocks by a function of a shared library; TIMES in all, each in a thread, and then once in a forked child. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int copy_blocks(int from, int to, int count);

static int from, to, count;

static void *copies(void *unused)
{
    (void)unused;
    return copy_blocks(from, to, count) == count ? &count : NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5)
        return 2;
    from = open(argv[1], O_RDONLY);
    to = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    count = atoi(argv[3]);
    if (argc == 4)
        return copies(NULL) != NULL ? 0 : 3;
    enum { most = 64 };
    pthread_t threads[most];
    int       times = atoi(argv[4]), failed = times > most;
    for (int i = 0; i < times && !failed; i++)
        failed = pthread_create(&threads[i], NULL, copies, NULL) != 0;
    for (int i = 0; i < times && !failed; i++) {
        void *copied;
        failed = pthread_join(threads[i], &copied) != 0 || copied == NULL;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(copies(NULL) != NULL ? 0 : 3);
    int status;
    return failed || child < 0 || waitpid(child, &status, 0) != child || status != 0 ? 3 : 0;
}
