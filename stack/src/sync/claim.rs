//! A claim on a value: one holder at a time, with a way in for the thread that takes it all the time which costs
//! no atomic read-modify-write.
//!
//! A poll-mode core takes and leaves its shard millions of times a second; a control call wants it hardly ever.
//! So a claim leans to a thread: one that took it [`LEAN_AFTER`] times in a row becomes its *owner* and from then on
//! says "I am inside" with a plain store, and looks whether somebody waits ([`super::asymmetric`]). Everybody else
//! announces itself, takes the lock and waits until the owner is not inside. The owner does not have to come by for
//! that: if it never takes the claim again, nobody notices.
//!
//! Why the value has one holder at a time: whoever is not the owner holds `lock`, and while there is an owner it
//! also counts in `waiting` from before its heavy fence to the end of its hold. An owner that finds `waiting` zero
//! behind its light fence either entered before that heavy fence, and is then seen `inside` and waited for, or
//! after the count went down again, which is released and acquired. `owner` changes only under `lock` with the
//! owner kept out.
//!
//! A thread may lose the claim between finding itself the owner and saying that it is inside. So it looks again behind
//! the fence whether the claim still leans to it; and each thread that ever was the owner has an `inside` of its own,
//! so that one that comes too late takes nothing back that the next owner has said. There are [`SEATS`] of them: the
//! claim leans to no further thread.
//!
//! A thread that holds the claim is refused when it asks again: two references to one value would be undefined. Whoever
//! is done *releases* the claim. One that is dropped instead, as a panic does, leaves a value that may be half changed:
//! then the claim is dead, and nobody gets it again. That costs nothing, because a dead claim is one whose lock is never
//! given back.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::asymmetric::{heavy, light, prepare};
use super::primitive::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Takings in a row, by one thread, after which a claim leans to it.
pub const LEAN_AFTER: u32 = 64;

/// Threads that a claim can lean to, one after the other, in all its life.
pub const SEATS: usize = if cfg!(loom) { 2 } else { 16 };
/// Above the number of a thread in `owner`: its seat. Addresses of programs are below.
const SEAT_SHIFT: u32 = 56;
const NUMBER: u64 = (1 << SEAT_SHIFT) - 1;

/// In `lock`: nobody holds it, somebody does, nobody will ever again.
const FREE: u32 = 0;
const HELD: u32 = 1;
const DEAD: u32 = 2;

/// Why [`Claim::take`] gives nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The calling thread holds the claim already.
    Inside,
    /// A holder did not release it: it panicked.
    Dead,
}

/// A value that one thread at a time may claim.
pub struct Claim<T> {
    /// `HELD` while somebody who is not the owner holds the claim; `DEAD` at the end.
    lock: AtomicU32,
    /// Who holds `lock`; 0 for nobody. Written under `lock`, so a thread finds its own number only where it is true.
    holder: AtomicU64,
    /// Those who wait for the claim, or hold it while there is an owner: the owner stays out.
    waiting: AtomicU32,
    /// 1 while the owner in this seat holds the claim.
    inside: [AtomicU8; SEATS],
    /// The thread that the claim leans to, and its seat; 0 for none.
    owner: AtomicU64,
    /// Who took the lock last, and how often in a row; written under `lock`.
    last: AtomicU64,
    row: AtomicU32,
    /// Who sits where, for good; written under `lock`.
    seats: [AtomicU64; SEATS],
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached through a `Claimed` alone, and there is one at a time (module comment).
unsafe impl<T: Send> Sync for Claim<T> {}

/// The claim, held until [`Claimed::release`]. Dropping it instead is its end.
pub struct Claimed<'a, T> {
    claim: &'a Claim<T>,
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// From this seat.
    Owner(usize),
    Locked,
    /// With a count in `waiting`.
    Announced,
}

#[cfg(not(loom))]
std::thread_local! {
    static HERE: u8 = const { 0 };
}

/// A number for the calling thread, never 0, that no other living thread has.
#[cfg(not(loom))]
#[inline]
fn thread_number() -> u64 {
    HERE.with(|here| core::ptr::from_ref(here).addr() as u64 & NUMBER)
}

/// The model checker's threads share one of the system's.
#[cfg(loom)]
fn thread_number() -> u64 {
    use core::hash::{Hash, Hasher};
    let mut hash = std::hash::DefaultHasher::new();
    loom::thread::current().id().hash(&mut hash);
    (hash.finish() | 1) & NUMBER
}

impl<T> Claim<T> {
    /// A claim that nobody holds.
    pub fn new(value: T) -> Self {
        prepare();
        Self {
            lock: AtomicU32::new(FREE),
            holder: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            inside: core::array::from_fn(|_| AtomicU8::new(0)),
            owner: AtomicU64::new(0),
            last: AtomicU64::new(0),
            row: AtomicU32::new(0),
            seats: core::array::from_fn(|_| AtomicU64::new(0)),
            value: UnsafeCell::new(value),
        }
    }

    /// Whether somebody waits for the claim: whoever holds it for long should let it go.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Whether a holder panicked: nobody gets the claim any more.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.lock.load(Ordering::Acquire) == DEAD
    }

    /// Takes the claim if it is free and nobody waits for it; not if the calling thread has it.
    #[inline]
    pub fn try_take(&self) -> Option<Claimed<'_, T>> {
        let me = thread_number();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & NUMBER == me { self.enter(owner) } else { self.try_take_lock(me) }
    }

    /// The calling thread found itself the owner, a moment ago.
    #[inline]
    fn enter(&self, owner: u64) -> Option<Claimed<'_, T>> {
        let seat = seat_of(owner);
        // It is this thread alone that writes it.
        if self.inside[seat].load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.inside[seat].store(1, Ordering::Relaxed);
        light();
        // Whoever deposed us has counted down with a release: then the second look sees it.
        if self.waiting.load(Ordering::Acquire) == 0 && self.owner.load(Ordering::Relaxed) == owner {
            return Some(Claimed { claim: self, how: How::Owner(seat) });
        }
        self.inside[seat].store(0, Ordering::Release);
        None
    }

    fn try_take_lock(&self, me: u64) -> Option<Claimed<'_, T>> {
        if self.wanted() || !self.lock_now(me) {
            return None;
        }
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == 0 {
            self.lean(me);
            return Some(Claimed { claim: self, how: How::Locked });
        }
        // It leans to another thread, which may be inside. If not, it leans to nobody for a while.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        heavy();
        if self.inside[seat_of(owner)].load(Ordering::Acquire) != 0 {
            self.holder.store(0, Ordering::Relaxed);
            // Unless the owner has panicked since: dead it stays.
            let _ = self.lock.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed);
            self.waiting.fetch_sub(1, Ordering::Release);
            return None;
        }
        self.owner.store(0, Ordering::Relaxed);
        self.last.store(me, Ordering::Relaxed);
        self.row.store(0, Ordering::Relaxed);
        Some(Claimed { claim: self, how: How::Announced })
    }

    /// Takes the claim; waits until it is free. Those who turn it in a loop stand back for this.
    ///
    /// # Errors
    /// [`Refused::Inside`], [`Refused::Dead`]: it would wait for ever.
    pub fn take(&self) -> Result<Claimed<'_, T>, Refused> {
        let me = thread_number();
        let owner = self.owner.load(Ordering::Relaxed);
        if self.is_dead() {
            return Err(Refused::Dead);
        }
        if owner & NUMBER == me && self.inside[seat_of(owner)].load(Ordering::Relaxed) != 0 {
            return Err(Refused::Inside);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut tries = 0u32;
        while !self.lock_now(me) {
            let refused = match self.lock.load(Ordering::Acquire) {
                DEAD => Some(Refused::Dead),
                _ if self.holder.load(Ordering::Relaxed) == me => Some(Refused::Inside),
                _ => None,
            };
            if let Some(refused) = refused {
                self.waiting.fetch_sub(1, Ordering::Release);
                return Err(refused);
            }
            pause(&mut tries);
        }
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 && owner & NUMBER != me {
            heavy();
            while self.inside[seat_of(owner)].load(Ordering::Acquire) != 0 {
                if self.is_dead() {
                    self.waiting.fetch_sub(1, Ordering::Release);
                    return Err(Refused::Dead);
                }
                pause(&mut tries);
            }
        }
        Ok(Claimed { claim: self, how: How::Announced })
    }

    #[inline]
    fn lock_now(&self, me: u64) -> bool {
        let locked = self.lock.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if locked {
            self.holder.store(me, Ordering::Relaxed);
        }
        locked
    }

    #[inline]
    fn unlock(&self) {
        self.holder.store(0, Ordering::Relaxed);
        self.lock.store(FREE, Ordering::Release);
    }

    /// Under `lock`, without an owner: counts takings in a row.
    #[inline]
    fn lean(&self, me: u64) {
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            self.row.store(0, Ordering::Relaxed);
        }
        self.row.store(self.row.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Under `lock`, without an owner, at the end of a taking that was counted: leans to who took it, if that thread has a seat or
    /// one is free. Not before, as the owner looks at its seat to see whether it has the claim already.
    #[cold]
    fn seat(&self) {
        let me = self.last.load(Ordering::Relaxed);
        let fits = |seat: &AtomicU64| matches!(seat.load(Ordering::Relaxed), who if who == 0 || who == me);
        if let Some(seat) = self.seats.iter().position(fits) {
            self.seats[seat].store(me, Ordering::Relaxed);
            self.owner.store((seat as u64) << SEAT_SHIFT | me, Ordering::Relaxed);
        }
        // Without a seat: not to be asked again at every turn.
        self.row.store(0, Ordering::Relaxed);
    }
}

/// The seat in an `owner` word.
#[inline]
fn seat_of(owner: u64) -> usize {
    (owner >> SEAT_SHIFT) as usize % SEATS
}

/// Waits a little; on a machine with few cores the holder may need this one's.
fn pause(tries: &mut u32) {
    *tries += 1;
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if (*tries).is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
}

impl<T> Claimed<'_, T> {
    /// Gives the claim back.
    #[inline]
    pub fn release(self) {
        let claim = self.claim;
        match self.how {
            How::Owner(seat) => claim.inside[seat].store(0, Ordering::Release),
            How::Locked => {
                if claim.row.load(Ordering::Relaxed) >= LEAN_AFTER {
                    claim.seat();
                }
                claim.unlock();
            }
            How::Announced => {
                claim.unlock();
                claim.waiting.fetch_sub(1, Ordering::Release);
            }
        }
        core::mem::forget(self);
    }
}

impl<T> Drop for Claimed<'_, T> {
    /// It was not released.
    #[cold]
    fn drop(&mut self) {
        let claim = self.claim;
        match self.how {
            // It stays inside, for those who have the lock and wait for it to come out: they see what became of the lock. A
            // swap, as the owner does not hold the lock: the model checker gives a store beside a compare-exchange no order.
            How::Owner(_) => {
                claim.lock.swap(DEAD, Ordering::AcqRel);
            }
            How::Locked | How::Announced => {
                claim.owner.store(0, Ordering::Relaxed);
                claim.holder.store(0, Ordering::Relaxed);
                claim.lock.store(DEAD, Ordering::Release);
                if self.how == How::Announced {
                    claim.waiting.fetch_sub(1, Ordering::Release);
                }
            }
        }
    }
}

impl<T> Deref for Claimed<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one `Claimed` there is (module comment), borrowed for as long as the reference.
        unsafe { &*self.claim.value.get() }
    }
}

impl<T> DerefMut for Claimed<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, borrowed mutably.
        unsafe { &mut *self.claim.value.get() }
    }
}

impl<T> core::fmt::Debug for Claim<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Claim").field("wanted", &self.wanted()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64 as Count};

    // Goal: a thread that found itself the owner, and then lost the claim before it could say that it is inside, stays
    // out, and takes back nothing of the next owner's.
    #[test]
    fn a_deposed_owner_stays_out() {
        let claim = Claim::new(());
        let lean = || (0..=LEAN_AFTER).for_each(|_| claim.try_take().expect("nobody else is here").release());
        lean();
        let stale = claim.owner.load(Ordering::Relaxed);
        assert_eq!(stale & NUMBER, thread_number(), "it leans to this thread");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                claim.try_take().expect("the owner is outside: it is deposed").release();
                let locked = claim.try_take().expect("it leans to nobody");
                assert!(locked.how == How::Locked && claim.enter(stale).is_none(), "two hold the claim");
                locked.release();
                lean();
                let held = claim.try_take().expect("it leans to this thread now");
                assert!(matches!(held.how, How::Owner(_)) && claim.enter(stale).is_none());
                // A third thread must see that the second one is inside, whatever the first one did.
                let third = scope.spawn(|| claim.try_take().map(Claimed::release).is_none());
                assert!(third.join().expect("no panic"), "two hold the claim");
                held.release();
            });
        });
    }

    /// A counter that loses counts if two threads are inside at once.
    fn bump(claim: &mut Claimed<'_, [u64; 16]>) {
        for n in claim.iter_mut() {
            *n += 1;
        }
    }

    #[test]
    fn one_holder_at_a_time() {
        let claim = Claim::new([0u64; 16]);
        let (stop, counted) = (AtomicBool::new(false), Count::new(0));
        let controls = if cfg!(miri) { 5 } else { 2_000 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut mine = 0;
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(mut held) = claim.try_take() {
                            bump(&mut held);
                            held.release();
                            mine += 1;
                        } else {
                            std::thread::yield_now();
                        }
                    }
                    counted.fetch_add(mine, Ordering::Relaxed);
                });
            }
            for _ in 0..controls {
                let mut held = claim.take().expect("it is alive");
                bump(&mut held);
                held.release();
            }
            counted.fetch_add(controls, Ordering::Relaxed);
            stop.store(true, Ordering::Relaxed);
        });
        let total = counted.load(Ordering::Relaxed);
        assert_eq!(*claim.take().expect("it is alive"), [total; 16]);
    }

    #[test]
    fn leans_to_a_thread_and_away_again() {
        let claim = Claim::new(());
        for _ in 0..LEAN_AFTER {
            assert_eq!(claim.owner.load(Ordering::Relaxed), 0);
            claim.try_take().expect("free").release();
        }
        assert_eq!(claim.owner.load(Ordering::Relaxed), thread_number());
        claim.take().expect("free").release();
        let held = claim.try_take().expect("free");
        assert!(matches!(held.how, How::Owner(_)), "a control call of its own does not change the owner");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(claim.try_take().is_none(), "the owner is inside"));
        });
        held.release();
        std::thread::scope(|scope| {
            scope.spawn(|| claim.try_take().expect("the owner is outside, and need not come by").release());
        });
        assert_eq!(claim.owner.load(Ordering::Relaxed), 0);
    }

    // Goal: however often a thread took it before, and whether it leans to it by then, it does not get what it has.
    #[test]
    fn a_claim_that_a_thread_has_is_refused_at_every_taking() {
        let claim = Claim::new(());
        for taking in 0..3 * LEAN_AFTER {
            let held = claim.try_take().expect("free");
            assert!(claim.try_take().is_none(), "two hold the claim, at taking {taking}");
            assert!(matches!(claim.take(), Err(Refused::Inside)), "taking {taking}");
            assert!(claim.try_take().is_none(), "two hold the claim, at taking {taking}");
            held.release();
        }
    }

    #[test]
    fn nobody_enters_while_somebody_waits() {
        let claim = Claim::new(());
        let held = claim.take().expect("free");
        assert!(claim.wanted() && claim.try_take().is_none());
        held.release();
        assert!(!claim.wanted());
        claim.try_take().expect("free").release();
    }

    /// Claims in each way in which one can be held.
    fn ways(each: impl Fn(&Claim<u32>, Claimed<'_, u32>)) {
        let lean = |claim: &Claim<u32>| {
            (0..LEAN_AFTER).for_each(|_| claim.try_take().expect("free").release());
        };
        let claim = Claim::new(0);
        each(&claim, claim.try_take().expect("free"));
        let claim = Claim::new(0);
        each(&claim, claim.take().expect("free"));
        let claim = Claim::new(0);
        lean(&claim);
        let held = claim.try_take().expect("free");
        assert!(matches!(held.how, How::Owner(_)));
        each(&claim, held);
        let claim = Claim::new(0);
        lean(&claim);
        each(&claim, claim.take().expect("an owner makes control calls, too"));
        let claim = Claim::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| lean(&claim));
        });
        let held = claim.try_take().expect("the owner is outside: it is deposed");
        assert!(held.how == How::Announced);
        each(&claim, held);
    }

    // Goal: the thread that holds a claim does not get it again, by whichever call, and has it still.
    #[test]
    fn a_claim_taken_again_on_one_thread_is_refused() {
        ways(|claim, mut held| {
            for _ in 0..3 {
                assert!(claim.try_take().is_none());
                assert_eq!(claim.take().err(), Some(Refused::Inside));
            }
            *held += 1;
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(claim.try_take().is_none(), "the first one holds it still"));
            });
            held.release();
            let held = claim.take().expect("it was given back once, and is free");
            assert_eq!(*held, 1);
            held.release();
            assert!(!claim.wanted());
        });
    }

    // Goal: after a panic of a holder nobody gets the claim, on whichever thread, and nobody waits for it.
    #[test]
    fn a_panic_in_a_held_claim_is_its_end() {
        ways(|claim, held| {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _held = held;
                std::panic::resume_unwind(Box::new(()));
            }));
            assert!(panicked.is_err() && claim.is_dead() && !claim.wanted());
            let refused = || {
                assert!(claim.try_take().is_none());
                assert_eq!(claim.take().err(), Some(Refused::Dead));
                assert!(!claim.wanted());
            };
            refused();
            std::thread::scope(|scope| {
                scope.spawn(refused);
            });
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32 as Flag;

    /// The owner turns, another thread has a control call: never both inside.
    #[test]
    fn owner_and_control_call() {
        loom::model(|| {
            let claim = Arc::new(Claim::new(()));
            let held = Arc::new(Flag::new(0));
            claim.owner.store(thread_number(), Ordering::Relaxed);
            let other = {
                let (claim, held) = (claim.clone(), held.clone());
                loom::thread::spawn(move || {
                    let guard = claim.take().unwrap();
                    assert_eq!(held.fetch_add(1, Ordering::Relaxed), 0);
                    held.fetch_sub(1, Ordering::Relaxed);
                    guard.release();
                })
            };
            for _ in 0..2 {
                if let Some(guard) = claim.try_take() {
                    assert_eq!(held.fetch_add(1, Ordering::Relaxed), 0);
                    held.fetch_sub(1, Ordering::Relaxed);
                    guard.release();
                }
            }
            other.join().unwrap();
        });
    }

    /// The owner panics inside while others wait for it (`true`), or ask in passing: all are refused, for ever.
    fn the_owner_panics_beside<const OTHERS: usize>(waits: [bool; OTHERS]) {
        let claim = Arc::new(Claim::new(()));
        claim.owner.store(thread_number(), Ordering::Relaxed);
        let others = waits.map(|waits| {
            let claim = claim.clone();
            loom::thread::spawn(move || {
                // Before the owner went in one of them may have been let in.
                let taken = if waits { claim.take().ok() } else { claim.try_take() };
                if let Some(held) = taken {
                    held.release();
                }
            })
        });
        if let Some(held) = claim.try_take() {
            drop(held);
            assert_eq!(claim.take().err(), Some(Refused::Dead));
        }
        for other in others {
            other.join().unwrap();
        }
        if claim.is_dead() {
            assert!(claim.try_take().is_none() && !claim.wanted());
        } else {
            claim.try_take().expect("free").release();
        }
    }

    #[test]
    fn a_panic_of_the_owner_while_one_waits() {
        loom::model(|| the_owner_panics_beside([true]));
    }

    #[test]
    fn a_panic_of_the_owner_while_one_asks() {
        loom::model(|| the_owner_panics_beside([false]));
    }

    /// Every interleaving of three threads takes hours.
    #[test]
    fn a_panic_of_the_owner_while_one_waits_and_one_asks() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| the_owner_panics_beside([true, false]));
    }

    /// One that holds the lock panics while the owner goes in and out.
    #[test]
    fn a_panic_in_a_control_call() {
        loom::model(|| {
            let claim = Arc::new(Claim::new(()));
            let died = Arc::new(Flag::new(0));
            claim.owner.store(thread_number(), Ordering::Relaxed);
            let other = {
                let (claim, died) = (claim.clone(), died.clone());
                loom::thread::spawn(move || {
                    let held = claim.take().unwrap();
                    died.store(1, Ordering::Relaxed);
                    drop(held);
                })
            };
            for _ in 0..2 {
                if let Some(held) = claim.try_take() {
                    assert_eq!(died.load(Ordering::Relaxed), 0, "a dead claim was taken");
                    // The thread that has it asks again.
                    assert!(claim.try_take().is_none());
                    held.release();
                }
            }
            other.join().unwrap();
            assert!(claim.is_dead() && claim.try_take().is_none() && !claim.wanted());
        });
    }
}
