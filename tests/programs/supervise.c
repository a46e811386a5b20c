/* supervise STATUS SECONDS CMD ARGS...
 *
 * Runs CMD and writes to STATUS how it ended ("exit N", "signal N" or "timeout") and then one line
 * for each process it left behind. As a child subreaper it inherits whatever CMD orphans, daemons
 * included, so nothing escapes the count; all of it is killed before this program ends. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Processes that are on their way out when CMD ends get this long to be gone: those that stay have slept for
 * SETTLED_MS, all of them, and on a machine that is too busy to tell GRACE_MS have to do. */
#define SETTLED_MS 700
#define GRACE_MS 30000

static volatile sig_atomic_t expired;
static void on_alarm(int sig) { (void)sig; expired = 1; }

struct row { int pid, ppid; char state, name[64]; };
static struct row rows[65536];
static int nrows;

static void read_processes(void)
{
    nrows = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; (e = readdir(proc)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0]) || nrows == 65536)
            continue;
        char path[300], text[1024];
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        if (!f)
            continue;
        size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        text[n] = 0;
        char *open = strchr(text, '('), *close = strrchr(text, ')');
        struct row *r = &rows[nrows];
        if (!open || !close || sscanf(close + 2, "%c %d", &r->state, &r->ppid) != 2 || r->state == 'Z')
            continue;
        r->pid = atoi(e->d_name);
        snprintf(r->name, sizeof r->name, "%.*s", (int)(close - open - 1), open + 1);
        nrows++;
    }
    closedir(proc);
}

static int descends(int pid)
{
    for (int depth = 0; depth < 64; depth++) {
        int parent = 0;
        for (int i = 0; i < nrows; i++)
            if (rows[i].pid == pid)
                parent = rows[i].ppid;
        if (parent == getpid())
            return 1;
        if (parent <= 1)
            return 0;
        pid = parent;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

/* Fills `left` with the descendants that are alive. */
static int descendants(struct row *left, int max)
{
    int n = 0;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    read_processes();
    for (int i = 0; i < nrows && n < max; i++)
        if (descends(rows[i].pid))
            left[n++] = rows[i];
    qsort(left, n, sizeof *left, by_name);
    return n;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    setsid();
    pid_t child = fork();
    if (child == 0) {
        /* The caller, a Rust test, may have ignored SIGPIPE for us. */
        signal(SIGPIPE, SIG_DFL);
        execvp(argv[3], argv + 3);
        fprintf(stderr, "supervise: %s: %s\n", argv[3], strerror(errno));
        _exit(127);
    }
    struct sigaction sa = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &sa, NULL);
    alarm(atoi(argv[2]));
    int status = 0, ended = 0;
    while (!expired)
        if (waitpid(child, &status, 0) == child) {
            ended = 1;
            break;
        }
    alarm(0);

    static struct row left[256];
    int n = descendants(left, 256);
    struct timespec tick = { 0, 20 * 1000 * 1000 };
    for (int waited = 0, settled = 0; ended && n > 0 && waited < GRACE_MS && settled < SETTLED_MS; waited += 20) {
        nanosleep(&tick, NULL);
        int before = n;
        n = descendants(left, 256);
        settled = n == before ? settled + 20 : 0;
        for (int i = 0; i < n; i++)
            if (left[i].state != 'S')
                settled = 0;
    }

    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 2;
    if (!ended)
        fprintf(out, "timeout\n");
    else if (WIFSIGNALED(status))
        fprintf(out, "signal %d\n", WTERMSIG(status));
    else
        fprintf(out, "exit %d\n", WEXITSTATUS(status));
    for (int i = 0; i < n; i++)
        fprintf(out, "%s\n", left[i].name);
    fclose(out);

    while ((n = descendants(left, 256)) > 0) {
        for (int i = 0; i < n; i++)
            kill(left[i].pid, SIGKILL);
        nanosleep(&tick, NULL);
    }
    return 0;
}
