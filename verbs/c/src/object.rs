//! Objects that C holds pointers to: a public structure of the headers, a tag, and what the object stands for.
//!
//! The tag says whether a pointer is a living object of this kind: C may pass anything. It stands before the public structure, at
//! the same distance from the pointer for every kind, so that checking it reads no byte beyond an object of another kind. Only a
//! context's pointer goes into the middle of its structure: if C passes another object as a context, the check may read memory
//! before that object. The memory of a destroyed object is kept for objects of the same kind, the oldest first, so its tag can
//! still be read: a second destroy returns an error. Two threads that use and destroy an object at once are the program's mistake,
//! as with every libibverbs.

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use crate::engine;
use crate::errno::{EINVAL, EIO, Errno, Result};
use crate::process::{OfProcess, depth};

/// A kind of object.
pub(crate) trait Kind: Sized + 'static {
    /// The structure that C sees.
    type Public;
    /// What it stands for.
    type Private;
    /// Distinguishes the kind; not 0.
    const TAG: u64;
    /// A forked child may go on using the object, with its own device.
    const SURVIVES: bool = false;
}

/// An object in memory; C has a pointer to its second part.
#[repr(C)]
pub(crate) struct Object<K: Kind> {
    head: Head,
    public: UnsafeCell<K::Public>,
    private: UnsafeCell<MaybeUninit<K::Private>>,
}

/// The same for each kind.
#[repr(C, align(16))]
struct Head {
    tag: AtomicU64,
    /// [`depth`] of the process that counts it: the one that made it, or adopted it; [`NOBODY`].
    depth: AtomicU32,
    /// Events of it that the program has fetched and not acknowledged.
    unacked: AtomicU32,
}

/// A depth that no process has.
const NOBODY: u32 = u32::MAX;

impl Head {
    /// Waits until the program has acknowledged what it fetched: another thread of it does that.
    fn await_acks(&self) {
        let mut nap = Duration::from_micros(50);
        while self.unacked.load(Ordering::Acquire) > 0 {
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
    }
}

/// The program fetches an event of an object of any kind.
///
/// # Safety
/// The object lives, or its `end` has not returned.
pub(crate) unsafe fn fetched(object: usize) {
    let head = object.wrapping_sub(size_of::<Head>()) as *const Head;
    // SAFETY: every kind's pointer is as far behind its head.
    unsafe { (*head).unacked.fetch_add(1, Ordering::Relaxed) };
}

/// Memory of destroyed objects, by kind, as addresses.
static RETIRED: OfProcess<Mutex<HashMap<u64, VecDeque<usize>>>> = OfProcess::new();
/// Objects of a kind that are kept before the first of them is used again.
const REST: usize = 32;

impl<K: Kind> Object<K> {
    /// The tag of one that is being destroyed.
    const ENDING: u64 = !K::TAG;
    const FITS: () = assert!(
        offset_of!(Self, public) == size_of::<Head>(),
        "every kind's pointer is as far behind its head"
    );

    /// The object around a pointer from C, if it is one.
    #[inline]
    fn around(pointer: *mut K::Public) -> *mut Self {
        const { Self::FITS };
        pointer.wrapping_byte_sub(size_of::<Head>()).cast()
    }

    /// Makes an object; C gets the pointer.
    pub(crate) fn create(public: K::Public, private: K::Private) -> *mut K::Public {
        let again = RETIRED
            .lock()
            .get_mut(&K::TAG)
            .and_then(|old| if old.len() > REST { old.pop_front() } else { None });
        let object = match again {
            Some(address) => address as *mut Self,
            None => Box::into_raw(Box::<Self>::new_uninit()).cast(),
        };
        // SAFETY: memory of this layout that nothing else uses: new, or of an object that was destroyed.
        unsafe {
            (&raw mut (*object).public).cast::<K::Public>().write(public);
            (&raw mut (*object).private).cast::<K::Private>().write(private);
            if again.is_none() {
                (&raw mut (*object).head.tag).write(AtomicU64::new(0));
                (&raw mut (*object).head.unacked).write(AtomicU32::new(0));
            }
            (&raw mut (*object).head.depth).write(AtomicU32::new(depth()));
            (*object).head.tag.store(K::TAG, Ordering::Release);
            engine::count();
            (*object).public.get()
        }
    }

    /// The object that C names.
    ///
    /// # Errors
    /// `EINVAL` for NULL, another kind of object or one that was destroyed; `EIO` in a forked child for an object of its parent.
    ///
    /// # Safety
    /// The pointer is NULL or that of an object, and nobody destroys it meanwhile.
    #[inline]
    pub(crate) unsafe fn of<'a>(pointer: *mut K::Public) -> Result<&'a Self> {
        let object = Self::around(pointer);
        if pointer.is_null() || !object.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: memory of objects is never freed; the tag is read and written atomically only.
        let tag = unsafe { &(*object).head.tag };
        if tag.load(Ordering::Acquire) != K::TAG {
            return Err(EINVAL);
        }
        // SAFETY: it lives, and is of this kind.
        let object = unsafe { &*object };
        if K::SURVIVES || object.is_counted() { Ok(object) } else { Err(EIO) }
    }

    /// Whether this process counts it, and not its parent alone.
    #[inline]
    fn is_counted(&self) -> bool {
        self.head.depth.load(Ordering::Relaxed) == depth()
    }

    /// In a forked child, the first use of an object of its parent, and anywhere the first after [`rest`](Self::rest): the process
    /// counts it, and `renew` replaces what parent and child cannot share, or what ended meanwhile.
    ///
    /// # Errors
    /// Those of `renew`; the next use tries again.
    pub(crate) fn adopt(&self, renew: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_counted() {
            return Ok(());
        }
        let before = self.head.depth.swap(depth(), Ordering::Relaxed);
        if before == depth() {
            return Ok(()); // another thread is first
        }
        engine::count();
        renew().inspect_err(|_| {
            self.head.depth.store(before, Ordering::Relaxed);
            engine::discount();
        })
    }

    /// The process does not count it any more, until it is used again and [adopted](Self::adopt).
    pub(crate) fn rest(&self) {
        let rests = self.head.depth.compare_exchange(depth(), NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        if rests.is_ok() {
            engine::discount();
        }
    }

    /// What it stands for.
    #[inline]
    pub(crate) fn private(&self) -> &K::Private {
        // SAFETY: written when the object was made; `destroy`, the only one that takes it, has the object alone.
        unsafe { (*self.private.get()).assume_init_ref() }
    }

    /// The structure that C sees; C reads and writes it too.
    #[inline]
    pub(crate) fn public(&self) -> *mut K::Public {
        self.public.get()
    }

    /// The program acknowledges events of an object, which may be waiting for that in [`destroy`](Self::destroy). Returns how many:
    /// no more than it fetched.
    ///
    /// # Errors
    /// `EINVAL` as for [`of`](Self::of).
    ///
    /// # Safety
    /// The pointer is NULL or that of an object.
    pub(crate) unsafe fn acked(pointer: *mut K::Public, count: u32) -> Result<u32> {
        let object = Self::around(pointer);
        if pointer.is_null() || !object.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: memory of objects is never freed; the tag and the number are read and written atomically only.
        let (tag, unacked) = unsafe { (&(*object).head.tag, &(*object).head.unacked) };
        if ![K::TAG, Self::ENDING].contains(&tag.load(Ordering::Acquire)) {
            return Err(EINVAL);
        }
        let less = |unacked: u32| Some(unacked.saturating_sub(count));
        let before = unacked.fetch_update(Ordering::Release, Ordering::Relaxed, less).unwrap_or_default();
        Ok(count.min(before))
    }

    /// Ends an object. Where `end` refuses, it lives on; otherwise waits until its events are acknowledged (ibv_destroy_qp(3)).
    ///
    /// # Errors
    /// As [`of`](Self::of), and those of `end`.
    ///
    /// # Safety
    /// As [`of`](Self::of), and nobody else uses the object.
    pub(crate) unsafe fn destroy(
        pointer: *mut K::Public,
        end: impl FnOnce(K::Private) -> core::result::Result<(), (Errno, K::Private)>,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        let object = unsafe { Self::of(pointer) }?;
        // Of two threads that destroy it at once, one is refused.
        object
            .head
            .tag
            .compare_exchange(K::TAG, Self::ENDING, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| EINVAL)?;
        // SAFETY: it was there, and the tag keeps everyone else away.
        let private = unsafe { (*object.private.get()).assume_init_read() };
        match end(private) {
            Ok(()) => {
                object.head.await_acks();
                object.head.tag.store(0, Ordering::Release);
                RETIRED.lock().entry(K::TAG).or_default().push_back(Self::around(pointer) as usize);
                if object.is_counted() {
                    engine::discount();
                }
                Ok(())
            }
            Err((error, private)) => {
                // SAFETY: as above.
                unsafe { (*object.private.get()).write(private) };
                object.head.tag.store(K::TAG, Ordering::Release);
                Err(error)
            }
        }
    }
}
