//! What the shards of a device share, each part with its own rule of access.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use super::blocks::Blocks;
use super::counters::Counters;
use super::due::Due;
use super::ended_peers::EndedPeers;
use super::events::EventQueue;
use super::gids::Gids;
use super::unsent::Unsent;
use crate::config::{INBOX_DEPTH, TX_BURST};
use crate::id::{Gid, Mac, Mtu, Qpn};
use crate::mem::MrTable;
use crate::net::Net;
use crate::port::Frame;
use crate::sync::doorbell::Doorbells;
use crate::sync::lock::lock;
use crate::sync::sleeper::Sleeper;
use crate::sync::words::{Word, Words};
use crate::time::Instant;
use crate::wire::Discard;

/// Shared by the shards of a device and its control plane.
#[derive(Debug)]
pub struct Shared {
    /// Memory regions: registered by control calls, looked up by every shard without a lock.
    pub mrs: MrTable,
    /// The IP host: neighbours, ARP, ICMP. Only non-RoCE frames and address resolution take the lock.
    pub net: Mutex<Net>,
    /// [`Net::generation`] as of the last change: shards look their neighbours up again when it moves.
    net_generation: AtomicU64,
    /// When the IP host has something to send again, in nanoseconds; `u64::MAX` for never.
    net_deadline: AtomicU64,
    /// Completion queues that overran so far: shards look at their lanes again when it moves.
    overruns: AtomicU32,
    /// Which shard has which block of queue pair numbers.
    pub blocks: Blocks,
    /// Addresses of this device.
    pub gids: Gids,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// VLAN that our addresses are in.
    pub vlan: Option<u16>,
    /// [`Self::mtu`].
    mtu: AtomicU8,
    /// Queue pairs a shard can hold: the index of a queue pair is `shard * qps_per_shard + slot`.
    pub qps_per_shard: usize,
    /// The station of received frames whose IPv4 identification the port has computed, as it does not see it.
    pub computes_ids: Option<Mac>,
    /// One bitmap a shard; a bit is a queue pair's slot.
    pub doorbells: Box<[Doorbells]>,
    /// Shards that have datagrams to send.
    pub unsent: Unsent,
    /// Frames for a shard from the others, and from itself.
    pub inboxes: Box<[ArrayQueue<Frame>]>,
    /// For each shard, a number that is odd during its turns and moves on at each end of one.
    pub turning: Box<[CachePadded<AtomicU32>]>,
    /// Epoch, state and gates of every queue pair.
    pub words: Words,
    /// Counters, one set a shard.
    pub counters: Box<[Arc<Counters>]>,
    /// Asynchronous events that nobody fetched yet.
    pub events: EventQueue,
    /// Queue pairs whose peer's process has ended.
    pub ended_peers: EndedPeers,
    /// Where whoever turns shards sleeps while there is nothing to do.
    pub sleeper: Sleeper,
}

/// What [`Shared::new`] needs to know.
#[derive(Debug)]
pub struct SharedConfig {
    /// The IP host.
    pub net: Net,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// VLAN of our addresses.
    pub vlan: Option<u16>,
    /// Largest path MTU the port carries.
    pub mtu: Mtu,
    /// Shards.
    pub shards: usize,
    /// Queue pairs each can hold.
    pub qps_per_shard: usize,
    /// The station of received frames whose IPv4 identification the port has computed, as it does not see it.
    pub computes_ids: Option<Mac>,
}

impl Shared {
    /// The shared part of a device that has no queue pairs yet.
    pub fn new(c: SharedConfig) -> Self {
        Self {
            mrs: MrTable::new(),
            net: Mutex::new(c.net),
            net_generation: AtomicU64::new(0),
            net_deadline: AtomicU64::new(u64::MAX),
            overruns: AtomicU32::new(0),
            blocks: Blocks::default(),
            gids: Gids::new(&c.gids),
            mac: c.mac,
            vlan: c.vlan,
            mtu: AtomicU8::new(c.mtu as u8),
            qps_per_shard: c.qps_per_shard,
            computes_ids: c.computes_ids,
            ended_peers: EndedPeers::new(c.shards * c.qps_per_shard),
            doorbells: (0..c.shards).map(|_| Doorbells::new(c.qps_per_shard as u32)).collect(),
            unsent: Unsent::default(),
            inboxes: (0..c.shards).map(|_| ArrayQueue::new(INBOX_DEPTH)).collect(),
            turning: (0..c.shards).map(|_| CachePadded::default()).collect(),
            words: Words::new(c.shards * c.qps_per_shard),
            counters: (0..c.shards).map(|_| Arc::default()).collect(),
            events: EventQueue::default(),
            sleeper: Sleeper::new(1 + c.shards),
        }
    }

    /// Largest path MTU that the port carries now.
    pub fn mtu(&self) -> Mtu {
        Mtu::from_enum(self.mtu.load(Ordering::Relaxed)).unwrap_or(Mtu::Mtu256)
    }

    /// The port carries another path MTU from now on. Queue pairs that are connected keep theirs.
    pub fn set_mtu(&self, mtu: Mtu) {
        self.mtu.store(mtu as u8, Ordering::Relaxed);
    }

    /// The shard that has the block of this number; a number beyond all shards if none has it.
    #[inline]
    pub fn shard_of(&self, qpn: Qpn) -> usize {
        self.blocks.shard_of(qpn)
    }

    /// Whether a queue pair is in this device: its address is one of ours, and no other process has its number.
    pub fn is_inside(&self, gid: &Gid, qpn: Qpn) -> bool {
        self.gids.contains(gid) && !self.blocks.is_foreign(qpn)
    }

    /// A shard died in a turn or between two; nobody holds it or will hold it. No lookup of it counts as under way any more, and
    /// posters see that nobody looks at what is posted to its queue pairs.
    pub fn end_shard(&self, id: usize) {
        let turn = &self.turning[id];
        let number = turn.load(Ordering::Relaxed);
        turn.store(number.wrapping_add(number & 1), Ordering::Release); // the next even number
        for index in id * self.qps_per_shard..(id + 1) * self.qps_per_shard {
            let index = index as u32;
            self.words.store(index, self.words.load(index).dead());
        }
    }

    /// A queue pair of a shard that died is destroyed: poll skips its completions, and its windows are unbound.
    pub fn forget_qp(&self, index: u32, qpn: Qpn) {
        self.mrs.forget_qp(qpn);
        let epoch = self.words.load(index).epoch().wrapping_add(1);
        self.words.store(index, Word::new(epoch, 0, 0).dead());
    }

    /// Works with the IP host and publishes what changed by it.
    pub fn with_net<R>(&self, f: impl FnOnce(&mut Net) -> R) -> R {
        let mut net = lock(&self.net);
        let r = f(&mut net);
        self.net_generation.store(net.generation(), Ordering::Release);
        let deadline = net.poll_timeout().map_or(u64::MAX, Instant::as_nanos);
        self.net_deadline.store(deadline, Ordering::Release);
        r
    }

    /// Puts a frame into a shard's inbox. `counters` are those of the shard that has it.
    pub(super) fn hand_over(&self, shard: usize, frame: Frame, counters: &Counters) {
        let full = match self.inboxes.get(shard) {
            Some(inbox) => inbox.push(frame).is_err(),
            None => return counters.discard(Discard::UnknownQpn, 1),
        };
        if full {
            counters.discard(Discard::InboxFull, 1);
        }
        self.sleeper.wake_for(1 << shard);
    }

    /// Whether requests of a reliable queue pair may be handed over to a shard now, as many as a turn sends, so that none is lost. They
    /// leave room for answers.
    pub(super) fn takes_requests(&self, shard: usize) -> bool {
        self.has_waiting_less_than(shard, INBOX_DEPTH / 2)
    }

    /// As [`takes_requests`](Self::takes_requests), of answers.
    pub(super) fn takes_answers(&self, shard: usize) -> bool {
        self.has_waiting_less_than(shard, INBOX_DEPTH - TX_BURST)
    }

    fn has_waiting_less_than(&self, shard: usize, frames: usize) -> bool {
        self.inboxes.get(shard).is_none_or(|inbox| inbox.len() < frames)
    }

    /// When there is work for a shard here: from posters, from other shards, or of the IP host.
    pub(super) fn due(&self, shard: usize) -> Due {
        let net = Some(self.net_deadline()).filter(|net| *net != Instant::FAR);
        Due::now_if(self.doorbells[shard].any() || !self.inboxes[shard].is_empty()).min(Due::at(net))
    }

    /// Changes whenever a neighbour's address may have.
    #[inline]
    pub fn net_generation(&self) -> u64 {
        self.net_generation.load(Ordering::Acquire)
    }

    /// Changes whenever a completion queue overran.
    #[inline]
    pub fn overruns(&self) -> u32 {
        self.overruns.load(Ordering::Acquire)
    }

    /// A completion queue overran.
    pub(super) fn note_overrun(&self) {
        self.overruns.fetch_add(1, Ordering::Release);
    }

    /// When [`Net::poll_transmit`] has something to send.
    #[inline]
    pub fn net_deadline(&self) -> Instant {
        Instant::from_nanos(self.net_deadline.load(Ordering::Acquire))
    }
}
