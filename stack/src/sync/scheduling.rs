#![allow(unsafe_code)]
//! Scheduling of a thread: of one for which others wait, and of one that looks for work again and again.

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

/// Lets the calling thread run as soon as it is woken.
///
/// Asks for the shortest time slice: when the thread wakes, Linux 6.12 and later let it preempt a thread with a longer slice. And
/// switches off the 50 us by which the kernel otherwise delays timers to save wake-ups. Where the kernel or the thread's policy
/// knows no slices, at most the latter changes.
pub fn wake_at_once() {
    // SAFETY: only a number is passed. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    let mut attr = Attr::default();
    // SAFETY: writes `attr`, whose size is passed.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size_of::<Attr>(), 0) };
    if got != 0 || attr.policy != OTHER {
        return;
    }
    attr.runtime_ns = SHORTEST_NS;
    // SAFETY: reads `attr`, whose size is in it. Older kernels ignore the slice, and a refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// The number of the calling thread, which is not 0 (gettid(2)).
pub fn thread_number() -> u32 {
    // SAFETY: a number. It cannot fail, and is no cancellation point.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

thread_local! {
    /// How often the kernel took the core from this thread, at the last look.
    static TAKEN: Cell<libc::c_long> = const { Cell::new(0) };
}

/// How often the kernel gave the calling thread's core to another one since the last call, while the thread could run: because it has
/// to share the core, or because it yielded it.
pub fn times_preempted() -> u32 {
    // SAFETY: a structure of numbers, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: writes the structure. No cancellation point (pthreads(7)).
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return 0;
    }
    usage.ru_nivcsw.wrapping_sub(TAKEN.replace(usage.ru_nivcsw)).try_into().unwrap_or(u32::MAX)
}
