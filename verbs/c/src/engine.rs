//! The one device of the process, `roce0`: opened when a call needs it, closed with the program's last object.
//!
//! Loading the library starts nothing. Opening the device opens no port where its addresses are known without one (memif, the
//! default); the port starts with the first queue pair or connection. Threads of the device have all signals blocked.
//!
//! A forked child finds the device as follows. If the parent's port had not started, the child has a device of its own, as a process
//! that was just started; what the parent had allocated is refused there. If the port had started, the child has no device: every
//! call is `EIO`, and nothing of the parent is touched.
//!
//! A process may exit without closing anything. After its destructors have run, the library tells its peers that their connections
//! end, and sends what was posted, as a kernel and a NIC would.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use verbs::{Context, DeviceConfig, Mac};

use crate::claims::{Claim, Claims};
use crate::config::{self, Config};
use crate::errno::{EIO, ENODEV, Result};
use crate::event::{Contexts, Names};
use crate::guard::{say, settled};
use crate::object::Retired;

/// What belongs to the process. A forked child has a new one: locks of the old one may be held by threads that it does not have.
#[derive(Default)]
pub(crate) struct Process {
    engine: Mutex<Engine>,
    retired: Mutex<Retired>,
    names: Mutex<Names>,
    claims: Mutex<Claims>,
    contexts: Mutex<Contexts>,
    /// Objects that the program has.
    objects: AtomicUsize,
    /// Something outside of the process was touched.
    started: AtomicBool,
}

#[derive(Default)]
struct Engine {
    context: Option<Arc<Context>>,
    /// Kept when the device is closed, so that it is the same device when it is opened again.
    identity: Option<Identity>,
}

struct Identity {
    mac: Option<Mac>,
    addrs: Vec<(std::net::IpAddr, u8)>,
    _place: Option<Claim>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// This process is a fork of one whose port had started.
static DEAD: AtomicBool = AtomicBool::new(false);
/// Forks between the process that loaded the library and this one.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// What belongs to this process.
pub(crate) fn current() -> &'static Process {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        CURRENT.store(Box::into_raw(Box::default()), Ordering::Release);
        // SAFETY: a handler that may run in any forked child: it allocates and stores, and takes no lock of this library.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    // SAFETY: set once and, in a forked child, once more; what it points to is never freed.
    unsafe { &*CURRENT.load(Ordering::Acquire) }
}

/// In a forked child, before it goes on.
extern "C" fn forked() {
    if current().started.load(Ordering::Relaxed) {
        DEAD.store(true, Ordering::Relaxed);
    }
    DEPTH.fetch_add(1, Ordering::Relaxed);
    // The old one stays as it is: its device is the parent's.
    CURRENT.store(Box::into_raw(Box::default()), Ordering::Release);
}

/// The longest that the end of a process may take for what is left to send.
const LEAVE: Duration = Duration::from_millis(100);

/// The linker's list of what runs at the end of the process, after the destructors of everything that uses this library.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = at_the_end;

extern "C" fn at_the_end() {
    if !CURRENT.load(Ordering::Acquire).is_null() {
        let _ = settled(|| {
            current().take_leave();
            Ok(())
        });
    }
}

/// Whether this process is a child that has no device.
#[inline]
pub(crate) fn is_dead() -> bool {
    DEAD.load(Ordering::Relaxed)
}

/// Forks between the process that loaded the library and this one.
#[inline]
pub(crate) fn depth() -> u32 {
    DEPTH.load(Ordering::Relaxed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Memory of destroyed objects.
    pub(crate) fn retired(&self) -> MutexGuard<'_, Retired> {
        lock(&self.retired)
    }
    /// The names that this process has claimed.
    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        lock(&self.claims)
    }
    /// The contexts that the program has open. While this is locked, none is closed.
    pub(crate) fn contexts(&self) -> MutexGuard<'_, Contexts> {
        lock(&self.contexts)
    }
    /// The objects that events can name. While it is locked, none of them is destroyed and no event is on its way from the device to
    /// the program.
    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    /// The device; opens it if it is not open.
    ///
    /// # Errors
    /// `EIO` in a forked child that has none; `EINVAL` and the like for a configuration that is wrong, with a line on stderr.
    pub(crate) fn device(&self) -> Result<Arc<Context>> {
        if is_dead() {
            return Err(EIO);
        }
        let mut engine = lock(&self.engine);
        if let Some(context) = &engine.context {
            return Ok(context.clone());
        }
        let context = Arc::new(self.open(&mut engine)?);
        engine.context = Some(context.clone());
        Ok(context)
    }

    fn open(&self, engine: &mut Engine) -> Result<Context> {
        let Config { mut device, place, lazy } = config::read().map_err(|why| {
            say(why);
            crate::errno::EINVAL
        })?;
        if let Some(Identity { mac, addrs, .. }) = &engine.identity {
            device.mac = device.mac.or(*mac);
            device.addrs = addrs.clone();
        }
        let addrs = device.addrs.clone();
        if !lazy {
            self.started.store(true, Ordering::Relaxed);
        }
        let context = without_signals(|| open(device))?;
        if engine.identity.is_none() {
            let mac = lazy.then(|| context.query_port(1).ok()).flatten().map(|port| port.mac);
            engine.identity = Some(Identity { mac, addrs, _place: place });
        }
        Ok(context)
    }

    /// The device, with its port started: for objects that use the wire.
    ///
    /// # Errors
    /// As [`device`](Self::device); `ENODEV` where the port cannot be opened, with a line on stderr.
    pub(crate) fn wire(&self) -> Result<Arc<Context>> {
        let context = self.device()?;
        self.started.store(true, Ordering::Relaxed);
        without_signals(|| context.start()).map_err(|error| {
            say(&error);
            crate::errno::Errno::from(error)
        })?;
        Ok(context)
    }

    /// The process ends. A lock may be held for good: by another thread, which still runs, or by a call of this thread that a
    /// signal handler interrupted.
    fn take_leave(&self) {
        if is_dead() || !self.started.load(Ordering::Relaxed) {
            return;
        }
        let context = self.engine.try_lock().ok().and_then(|engine| engine.context.clone());
        if let Some(context) = context {
            context.take_leave(LEAVE);
        }
    }

    /// The program has one object more.
    pub(crate) fn count(&self) {
        self.objects.fetch_add(1, Ordering::Relaxed);
    }
    /// The program has one object less; with the last one the device is closed.
    pub(crate) fn discount(&self) {
        if self.objects.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let (event_thread, context) = {
            let mut engine = lock(&self.engine);
            if self.objects.load(Ordering::Relaxed) > 0 {
                return; // another thread has begun anew
            }
            (self.contexts().event_thread.take(), engine.context.take())
        };
        // Outside of the lock: their threads end.
        drop(event_thread);
        drop(context);
    }
}

fn open(device: DeviceConfig) -> Result<Context> {
    Context::open(device).map_err(|error| {
        say(&error);
        match error {
            verbs::VerbsError::Open(verbs::OpenError::Port(_)) => ENODEV,
            error => error.into(),
        }
    })
}

/// Runs `call` with all signals blocked: threads that it starts have them blocked for good, so the program's handlers run on its own
/// threads.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals, and calls that read and write them.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}
