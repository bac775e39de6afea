//! A claim on a value: one holder at a time. It is a biased lock (Kawachiya and others, "Lock Reservation", OOPSLA 2002): the thread
//! that takes it all the time pays no atomic read-modify-write.
//!
//! A poll-mode core takes and releases its shard millions of times a second, and so does a program with the ends of its queues
//! ([`super::exclusive`]); a control call or a second thread wants them rarely. So a thread that took the claim [`BIAS_AFTER`] times in a
//! row becomes its *owner*. The owner sets its `inside` flag with a plain store, then checks whether another thread waits
//! ([`super::asymmetric`]). Any other thread counts itself in `waiting`, takes the lock and waits until the owner is not inside. The owner
//! does not have to cooperate: if it never takes the claim again, no thread waits for it.
//!
//! Why the value has one holder at a time: a thread that does not enter as the owner holds `lock`, and while another thread is the owner it
//! also counts in `waiting` from before its heavy fence to the end of its hold. An owner that finds `waiting` zero after its light fence
//! has two possibilities. It entered before that heavy fence: then the other thread sees it `inside` and waits for it. Or it entered after
//! the count went down again, which is released and acquired. `owner` changes only under `lock` with the owner kept out.
//!
//! The bias may be revoked after a thread found itself the owner and before it sets `inside`. So it checks after the fence that it still is
//! the owner; and each thread that ever was the owner has its own `inside` flag, so that a late thread does not clear the flag of the next
//! owner. There are [`OWNER_SLOTS`] flags, or as many as the type says; no further thread becomes an owner.
//!
//! A thread that holds the claim is refused when it takes it again: two references to one value would be undefined behaviour. A
//! holder *releases* the claim. If it drops the claim instead, as in a panic, the value may be half changed: then the claim is
//! dead, and no thread gets it again. That costs the hot path nothing, because a dead claim is one whose lock is never released.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use super::asymmetric::{heavy, light, prepare};
use super::primitive::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// How many times in a row a thread takes the claim before it becomes the owner.
pub const BIAS_AFTER: u32 = 64;

/// Threads that can become the owner during the life of a claim, one after the other, unless its type sets another number.
pub const OWNER_SLOTS: usize = if cfg!(loom) { 2 } else { 16 };
/// The first bit of the owner slot in `owner`. The thread's number, an address of user space, fits in the bits below.
const SLOT_SHIFT: u32 = 56;
const NUMBER: u64 = (1 << SLOT_SHIFT) - 1;

/// After this many failed tries a waiting thread sleeps for [`PAUSE`] between two tries.
#[cfg(not(loom))]
const SLEEP_AFTER: u32 = 1 << 14;
#[cfg(not(loom))]
const PAUSE: core::time::Duration = core::time::Duration::from_micros(50);

/// Values of `lock`: free, held, never free again.
const FREE: u32 = 0;
const HELD: u32 = 1;
const DEAD: u32 = 2;

/// Why [`Claim::take`] fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The calling thread holds the claim already.
    Inside,
    /// A holder did not release it: it panicked.
    Dead,
}

/// A value that one thread at a time may claim.
#[repr(C)] // taking the claim touches only what is before the value
pub struct Claim<T, const OWNERS: usize = OWNER_SLOTS> {
    /// The owner and its slot; 0 for none.
    owner: AtomicU64,
    /// 1 while the owner with this slot holds the claim.
    inside: [AtomicU8; OWNERS],
    /// Number of threads that wait for the claim, or hold it while there is an owner. While it is not zero, the owner does not enter.
    waiting: AtomicU32,
    /// `HELD` while a thread holds the claim by the lock and not as the owner; `DEAD` at the end.
    lock: AtomicU32,
    /// The thread that holds `lock`; 0 for none. Written under `lock`, so a thread finds its own number only while it holds it.
    holder: AtomicU64,
    /// The thread that took the lock last, and how often in a row; written under `lock`.
    last: AtomicU64,
    row: AtomicU32,
    value: UnsafeCell<T>,
    /// The thread of each owner slot, for good; written under `lock`.
    slots: [AtomicU64; OWNERS],
}

// SAFETY: `value` is reached through a `Claimed` alone, and there is one at a time (module comment).
unsafe impl<T: Send, const OWNERS: usize> Sync for Claim<T, OWNERS> {}

/// The claim, held until [`Claimed::release`]. Dropping it instead makes the claim dead. It stays on its thread: an owner's next taking is
/// ordered after its own releases only.
pub struct Claimed<'a, T, const OWNERS: usize = OWNER_SLOTS> {
    claim: &'a Claim<T, OWNERS>,
    how: How,
    _not_send: PhantomData<*const ()>,
}

/// How a thread holds a claim: one number, so that a [`Claimed`] is handed over in two registers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct How(u32);

impl How {
    const LOCKED: Self = Self(1 << 8);
    /// By the lock, with a count in `waiting`.
    const ANNOUNCED: Self = Self(Self::LOCKED.0 + 1);

    /// As the owner with this slot.
    #[inline]
    const fn owner(slot: u8) -> Self {
        Self(slot as u32)
    }
    /// The slot of an owner.
    #[inline]
    const fn slot(self) -> Option<u8> {
        if self.0 < Self::LOCKED.0 { Some(self.0 as u8) } else { None }
    }
}

/// A number for the calling thread, never 0, that no other living thread has: the address of its control block, which one
/// instruction reads. A thread-local variable of a shared library takes a call.
#[cfg(all(not(loom), not(miri), target_arch = "x86_64", target_os = "linux"))]
#[inline(always)]
pub(super) fn thread_number() -> u64 {
    let block: u64;
    // SAFETY: in the ABI of Linux on this processor FS is the base of the thread's control block, whose first word is its address;
    // the word does not change, so this is a read of a constant of the thread.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) block, options(pure, readonly, nostack, preserves_flags));
    }
    block & NUMBER
}

/// A number for the calling thread, never 0, that no other living thread has.
#[cfg(all(not(loom), any(miri, not(target_arch = "x86_64"), not(target_os = "linux"))))]
#[inline]
pub(super) fn thread_number() -> u64 {
    std::thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| core::ptr::from_ref(here).addr() as u64 & NUMBER)
}

/// All of loom's threads run on one thread of the system.
#[cfg(loom)]
pub(super) fn thread_number() -> u64 {
    use core::hash::{Hash, Hasher};
    let mut hash = std::hash::DefaultHasher::new();
    loom::thread::current().id().hash(&mut hash);
    (hash.finish() | 1) & NUMBER
}

impl<T> Claim<T> {
    /// A claim that no thread holds.
    pub fn new(value: T) -> Self {
        Self::with_owners(value)
    }
}

impl<T, const OWNERS: usize> Claim<T, OWNERS> {
    /// Same as [`Claim::new`], with room for as many owners as the type says.
    pub fn with_owners(value: T) -> Self {
        prepare();
        Self {
            owner: AtomicU64::new(0),
            inside: core::array::from_fn(|_| AtomicU8::new(0)),
            waiting: AtomicU32::new(0),
            lock: AtomicU32::new(FREE),
            holder: AtomicU64::new(0),
            last: AtomicU64::new(0),
            row: AtomicU32::new(0),
            value: UnsafeCell::new(value),
            slots: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Whether a thread waits for the claim. A thread that holds it for long should then release it.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Whether a holder panicked. No thread gets the claim any more.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.lock.load(Ordering::Acquire) == DEAD
    }

    /// Takes the claim if it is free and no thread waits for it. `None` otherwise, also if the calling thread holds it.
    #[inline]
    pub fn try_take(&self) -> Option<Claimed<'_, T, OWNERS>> {
        let me = thread_number();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & NUMBER == me { self.enter(owner) } else { self.try_take_lock(me) }
    }

    /// Takes the claim as the owner, which the calling thread was a moment ago. `None` if it is no longer, if another thread waits, or if
    /// it holds the claim already.
    #[inline]
    fn enter(&self, owner: u64) -> Option<Claimed<'_, T, OWNERS>> {
        let slot = slot_of(owner);
        // Only this thread writes it.
        if self.inside(slot).load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.inside(slot).store(1, Ordering::Relaxed);
        light();
        // A thread that revoked our bias has counted down with a release: then the second load sees it.
        if self.waiting.load(Ordering::Acquire) == 0 && self.owner.load(Ordering::Relaxed) == owner {
            return Some(self.held(How::owner(slot)));
        }
        self.inside(slot).store(0, Ordering::Release);
        None
    }

    #[inline(never)]
    fn try_take_lock(&self, me: u64) -> Option<Claimed<'_, T, OWNERS>> {
        if self.wanted() || !self.lock_now(me) {
            return None;
        }
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == 0 {
            self.count_in_row(me);
            return Some(self.held(How::LOCKED));
        }
        // Another thread is the owner and may be inside. If it is not, its bias is revoked.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        heavy();
        if self.inside(slot_of(owner)).load(Ordering::Acquire) != 0 {
            self.holder.store(0, Ordering::Relaxed);
            // Fails if the owner has panicked since: then the claim stays dead.
            let _ = self.lock.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed);
            self.waiting.fetch_sub(1, Ordering::Release);
            return None;
        }
        self.end_bias(me);
        Some(self.held(How::ANNOUNCED))
    }

    /// Takes the claim; waits until it is free. Threads that use [`Claim::try_take`] do not get it meanwhile.
    ///
    /// # Errors
    /// [`Refused::Inside`], [`Refused::Dead`]: it would wait for ever.
    pub fn take(&self) -> Result<Claimed<'_, T, OWNERS>, Refused> {
        let me = thread_number();
        let owner = self.owner.load(Ordering::Relaxed);
        if self.is_dead() {
            return Err(Refused::Dead);
        }
        if owner & NUMBER == me && self.inside(slot_of(owner)).load(Ordering::Relaxed) != 0 {
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
            while self.inside(slot_of(owner)).load(Ordering::Acquire) != 0 {
                if self.is_dead() {
                    self.waiting.fetch_sub(1, Ordering::Release);
                    return Err(Refused::Dead);
                }
                pause(&mut tries);
            }
        }
        Ok(self.held(How::ANNOUNCED))
    }

    /// The flag of the owner with this slot.
    #[inline]
    fn inside(&self, slot: u8) -> &AtomicU8 {
        &self.inside[usize::from(slot) % OWNERS]
    }

    #[inline]
    fn held(&self, how: How) -> Claimed<'_, T, OWNERS> {
        Claimed { claim: self, how, _not_send: PhantomData }
    }

    #[inline]
    fn lock_now(&self, me: u64) -> bool {
        let locked = self.lock.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if locked {
            self.holder.store(me, Ordering::Relaxed);
        }
        locked
    }

    #[inline(never)]
    fn release_lock(&self) {
        if self.row.load(Ordering::Relaxed) >= BIAS_AFTER {
            self.make_owner();
        }
        self.unlock();
    }

    #[inline(never)]
    fn release_announced(&self, shared: bool) {
        if shared {
            self.end_bias(thread_number());
        }
        self.unlock();
        self.waiting.fetch_sub(1, Ordering::Release);
    }

    #[inline]
    fn unlock(&self) {
        self.holder.store(0, Ordering::Relaxed);
        self.lock.store(FREE, Ordering::Release);
    }

    /// Ends the bias: there is no owner any more. Called under `lock`, with the owner kept out.
    fn end_bias(&self, me: u64) {
        self.owner.store(0, Ordering::Relaxed);
        self.last.store(me, Ordering::Relaxed);
        self.row.store(0, Ordering::Relaxed);
    }

    /// Counts takings in a row. Called under `lock`, while there is no owner.
    #[inline]
    fn count_in_row(&self, me: u64) {
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            self.row.store(0, Ordering::Relaxed);
        }
        self.row.store(self.row.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Makes the thread that took the claim last the owner, if it has a slot or one is free. Called at the release, under `lock`, while
    /// there is no owner: an owner that held the claim by the lock would not see in its slot that it holds it already.
    #[cold]
    fn make_owner(&self) {
        let me = self.last.load(Ordering::Relaxed);
        let fits = |slot: &AtomicU64| matches!(slot.load(Ordering::Relaxed), who if who == 0 || who == me);
        if let Some(slot) = self.slots.iter().position(fits) {
            self.slots[slot].store(me, Ordering::Relaxed);
            self.owner.store((slot as u64) << SLOT_SHIFT | me, Ordering::Relaxed);
        }
        // Also if there was no slot: otherwise each release would try again.
        self.row.store(0, Ordering::Relaxed);
    }
}

/// The slot in an `owner` word.
#[inline]
fn slot_of(owner: u64) -> u8 {
    (owner >> SLOT_SHIFT) as u8
}

/// Waits a little between two tries. Yields now and then, as on a machine with few cores the holder may need this core; sleeps
/// once the holder takes long, as one that runs code of the program may.
fn pause(tries: &mut u32) {
    *tries = tries.saturating_add(1);
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *tries > SLEEP_AFTER {
        std::thread::sleep(PAUSE);
    } else if (*tries).is_multiple_of(64) {
        std::thread::yield_now();
    } else {
        core::hint::spin_loop();
    }
}

impl<T, const OWNERS: usize> Claimed<'_, T, OWNERS> {
    /// Releases the claim.
    #[inline]
    pub fn release(self) {
        self.end(false);
    }

    /// Releases a claim that several threads want. If this thread took it in spite of an owner, there is no owner afterwards, so that the
    /// threads do not need a system call at each taking.
    #[inline]
    pub fn release_shared(self) {
        self.end(true);
    }

    #[inline]
    fn end(self, shared: bool) {
        match (self.how.slot(), self.how) {
            (Some(slot), _) => self.claim.inside(slot).store(0, Ordering::Release),
            (None, How::LOCKED) => self.claim.release_lock(),
            (None, _) => self.claim.release_announced(shared),
        }
        core::mem::forget(self);
    }
}

impl<T, const OWNERS: usize> Drop for Claimed<'_, T, OWNERS> {
    /// Makes the claim dead, as it was not released.
    #[cold]
    fn drop(&mut self) {
        let claim = self.claim;
        match self.how.slot() {
            // The owner stays `inside`: threads that hold the lock and wait for it to leave see that the claim is dead. A swap,
            // as the owner does not hold the lock: loom gives a store beside a compare-exchange no order.
            Some(_) => {
                claim.lock.swap(DEAD, Ordering::AcqRel);
            }
            None => {
                claim.owner.store(0, Ordering::Relaxed);
                claim.holder.store(0, Ordering::Relaxed);
                claim.lock.store(DEAD, Ordering::Release);
                if self.how == How::ANNOUNCED {
                    claim.waiting.fetch_sub(1, Ordering::Release);
                }
            }
        }
    }
}

impl<T, const OWNERS: usize> Deref for Claimed<'_, T, OWNERS> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one `Claimed` there is (module comment), borrowed for as long as the reference.
        unsafe { &*self.claim.value.get() }
    }
}

impl<T, const OWNERS: usize> DerefMut for Claimed<'_, T, OWNERS> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, borrowed mutably.
        unsafe { &mut *self.claim.value.get() }
    }
}

impl<T, const OWNERS: usize> core::fmt::Debug for Claim<T, OWNERS> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Claim").field("wanted", &self.wanted()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64 as Count};

    // Goal: a thread that found itself the owner, and lost the bias before it set `inside`, stays out, and does not clear the
    // flag of the next owner.
    #[test]
    fn a_revoked_owner_stays_out() {
        let claim = Claim::new(());
        let bias = || (0..=BIAS_AFTER).for_each(|_| claim.try_take().expect("nobody else is here").release());
        bias();
        let stale = claim.owner.load(Ordering::Relaxed);
        assert_eq!(stale & NUMBER, thread_number(), "this thread is the owner");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                claim.try_take().expect("the owner is outside: its bias is revoked").release();
                let locked = claim.try_take().expect("there is no owner");
                assert!(locked.how == How::LOCKED && claim.enter(stale).is_none(), "two hold the claim");
                locked.release();
                bias();
                let held = claim.try_take().expect("this thread is the owner now");
                assert!(held.how.slot().is_some() && claim.enter(stale).is_none());
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
    fn biased_to_a_thread_and_back() {
        let claim = Claim::new(());
        for _ in 0..BIAS_AFTER {
            assert_eq!(claim.owner.load(Ordering::Relaxed), 0);
            claim.try_take().expect("free").release();
        }
        assert_eq!(claim.owner.load(Ordering::Relaxed), thread_number());
        claim.take().expect("free").release();
        let held = claim.try_take().expect("free");
        assert!(held.how.slot().is_some(), "a control call of its own does not change the owner");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(claim.try_take().is_none(), "the owner is inside"));
        });
        held.release();
        std::thread::scope(|scope| {
            scope.spawn(|| claim.try_take().expect("the owner is outside, and need not come by").release());
        });
        assert_eq!(claim.owner.load(Ordering::Relaxed), 0);
    }

    // Goal: a thread never gets a claim that it holds, however often it took it before, biased or not.
    #[test]
    fn a_claim_that_a_thread_holds_is_refused_at_every_take() {
        let claim = Claim::new(());
        for take in 0..3 * BIAS_AFTER {
            let held = claim.try_take().expect("free");
            assert!(claim.try_take().is_none(), "two hold the claim, at take {take}");
            assert!(matches!(claim.take(), Err(Refused::Inside)), "take {take}");
            assert!(claim.try_take().is_none(), "two hold the claim, at take {take}");
            held.release();
        }
    }

    #[test]
    fn no_thread_enters_while_another_waits() {
        let claim = Claim::new(());
        let held = claim.take().expect("free");
        assert!(claim.wanted() && claim.try_take().is_none());
        held.release();
        assert!(!claim.wanted());
        claim.try_take().expect("free").release();
    }

    /// Calls `each` with a claim held in each possible way.
    fn ways(each: impl Fn(&Claim<u32>, Claimed<'_, u32>)) {
        let bias = |claim: &Claim<u32>| {
            (0..BIAS_AFTER).for_each(|_| claim.try_take().expect("free").release());
        };
        let claim = Claim::new(0);
        each(&claim, claim.try_take().expect("free"));
        let claim = Claim::new(0);
        each(&claim, claim.take().expect("free"));
        let claim = Claim::new(0);
        bias(&claim);
        let held = claim.try_take().expect("free");
        assert!(held.how.slot().is_some());
        each(&claim, held);
        let claim = Claim::new(0);
        bias(&claim);
        each(&claim, claim.take().expect("an owner makes control calls, too"));
        let claim = Claim::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| bias(&claim));
        });
        let held = claim.try_take().expect("the owner is outside: its bias is revoked");
        assert!(held.how == How::ANNOUNCED);
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

    // Goal: after a panic of a holder no thread gets the claim, and none waits for it.
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
impl<T, const OWNERS: usize> Claim<T, OWNERS> {
    /// Makes the calling thread the owner of a claim that nobody uses yet.
    pub(super) fn bias(&self) {
        self.owner.store(thread_number(), Ordering::Relaxed);
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
            claim.bias();
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

    /// The owner panics inside while others wait for it (`true`), or try: all are refused, for ever.
    fn the_owner_panics_beside<const OTHERS: usize>(waits: [bool; OTHERS]) {
        let claim = Arc::new(Claim::new(()));
        claim.bias();
        let others = waits.map(|waits| {
            let claim = claim.clone();
            loom::thread::spawn(move || {
                // One of them may have got in before the owner did.
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
    fn a_panic_of_the_owner_while_one_tries() {
        loom::model(|| the_owner_panics_beside([false]));
    }

    /// Every interleaving of three threads takes hours.
    #[test]
    fn a_panic_of_the_owner_while_one_waits_and_one_tries() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| the_owner_panics_beside([true, false]));
    }

    /// A thread that holds the lock panics while the owner goes in and out.
    #[test]
    fn a_panic_in_a_control_call() {
        loom::model(|| {
            let claim = Arc::new(Claim::new(()));
            let died = Arc::new(Flag::new(0));
            claim.bias();
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
                    // A second take by the holder.
                    assert!(claim.try_take().is_none());
                    held.release();
                }
            }
            other.join().unwrap();
            assert!(claim.is_dead() && claim.try_take().is_none() && !claim.wanted());
        });
    }
}
