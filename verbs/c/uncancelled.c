/*
 * The cancellation points of libc (pthreads(7)) that the drop-in library calls: there no thread is cancelled in them.
 *
 * pthread_cancel(3) unwinds a thread from the next cancellation point that it reaches. Inside the library that would leave the
 * device's state half changed, and end the process where the unwinding meets a guard of Rust. So the linker leads each call of such
 * a function, from our code, Rust's standard library and DPDK alike, to a function here (--wrap=NAME), which is the function itself
 * with cancellation disabled. A request to cancel stays pending, and takes effect in the program.
 *
 * The functions take at most six arguments, all of them integers or pointers: passed on as they are in registers, whatever the
 * types, and whether they are variable arguments or not.
 */
#include <pthread.h>

#define WRAP(name)                                                                                  \
	long __real_##name(long, long, long, long, long, long);                                     \
	long __wrap_##name(long, long, long, long, long, long);                                     \
	long __wrap_##name(long a, long b, long c, long d, long e, long f)                          \
	{                                                                                           \
		int before;                                                                         \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);                            \
		long result = __real_##name(a, b, c, d, e, f);                                      \
		pthread_setcancelstate(before, &before);                                            \
		return result;                                                                      \
	}

/* WRAP(NAME) for each name in `abi/cancellation-points`, made by `scripts/dropin`. */
#include "cancellation-points.h"
