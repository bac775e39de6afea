/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Replacements for the functions that make a descriptor, for DPDK's calls (see build.rs): the descriptor is closed on exec
 * from its first moment on. Otherwise a program that this process starts would silently keep our sockets, queues of our taps
 * and memory shared with others. DPDK itself sets close-on-exec in some places only. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <unistd.h>

int dpdk_sys_cloexec_open(const char *path, int flags, ...);
int dpdk_sys_cloexec_openat(int dir, const char *path, int flags, ...);
FILE *dpdk_sys_cloexec_fopen(const char *path, const char *mode);
/* On 64-bit systems these are the same. */
_Static_assert(sizeof(off_t) == 8, "open64 is open");
int dpdk_sys_cloexec_open64(const char *path, int flags, ...) __attribute__((alias("dpdk_sys_cloexec_open")));
int dpdk_sys_cloexec_openat64(int dir, const char *path, int flags, ...) __attribute__((alias("dpdk_sys_cloexec_openat")));
FILE *dpdk_sys_cloexec_fopen64(const char *path, const char *mode) __attribute__((alias("dpdk_sys_cloexec_fopen")));
int dpdk_sys_cloexec_socket(int domain, int type, int protocol);
int dpdk_sys_cloexec_accept(int fd, struct sockaddr *address, socklen_t *len);
ssize_t dpdk_sys_cloexec_recvmsg(int fd, struct msghdr *message, int flags);
int dpdk_sys_cloexec_eventfd(unsigned int value, int flags);
int dpdk_sys_cloexec_epoll_create(int size);
int dpdk_sys_cloexec_epoll_create1(int flags);
int dpdk_sys_cloexec_pipe(int fds[2]);
int dpdk_sys_cloexec_memfd_create(const char *name, unsigned int flags);
int dpdk_sys_cloexec_mkstemp(char *path);
int dpdk_sys_cloexec_mkstemp64(char *path) __attribute__((alias("dpdk_sys_cloexec_mkstemp")));
int dpdk_sys_cloexec_timerfd_create(int clock, int flags);
int dpdk_sys_cloexec_dup(int fd);

/* The caller passes a mode only where the flags may create a file. */
#define MODE(flags, mode)                                                     \
	mode_t mode = 0;                                                      \
	if (((flags) & O_CREAT) != 0 || ((flags) & O_TMPFILE) == O_TMPFILE) { \
		va_list more;                                                 \
		va_start(more, flags);                                        \
		mode = va_arg(more, mode_t);                                  \
		va_end(more);                                                 \
	}

int
dpdk_sys_cloexec_open(const char *path, int flags, ...)
{
	MODE(flags, mode)
	return open(path, flags | O_CLOEXEC, mode);
}

int
dpdk_sys_cloexec_openat(int dir, const char *path, int flags, ...)
{
	MODE(flags, mode)
	return openat(dir, path, flags | O_CLOEXEC, mode);
}

FILE *
dpdk_sys_cloexec_fopen(const char *path, const char *mode)
{
	char closing[16];

	snprintf(closing, sizeof(closing), "%se", mode);
	return fopen(path, closing);
}

int
dpdk_sys_cloexec_socket(int domain, int type, int protocol)
{
	return socket(domain, type | SOCK_CLOEXEC, protocol);
}

int
dpdk_sys_cloexec_accept(int fd, struct sockaddr *address, socklen_t *len)
{
	return accept4(fd, address, len, SOCK_CLOEXEC);
}

ssize_t
dpdk_sys_cloexec_recvmsg(int fd, struct msghdr *message, int flags)
{
	return recvmsg(fd, message, flags | MSG_CMSG_CLOEXEC);
}

int
dpdk_sys_cloexec_eventfd(unsigned int value, int flags)
{
	return eventfd(value, flags | EFD_CLOEXEC);
}

int
dpdk_sys_cloexec_epoll_create(int size)
{
	(void)size;
	return epoll_create1(EPOLL_CLOEXEC);
}

int
dpdk_sys_cloexec_epoll_create1(int flags)
{
	return epoll_create1(flags | EPOLL_CLOEXEC);
}

int
dpdk_sys_cloexec_pipe(int fds[2])
{
	return pipe2(fds, O_CLOEXEC);
}

int
dpdk_sys_cloexec_memfd_create(const char *name, unsigned int flags)
{
	return memfd_create(name, flags | MFD_CLOEXEC);
}

int
dpdk_sys_cloexec_mkstemp(char *path)
{
	return mkostemp(path, O_CLOEXEC);
}

int
dpdk_sys_cloexec_timerfd_create(int clock, int flags)
{
	return timerfd_create(clock, flags | TFD_CLOEXEC);
}

int
dpdk_sys_cloexec_dup(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}
