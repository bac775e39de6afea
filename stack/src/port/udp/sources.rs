//! The UDP source ports of a port. A network chooses a path by addresses and ports, and a host a receive queue, so queue pairs have source
//! ports of their own. Each is a socket that only sends. All queue pairs receive on port 4791.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::io::{Error, ErrorKind};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::socket::{SOURCE_PORTS, Socket};
use crate::port::spec::SOURCES_MAX;
use crate::port::traits::FlowKind;
use crate::sync::lock::lock;
use crate::wire::UDP_PORT;

/// A source port, with a socket on each address of the port.
pub(super) struct Source {
    pub port: u16,
    pub sockets: Vec<Socket>,
}

/// A source port, and the number of flows that use it.
struct Used {
    source: Arc<Source>,
    flows: usize,
}

/// The source ports of a port.
pub(super) struct Sources {
    /// Requested size of a socket's buffers, in bytes.
    buffer: u32,
    /// The open source ports. They are never closed.
    used: Mutex<Vec<Used>>,
    /// How many are open, and how many may be.
    count: AtomicUsize,
    most: AtomicUsize,
    /// Whether a warning was logged that another one cannot be opened.
    failed: AtomicBool,
}

impl Sources {
    /// Up to `most` source ports, each with a socket on each of the addresses; fewer if that makes more than [`SOURCES_MAX`] sockets.
    pub fn new(most: usize, addresses: usize, buffer: u32) -> Self {
        let most = if most == 0 { 0 } else { most.min(SOURCES_MAX / addresses).max(1) };
        Self {
            buffer,
            used: Mutex::default(),
            count: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
            failed: AtomicBool::new(false),
        }
    }

    /// The number of open source ports: it changes when another one is opened.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// All open source ports.
    pub fn all(&self) -> Vec<Arc<Source>> {
        lock(&self.used).iter().map(|used| Arc::clone(&used.source)).collect()
    }

    /// Takes the source port for one more flow. A flow that asks for its own gets the one with the fewest flows, or a new one if all are in
    /// use and there may be more. Returns 4791 if there is no other one. `beside` are the sockets on 4791.
    pub fn take(&self, beside: &[Socket], hint: u16, kind: FlowKind) -> u16 {
        if kind == FlowKind::Shared {
            return UDP_PORT;
        }
        let mut used = lock(&self.used);
        // A flow label gets the same source port at any time, so all are opened for the first label.
        let more = |used: &Vec<Used>| kind == FlowKind::Labelled || used.iter().all(|used| used.flows > 0);
        while used.len() < self.most.load(Ordering::Relaxed) && more(&used) {
            match self.open(beside, used.last().map(|used| used.source.port)) {
                Ok(source) => used.push(Used { source: Arc::new(source), flows: 0 }),
                Err(error) => {
                    self.note_failure(used.len(), &error);
                    break;
                }
            }
        }
        let len = used.len();
        self.count.store(len, Ordering::Release);
        let chosen = match kind {
            FlowKind::Labelled => used.get_mut(usize::from(hint) % len.max(1)),
            _ => used.iter_mut().min_by_key(|used| used.flows),
        };
        chosen.map_or(UDP_PORT, |used| {
            used.flows += 1;
            used.source.port
        })
    }

    /// Handles that no other source port than these `count` can be opened: all ports are taken, or descriptors or an address are missing
    /// for now.
    #[cold]
    fn note_failure(&self, count: usize, error: &Error) {
        if error.kind() == ErrorKind::AddrInUse {
            self.most.store(count, Ordering::Relaxed); // no more tries
        }
        if !self.failed.swap(true, Ordering::Relaxed) {
            let (first, last) = (SOURCE_PORTS.start(), SOURCE_PORTS.end());
            let shared = if count == 0 { UDP_PORT.to_string() } else { "them".into() };
            tracing::warn!(
                "{count} UDP ports from {first} to {last} can be had, so connections share {shared}: {error}"
            );
        }
    }

    /// Gives back a source port whose flow has ended.
    pub fn release(&self, port: u16) {
        let mut used = lock(&self.used);
        if let Some(used) = used.iter_mut().find(|used| used.source.port == port) {
            used.flows = used.flows.saturating_sub(1);
        }
    }

    /// Opens another source port, the first free one after `last`.
    fn open(&self, beside: &[Socket], last: Option<u16>) -> Result<Source, Error> {
        let first = last.map_or(*SOURCE_PORTS.start(), |last| last.saturating_add(1));
        let mut error = Error::from(ErrorKind::AddrInUse);
        for port in first..=*SOURCE_PORTS.end() {
            match beside.iter().map(|socket| socket.source(port, self.buffer)).collect() {
                Ok(sockets) => return Ok(Source { port, sockets }),
                Err(other) => error = other,
            }
            if error.kind() != ErrorKind::AddrInUse {
                break;
            }
        }
        Err(error)
    }

    /// Calls `note` for each socket on which errors wait.
    pub fn with_errors(&self, mut note: impl FnMut(&Socket)) {
        let all = self.all();
        let sockets: Vec<&Socket> = all.iter().flat_map(|source| &source.sockets).collect();
        let mut asked: Vec<_> = sockets
            .iter()
            .map(|socket| PollFd::from_borrowed_fd(socket.fd.as_fd(), PollFlags::empty()))
            .collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if asked.is_empty() || !poll(&mut asked, Some(&now)).is_ok_and(|found| found > 0) {
            return;
        }
        let failed: Vec<bool> = asked.iter().map(|asked| !asked.revents().is_empty()).collect();
        sockets.into_iter().zip(failed).filter(|(_, failed)| *failed).for_each(|(socket, _)| note(socket));
    }
}
