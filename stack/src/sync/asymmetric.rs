//! Asymmetric fences (P1202 proposes them for C++), for two sides of unequal frequency: one runs millions of times a second, the
//! other rarely.
//!
//! A full fence on both sides orders "store mine, then load yours" (Dekker). [`light`] on the frequent side and [`heavy`] on the
//! rare one do the same: `heavy` makes every thread of the process pass a full fence, by `membarrier(2)`, so that `light` can be
//! a compiler fence. The gain: a full fence waits for every store before it, and right after a burst to a shared-memory port
//! each of these stores waits for a cache line from another core. Where the kernel has no `membarrier`, both are full fences.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// Whether the kernel has `membarrier`: 0 not checked yet, 1 yes, 2 no.
#[cfg(not(loom))]
static SUPPORT: AtomicU8 = AtomicU8::new(0);

#[cfg(not(loom))]
const YES: u8 = 1;
#[cfg(not(loom))]
const NO: u8 = 2;

/// The frequent side's fence.
#[cfg(not(loom))]
#[inline]
pub fn light() {
    if SUPPORT.load(Ordering::Relaxed) == YES {
        compiler_fence(Ordering::SeqCst);
    } else {
        // Also before `prepare`: stronger than needed then.
        fence(Ordering::SeqCst);
    }
}

/// The rare side's fence: a system call.
///
/// Aborts the process if the kernel now refuses the call that it granted before: otherwise two threads could hold one shard.
#[cfg(not(loom))]
pub fn heavy() {
    fence(Ordering::SeqCst);
    if prepare() == YES && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        let error = std::io::Error::last_os_error();
        eprintln!(
            "roce: membarrier(2), which the system agreed to, fails: {error}. Threads cannot be kept apart without it, so the \
             process ends here. Let a filter of system calls (seccomp) permit it always, or never."
        );
        std::process::abort();
    }
}

/// Same as [`heavy`], for the threads of all processes that [joined](join): it orders accesses to memory that processes share. If the
/// kernel cannot do that, this returns without a fence in other threads, and a wake-up may be lost: the caller checks again later.
#[cfg(not(loom))]
pub fn heavy_between_processes() {
    fence(Ordering::SeqCst);
    if !cfg!(miri) {
        membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    }
}

/// Makes the threads of this process pass a full fence at each [`heavy_between_processes`] of any process, so that a compiler
/// fence is enough on this side.
#[cfg(not(loom))]
pub fn join() {
    if !cfg!(miri) {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
    }
}

/// Registers with the kernel once; from then on [`light`] is a compiler fence. Returns whether the kernel agreed, as `SUPPORT`.
#[cfg(not(loom))]
pub fn prepare() -> u8 {
    match SUPPORT.load(Ordering::Acquire) {
        0 => {
            let registered = !cfg!(miri) && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
            let support = if registered { YES } else { NO };
            SUPPORT.store(support, Ordering::Release);
            support
        }
        known => known,
    }
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Under loom both sides are full fences.
#[cfg(loom)]
pub fn light() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

/// Under loom there is one process.
#[cfg(loom)]
pub fn heavy_between_processes() {
    heavy();
}

/// Under loom there is one process.
#[cfg(loom)]
pub fn join() {}

/// Under loom both sides are full fences.
#[cfg(loom)]
pub fn heavy() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

/// Nothing to prepare under loom.
#[cfg(loom)]
pub fn prepare() -> u8 {
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::sync::Barrier;

    /// Goal: if the system takes `membarrier` away from a process that relies on it, that process ends with a message. The test
    /// starts itself again as that process.
    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn a_membarrier_that_fails_ends_the_process_with_a_message() {
        use std::os::unix::process::ExitStatusExt;
        const AGAIN: &str = "ROCE_TEST_NO_MEMBARRIER";
        if std::env::var_os(AGAIN).is_some() {
            let granted = prepare() == YES;
            if granted && refuse_membarrier() {
                heavy();
            }
            // No membarrier here (77), or heavy() returned (2).
            std::process::exit(if granted { 2 } else { 77 });
        }
        let name = "sync::asymmetric::tests::a_membarrier_that_fails_ends_the_process_with_a_message";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(AGAIN, "1")
            .output()
            .unwrap();
        if output.status.code() == Some(77) {
            eprintln!("SKIPPED {name}: the system has no membarrier(2)");
            return;
        }
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{words}");
        assert!(words.contains("membarrier(2)") && words.contains("seccomp"), "{words}");
    }

    /// Makes `membarrier` fail with EPERM for this process from now on, for good.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn refuse_membarrier() -> bool {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let (load, jump_eq, give) = (
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::BPF_RET | libc::BPF_K,
        );
        let mut program = [
            step(load, 0, 0, 0), // the call's number
            step(jump_eq, 0, 1, libc::SYS_membarrier as u32),
            step(give, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the program is one of this length that lives over the call, which copies it.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        }
    }

    /// Store mine, fence, load yours: at least one side sees the other's store.
    #[test]
    fn one_side_always_sees_the_other() {
        prepare();
        let (mine, yours) = (AtomicU32::new(0), AtomicU32::new(0));
        let (start, end) = (Barrier::new(2), Barrier::new(2));
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            let rare = scope.spawn(|| {
                let mut seen = Vec::new();
                for round in 1..=rounds {
                    start.wait();
                    yours.store(round, Ordering::Relaxed);
                    heavy();
                    seen.push(mine.load(Ordering::Relaxed) == round);
                    end.wait();
                }
                seen
            });
            for round in 1..=rounds {
                start.wait();
                mine.store(round, Ordering::Relaxed);
                light();
                seen.push(yours.load(Ordering::Relaxed) == round);
                end.wait();
            }
            for (round, (a, b)) in seen.iter().zip(rare.join().expect("the rare side")).enumerate() {
                assert!(*a || b, "round {round}: neither side saw the other");
            }
        });
    }
}
