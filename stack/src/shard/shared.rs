//! The state that the shards of a device share; each part has its own rule of access.

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

/// State shared by the shards of a device and its control plane.
#[derive(Debug)]
pub struct Shared {
    /// Memory regions: registered by control calls, looked up by every shard without a lock.
    pub mrs: MrTable,
    /// The IP host: neighbours, ARP, ICMP. Only non-RoCE frames and address resolution take the lock.
    pub net: Mutex<Net>,
    /// [`Net::generation`] at the last change: shards look up their neighbours again when it changes.
    net_generation: AtomicU64,
    /// When the IP host has something to send next, in nanoseconds; `u64::MAX` for never.
    net_deadline: AtomicU64,
    /// Number of completion queues that overran: shards check their lanes again when it changes.
    overruns: AtomicU32,
    /// Which shard owns each block of queue pair numbers.
    pub blocks: Blocks,
    /// The addresses of this device.
    pub gids: Gids,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The VLAN of the device's addresses.
    pub vlan: Option<u16>,
    /// [`Self::mtu`].
    mtu: AtomicU8,
    /// Number of queue pairs a shard can hold: the index of a queue pair is `shard * qps_per_shard + slot`.
    pub qps_per_shard: usize,
    /// The source Ethernet address of received frames whose IPv4 identification the port computed, because the port does not receive it.
    pub computes_ids: Option<Mac>,
    /// One bitmap for each shard; a bit stands for a queue pair's slot.
    pub doorbells: Box<[Doorbells]>,
    /// Shards that have datagrams to send.
    pub unsent: Unsent,
    /// For each shard, frames from other shards and from itself.
    pub inboxes: Box<[ArrayQueue<Frame>]>,
    /// For each shard, a number that is odd during its turns and increases when one begins and when it ends.
    pub turn_counters: Box<[CachePadded<AtomicU32>]>,
    /// Epoch, state and gates of every queue pair.
    pub words: Words,
    /// Counters, one set for each shard.
    pub counters: Box<[Arc<Counters>]>,
    /// Asynchronous events that were not fetched yet.
    pub events: EventQueue,
    /// Queue pairs whose peer's process has ended.
    pub ended_peers: EndedPeers,
    /// Where the threads that drive shards sleep while no work is due.
    pub sleeper: Sleeper,
}

/// Parameters of [`Shared::new`].
#[derive(Debug)]
pub struct SharedConfig {
    /// The IP host.
    pub net: Net,
    /// The addresses of the host.
    pub gids: Vec<Gid>,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The VLAN of the addresses.
    pub vlan: Option<u16>,
    /// Largest path MTU that the port carries.
    pub mtu: Mtu,
    /// Number of shards.
    pub shards: usize,
    /// Number of queue pairs each shard can hold.
    pub qps_per_shard: usize,
    /// The source Ethernet address of received frames whose IPv4 identification the port computed, because the port does not receive it.
    pub computes_ids: Option<Mac>,
}

impl Shared {
    /// The shared state of a device without queue pairs.
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
            turn_counters: (0..c.shards).map(|_| CachePadded::default()).collect(),
            words: Words::new(c.shards * c.qps_per_shard),
            counters: (0..c.shards).map(|_| Arc::default()).collect(),
            events: EventQueue::default(),
            sleeper: Sleeper::new(1 + c.shards),
        }
    }

    /// Largest path MTU that the port currently carries.
    pub fn mtu(&self) -> Mtu {
        Mtu::from_enum(self.mtu.load(Ordering::Relaxed)).unwrap_or(Mtu::Mtu256)
    }

    /// Changes the path MTU that the port carries. Connected queue pairs keep theirs.
    pub fn set_mtu(&self, mtu: Mtu) {
        self.mtu.store(mtu as u8, Ordering::Relaxed);
    }

    /// The shard that owns the block of this number; a number beyond all shards if none does.
    #[inline]
    pub fn shard_of(&self, qpn: Qpn) -> usize {
        self.blocks.shard_of(qpn)
    }

    /// Whether a queue pair is in this device: its address is the device's, and no other process has its number.
    pub fn is_inside(&self, gid: &Gid, qpn: Qpn) -> bool {
        self.gids.contains(gid) && !self.blocks.is_foreign(qpn)
    }

    /// Ends a shard that died in a turn or between two; no thread holds it or will hold it. Its key lookups no longer delay grace periods,
    /// and posters see that no shard serves their queue pairs.
    pub fn end_shard(&self, id: usize) {
        let turn = &self.turn_counters[id];
        let number = turn.load(Ordering::Relaxed);
        turn.store(number.wrapping_add(number & 1), Ordering::Release); // the next even number
        for index in id * self.qps_per_shard..(id + 1) * self.qps_per_shard {
            let index = index as u32;
            self.words.store(index, self.words.load(index).dead());
        }
    }

    /// Destroys a queue pair of a shard that died: pollers skip its completions, and its memory windows are unbound.
    pub fn forget_qp(&self, index: u32, qpn: Qpn) {
        self.mrs.forget_qp(qpn);
        let epoch = self.words.load(index).epoch().wrapping_add(1);
        self.words.store(index, Word::new(epoch, 0, 0).dead());
    }

    /// Calls the IP host, and publishes its generation and deadline afterwards.
    pub fn with_net<R>(&self, f: impl FnOnce(&mut Net) -> R) -> R {
        let mut net = lock(&self.net);
        let r = f(&mut net);
        self.net_generation.store(net.generation(), Ordering::Release);
        let deadline = net.poll_timeout().map_or(u64::MAX, Instant::as_nanos);
        self.net_deadline.store(deadline, Ordering::Release);
        r
    }

    /// Puts a frame into a shard's inbox. `counters` are those of the shard that hands the frame over.
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

    /// Whether requests of a reliable queue pair may be handed over to a shard now, as many as a turn sends, without loss. They leave
    /// room for answers.
    pub(super) fn takes_requests(&self, shard: usize) -> bool {
        self.has_waiting_less_than(shard, INBOX_DEPTH / 2)
    }

    /// As [`takes_requests`](Self::takes_requests), for answers.
    pub(super) fn takes_answers(&self, shard: usize) -> bool {
        self.has_waiting_less_than(shard, INBOX_DEPTH - TX_BURST)
    }

    fn has_waiting_less_than(&self, shard: usize, frames: usize) -> bool {
        self.inboxes.get(shard).is_none_or(|inbox| inbox.len() < frames)
    }

    /// When shared state holds work for a shard: from posters, from other shards, or from the IP host.
    pub(super) fn due(&self, shard: usize) -> Due {
        let net = Some(self.net_deadline()).filter(|net| *net != Instant::FAR);
        Due::now_if(self.doorbells[shard].any() || !self.inboxes[shard].is_empty()).min(Due::at(net))
    }

    /// A generation that changes whenever a neighbour's address may have changed.
    #[inline]
    pub fn net_generation(&self) -> u64 {
        self.net_generation.load(Ordering::Acquire)
    }

    /// A generation that changes whenever a completion queue overruns.
    #[inline]
    pub fn overruns(&self) -> u32 {
        self.overruns.load(Ordering::Acquire)
    }

    /// Counts a completion queue that overran.
    pub(super) fn note_overrun(&self) {
        self.overruns.fetch_add(1, Ordering::Release);
    }

    /// When [`Net::poll_transmit`] will have something to send.
    #[inline]
    pub fn net_deadline(&self) -> Instant {
        Instant::from_nanos(self.net_deadline.load(Ordering::Acquire))
    }
}
