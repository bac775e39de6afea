//! Which process made an object. A forked child has a copy of every object, but of the threads only the calling one. What depends on other
//! threads or processes (a socket and its file, a device, a lock that another thread held) remains the parent's.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

/// Forks between this process and the first one that called [`Process::this`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process.
    pub fn this() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(count_forks);
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Number of forks between this process and the first one that called [`Process::this`].
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether the caller runs in that process, and not in a forked child of it. One load.
    #[inline]
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(not(miri))]
fn count_forks() {
    unsafe extern "C" fn before() {
        super::unforked::forking();
    }
    unsafe extern "C" fn in_parent() {
        super::unforked::forked();
    }
    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        super::unforked::let_go();
    }
    // SAFETY: the handlers change atomics, and make system calls, which is allowed between fork and return. It fails only without
    // memory.
    let ret = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    assert_eq!(ret, 0, "no memory to remember a fork handler");
}

/// Miri has no fork.
#[cfg(miri)]
fn count_forks() {}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// Whether `holds` in a forked child of this process.
    fn in_fork(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only loads and stores numbers, makes system calls and exits, without running anything of the
        // parent's.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: as above. A child that waits for ever ends by a signal.
            unsafe { libc::alarm(120) };
            let right = holds();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if right { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for that child; the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) == (true, 7)
    }

    #[test]
    fn a_fork_is_another_process() {
        let me = Process::this();
        assert!(in_fork(|| !me.is_this() && Process::this().is_this() && Process::this() != me));
        assert!(me.is_this() && Process::this() == me);
    }

    /// Goal: a forked child inherits its parent's registration for `membarrier`, and does not wait for a thread that it does not have.
    #[test]
    fn a_fork_locks_what_another_thread_of_its_parent_has_the_bias_of() {
        use super::super::claim::BIAS_AFTER;
        use super::super::exclusive::Exclusive;
        let value = Exclusive::new(Some(1));
        let (biased, forked) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let right = std::thread::scope(|s| {
            s.spawn(|| {
                (0..2 * BIAS_AFTER).for_each(|_| drop(value.lock().expect("nobody else has it")));
                biased.wait();
                forked.wait();
            });
            biased.wait();
            let right = in_fork(|| (0..2).all(|_| value.lock().is_ok_and(|value| *value == 1)));
            forked.wait();
            right
        });
        assert!(right, "the fork did not get the value");
    }
}
