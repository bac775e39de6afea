//! The one device of the process, `roce0`. It is opened when a call needs it, and closed with the program's last object.
//!
//! Loading the library starts nothing. Opening the device does not open the port if the port's addresses are known without it; the port
//! then starts with the first queue pair or connection. All threads of the device have all signals blocked.
//!
//! A forked child is treated like a newly started program: it gets a device of its own when it first needs one, whatever its parent does
//! with its device. In the child, objects of the parent are refused (`EIO`), except contexts, which then stand for the child's device (see
//! [`Object::adopt`](crate::object::Object::adopt)). Nothing of the parent is changed.
//!
//! A process may exit without closing anything. After its destructors have run, the library tells its peers that their connections end, and
//! sends what was posted, as a kernel and a NIC would. It repeats the message to peers that do not answer, which delays the end of the
//! process. After a second a line on standard error says so, and from then on SIGINT or SIGTERM ends the process. A process that closes its
//! last object and continues waits for its peers at most 200 ms; its device closes once they have answered or do not answer any more.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Once};

use verbs::rdma_cm::send_farewells;
use verbs::{Context, DeviceConfig, Mac, OpenError, VerbsError};

use crate::claims::{self, Claim};
use crate::config::{self, Config};
use crate::errno::{EINVAL, ENODEV, Errno, Result};
use crate::event_thread::EventThread;
use crate::guard::{guarded, lock, uncancelled};
use crate::log::{self, say};
use crate::process::OfProcess;
use crate::signals::{end_by_signals, tell_peers_of_the_end, without_signals};

static ENGINE: OfProcess<Engine> = OfProcess::new();

#[derive(Default)]
struct Engine {
    device: Mutex<Device>,
    /// The thread that distributes events; it ends with the device.
    event_thread: Mutex<Option<EventThread>>,
    /// Number of objects that the program has.
    objects: AtomicUsize,
    /// Whether the device's port has started.
    started: AtomicBool,
    /// Whether the device's port has links with other processes of the host.
    has_links: AtomicBool,
}

#[derive(Default)]
struct Device {
    context: Option<Arc<Context>>,
    /// Kept when the device is closed, so that it has the same identity when it is opened again.
    identity: Identity,
}

#[derive(Default)]
struct Identity {
    mac: Option<Mac>,
    slot: Option<ProcessSlot>,
}

/// The process's number among those that use a port of the same name, and the addresses that result from it.
struct ProcessSlot {
    addrs: Vec<(IpAddr, u8)>,
    address_pair: Option<(IpAddr, IpAddr)>,
    _claim: Claim,
}

/// How long a process that closes its last object waits for its peers.
const CLOSE: Duration = Duration::from_millis(200);
/// How long a process that exits waits for its peers before it prints a line.
const SILENT: Duration = Duration::from_secs(1);
/// How long it waits after that at most. Longer than connection management repeats its messages.
const PATIENCE: Duration = Duration::from_secs(15);

/// The device of the process. Opens it if necessary.
///
/// # Errors
/// Such as `EINVAL` for a wrong configuration, with a line on stderr.
pub(crate) fn device() -> Result<Arc<Context>> {
    let engine = ENGINE.get();
    let mut device = lock(&engine.device);
    if let Some(context) = &device.context {
        return Ok(context.clone());
    }
    let context = Arc::new(engine.open(&mut device.identity)?);
    device.context = Some(context.clone());
    Ok(context)
}

/// Uses the device for a call that leaves no object. The device stays open after the call only if it was open before, or if another thread
/// has created an object meanwhile.
///
/// # Errors
/// As [`device`], and those of `call`.
pub(crate) fn briefly<T>(call: impl FnOnce(&Arc<Context>) -> Result<T>) -> Result<T> {
    // Counted as an object during the call, because another thread may destroy the last object, which closes the device.
    count();
    let result = device().and_then(|device| call(&device));
    discount();
    result
}

/// The device of the process, with its port started. For objects that send and receive.
///
/// # Errors
/// As [`device`]; `ENODEV` if the port cannot be opened, with a line on stderr.
pub(crate) fn wire() -> Result<Arc<Context>> {
    let context = device()?;
    without_signals(|| context.start()).map_err(|error| {
        say(&error);
        Errno::from(error)
    })?;
    let engine = ENGINE.get();
    engine.started.store(true, Ordering::Relaxed);
    if engine.has_links.load(Ordering::Relaxed) {
        tell_peers_of_the_end();
    }
    Ok(context)
}

/// The thread that distributes the device's events, if one is needed. It ends when the device is closed.
pub(crate) fn event_thread() -> MutexGuard<'static, Option<EventThread>> {
    lock(&ENGINE.get().event_thread)
}

/// Counts a new object of the program.
pub(crate) fn count() {
    ENGINE.get().objects.fetch_add(1, Ordering::Relaxed);
}

/// Whether the program has exactly one object.
pub(crate) fn has_one() -> bool {
    ENGINE.get().objects.load(Ordering::Relaxed) == 1
}

/// Counts a destroyed object of the program. Closes the device with the last one.
pub(crate) fn discount() {
    let engine = ENGINE.get();
    if engine.objects.fetch_sub(1, Ordering::Relaxed) > 1 {
        return;
    }
    let context = lock(&engine.device).context.clone();
    if let Some(context) = context
        && context.await_peers(CLOSE) > 0
    {
        return close_later(context);
    }
    engine.close();
}

/// Closes the device once its peers have answered or do not answer any more. If no thread can be started, the device stays open.
fn close_later(context: Arc<Context>) {
    let close = move || {
        let engine = ENGINE.get();
        while context.silent_peers() > 0 && engine.objects.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(CLOSE);
        }
        drop(context);
        engine.close();
    };
    let _ = without_signals(|| std::thread::Builder::new().name("roce-close".into()).spawn(close));
}

impl Engine {
    fn open(&self, identity: &mut Identity) -> Result<Context> {
        give_up_slots_at_forks();
        let refused = |why| {
            say(why);
            EINVAL
        };
        log::begin(config::log().map_err(refused)?);
        let Config { mut device, claim, mut address_pair, lazy, draws_mac, has_links } =
            config::read().map_err(refused)?;
        device.mac = device.mac.or(identity.mac);
        if let Some(slot) = &identity.slot {
            device.addrs = slot.addrs.clone();
            address_pair = slot.address_pair;
        }
        let addrs = device.addrs.clone();
        let context = without_signals(|| open(device))?;
        self.started.store(!lazy, Ordering::Relaxed);
        self.has_links.store(has_links, Ordering::Relaxed);
        if identity.mac.is_none() && draws_mac {
            identity.mac = context.query_port(1).ok().map(|port| port.mac);
        }
        if let Some((own, other)) = address_pair {
            context.meet(own, other);
        }
        if identity.slot.is_none() {
            identity.slot = claim.map(|claim| ProcessSlot { addrs, address_pair, _claim: claim });
        }
        Ok(context)
    }

    /// Closes the device, unless the program has objects again.
    fn close(&self) {
        let (event_thread, context) = {
            let mut device = lock(&self.device);
            if self.objects.load(Ordering::Relaxed) > 0 {
                return; // another thread has begun anew
            }
            self.started.store(false, Ordering::Relaxed);
            (lock(&self.event_thread).take(), device.context.take())
        };
        // Outside of the lock, because their threads end here.
        drop(event_thread);
        drop(context);
    }

    /// Gives up the slot before a fork if the device is closed. After the fork the process that opens its device first gets the slot, for
    /// instance the child of daemon(3). Takes no lock that is held, because it may be held by a call of this thread that a signal handler
    /// interrupted.
    fn give_up_slot(&self) {
        let Ok(mut device) = self.device.try_lock() else { return };
        if device.context.is_none() && claims::can_be_dropped() {
            device.identity.slot = None;
        }
    }

    /// Tells peers about the end of the process. A lock may be held forever: by another thread, which still runs, or by a call of this
    /// thread that a signal handler interrupted.
    fn take_leave(&self) {
        if !self.started.load(Ordering::Relaxed) {
            return;
        }
        let context = self.device.try_lock().ok().and_then(|device| device.context.clone());
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
        // What the operating system closes with the process ends after this.
        send_farewells();
    }
}

/// Opens a device, with a line on stderr if that fails.
fn open(device: DeviceConfig) -> Result<Context> {
    Context::open(device).map_err(|error| {
        say(&error);
        match error {
            VerbsError::Open(OpenError::Port(_)) => ENODEV,
            error => error.into(),
        }
    })
}

/// Installs [`forking`] as a handler of forks, once.
fn give_up_slots_at_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: installs a handler that may run at any fork, because it waits for no lock of this library.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(forking), None, None);
    });
}

/// Runs in a process that is about to fork.
extern "C" fn forking() {
    let _ = guarded(|| {
        if let Some(engine) = ENGINE.known() {
            engine.give_up_slot();
        }
        Ok(())
    });
}

/// An entry in the linker's list of functions that run at the end of the process, after the destructors of everything that uses this
/// library.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = at_the_end;

extern "C" fn at_the_end() {
    if let Some(engine) = ENGINE.known() {
        let _ = uncancelled(|| {
            engine.take_leave();
            Ok(())
        });
    }
}
