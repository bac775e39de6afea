/* Preloaded: reports each function of libc that is a cancellation point (pthreads(7)) and is called within a post or a poll while the
 * thread may be cancelled. The program says what is within: `points_enter`, `points_leave`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* F_SETLKW and F_OFD_SETLKW; fcntl.h has prototypes that differ from those below. */
#define LOCKS(command) ((command) == 7 || (command) == 38)

static __thread int within;
static int reached;

void points_enter(void) { within++; }
void points_leave(void) { within--; }
int points_reached(void) { return __atomic_load_n(&reached, __ATOMIC_RELAXED); }

static void note(const char *name)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	if (before == PTHREAD_CANCEL_ENABLE && __atomic_fetch_add(&reached, 1, __ATOMIC_RELAXED) < 20) {
		char line[80];
		int n = snprintf(line, sizeof line, "%s is called where the thread may be cancelled\n", name);
		syscall(SYS_write, 2, line, n);
	}
	pthread_setcancelstate(before, &before);
}

/* All arguments are integers or pointers, at most six: they pass in registers, whatever their types. */
#define POINT(name)                                                                            \
	__attribute__((visibility("default"))) long own_##name(long, long, long, long, long, long) __asm__(#name); \
	long own_##name(long a, long b, long c, long d, long e, long f)                        \
	{                                                                                      \
		static long (*real)(long, long, long, long, long, long);                       \
		if (!real)                                                                     \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                             \
		if (within && (strncmp(#name, "fcntl", 5) || LOCKS((int)b)))                   \
			note(#name);                                                           \
		return real(a, b, c, d, e, f);                                                 \
	}

/* Those that POSIX or glibc names, with their variants; without condition variables, which have several versions. */
POINT(accept) POINT(accept4) POINT(aio_suspend) POINT(clock_nanosleep) POINT(close) POINT(connect) POINT(copy_file_range)
POINT(creat) POINT(creat64) POINT(epoll_pwait) POINT(epoll_pwait2) POINT(epoll_wait) POINT(fallocate) POINT(fallocate64)
POINT(fcntl) POINT(fcntl64) POINT(fdatasync) POINT(fsync) POINT(getaddrinfo) POINT(getifaddrs) POINT(getrandom) POINT(lockf)
POINT(lockf64) POINT(mq_receive) POINT(mq_send) POINT(mq_timedreceive) POINT(mq_timedsend) POINT(msgrcv) POINT(msgsnd)
POINT(msync) POINT(nanosleep) POINT(open) POINT(open64) POINT(openat) POINT(openat64) POINT(pause) POINT(poll) POINT(ppoll)
POINT(pread) POINT(pread64) POINT(preadv) POINT(preadv2) POINT(preadv64) POINT(preadv64v2) POINT(pselect) POINT(pthread_join)
POINT(pwrite) POINT(pwrite64) POINT(pwritev) POINT(pwritev2) POINT(pwritev64) POINT(pwritev64v2) POINT(read) POINT(readv)
POINT(recv) POINT(recvfrom) POINT(recvmmsg) POINT(recvmsg) POINT(select) POINT(sem_timedwait) POINT(sem_wait) POINT(send)
POINT(sendmmsg) POINT(sendmsg) POINT(sendto) POINT(sigpause) POINT(sigsuspend) POINT(sigtimedwait) POINT(sigwait)
POINT(sigwaitinfo) POINT(sleep) POINT(splice) POINT(sync_file_range) POINT(system) POINT(tcdrain) POINT(tee) POINT(usleep)
POINT(vmsplice) POINT(wait) POINT(wait3) POINT(wait4) POINT(waitid) POINT(waitpid) POINT(write) POINT(writev)
