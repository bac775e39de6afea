//! A host: connects to subsystems, asks who they are, reads and writes. For tests and figures.

mod command;
mod controller;
mod error;
mod queue;

pub use command::Io;
pub use controller::{Controller, NamespaceInfo, Options, discover};
pub use error::HostError;
pub use queue::{Data, HostQueue};

use std::time::{Duration, Instant};

use nvmf::Nqn;
use nvmf::wire::{Cqe, Sqe};
use verbs::{Context, Drive, Pd, Reactor, VerbsError};

/// How long a command of the admin queue may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends a wait where a signal asks the program to end: to be called in each.
///
/// # Errors
/// [`HostError::Interrupted`].
#[inline]
pub(crate) fn go_on() -> Result<(), HostError> {
    if apps::stop::requested() { Err(HostError::Interrupted) } else { Ok(()) }
}

/// Who the host is, and the device that it uses.
pub struct Host<'c> {
    context: &'c Context,
    pd: Pd,
    /// The shards, where nobody else turns them.
    reactors: Vec<Reactor>,
    name: Nqn,
    id: [u8; 16],
}

impl<'c> Host<'c> {
    /// A host on a device; `drive` is what the device was opened with.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(context: &'c Context, drive: &Drive, name: Nqn, id: [u8; 16]) -> Result<Self, VerbsError> {
        let shards = if *drive == Drive::Embedded { context.shards() } else { 0 };
        let reactors = (0..shards).map(|shard| context.reactor(shard)).collect::<Result<_, _>>()?;
        Ok(Self { context, pd: context.alloc_pd()?, reactors, name, id })
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
    }
    /// Sends a command, and waits for its response.
    ///
    /// # Errors
    /// If the connection fails, no response comes, or the response says that the command failed.
    pub fn call(&mut self, queue: &mut HostQueue, sqe: &Sqe, data: Data<'_>) -> Result<Cqe, HostError> {
        let cid = queue.submit(sqe, data)?.ok_or(HostError::QueueFull)?;
        let since = Instant::now();
        let mut answer = None;
        while answer.is_none() {
            self.turn();
            queue.poll(|cqe| {
                if cqe.cid.get() == cid {
                    answer = Some(*cqe);
                }
            })?;
            go_on()?;
            if since.elapsed() > PATIENCE {
                return Err(HostError::NoResponse);
            }
        }
        let cqe = answer.expect("the loop ends with it");
        match cqe.status.get() >> 1 {
            0 => Ok(cqe),
            status => Err(HostError::Status { status, result: cqe.result.get() }),
        }
    }
}
