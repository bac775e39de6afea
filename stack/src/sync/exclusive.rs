//! A value with one holder at a time, which locks it for a call or moves it out for longer.
//!
//! For a call a thread *locks* the value, like a mutex. A holder that needs it over several calls *borrows* it: the value moves to the
//! holder, no lock is held, and other threads wait until any thread gives it back ([`Exclusive::give_back`]). A holder that keeps it for
//! good *takes* it: then other threads are refused instead.
//!
//! A thread that has the value, in whichever way, is refused when it asks for it again: it would wait for itself. So a holder may
//! run unknown code (an iterator or closure of the program) while it has the value.
//!
//! The lock is a [`Claim`]: the thread that locks the value again and again executes no atomic read-modify-write. The claim is
//! never dropped, only released, so the value stays usable after a panic of a holder.

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::claim::{Claim, Claimed, Refused, thread_number};
use super::primitive::{Condvar, Mutex};

/// Why a value is not available.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// The calling thread has it.
    Inside,
    /// It was taken.
    Taken,
}

/// Threads that can have the bias, one after the other: each costs memory in each value. For others this is an ordinary lock.
const OWNERS: usize = 2;

/// A value for one holder at a time.
pub struct Exclusive<T> {
    state: Claim<State<T>, OWNERS>,
    /// Held by a waiting thread from before it finds the value borrowed until it sleeps, so that it misses no return.
    falling_asleep: Mutex<()>,
    returned: Condvar,
}

/// The value, or who has it.
struct State<T> {
    /// The value, while it is here.
    value: Option<T>,
    /// The thread that borrowed it; 0: it is here, or was taken.
    borrower: u64,
    /// Whether threads wait until it comes back.
    waited_for: bool,
}

/// A locked value.
pub struct Locked<'a, T> {
    /// Taken only by `drop`.
    state: Option<Claimed<'a, State<T>, OWNERS>>,
}

impl<T> Exclusive<T> {
    /// Makes a place for `value`; `None`: as if the value had been taken.
    pub fn new(value: Option<T>) -> Self {
        Self {
            state: Claim::with_owners(State { value, borrower: 0, waited_for: false }),
            falling_asleep: Mutex::new(()),
            returned: Condvar::new(),
        }
    }

    /// Locks the value; waits while another thread has it.
    ///
    /// # Errors
    /// [`Unavailable`].
    #[inline(always)]
    pub fn lock(&self) -> Result<Locked<'_, T>, Unavailable> {
        let locked = self.state()?;
        if locked.state().value.is_some() { Ok(locked) } else { self.wait(locked) }
    }

    /// Locks the value if it is here and no thread has locked it.
    pub fn try_lock(&self) -> Option<Locked<'_, T>> {
        let locked = Locked { state: Some(self.state.try_take()?) };
        locked.state().value.is_some().then_some(locked)
    }

    /// Moves the value to the caller, who gives it back; other threads wait for it meanwhile.
    ///
    /// # Errors
    /// [`Unavailable`].
    #[inline]
    pub fn borrow(&self) -> Result<T, Unavailable> {
        let mut locked = self.lock()?;
        let state = locked.state_mut();
        state.borrower = thread_number();
        state.value.take().ok_or(Unavailable::Taken)
    }

    /// Moves the value to the caller; other threads are refused until it is given back.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn take(&self) -> Result<T, Unavailable> {
        self.lock()?.state_mut().value.take().ok_or(Unavailable::Taken)
    }

    /// Gives a value back that was borrowed or taken.
    ///
    /// # Panics
    /// If the value is here.
    #[inline]
    pub fn give_back(&self, value: T) {
        let mut locked = self.state().expect("no thread has locked a value that is not here");
        let state = locked.state_mut();
        assert!(state.value.is_none(), "a value is given back once");
        (state.value, state.borrower) = (Some(value), 0);
        if core::mem::take(&mut state.waited_for) {
            drop(locked);
            self.wake();
        }
    }

    /// Locks the state; the value may not be here.
    #[inline(always)]
    fn state(&self) -> Result<Locked<'_, T>, Unavailable> {
        let state = match self.state.try_take() {
            Some(state) => state,
            None => self.contend()?,
        };
        Ok(Locked { state: Some(state) })
    }

    /// Waits for the lock, which another thread has or wants.
    #[cold]
    fn contend(&self) -> Result<Claimed<'_, State<T>, OWNERS>, Unavailable> {
        self.state.take().map_err(|refused| match refused {
            Refused::Inside => Unavailable::Inside,
            Refused::Dead => unreachable!("it is always released"),
        })
    }

    /// Waits until the borrowed value is given back.
    #[cold]
    fn wait<'a>(&'a self, locked: Locked<'a, T>) -> Result<Locked<'a, T>, Unavailable> {
        drop(locked);
        let me = thread_number();
        let mut falling_asleep = self.falling_asleep.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut locked = self.state()?;
            let state = locked.state_mut();
            match state.borrower {
                _ if state.value.is_some() => return Ok(locked),
                0 => return Err(Unavailable::Taken),
                borrower if borrower == me => return Err(Unavailable::Inside),
                _ => state.waited_for = true,
            }
            drop(locked);
            falling_asleep = self.returned.wait(falling_asleep).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all waiting threads at once, because unlocking the value wakes none.
    #[cold]
    fn wake(&self) {
        drop(self.falling_asleep.lock());
        self.returned.notify_all();
    }
}

impl<T> Locked<'_, T> {
    #[inline]
    fn state(&self) -> &State<T> {
        self.state.as_ref().expect("only drop takes it")
    }
    #[inline]
    fn state_mut(&mut self) -> &mut State<T> {
        self.state.as_mut().expect("only drop takes it")
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.state().value.as_ref().expect("a locked value is here")
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.state_mut().value.as_mut().expect("a locked value is here")
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            state.release_shared();
        }
    }
}

impl<T> fmt::Debug for Exclusive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Locked<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::claim::BIAS_AFTER;
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

    // Goal: the bias goes to a thread that locks the value again and again, and comes back to it after another one has had its
    // turn; who has the value keeps the others out at each step.
    #[test]
    fn the_bias_changes_hands_and_nobody_else_gets_in() {
        let value = Exclusive::new(Some(0));
        let again_and_again = || {
            for _ in 0..2 * BIAS_AFTER {
                let mut locked = value.lock().unwrap();
                *locked += 1;
                assert_eq!(value.lock().unwrap_err(), Unavailable::Inside);
                assert_eq!(value.take(), Err(Unavailable::Inside));
            }
            let borrowed = value.borrow().unwrap();
            assert_eq!(value.lock().unwrap_err(), Unavailable::Inside);
            value.give_back(borrowed);
        };
        for _ in 0..3 {
            again_and_again();
            let locked = value.lock().unwrap();
            std::thread::scope(|s| {
                s.spawn(|| assert!(value.try_lock().is_none(), "two have the value"));
            });
            drop(locked);
            std::thread::scope(|s| {
                s.spawn(again_and_again);
            });
        }
        assert_eq!(value.take(), Ok(6 * 2 * BIAS_AFTER));
    }

    #[test]
    fn a_panic_of_a_thread_with_the_bias_leaves_it_usable_for_all() {
        let value = Exclusive::new(Some(1));
        (0..2 * BIAS_AFTER).for_each(|_| drop(value.lock().unwrap()));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _locked = value.lock().unwrap();
            panic!("while it is locked");
        }));
        assert!(panicked.is_err());
        assert_eq!(value.lock().map(|v| *v), Ok(1));
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(value.lock().map(|v| *v), Ok(1)));
        });
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

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Checks interleavings with at most three preemptions, which takes seconds; all of them would take hours.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(3);
        checker.check(model);
    }

    /// What two threads that hold the value at once would disturb.
    #[derive(Default)]
    struct Shared(AtomicU32);

    impl Shared {
        fn alone(&self) {
            assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "two have the value");
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The calling thread has the bias, and does `mine` while another thread does `yours`. Both add 1 to the value.
    fn beside(mine: fn(&Exclusive<u32>, &Shared), yours: fn(&Exclusive<u32>, &Shared)) {
        check(move || {
            let both = Arc::new((Exclusive::new(Some(0)), Shared::default()));
            both.0.state.bias();
            let other = {
                let both = both.clone();
                loom::thread::spawn(move || yours(&both.0, &both.1))
            };
            mine(&both.0, &both.1);
            other.join().unwrap();
            assert_eq!(both.0.take(), Ok(2));
        });
    }

    fn lock(value: &Exclusive<u32>, shared: &Shared) {
        let mut locked = value.lock().unwrap();
        shared.alone();
        *locked += 1;
        assert_eq!(value.lock().unwrap_err(), Unavailable::Inside);
        shared.alone();
    }

    fn borrow(value: &Exclusive<u32>, shared: &Shared) {
        let borrowed = value.borrow().unwrap();
        shared.alone();
        value.give_back(borrowed + 1);
    }

    #[test]
    fn the_thread_with_the_bias_and_another_lock() {
        beside(lock, lock);
    }

    #[test]
    fn the_thread_with_the_bias_borrows_and_another_waits() {
        beside(borrow, lock);
    }

    #[test]
    fn another_borrows_and_the_thread_with_the_bias_waits() {
        beside(lock, borrow);
    }

    /// A lock that is tried gets the value or not; nobody waits for it.
    #[test]
    fn the_thread_with_the_bias_tries_while_another_locks() {
        beside(
            |value, shared| {
                let tried = value.try_lock().map(|mut locked| {
                    shared.alone();
                    *locked += 1;
                });
                if tried.is_none() {
                    lock(value, shared);
                }
            },
            lock,
        );
    }

    /// Who keeps the value refuses the thread that comes later, also if that one has the bias; it comes back from another thread.
    #[test]
    fn one_takes_it_and_gives_it_back() {
        check(|| {
            let value = Arc::new(Exclusive::new(Some(0)));
            value.state.bias();
            let other = {
                let value = value.clone();
                loom::thread::spawn(move || {
                    let taken = value.take().unwrap();
                    value.give_back(taken + 1);
                })
            };
            match value.lock() {
                Ok(mut locked) => *locked += 1,
                Err(refused) => assert_eq!(refused, Unavailable::Taken),
            }
            other.join().unwrap();
            assert!(matches!(value.take(), Ok(1 | 2)));
        });
    }
}
