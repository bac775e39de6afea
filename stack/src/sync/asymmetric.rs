//! A pair of fences for two sides that meet unequally often: one runs millions of times a second, the other
//! hardly ever.
//!
//! A full fence on both sides orders "store mine, then look at yours" (Dekker). [`light`] on the frequent side and
//! [`heavy`] on the rare one do the same: `heavy` makes every thread of the process pass a full fence, by
//! `membarrier(2)`, so that `light` need only hold the compiler back. A full fence waits for every store before it,
//! and right after a burst to a shared-memory port those take as long as a cache line takes between two cores.
//! Where the kernel has no `membarrier`, both are full fences.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// Whether the kernel does the work: 0 not asked yet, 1 yes, 2 no.
#[cfg(not(loom))]
static SUPPORT: AtomicU8 = AtomicU8::new(0);

#[cfg(not(loom))]
const YES: u8 = 1;
#[cfg(not(loom))]
const NO: u8 = 2;

/// The frequent side's fence.
#[cfg(not(loom))]
#[inline(always)]
pub fn light() {
    if SUPPORT.load(Ordering::Relaxed) == YES {
        compiler_fence(Ordering::SeqCst);
    } else {
        // Also while nobody has asked the kernel: stronger than needed then.
        fence(Ordering::SeqCst);
    }
}

/// The rare side's fence: a system call.
#[cfg(not(loom))]
pub fn heavy() {
    fence(Ordering::SeqCst);
    if prepare() == YES {
        assert!(membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED), "membarrier(2) worked before");
    }
}

/// Asks the kernel once, so that [`light`] is light from then on.
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

/// Under the model checker both sides are full fences.
#[cfg(loom)]
pub fn light() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

/// Under the model checker both sides are full fences.
#[cfg(loom)]
pub fn heavy() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

/// Nothing to prepare under the model checker.
#[cfg(loom)]
pub fn prepare() -> u8 {
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::sync::Barrier;

    /// Store mine, fence, look at yours: never do both sides miss the other.
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
