/* raw_clone FILE: descriptors that change behind libc's back. Processes made by clone with and
 * without a shared descriptor table, close and dup2 by raw system call, descriptors that arrive over
 * a socket, and numbers that are reused for a file of another kind. Whatever a hook remembers about
 * a number may be out of date. */
#include "hostile.h"
#include <sys/socket.h>

static const char *path;
static int target;
static char stack[2][256 * 1024];

static int closes(void *arg)
{
    return (int)syscall(SYS_close, (int)(intptr_t)arg);
}

static int moves(void *arg)
{
    return lseek((int)(intptr_t)arg, 5000, SEEK_SET) == 5000 ? 0 : 1;
}

static int reopens(void *arg)
{
    int fd = (int)(intptr_t)arg;
    syscall(SYS_close, fd);
    return open("/dev/null", O_RDONLY) == fd ? 0 : 1;
}

static void run(int (*f)(void *), int flags, int fd)
{
    int status;
    pid_t child = clone(f, stack[0] + sizeof stack[0], flags | SIGCHLD, (void *)(intptr_t)fd);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void read_some(int fd)
{
    unsigned char buf[4096];
    for (int i = 0; i < 300; i++)
        CHECK(read(fd, buf, sizeof buf) == sizeof buf);
}

static void *closer(void *arg)
{
    CHECK(syscall(SYS_close, *(int *)arg) == 0);
    return NULL;
}

int main(int argc, char **argv)
{
    path = argv[1];
    load_reference(path);
    unsigned char buf[8192];

    target = open(path, O_RDONLY);
    read_some(target);
    run(closes, 0, target); /* its own table: ours stays open */
    CHECK(pread_ok(target, 0, 8192));
    run(moves, 0, target); /* but the offset is shared */
    CHECK(lseek(target, 0, SEEK_CUR) == 5000 && rest_ok(target, 5000));
    lseek(target, 0, SEEK_SET);
    read_some(target);
    run(closes, CLONE_FILES, target); /* our table too */
    CHECK(read(target, buf, 1) == -1 && errno == EBADF);
    CHECK(fcntl(target, F_GETFD) == -1 && errno == EBADF);

    target = open(path, O_RDONLY);
    read_some(target);
    run(reopens, CLONE_FILES | CLONE_VM | CLONE_VFORK, target);
    CHECK(read(target, buf, 1) == 0 && pread(target, buf, 10, 0) == 0);
    close(target);

    /* The number of a file becomes a pipe, a socket, another file, a file opened for writing only. */
    for (int i = 0; i < 50; i++) {
        int fd = open(path, O_RDONLY), ends[2];
        read_some(fd);
        CHECK(syscall(SYS_close, fd) == 0);
        CHECK(syscall(SYS_pipe2, ends, 0) == 0 && ends[0] == fd);
        CHECK(write(ends[1], "pipe", 4) == 4 && read(fd, buf, sizeof buf) == 4 && memcmp(buf, "pipe", 4) == 0);
        CHECK(pread(fd, buf, 1, 0) == -1 && errno == ESPIPE && lseek(fd, 0, SEEK_SET) == -1 && errno == ESPIPE);
        CHECK(close(fd) == 0 && close(ends[1]) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        int kept = open(path, O_RDONLY);
        CHECK(syscall(SYS_dup3, kept, ends[0], 0) == ends[0]);
        CHECK(lseek(kept, 1000, SEEK_SET) == 1000 && rest_ok(ends[0], 1000));
        CHECK(read(ends[1], buf, 1) == 0);
        close(ends[0]), close(ends[1]), close(kept);
        int out = open("written", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        CHECK(write(out, reference, 500000) == 500000 && read(out, buf, 1) == -1 && errno == EBADF);
        CHECK(syscall(SYS_close, out) == 0);
        out = open("written", O_RDWR);
        CHECK(pread(out, buf, 8192, 300000) == 8192 && memcmp(buf, reference + 300000, 8192) == 0);
        CHECK(ftruncate(out, 310000) == 0 && pread(out, buf, 8192, 305000) == 5000 && read(out, buf, 1) == 1);
        close(out);
    }

    /* A descriptor passed over a socket has a number that nobody opened. */
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control;
    struct iovec byte = { "x", 1 };
    struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    int sent = open(path, O_RDONLY);
    control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(&control.header), &sent, sizeof sent);
    CHECK(sendmsg(ends[0], &message, 0) == 1);
    char got;
    message.msg_iov = &(struct iovec){ &got, 1 };
    CHECK(recvmsg(ends[1], &message, 0) == 1);
    int received;
    memcpy(&received, CMSG_DATA(&control.header), sizeof received);
    CHECK(close(sent) == 0 && rest_ok(received, 0));

    /* A thread closes what another reads; the reader sees data or EBADF and nothing else. */
    for (int i = 0; i < 200; i++) {
        int fd = open(path, O_RDONLY);
        pthread_t t;
        pthread_create(&t, NULL, closer, &fd);
        for (int k = 0; k < 50; k++) {
            ssize_t n = pread(fd, buf, 4096, k * 4096);
            CHECK((n == 4096 && memcmp(buf, reference + k * 4096, 4096) == 0) || (n == -1 && errno == EBADF));
        }
        pthread_join(t, NULL);
    }
    printf("all as the kernel says\n");
    return 0;
}
