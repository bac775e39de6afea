/* System calls that the kernel refuses from here on, as seccomp profiles of containers do. Behind check.h. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))

static inline void filter_calls(struct sock_filter *rules, unsigned short count)
{
	struct sock_fprog program = { .len = count, .filter = rules };
	OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* This call fails with this error number. */
static inline void refuse_call(unsigned int call, unsigned int number)
{
	struct sock_filter rules[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | number),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter_calls(rules, sizeof rules / sizeof *rules);
}
