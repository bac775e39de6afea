#![allow(unsafe_code)]
//! Scheduling of the calling thread: how soon it runs after a wake-up, and how often it loses its core.

use core::cell::Cell;

/// `struct sched_attr` of `<linux/sched/types.h>`, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}
const _: () = assert!(size_of::<Attr>() == 48);

/// The shortest time slice that Linux grants.
const SHORTEST_NS: u64 = 100_000;
/// `SCHED_OTHER`.
const OTHER: u32 = 0;

/// Lowers the wake-up latency of the calling thread.
///
/// Requests the shortest time slice: Linux 6.12 and later let a waking thread preempt one with a longer slice. Also lowers the timer
/// slack, by which the kernel delays timers to save wake-ups, from 50 us to 1 ns. Where the kernel or the thread's scheduling policy has
/// no time slices, only the timer slack changes.
pub fn wake_at_once() {
    // SAFETY: passes only a number. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    let mut attr = Attr::default();
    // SAFETY: writes to `attr`, whose size is passed.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size_of::<Attr>(), 0) };
    if got != 0 || attr.policy != OTHER {
        return;
    }
    attr.runtime_ns = SHORTEST_NS;
    // SAFETY: reads `attr`, which contains its size. Older kernels ignore the slice; if the call fails, nothing changes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// The kernel's thread ID of the calling thread (gettid(2)). Never 0.
pub fn thread_number() -> u32 {
    // SAFETY: passes nothing and returns a number. It cannot fail and is no cancellation point.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

thread_local! {
    /// Involuntary context switches of this thread up to the last call of [`times_preempted`].
    static LAST_COUNT: Cell<libc::c_long> = const { Cell::new(0) };
}

/// Involuntary context switches of the calling thread since its last call of this function: the kernel gave its core to another thread
/// although it could have run, because threads share the core or because it yielded. 0 if the kernel does not say.
pub fn times_preempted() -> u32 {
    // SAFETY: it consists of numbers, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: writes to `usage`. It is no cancellation point (pthreads(7)).
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return 0;
    }
    usage.ru_nivcsw.wrapping_sub(LAST_COUNT.replace(usage.ru_nivcsw)).try_into().unwrap_or(u32::MAX)
}
