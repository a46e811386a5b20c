/* Prints of every signal that arrives who sent it and with what, until one has. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void arrived(int signal, siginfo_t *info, void *context) {
    char text[100];
    (void)context;
    int n = snprintf(text, sizeof text, "signal %d code %d value %d\n", signal, info->si_code,
                     info->si_code == SI_QUEUE ? info->si_value.sival_int : 0);
    _exit(write(1, text, n) == n ? 3 : 4);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = arrived, .sa_flags = SA_SIGINFO};
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        if (signal != SIGCHLD && signal != SIGCONT)
            sigaction(signal, &action, 0);
    if (write(1, "ready\n", 6) != 6)
        return 5;
    for (;;)
        pause();
}
