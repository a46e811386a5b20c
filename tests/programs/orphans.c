/* Has children that leave orphans behind, waits for whatever there is to be waited for, and prints how many that were and, with an argument, how many
   dead processes are left. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    (void)arguments;
    int wait[2], ended = 0;
    char byte;
    if (pipe(wait))
        return 1;
    for (int i = 0; i < 5; i++)
        if (!fork()) {
            if (!fork()) {
                /* Until all of their parents are gone. */
                close(wait[1]);
                _exit(read(wait[0], &byte, 1));
            }
            _exit(0);
        }
    for (int i = 0; i < 5; i++)
        ended += waitpid(-1, 0, 0) > 0;
    close(wait[1]);
    while (waitpid(-1, 0, 0) > 0)
        ended++;
    printf("waited for %d\n", ended);
    fflush(stdout);
    return count > 1 ? system("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z'; true") : 0;
}
