//! The parts of a shard besides its queue pairs, each with a file, fields and methods of its own.
//!
//! Operations on a queue pair and several parts, such as placing a packet and staging its completion, are methods of [`Env`], in the
//! file of their concern. Functions that need one or two parts take only those.

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
use crate::proto::rtt::RttProbe;
use crate::time::Instant;
use crate::wire::Discard;

pub(super) struct Env {
    pub id: usize,
    /// When this turn began.
    pub now: Instant,
    pub shared: Arc<Shared>,
    /// The counters of this shard, one of those in `shared`.
    pub counters: Arc<Counters>,
    pub outbox: Outbox,
    pub agenda: Agenda,
    pub completions: Completions,
    pub keys: Keys,
    pub peers: Peers,
    /// Packets of reliable queue pairs in flight, and their common limit.
    pub in_flight: InFlight,
    /// Measures the round-trip time of an occasional packet.
    pub rtt_probe: RttProbe,
    /// When a queue pair gives up the source port that it tries, by slot.
    pub tries: HashMap<u32, Instant>,
    /// Multicast groups of the whole device, with their queue pairs.
    pub mcast: Arc<McastTable>,
    /// XRC shared receive queues, by number.
    pub xrc_srqs: Vec<XrcSrq>,
    /// XRC targets whose requests are relayed to other processes.
    pub relays: Relays,
    /// Number of queue pairs in neither RESET nor INIT.
    pub connected: usize,
    /// The frame being received comes from a shard of this device, which has already copied it to each other shard that needs it.
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
            rtt_probe: RttProbe::NEW,
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
    /// Counts a rare event, for the shard and for a queue pair.
    pub fn count_of(&self, qp: &Qp, counter: Counter) {
        self.counters.add_of(&qp.counters, counter);
    }
    #[inline]
    pub fn discard(&self, reason: Discard) {
        self.counters.discard(reason, 1);
    }
    /// Counts a drop, for the shard and for a queue pair.
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

    /// Copies bytes to the memory of a scatter/gather list, within a protection domain: [`Keys::scatter`].
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

    /// The paths to peers, and the IP host that resolves them.
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

    /// Puts a frame into the inbox of a shard.
    pub fn hand_over(&self, shard: usize, frame: Frame) {
        self.shared.hand_over(shard, frame, &self.counters);
    }

    /// Hands waiting frames to the port. Returns the number of frames that it took.
    #[inline]
    pub fn flush(&mut self) -> usize {
        self.outbox.flush(self.now, &self.counters)
    }
}
