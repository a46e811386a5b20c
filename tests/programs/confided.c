/* Reads a file in part, then gives up rights step by step, and says after each step how many mappings of the memory that hooks and service share are
   there, in the process and in a forked child. argv: FILE STEP…, a step being one of fork, user, raw-fork, mounts, seccomp, setuid, capset, chroot. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int mappings(void)
{
	char line[512];
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		n += strstr(line, "memfd:outrider") != NULL;
	if (maps)
		fclose(maps);
	return n;
}

static void step(const char *what)
{
	int r = 0;
	if (!strcmp(what, "mounts"))
		r = unshare(CLONE_NEWNS);
	else if (!strcmp(what, "user"))
		r = unshare(CLONE_NEWUSER | CLONE_NEWNS);
	else if (!strcmp(what, "chroot"))
		r = chroot("/proc/self/root");
	else if (!strcmp(what, "setuid"))
		r = setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534);
	else if (!strcmp(what, "capset")) {
		struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
		struct __user_cap_data_struct data[2] = {{0}};
		r = syscall(SYS_capset, &header, data);
	} else if (!strcmp(what, "seccomp")) {
		struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
		struct sock_fprog program = {1, filter};
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		r = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
	}
	printf("%s: %s, %d\n", what, r ? strerror(errno) : "done", mappings());
}

int main(int argc, char **argv)
{
	static char buffer[4096];
	setvbuf(stdout, NULL, _IONBF, 0);
	int fd = open(argv[1], O_RDONLY);
	for (int i = 100; i > 0; i--)
		if (pread(fd, buffer, sizeof buffer, i * 65536L) < 0)
			return 1;
	/* Without a service there are none at all. */
	fprintf(stderr, "%d\n", mappings());
	for (int i = 2; i < argc; i++) {
		int raw = !strcmp(argv[i], "raw-fork");
		if (!raw && strcmp(argv[i], "fork")) {
			step(argv[i]);
			continue;
		}
		pid_t child = raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
		if (child == 0) {
			printf("child: %d\n", mappings());
			for (i++; i < argc; i++)
				step(argv[i]);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		return 0;
	}
	return 0;
}
