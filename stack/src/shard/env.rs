//! What a shard works with beside its queue pairs: parts, each with a file, fields and methods of its own.
//!
//! Where a queue pair meets several parts, as when a packet is placed and its completion staged, that is a method of [`Env`], in the
//! file of its concern. What needs one or two parts takes those.

use std::collections::HashMap;
use std::sync::Arc;

use super::agenda::Agenda;
use super::completions::Completions;
use super::copy::{LocalProtection, Memory};
use super::counters::{Counter, Counters};
use super::host::IpHost;
use super::keys::Keys;
use super::mcast::McastTable;
use super::outbox::Outbox;
use super::peers::Peers;
use super::qp::Qp;
use super::relays::Relays;
use super::rq::XrcSrq;
use super::shared::Shared;
use super::window::InFlight;
use crate::id::PdId;
use crate::mem::Sge;
use crate::port::{Frame, PortQueue};
use crate::proto::recovery::RetryCause;
use crate::proto::rtt::Stopwatch;
use crate::time::Instant;
use crate::wire::Discard;

pub(super) struct Env {
    pub id: usize,
    /// When this turn began.
    pub now: Instant,
    pub shared: Arc<Shared>,
    /// The counters of this shard, among the shared ones.
    pub counters: Arc<Counters>,
    pub outbox: Outbox,
    pub agenda: Agenda,
    pub completions: Completions,
    pub keys: Keys,
    pub peers: Peers,
    /// What reliable queue pairs may have in flight together.
    pub in_flight: InFlight,
    /// Times a packet now and then.
    pub stopwatch: Stopwatch,
    /// When source ports that are tried are left, by the slots of their queue pairs.
    pub tries: HashMap<u32, Instant>,
    /// Multicast groups with their queue pairs, of the whole device.
    pub mcast: Arc<McastTable>,
    /// XRC shared receive queues, by number.
    pub xrc_srqs: Vec<XrcSrq>,
    /// XRC targets whose requests are passed on to other processes.
    pub relays: Relays,
    /// Queue pairs in RTR or above.
    pub connected: usize,
    /// The frame being received comes from a shard of this device, which has copied it to the other shards that need it.
    pub from_inside: bool,
}

impl Env {
    pub fn new(id: usize, shared: Arc<Shared>, queue: Box<dyn PortQueue>, now: Instant) -> Self {
        Self {
            id,
            now,
            counters: shared.counters[id].clone(),
            shared,
            outbox: Outbox::new(queue),
            agenda: Agenda::new(now),
            completions: Completions::default(),
            keys: Keys::new(),
            peers: Peers::default(),
            in_flight: InFlight::default(),
            stopwatch: Stopwatch::NEW,
            tries: HashMap::new(),
            mcast: Arc::default(),
            xrc_srqs: Vec::new(),
            relays: Relays::default(),
            connected: 0,
            from_inside: false,
        }
    }

    #[inline]
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }
    /// Counts something rare that a queue pair counts, too.
    pub fn count_of(&self, qp: &Qp, counter: Counter) {
        self.counters.add_of(&qp.counters, counter);
    }
    #[inline]
    pub fn discard(&self, reason: Discard) {
        self.counters.discard(reason, 1);
    }
    /// Counts a drop that is a queue pair's, too.
    #[cold]
    pub fn discard_of(&self, qp: &Qp, reason: Discard) {
        self.discard(reason);
        qp.counters.discard(reason);
    }

    /// The registered memory of a protection domain.
    #[inline]
    pub fn memory(&self, pd: PdId) -> Memory<'_> {
        Memory { keys: &self.shared.mrs, pd }
    }

    /// Copies bytes to where a scatter/gather list of a protection domain says: [`Keys::scatter`].
    #[inline(always)]
    pub fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        from: &[u8],
        last: bool,
    ) -> Result<(), LocalProtection> {
        let memory = Memory { keys: &self.shared.mrs, pd };
        self.keys.scatter(memory, sges, offset, from, last)
    }

    /// The IP host.
    #[inline]
    pub fn host(&mut self) -> IpHost<'_> {
        self.peers_and_host().1
    }

    /// The ways to peers, and the IP host that knows them.
    #[inline]
    pub fn peers_and_host(&mut self) -> (&mut Peers, IpHost<'_>) {
        let Self { now, shared, counters, outbox, peers, .. } = self;
        (peers, IpHost { now: *now, shared, counters, outbox })
    }

    /// [`Peers::resolve`].
    pub fn resolve(&mut self, qp: &mut Qp) -> Option<RetryCause> {
        let (peers, mut host) = self.peers_and_host();
        peers.resolve(&mut host, qp)
    }

    /// Puts a frame into a shard's inbox.
    pub fn hand_over(&self, shard: usize, frame: Frame) {
        self.shared.hand_over(shard, frame, &self.counters);
    }

    /// Hands waiting frames to the port. Returns how many it took.
    #[inline]
    pub fn flush(&mut self) -> usize {
        self.outbox.flush(self.now, &self.counters)
    }
}
