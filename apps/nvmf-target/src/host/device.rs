//! A host: who it is, the device that it uses, and how it waits.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvmf::Nqn;
use verbs::rdma_cm::{CmEvent, CmEventType, CmId, EventChannel};
use verbs::{Context, Drive, Pd, Reactor, VerbsError};

use super::error::HostError;

/// How long a command of the admin queue may take, and a connection.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// After so long the user is told that the target does not answer.
const SILENCE: Duration = Duration::from_secs(1);

/// Fails when a signal asked the program to end; every waiting loop calls it.
///
/// # Errors
/// [`HostError::Interrupted`].
#[inline]
pub(crate) fn go_on() -> Result<(), HostError> {
    if apps::stop::requested() { Err(HostError::Interrupted) } else { Ok(()) }
}

/// Who the host is, and the device that it uses.
pub struct Host<'c> {
    pub(super) context: &'c Context,
    pub(super) pd: Pd,
    /// The shards, if the host polls them.
    reactors: Vec<Reactor>,
    pub(super) name: Nqn,
    pub(super) id: [u8; 16],
    pub(super) events: EventChannel,
    /// The address that it connects from, where it is not left open.
    pub(super) address: Option<SocketAddr>,
    beside: Option<Box<dyn FnMut() + 'c>>,
}

impl<'c> Host<'c> {
    /// A host on a device; `drive` is what the device was opened with.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(context: &'c Context, drive: &Drive, name: Nqn, id: [u8; 16]) -> Result<Self, VerbsError> {
        let shards = if *drive == Drive::Embedded { context.shards() } else { 0 };
        let reactors = (0..shards).map(|shard| context.reactor(shard)).collect::<Result<_, _>>()?;
        let (pd, events) = (context.alloc_pd()?, EventChannel::new()?);
        Ok(Self { context, pd, reactors, name, id, events, address: None, beside: None })
    }
    /// From now on each turn of the host calls `what`, too.
    pub fn beside(&mut self, what: impl FnMut() + 'c) {
        self.beside = Some(Box::new(what));
    }
    /// From now on it connects from this address of its device.
    pub fn connect_from(&mut self, address: IpAddr) {
        self.address = Some(SocketAddr::new(address, 0));
    }
    /// Its device.
    pub fn context(&self) -> &'c Context {
        self.context
    }
    /// The domain of its memory.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// One turn of each shard that is its own to turn.
    #[inline]
    pub fn turn(&mut self) {
        for reactor in &mut self.reactors {
            let _ = reactor.poll_once();
        }
        if let Some(beside) = &mut self.beside {
            beside();
        }
    }
    /// The time of the device.
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.context.now())
    }
    /// Turns until `done` gives something.
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
            // The target may be on this processor.
            if self.beside.is_none() {
                std::thread::yield_now();
            }
        }
    }
    /// Waits for the event that ends the last call of an identifier, which connects to `to`; an error unless it is `wanted`.
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
                // Events of other queues are not needed: their identifiers have the same state.
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
