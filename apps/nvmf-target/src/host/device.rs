//! An NVMe host: its identity, its device, and how it waits for events.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvmf::Nqn;
use verbs::rdma_cm::{CmEvent, CmEventType, CmId, EventChannel};
use verbs::{Context, Drive, Pd, Reactor, VerbsError};

use super::error::HostError;

/// Timeout of an admin command and of connecting.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Time after which a warning says that the target does not answer.
const SILENCE: Duration = Duration::from_secs(1);

/// Checks whether a signal asked the program to end. Every loop that waits calls this.
///
/// # Errors
/// [`HostError::Interrupted`] after a signal.
#[inline]
pub(crate) fn go_on() -> Result<(), HostError> {
    if apps::stop::requested() { Err(HostError::Interrupted) } else { Ok(()) }
}

/// An NVMe host.
pub struct Host<'c> {
    pub(super) context: &'c Context,
    pub(super) pd: Pd,
    /// The shards, if the host polls them itself ([`Drive::Embedded`]); else empty.
    reactors: Vec<Reactor>,
    pub(super) name: Nqn,
    /// The host identifier (HOSTID).
    pub(super) id: [u8; 16],
    pub(super) events: EventChannel,
    /// The address from which it connects; `None`: rdma_cm chooses one.
    pub(super) address: Option<SocketAddr>,
    /// What each turn calls as well.
    beside: Option<Box<dyn FnMut() + 'c>>,
}

impl<'c> Host<'c> {
    /// A host with this NQN and host identifier on a device. `drive` is the mode in which the device was opened.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(context: &'c Context, drive: &Drive, name: Nqn, id: [u8; 16]) -> Result<Self, VerbsError> {
        let shards = if *drive == Drive::Embedded { context.shards() } else { 0 };
        let reactors = (0..shards).map(|shard| context.reactor(shard)).collect::<Result<_, _>>()?;
        let (pd, events) = (context.alloc_pd()?, EventChannel::new()?);
        Ok(Self { context, pd, reactors, name, id, events, address: None, beside: None })
    }
    /// Makes each turn of the host call `what` as well.
    pub fn beside(&mut self, what: impl FnMut() + 'c) {
        self.beside = Some(Box::new(what));
    }
    /// Sets the address of its device from which it connects.
    pub fn connect_from(&mut self, address: IpAddr) {
        self.address = Some(SocketAddr::new(address, 0));
    }
    /// Its device.
    pub fn context(&self) -> &'c Context {
        self.context
    }
    /// The protection domain of its memory.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// Makes one turn of each shard, unless the device's threads poll them. Calls the function of [`beside`](Self::beside).
    #[inline]
    pub fn turn(&mut self) {
        for reactor in &mut self.reactors {
            let _ = reactor.poll_once();
        }
        if let Some(beside) = &mut self.beside {
            beside();
        }
    }
    /// The device's time.
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.context.now())
    }
    /// Makes turns until `done` returns a result.
    ///
    /// # Errors
    /// Those of `done`; [`HostError::NoResponse`] after [`PATIENCE`]; [`HostError::Interrupted`] after a signal.
    pub(super) fn until<T>(
        &mut self,
        mut done: impl FnMut(&mut Self) -> Result<Option<T>, HostError>,
    ) -> Result<T, HostError> {
        let since = self.now();
        loop {
            self.turn();
            if let Some(result) = done(self)? {
                return Ok(result);
            }
            go_on()?;
            if self.now().saturating_sub(since) > PATIENCE {
                return Err(HostError::NoResponse);
            }
            // The target may need this processor.
            if self.beside.is_none() {
                std::thread::yield_now();
            }
        }
    }
    /// Waits for the event that completes the last call on the identifier `of`, which connects to `to`.
    ///
    /// # Errors
    /// If the event is not `wanted`; and as [`until`](Self::until).
    pub(super) fn outcome(
        &mut self,
        of: &CmId,
        to: SocketAddr,
        wanted: CmEventType,
    ) -> Result<CmEvent, HostError> {
        let (since, mut said) = (self.now(), false);
        self.until(|host| {
            if !said && host.now().saturating_sub(since) > SILENCE {
                said = true;
                tracing::warn!("{to} has not answered yet; does a target listen there?");
            }
            while let Some(event) = host.events.try_get_event() {
                // Events of other identifiers can be dropped: the state of an identifier says the same.
                if event.is_of(of) {
                    return if event.event() == wanted {
                        Ok(Some(event))
                    } else {
                        Err(HostError::of(&event, to))
                    };
                }
            }
            Ok(None)
        })
    }
}
