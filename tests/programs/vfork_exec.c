/* vfork_exec FILE: between vfork and exec the child runs in the parent's memory but has its own
 * descriptor table: what it closes and moves there must not be taken for the parent's. */
#include "hostile.h"
#include <spawn.h>

extern char **environ;

int main(int argc, char **argv)
{
    load_reference(argv[1]);
    int a = open(argv[1], O_RDONLY), b = open(argv[1], O_RDONLY), ends[2];
    CHECK(pipe(ends) == 0);
    unsigned char buf[4096];
    long at = 0;
    for (int i = 0; i < 60; i++) {
        CHECK(read(a, buf, sizeof buf) == sizeof buf && memcmp(buf, reference + at, sizeof buf) == 0);
        at += sizeof buf;
        fflush(stdout);
        volatile pid_t child = vfork();
        if (child == 0) {
            /* the number of a sequentially read file becomes a pipe, and is closed, in the child */
            if (dup2(ends[1], a) != a || close(b) != 0 || dup2(b == 0 ? a : ends[1], 1) != 1)
                _exit(97);
            lseek(a, 0, SEEK_SET);
            close(a);
            if (i % 2)
                execl("./nothere", "nothere", NULL);
            else
                execlp("true", "true", NULL);
            _exit(5);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == (i % 2 ? 5 : 0));
        CHECK(lseek(a, 0, SEEK_CUR) == at && pread_ok(b, at, 8192));
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, argv[1], O_RDONLY, 0);
    posix_spawn_file_actions_addclose(&actions, a);
    posix_spawn_file_actions_adddup2(&actions, 1, 7);
    char *const command[] = { "cksum", NULL };
    for (int i = 0; i < 5; i++) {
        pid_t child;
        int status;
        CHECK(posix_spawnp(&child, "cksum", &actions, NULL, command, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(pread_ok(a, at, 8192));
    }
    CHECK(posix_spawnp(&(pid_t){ 0 }, "./nothere", &actions, NULL, command, environ) == ENOENT);
    FILE *p = popen("cksum", "w");
    CHECK(p && fwrite(reference, 1, length, p) == (size_t)length && pclose(p) == 0);
    CHECK(system("exit 7") == 7 << 8);
    printf("the parent still reads: %d\n", rest_ok(a, at));
    return 0;
}
