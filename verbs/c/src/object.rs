//! Objects that C has pointers to: a tag, the public structure of the headers, and a private part.
//!
//! The tag tells whether a pointer is a live object of the expected kind, because C may pass anything. It precedes the public structure, at
//! the same distance from the pointer for every kind, so that the check reads no byte beyond an object of another kind. There is one
//! exception: the pointer to a context points into the middle of its structure, so if C passes another object as a context, the check may
//! read memory before that object. The memory of a destroyed object is kept and reused only for objects of the same kind, the oldest first.
//! So its tag can still be read, and a second destroy returns an error. As with every libibverbs, a program must not use and destroy an
//! object on two threads at once.

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
    /// Our part of the object.
    type Private;
    /// Distinguishes the kind; not 0.
    const TAG: u64;
    /// Whether a forked child may continue to use the object, with its own device.
    const SURVIVES: bool = false;
}

/// An object in memory. C has a pointer to its second part.
#[repr(C)]
pub(crate) struct Object<K: Kind> {
    head: Head,
    public: UnsafeCell<K::Public>,
    private: UnsafeCell<MaybeUninit<K::Private>>,
}

/// The part that is the same for each kind.
#[repr(C, align(16))]
struct Head {
    tag: AtomicU64,
    /// The [`depth`] of the process that counts the object as its own: the one that created or adopted it; or [`NOBODY`].
    depth: AtomicU32,
    /// Number of its events that the program has fetched and not acknowledged.
    unacked: AtomicU32,
}

/// A depth that no process has.
const NOBODY: u32 = u32::MAX;

impl Head {
    /// Waits until other threads of the program have acknowledged all fetched events.
    fn await_acks(&self) {
        let mut nap = Duration::from_micros(50);
        while self.unacked.load(Ordering::Acquire) > 0 {
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
    }
}

/// Counts an event of an object, of any kind, that the program fetches.
///
/// # Safety
/// The object is alive, or its `end` has not returned.
pub(crate) unsafe fn fetched(object: usize) {
    let head = object.wrapping_sub(size_of::<Head>()) as *const Head;
    // SAFETY: the distance from the head to the pointer is the same for every kind.
    unsafe { (*head).unacked.fetch_add(1, Ordering::Relaxed) };
}

/// Memory of destroyed objects, as addresses, by kind.
static RETIRED: OfProcess<Mutex<HashMap<u64, VecDeque<usize>>>> = OfProcess::new();
/// How many destroyed objects of a kind are kept before the memory of the first one is reused.
const REST: usize = 32;

impl<K: Kind> Object<K> {
    /// The tag of an object that is being destroyed.
    const ENDING: u64 = !K::TAG;
    const FITS: () = assert!(
        offset_of!(Self, public) == size_of::<Head>(),
        "every kind's pointer is as far behind its head"
    );

    /// The object that contains the structure at a pointer from C, if it is one.
    #[inline]
    fn around(pointer: *mut K::Public) -> *mut Self {
        const { Self::FITS };
        pointer.wrapping_byte_sub(size_of::<Head>()).cast()
    }

    /// Creates an object and returns the pointer for C.
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

    /// Checks a pointer from C and returns its object.
    ///
    /// # Errors
    /// `EINVAL` for NULL, another kind of object or a destroyed one; `EIO` in a forked child for an object of its parent.
    ///
    /// # Safety
    /// The pointer is NULL or that of an object, and no thread destroys the object during its use.
    #[inline]
    pub(crate) unsafe fn of<'a>(pointer: *mut K::Public) -> Result<&'a Self> {
        let object = Self::around(pointer);
        if pointer.is_null() || !object.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: memory of objects is never freed, and the tag is accessed only atomically.
        let tag = unsafe { &(*object).head.tag };
        if tag.load(Ordering::Acquire) != K::TAG {
            return Err(EINVAL);
        }
        // SAFETY: it is alive, and of this kind.
        let object = unsafe { &*object };
        if K::SURVIVES || object.is_counted() { Ok(object) } else { Err(EIO) }
    }

    /// Whether this process counts the object as its own.
    #[inline]
    fn is_counted(&self) -> bool {
        self.head.depth.load(Ordering::Relaxed) == depth()
    }

    /// Makes this process count the object as its own, if it does not yet: at the first use in a forked child, and at the first use after
    /// [`rest`](Self::rest). `renew` replaces what parent and child cannot share, or what has been closed meanwhile.
    ///
    /// # Errors
    /// Those of `renew`. The next use tries again.
    pub(crate) fn adopt(&self, renew: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_counted() {
            return Ok(());
        }
        let before = self.head.depth.swap(depth(), Ordering::Relaxed);
        if before == depth() {
            return Ok(()); // another thread was first
        }
        engine::count();
        renew().inspect_err(|_| {
            self.head.depth.store(before, Ordering::Relaxed);
            engine::discount();
        })
    }

    /// Makes the process stop counting the object, until it is used again and [adopted](Self::adopt).
    pub(crate) fn rest(&self) {
        let rests = self.head.depth.compare_exchange(depth(), NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        if rests.is_ok() {
            engine::discount();
        }
    }

    /// Our part of the object.
    #[inline]
    pub(crate) fn private(&self) -> &K::Private {
        // SAFETY: written when the object was created; only `destroy` takes it, when no other thread uses the object.
        unsafe { (*self.private.get()).assume_init_ref() }
    }

    /// The structure that C sees. C reads and writes it too.
    #[inline]
    pub(crate) fn public(&self) -> *mut K::Public {
        self.public.get()
    }

    /// Acknowledges events of an object, for which [`destroy`](Self::destroy) may be waiting. Returns how many, which is at most the number
    /// of fetched ones.
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
        // SAFETY: memory of objects is never freed, and the tag and the number are accessed only atomically.
        let (tag, unacked) = unsafe { (&(*object).head.tag, &(*object).head.unacked) };
        if ![K::TAG, Self::ENDING].contains(&tag.load(Ordering::Acquire)) {
            return Err(EINVAL);
        }
        let less = |unacked: u32| Some(unacked.saturating_sub(count));
        let before = unacked.fetch_update(Ordering::Release, Ordering::Relaxed, less).unwrap_or_default();
        Ok(count.min(before))
    }

    /// Destroys an object. If `end` refuses, the object stays alive; otherwise waits until its events are acknowledged (ibv_destroy_qp(3)).
    ///
    /// # Errors
    /// As [`of`](Self::of), and those of `end`.
    ///
    /// # Safety
    /// As [`of`](Self::of), and no other thread uses the object.
    pub(crate) unsafe fn destroy(
        pointer: *mut K::Public,
        end: impl FnOnce(K::Private) -> core::result::Result<(), (Errno, K::Private)>,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        let object = unsafe { Self::of(pointer) }?;
        // If two threads destroy it at once, one of them is refused.
        object
            .head
            .tag
            .compare_exchange(K::TAG, Self::ENDING, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| EINVAL)?;
        // SAFETY: it was initialised, and the tag keeps all other threads away.
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
