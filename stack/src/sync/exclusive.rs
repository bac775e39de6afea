//! A value for one holder at a time, who has it for a call or takes it along.
//!
//! For a call a thread *locks* the value, as a mutex. A holder that needs it over several calls *borrows* it: the value moves
//! to the holder, no lock is held, and other threads wait until it comes back ([`Exclusive::give_back`]), from whichever
//! thread. A holder that keeps it for good *takes* it: then other threads are refused instead.
//!
//! A thread that has the value, either way, is refused when it asks again: it would wait for itself. So a caller may run code
//! that it does not know while it has the value.

use core::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use super::claim::thread_number;
use super::primitive::{AtomicU64, Ordering};

/// Why a value cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// The calling thread has it.
    Inside,
    /// It was taken.
    Taken,
}

/// A value for one holder at a time.
#[derive(Debug)]
pub struct Exclusive<T> {
    place: Mutex<Place<T>>,
    returned: Condvar,
    /// The thread that has locked it; 0 for none. A thread finds its own number only while it has.
    holder: AtomicU64,
}

#[derive(Debug)]
struct Place<T> {
    /// The value, while it is here.
    value: Option<T>,
    /// The thread that borrowed it; 0: it is here, or was taken.
    borrower: u64,
    /// Threads that wait until it comes back.
    waiting: u32,
}

/// A locked value.
#[derive(Debug)]
pub struct Locked<'a, T> {
    place: MutexGuard<'a, Place<T>>,
    holder: &'a AtomicU64,
}

impl<T> Exclusive<T> {
    /// With a value, or as if it had been taken.
    pub fn new(value: Option<T>) -> Self {
        Self {
            place: Mutex::new(Place { value, borrower: 0, waiting: 0 }),
            returned: Condvar::new(),
            holder: AtomicU64::new(0),
        }
    }

    /// Locks the value; waits while another thread has it.
    ///
    /// # Errors
    /// [`Unavailable`].
    #[inline]
    pub fn lock(&self) -> Result<Locked<'_, T>, Unavailable> {
        let place = self.here()?;
        self.holder.store(thread_number(), Ordering::Relaxed);
        Ok(Locked { place, holder: &self.holder })
    }

    /// Locks the value if it is here and no thread has locked it.
    pub fn try_lock(&self) -> Option<Locked<'_, T>> {
        let place = match self.place.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        place.value.as_ref()?;
        self.holder.store(thread_number(), Ordering::Relaxed);
        Some(Locked { place, holder: &self.holder })
    }

    /// Moves the value to the caller, who gives it back; others wait for it meanwhile.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn borrow(&self) -> Result<T, Unavailable> {
        let mut place = self.here()?;
        place.borrower = thread_number();
        place.value.take().ok_or(Unavailable::Taken)
    }

    /// Moves the value to the caller; others are refused until it is given back.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn take(&self) -> Result<T, Unavailable> {
        self.here()?.value.take().ok_or(Unavailable::Taken)
    }

    /// Gives a value back that was borrowed or taken.
    pub fn give_back(&self, value: T) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        (place.value, place.borrower) = (Some(value), 0);
        if place.waiting > 0 {
            // All: who locks it next wakes nobody when it unlocks.
            self.returned.notify_all();
        }
    }

    /// Waits until the value is here and not locked.
    #[inline]
    fn here(&self) -> Result<MutexGuard<'_, Place<T>>, Unavailable> {
        if self.holder.load(Ordering::Relaxed) == thread_number() {
            return Err(Unavailable::Inside);
        }
        // A holder that panicked has left a value that is as good as before.
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.value.is_some() { Ok(place) } else { self.wait(place) }
    }

    #[cold]
    fn wait<'a>(
        &'a self,
        mut place: MutexGuard<'a, Place<T>>,
    ) -> Result<MutexGuard<'a, Place<T>>, Unavailable> {
        let me = thread_number();
        while place.value.is_none() {
            match place.borrower {
                0 => return Err(Unavailable::Taken),
                borrower if borrower == me => return Err(Unavailable::Inside),
                _ => {
                    place.waiting += 1;
                    place = self.returned.wait(place).unwrap_or_else(PoisonError::into_inner);
                    place.waiting -= 1;
                }
            }
        }
        Ok(place)
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.place.value.as_ref().expect("a locked value is here")
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.place.value.as_mut().expect("a locked value is here")
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_thread_that_has_it_is_refused_and_does_not_wait_for_itself() {
        let value = Exclusive::new(Some(1));
        let mut locked = value.lock().unwrap();
        *locked += 1;
        assert_eq!(value.lock().unwrap_err(), Unavailable::Inside);
        assert_eq!(value.borrow(), Err(Unavailable::Inside));
        assert_eq!(value.take(), Err(Unavailable::Inside));
        assert!(value.try_lock().is_none());
        drop(locked);
        assert_eq!(value.borrow(), Ok(2));
        assert_eq!(value.lock().unwrap_err(), Unavailable::Inside);
        assert!(value.try_lock().is_none());
        value.give_back(3);
        assert_eq!(value.take(), Ok(3));
        assert_eq!(value.lock().unwrap_err(), Unavailable::Taken);
        assert_eq!(value.take(), Err(Unavailable::Taken));
        value.give_back(4);
        assert_eq!(value.try_lock().map(|v| *v), Some(4));
    }

    #[test]
    fn others_wait_until_what_was_borrowed_comes_back_from_any_thread() {
        let (value, returned) = (Arc::new(Exclusive::new(Some(0))), Arc::new(AtomicBool::new(false)));
        let borrowed = value.borrow().unwrap();
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    *value.lock().unwrap() += 1;
                    assert!(returned.load(Ordering::Acquire));
                });
            }
            s.spawn(|| {
                returned.store(true, Ordering::Release);
                value.give_back(borrowed);
            });
        });
        assert_eq!(value.take(), Ok(3));
    }

    #[test]
    fn a_panic_of_a_holder_leaves_it_usable() {
        let value = Exclusive::new(Some(1));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _locked = value.lock().unwrap();
            panic!("while it is locked");
        }));
        assert!(panicked.is_err());
        assert_eq!(value.lock().map(|v| *v), Ok(1));
    }

    #[test]
    fn many_threads_count_together() {
        let value = Exclusive::new(Some(0));
        std::thread::scope(|s| {
            for thread in 0..4 {
                let value = &value;
                s.spawn(move || {
                    for i in 0..100 {
                        if (i + thread) % 2 == 0 {
                            *value.lock().unwrap() += 1;
                        } else {
                            let borrowed = value.borrow().unwrap();
                            std::thread::yield_now();
                            value.give_back(borrowed + 1);
                        }
                    }
                });
            }
        });
        assert_eq!(value.take(), Ok(400));
    }
}
