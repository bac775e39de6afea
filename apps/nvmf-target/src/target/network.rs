//! The network side of a core: its shard, its completion queue, and the rdma_cm identifiers on which it listens.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use verbs::rdma_cm::{CmEvent, CmId, CmOption, EventChannel, PortSpace};
use verbs::{
    Context, Cq, CqPoller, Drain, DrainKind, Pd, Qp, QpCap, QpInitAttr, Reactor, SendQueue, Srq, Turn,
    VerbsError, Wc,
};

use super::outbox::INLINE;

/// Send queue entries in addition to those for the commands of the connection.
const SPARE: u32 = 16;

/// The network side of a core.
pub struct Network {
    reactor: Reactor,
    shard: usize,
    pd: Arc<Pd>,
    listeners: Vec<Listener>,
    events: EventChannel,
    poller: CqPoller,
    cq: Cq,
    /// The most completions that all queues of this core can have at once.
    cq_needed: u32,
}

/// An rdma_cm identifier that listens.
struct Listener {
    cm_id: CmId,
    /// The number of the target's NVMe port.
    port: u16,
}

impl Network {
    /// Creates the network side on a shard of a device, with a completion queue for `receives` receives.
    ///
    /// # Errors
    /// If memory runs out, or there is no such shard.
    pub fn new(context: &Context, shard: usize, pd: Arc<Pd>, receives: u32) -> Result<Self, VerbsError> {
        let cq = context.create_cq(receives)?;
        Ok(Self {
            reactor: context.reactor(shard)?,
            shard,
            pd,
            events: EventChannel::new()?,
            listeners: Vec::new(),
            poller: cq.poller()?,
            cq,
            cq_needed: receives,
        })
    }
    /// Listens for connections at an address, as NVMe port number `port` of the target. Returns the address with the actual TCP port.
    ///
    /// # Errors
    /// If the address is in use, or is not one of the device.
    pub fn listen(
        &mut self,
        context: &Context,
        port: u16,
        address: SocketAddr,
    ) -> Result<SocketAddr, VerbsError> {
        let cm_id = context.create_id(Some(&self.events), PortSpace::Tcp)?;
        // No keep-alive of rdma_cm: the core checks silent hosts itself, and sooner (`Connection::is_gone`).
        cm_id.set_option(CmOption::KeepAlive(Duration::ZERO))?;
        cm_id.bind_addr(address)?;
        cm_id.listen(0)?;
        let at = cm_id.local_addr().unwrap_or(address);
        self.listeners.push(Listener { cm_id, port });
        Ok(at)
    }
    /// The number of the NVMe port at which a connection request arrived; `None` if no listener has the event.
    pub fn port_of(&self, event: &CmEvent) -> Option<u16> {
        let listener = self.listeners.iter().find(|listener| event.is_of(&listener.cm_id))?;
        Some(listener.port)
    }
    /// The next event of a listener or a connection, if there is one.
    pub fn next_event(&self) -> Option<CmEvent> {
        self.events.try_get_event()
    }

    /// Makes a turn of the shard. `None` as for [`Reactor::poll_once`].
    #[inline]
    pub fn turn(&mut self) -> Option<Turn> {
        self.reactor.poll_once()
    }
    /// Polls for completions into `done`; returns their number.
    ///
    /// # Errors
    /// If the device fails.
    #[inline]
    pub fn poll(&mut self, done: &mut [Wc]) -> Result<usize, VerbsError> {
        self.poller.poll(done)
    }
    /// Sleeps until the shard has work or one of `fds` is readable, for at most `most`.
    pub fn sleep(&mut self, fds: &[BorrowedFd<'_>], most: Duration) {
        self.reactor.sleep(fds, most);
    }

    /// Creates the queue pair of a connection whose host may have `commands` commands outstanding, and moves the connection's events to
    /// this event channel.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn create_qp(
        &mut self,
        cm_id: &CmId,
        commands: u16,
        srq: &Srq,
    ) -> Result<(Arc<Qp>, SendQueue), VerbsError> {
        cm_id.migrate_id(Some(&self.events))?;
        let cap = QpCap {
            // A command needs two send requests, and the next command may come before the host has acknowledged them.
            max_send_wr: 4 * commands as u32 + SPARE,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: INLINE,
        };
        let init = QpInitAttr::rc(&self.cq, &self.cq).cap(cap).srq(srq);
        let qp = cm_id.create_qp(&self.pd, &init.on_shard(self.shard))?;
        // When a queue pair fails, each of its requests is flushed with a completion.
        let needed = self.cq_needed + qp.cap().max_send_wr;
        if needed > self.cq.cqe() {
            self.poller.resize(needed.next_power_of_two())?;
        }
        let (sq, _) = qp.split()?;
        self.cq_needed = needed;
        Ok((qp, sq))
    }
    /// Releases a queue pair's share of the completion queue. To be called when it has no more completions and is about to be destroyed.
    pub fn forget(&mut self, qp: &Qp) {
        self.cq_needed -= qp.cap().max_send_wr;
    }
    /// Whether all completions of a queue pair in ERR are in the completion queue. Makes one turn of the shard, which flushes requests;
    /// if it returns false, call it again.
    pub fn is_flushed(&mut self, qp: &Qp) -> bool {
        // A drain marks where the work queues end now, and the next turn completes them up to the mark.
        let drained = qp.begin_drain(DrainKind::Qp).and_then(|mut drain: Drain| {
            self.turn();
            drain.try_finish()
        });
        // An error means that the shard has died and completes nothing more.
        drained.unwrap_or(true)
    }
}
