//! The port, and its queues.

use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;

use super::group::Group;
use super::rx::Receiver;
use super::shared::Shared;
use super::tx::Sender;
use super::{steering, sys};
use crate::id::Qpn;
use crate::port::counters::sum;
use crate::port::error::PortError;
use crate::port::frame::{Frame, HeapPool, RxBurst, TxBurst};
use crate::port::info::{PortInfo, PortStats};
use crate::port::taken::Taken;
use crate::port::traits::{Armed, Build, FlowKind, Host, Numbers, Port, PortQueue, Route, Routes, Stalled};
use crate::registry::{Registry, Run};
use crate::time::Instant;

/// A port of UDP sockets.
pub(in crate::port) struct UdpPort {
    pub(super) info: PortInfo,
    pub(super) taken: Taken,
    pub(super) shared: Arc<Shared>,
}

impl Port for UdpPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.taken.take(index)?;
        Some(Box::new(UdpQueue {
            receiver: (self.shared.receives && index < self.shared.sockets.len())
                .then(|| Receiver::new(index)),
            sender: Sender::new(index),
            arrivals: None,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn start(&self) -> Result<(), PortError> {
        Ok(())
    }

    fn mtu(&self) -> usize {
        self.shared.host.mtu().unwrap_or(self.info.mtu).min(self.info.mtu)
    }

    fn link_up(&self) -> bool {
        self.shared.host.mtu().is_some()
    }

    fn host(&self) -> Option<&dyn Host> {
        Some(&*self.shared)
    }

    /// A quarter of the memory of the smallest receive buffer. The kernel counts the memory of a datagram, up to twice its bytes, and half
    /// of a buffer is for what we request, the other half for what peers request. Peers are assumed to have buffers of the same size.
    fn window(&self) -> Option<usize> {
        self.shared.sockets.iter().flatten().map(|socket| socket.memory / 4).min()
    }

    fn steer(&self, numbers: &[(RangeInclusive<Qpn>, usize)]) {
        if self.shared.group.is_some() {
            return; // the program of the group steers
        }
        let [first, _, ..] = &self.shared.sockets[..] else { return };
        let mut program = steering::program(numbers);
        for socket in first {
            if let Err(error) = sys::steer(socket.fd(), &mut program) {
                self.shared.complain(|| {
                    format!(
                        "packets are handed from shard to shard, as the system does not steer them: {error}"
                    )
                });
            }
        }
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        self.shared.group.is_some().then_some(self)
    }

    fn maintain(&self) {
        for socket in self.shared.sockets.iter().flatten() {
            let _ = self.shared.note_errors(socket); // there may be no errors
        }
        self.shared.sources.with_errors(|socket| _ = self.shared.note_errors(socket));
        let host = &self.shared.host;
        host.follow();
        self.shared.groups.follow(host.changed(), |v6| host.interfaces(v6));
        if let Some(group) = &self.shared.group {
            group.maintain(&self.shared.sockets[0]);
        }
    }

    fn stats(&self) -> PortStats {
        PortStats { refused: self.shared.refused.load(Ordering::Relaxed), ..sum(&self.shared.counters) }
    }
}

impl Numbers for UdpPort {
    fn lease(&self, queue: usize) -> Result<Run, PortError> {
        let port = || self.shared.name.clone();
        let Some(group) = &self.shared.group else {
            return Err(PortError::Open { port: port(), reason: "all numbers are the device's".into() });
        };
        let leased = group.lease(queue, self.shared.sockets.get(queue).map_or(&[], Vec::as_slice));
        leased.map_err(|error| PortError::Open { port: port(), reason: error.to_string() })
    }

    fn registry(&self) -> Option<&Arc<Registry>> {
        self.shared.group.as_ref().map(Group::registry)
    }

    fn announce(&self) {
        if let Some(group) = &self.shared.group {
            group.announce(&self.shared.sockets[0]);
        }
    }

    fn links(&self) -> u64 {
        0
    }
}

struct UdpQueue {
    /// `None` if the queue has no sockets.
    receiver: Option<Receiver>,
    sender: Sender,
    /// Readable when one of the sockets is.
    arrivals: Option<Arc<OwnedFd>>,
    shared: Arc<Shared>,
}

impl UdpQueue {
    /// Whether messages to multicast groups arrive on this queue.
    fn receives_groups(&self) -> bool {
        self.receiver.as_ref().is_some_and(Receiver::receives_groups)
    }

    /// Opens an epoll descriptor for the sockets of this queue. Each queue has its own, as a sleeping thread waits for those of several
    /// queues.
    fn watch(&self) -> rustix::io::Result<OwnedFd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for socket in self.receiver.iter().flat_map(|receiver| receiver.sockets(&self.shared)) {
            epoll::add(&epoll, &socket.fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        if let Some(groups) = self.shared.groups.ready().filter(|_| self.receives_groups()) {
            epoll::add(&epoll, groups, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(epoll)
    }
}

impl PortQueue for UdpQueue {
    fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        self.receiver.as_mut().map_or(0, |receiver| receiver.burst(&self.shared, out))
    }

    fn routes(&mut self) -> Option<&mut dyn Routes> {
        None
    }

    fn take_source_port(&mut self, hint: u16, kind: FlowKind) -> u16 {
        self.shared.sources.take(&self.shared.sockets[0], hint, kind)
    }

    fn release_source_port(&mut self, port: u16) {
        self.shared.sources.release(port);
    }

    fn tx_burst(&mut self, _: Route, frames: &mut TxBurst) -> usize {
        self.sender.burst(&self.shared, frames)
    }

    fn alloc(&mut self) -> Option<Frame> {
        self.shared.pool.alloc()
    }

    fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.shared.pool.alloc_burst(out, n);
    }

    fn build_burst(&mut self, _: Route, _: usize, _: &mut dyn Build) -> Option<usize> {
        None
    }

    fn stalled(&mut self, _: Route, _: Instant) -> Stalled {
        Stalled::No
    }

    /// Each datagram makes an edge of the descriptor (EPOLLET), even while others wait.
    fn arm(&mut self) -> Armed {
        if self.receiver.as_ref().is_some_and(Receiver::pending) {
            return Armed::Pending;
        }
        if self.arrivals.is_none() {
            self.arrivals = self.watch().ok().map(Arc::new);
        }
        self.arrivals.clone().map_or(Armed::Unable, Armed::Event)
    }

    fn recycle(&mut self, frames: &mut RxBurst) {
        HeapPool::recycle(frames);
    }
}
