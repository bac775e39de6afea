//! The one device of the process, `roce0`: opened when a call needs it, closed with the program's last object.
//!
//! Loading the library starts nothing. Opening the device opens no port where its addresses are known without one (memif, the
//! default); the port starts with the first queue pair or connection. Threads of the device have all signals blocked.
//!
//! A forked child is a program of its own, as one that was just started: it has a device of its own when it first needs one, whatever
//! the parent did with its device before and does with it now. What the parent has made is refused there (`EIO`), except contexts,
//! which name the child's device (see [`Object::adopt`](crate::object::Object::adopt)); nothing of the parent is touched.
//!
//! A process may exit without closing anything. After its destructors have run, the library tells its peers that their connections
//! end, and sends what was posted, as a kernel and a NIC would. Peers that do not answer are asked again meanwhile: the process
//! takes so long to end; it says so after a second, and SIGINT or SIGTERM ends it from then on. A process that closes everything and
//! lives on does not wait: its device closes when its peers have answered.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use verbs::{Context, DeviceConfig, Mac};

use crate::claims::{Claim, Claims};
use crate::config::{self, Config};
use crate::errno::{ENODEV, Result};
use crate::event::{Contexts, Names};
use crate::guard::{guarded, settled};
use crate::log::{self, say};
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
    /// The device's port has started.
    started: AtomicBool,
}

#[derive(Default)]
struct Engine {
    context: Option<Arc<Context>>,
    /// Kept when the device is closed, so that it is the same device when it is opened again.
    identity: Identity,
}

#[derive(Default)]
struct Identity {
    mac: Option<Mac>,
    place: Option<Place>,
}

/// A number among the processes that use a port of that name, and the addresses that follow from it.
struct Place {
    addrs: Vec<(std::net::IpAddr, u8)>,
    meeting: Option<(std::net::IpAddr, std::net::IpAddr)>,
    _claim: Claim,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Forks between the process that loaded the library and this one.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// What belongs to this process.
pub(crate) fn current() -> &'static Process {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        CURRENT.store(Box::into_raw(Box::default()), Ordering::Release);
        // SAFETY: handlers that may run at any fork: they wait for no lock of this library, and that of the child allocates and
        // stores.
        unsafe { libc::pthread_atfork(Some(forking), None, Some(forked)) };
    });
    // SAFETY: set once and, in a forked child, once more; what it points to is never freed.
    unsafe { &*CURRENT.load(Ordering::Acquire) }
}

/// In a process that is about to fork.
extern "C" fn forking() {
    let _ = guarded(|| {
        current().give_up_place();
        Ok(())
    });
}

/// In a forked child, before it goes on.
extern "C" fn forked() {
    DEPTH.fetch_add(1, Ordering::Relaxed);
    // The old one stays as it is: its device is the parent's.
    CURRENT.store(Box::into_raw(Box::default()), Ordering::Release);
}

/// How long a process that closes its last object waits for its peers.
const CLOSE: Duration = Duration::from_millis(200);
/// How long the end of a process waits for its peers before it says so.
const SILENT: Duration = Duration::from_secs(1);
/// How long it waits afterwards, at most: longer than connection management asks them again.
const PATIENCE: Duration = Duration::from_secs(15);

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
    /// `EINVAL` and the like for a configuration that is wrong, with a line on stderr.
    pub(crate) fn device(&self) -> Result<Arc<Context>> {
        let mut engine = lock(&self.engine);
        if let Some(context) = &engine.context {
            return Ok(context.clone());
        }
        let context = Arc::new(self.open(&mut engine)?);
        engine.context = Some(context.clone());
        Ok(context)
    }

    /// Uses the device for something that leaves no object: it is open afterwards only if it was before, or another thread has made
    /// an object.
    ///
    /// # Errors
    /// As [`device`](Self::device), and those of `call`.
    pub(crate) fn briefly<T>(&self, call: impl FnOnce(&Arc<Context>) -> Result<T>) -> Result<T> {
        // Counted as an object meanwhile: another thread may end the last one, which closes the device.
        self.count();
        let result = self.device().and_then(|device| call(&device));
        self.discount();
        result
    }

    fn open(&self, engine: &mut Engine) -> Result<Context> {
        let refused = |why| {
            say(why);
            crate::errno::EINVAL
        };
        log::begin(config::log().map_err(refused)?);
        let Config { mut device, claim, mut meeting, lazy, draws_mac } = config::read().map_err(refused)?;
        device.mac = device.mac.or(engine.identity.mac);
        if let Some(place) = &engine.identity.place {
            device.addrs = place.addrs.clone();
            meeting = place.meeting;
        }
        let addrs = device.addrs.clone();
        let context = without_signals(|| open(device))?;
        self.started.store(!lazy, Ordering::Relaxed);
        let identity = &mut engine.identity;
        if identity.mac.is_none() && draws_mac {
            identity.mac = context.query_port(1).ok().map(|port| port.mac);
        }
        if let Some((own, other)) = meeting {
            context.meet(own, other);
        }
        if identity.place.is_none() {
            identity.place = claim.map(|claim| Place { addrs, meeting, _claim: claim });
        }
        Ok(context)
    }

    /// A process that forks while its device is closed is two programs afterwards: whichever opens its device first, the child of
    /// daemon(3) for instance, has the place. Locks that are taken may be those of a call that a signal handler of this thread
    /// interrupted.
    fn give_up_place(&self) {
        let Ok(mut engine) = self.engine.try_lock() else { return };
        if engine.context.is_none() && self.claims.try_lock().is_ok() {
            engine.identity.place = None;
        }
    }

    /// The device, with its port started: for objects that use the wire.
    ///
    /// # Errors
    /// As [`device`](Self::device); `ENODEV` where the port cannot be opened, with a line on stderr.
    pub(crate) fn wire(&self) -> Result<Arc<Context>> {
        let context = self.device()?;
        without_signals(|| context.start()).map_err(|error| {
            say(&error);
            crate::errno::Errno::from(error)
        })?;
        self.started.store(true, Ordering::Relaxed);
        Ok(context)
    }

    /// The process ends. A lock may be held for good: by another thread, which still runs, or by a call of this thread that a
    /// signal handler interrupted.
    fn take_leave(&self) {
        if !self.started.load(Ordering::Relaxed) {
            return;
        }
        let context = self.engine.try_lock().ok().and_then(|engine| engine.context.clone());
        let Some(context) = context else { return };
        let silent = context.take_leave(SILENT);
        if silent > 0 {
            say(format_args!(
                "the process ends, and the peers of {silent} of its connections have not answered that they know: they are asked \
                 again, for about ten seconds (SIGINT or SIGTERM ends this)"
            ));
            end_by_signals();
            context.take_leave(PATIENCE);
        }
    }

    /// The program has one object more.
    pub(crate) fn count(&self) {
        self.objects.fetch_add(1, Ordering::Relaxed);
    }
    /// Whether the program has one object and no more.
    pub(crate) fn has_one(&self) -> bool {
        self.objects.load(Ordering::Relaxed) == 1
    }
    /// The program has one object less; with the last one the device is closed.
    pub(crate) fn discount(&self) {
        if self.objects.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let context = lock(&self.engine).context.clone();
        if let Some(context) = context
            && context.await_peers(CLOSE) > 0
        {
            return close_later(context);
        }
        self.close();
    }

    /// Closes the device, unless the program has objects again.
    fn close(&self) {
        let (event_thread, context) = {
            let mut engine = lock(&self.engine);
            if self.objects.load(Ordering::Relaxed) > 0 {
                return; // another thread has begun anew
            }
            self.started.store(false, Ordering::Relaxed);
            (self.contexts().event_thread.take(), engine.context.take())
        };
        // Outside of the lock: their threads end.
        drop(event_thread);
        drop(context);
    }
}

/// Closes the device when its peers have answered, or do not answer any more. Where no thread can be had, the device stays open.
fn close_later(context: Arc<Context>) {
    let close = move || {
        while context.silent_peers() > 0 && current().objects.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(CLOSE);
        }
        drop(context);
        current().close();
    };
    let _ = without_signals(|| std::thread::Builder::new().name("roce-close".into()).spawn(close));
}

/// Makes SIGINT and SIGTERM end the process, unless it ignores them: nothing of the program runs any more that could handle them.
fn end_by_signals() {
    // SAFETY: sets of signals and their dispositions, and calls that read and write them.
    unsafe {
        let (mut both, mut action): (libc::sigset_t, libc::sigaction) = core::mem::zeroed();
        libc::sigemptyset(&raw mut both);
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, ptr::null(), &raw mut action);
            if action.sa_sigaction != libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::sigaddset(&raw mut both, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const both, ptr::null_mut());
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
