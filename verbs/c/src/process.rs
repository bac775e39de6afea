//! State that belongs to a process. A forked child counts as another process: it does not see its parent's state, and does not wait for a
//! lock of its parent, which may be held by a thread that the child does not have.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::guard::lock;

/// Number of forks between the process that loaded the library and this one.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// Number of forks between the process that loaded the library and this one.
#[inline]
pub(crate) fn depth() -> u32 {
    DEPTH.load(Ordering::Relaxed)
}

/// A value that each process has for itself, created at its first use.
pub(crate) struct OfProcess<T> {
    made: AtomicPtr<Made<T>>,
}

/// A value and the process that created it.
struct Made<T> {
    /// The depth of the process that created it.
    depth: u32,
    value: T,
}

impl<T: Default + Send + Sync> OfProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { made: AtomicPtr::new(null_mut()) }
    }

    /// The value of this process, if it has been created.
    pub(crate) fn known(&'static self) -> Option<&'static T> {
        Self::of_this(self.made.load(Ordering::Acquire))
    }

    /// The value of this process. Creates it if necessary. The value of the parent stays unchanged.
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
                // SAFETY: it was created here; another thread of this process stored its value first, and no thread has seen ours.
                drop(unsafe { Box::from_raw(ours) });
                theirs
            }
        };
        // SAFETY: a stored value is never freed.
        unsafe { &(*made).value }
    }

    /// The value, if it belongs to this process.
    fn of_this(made: *const Made<T>) -> Option<&'static T> {
        // SAFETY: NULL, or stored by `get`; a stored value is never freed.
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

/// Installs [`forked`] as a handler of forks, once.
fn count_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: installs a handler that may run at any fork, because it only increments a number.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
}

/// Runs in a forked child before fork returns.
extern "C" fn forked() {
    DEPTH.fetch_add(1, Ordering::Relaxed);
}
