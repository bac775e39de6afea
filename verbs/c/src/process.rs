//! What belongs to a process. A forked child is a program of its own: it finds nothing of what its parent had, and waits for no lock
//! of its parent's, which a thread may hold that the child does not have.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::guard::lock;

/// Forks between the process that loaded the library and this one.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// Forks between the process that loaded the library and this one.
#[inline]
pub(crate) fn depth() -> u32 {
    DEPTH.load(Ordering::Relaxed)
}

/// A value of which each process has its own, made when it is first asked for.
pub(crate) struct OfProcess<T> {
    made: AtomicPtr<Made<T>>,
}

struct Made<T> {
    /// Of the process that made it.
    depth: u32,
    value: T,
}

impl<T: Default + Send + Sync> OfProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { made: AtomicPtr::new(null_mut()) }
    }

    /// The value of this process, if there is one.
    pub(crate) fn known(&'static self) -> Option<&'static T> {
        Self::of_this(self.made.load(Ordering::Acquire))
    }

    /// The value of this process. What its parent had stays as it is.
    pub(crate) fn get(&'static self) -> &'static T {
        count_forks();
        let before = self.made.load(Ordering::Acquire);
        if let Some(value) = Self::of_this(before) {
            return value;
        }
        let ours = Box::into_raw(Box::new(Made { depth: depth(), value: T::default() }));
        let made = match self.made.compare_exchange(before, ours, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => ours,
            Err(theirs) => {
                // SAFETY: it was made here; another thread of this process was faster, and nobody has ours.
                drop(unsafe { Box::from_raw(ours) });
                theirs
            }
        };
        // SAFETY: what is stored is never freed.
        unsafe { &(*made).value }
    }

    fn of_this(made: *const Made<T>) -> Option<&'static T> {
        // SAFETY: NULL, or stored by `get`: such a value is never freed.
        let made = unsafe { made.as_ref() }?;
        (made.depth == depth()).then_some(&made.value)
    }
}

impl<T: Default + Send> OfProcess<Mutex<T>> {
    /// Locks the value of this process.
    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        lock(self.get())
    }
}

fn count_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: a handler that may run at any fork: it adds to a number.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
}

/// In a forked child, before it goes on.
extern "C" fn forked() {
    DEPTH.fetch_add(1, Ordering::Relaxed);
}
