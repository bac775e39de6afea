//! One shard's ends of all links of the process: sends frames on a given link, receives frames from all links.
//!
//! Nothing here waits. The only system calls wake a process that sleeps and request a link from the keeper.
//!
//! Few links are busy at a time: their rings are polled in each burst, and the ring of any other link when the peer has set its
//! notification ([`sync::news`](crate::sync::news)). All rings are polled once a millisecond, and before a sleep.

use super::end::End;
use super::ended::{Ended, Ending};
use super::id::{LINKS_MAX, LinkId};
use super::published::Way;
use super::shared::Shared;
use crate::config::RX_BURST;
use crate::id::{Mtu, Qpn};
use crate::port::counters::Counters;
use crate::port::frame::{Frame, RxBurst, TxBurst};
use crate::port::info::L2_OVERHEAD;
use crate::port::memif::rx::Rx;
use crate::port::memif::slots::Impossible;
use crate::port::stock::Stock;
use crate::port::traits::{Armed, Build, Stalled};
use crate::registry::{Registry, Run};
use crate::sync::asymmetric;
use crate::time;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most links whose rings are polled in each burst.
pub(super) const NEAR: usize = 4;
/// Interval between polls of all rings, and bursts between two reads of the clock.
pub(super) const ALL_EVERY: Duration = Duration::from_millis(1);
const CLOCK_EVERY: u32 = 16;
/// Frames that a link may deliver before other links with frames get their turn.
pub(super) const TURN: usize = 8;
const _: () = assert!(RX_BURST.is_multiple_of(TURN));

/// How a queue pair number is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Over this link.
    Link(LinkId),
    /// The route is being resolved. Packets for the number wait, as for the resolution of a neighbour's address: no link has them, so they
    /// cannot be lost, and no retry is charged.
    Asked,
    /// The number is this process's own.
    Ourselves,
    /// No process holds the number's run.
    Vacant,
    /// Another process holds the number's run, and no link to that process is made for a while.
    Unlinked,
}

/// A shard's ends of all links.
pub struct LinkQueue {
    pub(super) index: usize,
    /// The change count of the list of links when this shard read the list last.
    pub(super) seen: u64,
    /// The ends, indexed by the number of the link.
    pub(super) ends: Vec<Option<Box<End>>>,
    /// The numbers of the links that exist, in ascending order.
    pub(super) order: ArrayVec<u8, LINKS_MAX>,
    /// The link from which the next burst receives first.
    turn: u8,
    /// Links whose rings are polled in each burst; and a count of bursts.
    pub(super) near: ArrayVec<u8, NEAR>,
    bursts: u32,
    /// When all rings are polled next.
    pub(super) all_at: Instant,
    /// When idle links are searched for next.
    pub(super) idle_at: Instant,
    /// Links on which frames were sent, whose receivers may have gone to sleep at the same moment: since the last check, and before it. And
    /// empty bursts until the links in `owed` are checked for sleeping receivers.
    pub(super) sent: ArrayVec<u8, LINKS_MAX>,
    pub(super) owed: ArrayVec<u8, LINKS_MAX>,
    pub(super) look_in: u32,
    /// Links that delivered frames in the last burst.
    fed: ArrayVec<u8, RX_BURST>,
    pub(super) ending: Vec<Ending>,
    pub(super) ended: VecDeque<Ended>,
    pub(super) stock: Stock,
    /// The epoll instance on which the shard sleeps, once it has slept.
    pub(super) sleep: Option<Arc<OwnedFd>>,
    registry: Arc<Registry>,
    pub(super) shared: Arc<Shared>,
}

impl LinkQueue {
    pub(super) fn new(registry: Arc<Registry>, shared: Arc<Shared>, index: usize) -> Self {
        Self {
            index,
            seen: 0,
            ends: (0..LINKS_MAX).map(|_| None).collect(),
            order: ArrayVec::new(),
            turn: 0,
            near: ArrayVec::new(),
            bursts: 0,
            all_at: Instant::now(),
            idle_at: Instant::now(),
            sent: ArrayVec::new(),
            owed: ArrayVec::new(),
            look_in: 0,
            fed: ArrayVec::new(),
            ending: Vec::new(),
            ended: VecDeque::new(),
            stock: Stock::new(shared.pool.clone()),
            sleep: None,
            registry,
            shared,
        }
    }

    /// How a queue pair number is reached. Requests a link if none exists; the caller then asks again later.
    pub fn route_to(&mut self, number: Qpn) -> Reach {
        if self.is_fork() {
            return Reach::Unlinked;
        }
        let run = Run::of(number.block());
        match self.shared.published.way(run) {
            Way::Link(link) => {
                if self.ends[usize::from(link)].is_none() {
                    self.follow();
                }
                // If the link has ended meanwhile, the run is requested anew.
                let is_there = self.ends[usize::from(link)].is_some();
                if is_there { Reach::Link(LinkId(link)) } else { Reach::Asked }
            }
            Way::Unknown => {
                if self.shared.published.want(run) {
                    self.shared.keeper.signal();
                }
                Reach::Asked
            }
            Way::Asked => Reach::Asked,
            Way::Ourselves => Reach::Ourselves,
            Way::Unlinked => Reach::Unlinked,
            // A process that has leased the run since then raised that count before anyone knew its numbers, so the cached result is stale.
            // It expires soon, and the run is requested again.
            Way::Vacant(leases) if leases == self.registry.leases(run) as u8 => Reach::Vacant,
            Way::Vacant(_) => Reach::Asked,
        }
    }

    /// Whether any link exists.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.order.is_empty()
    }

    /// The path MTU of a link: payload bytes that a packet may carry on it. `None` if the link does not exist.
    pub fn segment_on(&self, link: LinkId) -> Option<Mtu> {
        let end = self.ends[usize::from(link.0)].as_ref()?;
        Mtu::of_link(end.link.max_frame.saturating_sub(L2_OVERHEAD))
    }

    /// The largest path MTU that any link can have.
    pub fn longest_segment(&self) -> Option<Mtu> {
        Mtu::of_link(self.shared.max_frame.saturating_sub(L2_OVERHEAD))
    }

    /// The links that exist.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.order.iter().map(|link| LinkId(*link))
    }

    /// The next link whose end this shard has noticed. All frames that had arrived on it were received before.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.follow();
        self.ended.pop_front()
    }

    /// Appends received frames to `out` until it is full, and returns how many. Links with many frames share the room.
    pub fn rx_burst(&mut self, out: &mut RxBurst) -> usize {
        if self.is_fork() {
            return 0;
        }
        self.follow();
        self.fed.clear();
        let before = out.len();
        if !self.ending.is_empty() {
            self.receive_what_is_left(out);
        }
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts.is_multiple_of(CLOCK_EVERY) {
            self.tell_of_all();
        }
        match self.near.as_slice() {
            // A single link is polled in each burst, with or without notifications.
            [link] if self.order.len() == 1 => _ = self.receive_from(*link, RX_BURST, out),
            [] | [_] if !self.has_news() => self.receive_alone(out),
            _ => self.receive_in_turn(out),
        }
        let frames = out.len() - before;
        if frames == 0 && self.look_in > 0 {
            self.look_in -= 1;
            if self.look_in == 0 {
                self.look_again();
            }
        }
        if !self.ending.is_empty() {
            self.settle();
        }
        frames
    }

    /// Receives from the one link that is polled in each burst, if there is one, while no other link has a notification.
    fn receive_alone(&mut self, out: &mut RxBurst) {
        if let Some(&link) = self.near.first()
            && self.look_at(link, false, out) >= TURN
            && !out.is_full()
        {
            self.receive_from(link, RX_BURST, out);
        }
    }

    /// Receives from the links that are polled in each burst and from those with a notification.
    fn receive_in_turn(&mut self, out: &mut RxBurst) {
        let mut more = ArrayVec::<u8, { RX_BURST / TURN }>::new();
        let turn = core::mem::take(&mut self.turn);
        let told = self.told();
        let mut links = told;
        self.near.iter().for_each(|link| links.add(*link));
        for link in links.from(turn) {
            if out.is_full() {
                self.turn = link;
                break;
            }
            if self.look_at(link, told.has(link), out) >= TURN {
                let _ = more.try_push(link);
            }
        }
        // Room is left: receives more from the links that used up their turn.
        for link in more {
            if !out.is_full() {
                self.receive_from(link, RX_BURST, out);
            }
        }
    }

    /// Receives up to `most` frames from a link, and returns how many.
    #[inline]
    pub(super) fn receive_from(&mut self, link: u8, most: usize, out: &mut RxBurst) -> usize {
        let Some(end) = &mut self.ends[usize::from(link)] else { return 0 };
        let Ok(got) = end.receive(most, out, &mut self.stock) else {
            self.give_up(link);
            return 0;
        };
        if got.frames + got.dropped == 0 {
            return 0;
        }
        // Received packets are likely to be answered.
        end.tx.prefetch();
        let _ = self.fed.try_push(link);
        let counters = self.counters();
        counters.rx(got.frames, got.bytes);
        if got.dropped > 0 {
            counters.rx_dropped.add(got.dropped as u64);
        }
        got.frames
    }

    /// Sends frames from the front of `frames` until the link is full, removes them, and returns how many. Frames to a link that has ended
    /// are dropped and counted in [`LinkCounts::tx_ended`](super::LinkCounts::tx_ended).
    pub fn tx_burst(&mut self, link: LinkId, frames: &mut TxBurst) -> usize {
        if self.is_fork() {
            return self.put_all(frames);
        }
        self.follow();
        let Some(end) = &mut self.ends[usize::from(link.0)] else { return self.drop_all(frames) };
        let Ok(done) = end.send(frames, &self.shared.keeper) else {
            self.give_up(link.0);
            self.settle();
            return self.drop_all(frames);
        };
        if done.taken == 0 {
            return 0;
        }
        end.give_back();
        let wakes = end.tx.has_sent();
        let counters = self.counters();
        counters.tx(done.taken - done.dropped, done.bytes);
        if done.dropped > 0 {
            counters.tx_dropped.add(done.dropped as u64);
        }
        self.has_sent(link.0, wakes);
        for frame in frames.drain(..done.taken) {
            self.stock.put(frame);
        }
        done.taken
    }

    /// As [`build_burst`](crate::port::PortQueue::build_burst) of a port.
    pub fn build_burst(&mut self, link: LinkId, most: usize, builder: &mut dyn Build) -> Option<usize> {
        if self.is_fork() {
            return None;
        }
        self.follow();
        let end = self.ends[usize::from(link.0)].as_mut()?;
        match end.build(most, builder, &self.shared.keeper) {
            Ok(lens) => {
                let lens = lens?;
                if !lens.is_empty() {
                    let wakes = end.tx.has_sent();
                    self.counters().tx(lens.len(), lens.iter().sum::<u32>() as usize);
                    self.has_sent(link.0, wakes);
                }
                Some(lens.len())
            }
            Err(Impossible) => {
                self.give_up(link.0);
                self.settle();
                None
            }
        }
    }

    /// Whether the peer of a link consumes no frames.
    pub fn stalled(&mut self, link: LinkId, now: time::Instant) -> Stalled {
        self.follow();
        let Some(end) = &mut self.ends[usize::from(link.0)] else { return Stalled::No };
        end.stall.look(end.tx.reached().map(u64::from), now)
    }

    /// Prepares a sleep, as [`arm`](crate::port::PortQueue::arm) of a port. The end of a link and a new link wake the shard as frames do.
    pub fn arm(&mut self) -> Armed {
        if self.is_fork() {
            return Armed::Unable;
        }
        self.follow();
        if !(self.ending.is_empty() && self.ended.is_empty()) {
            return Armed::Pending;
        }
        self.use_few_when_idle(Instant::now());
        let Ok(event) = self.prepare_sleep() else { return Armed::Unable };
        for link in self.order.clone() {
            let Some(end) = &mut self.ends[usize::from(link)] else { continue };
            for rx in &mut end.rx {
                rx.ask_for_event();
            }
            if end.tx.look_now() {
                self.tell(link);
            }
        }
        self.sent.clear();
        self.owed.clear();
        self.look_in = 0;
        // One fence for the rings of all links.
        asymmetric::heavy_between_processes();
        let mut is_quiet = self.shared.changes() == self.seen;
        for link in &self.order {
            if let Some(end) = &mut self.ends[usize::from(*link)] {
                // A peer that sent meanwhile may have read the flag of a shard that polls, and sent no notification.
                if !end.rx.iter_mut().all(Rx::waits) {
                    self.shared.news.tell(self.index, LinkId(*link));
                    is_quiet = false;
                }
            }
        }
        if is_quiet { Armed::Event(event) } else { Armed::Pending }
    }

    /// An empty frame; `None` while all frames are in use.
    pub fn alloc(&mut self) -> Option<Frame> {
        self.stock.take()
    }

    /// Appends up to `n` empty frames to `out`, limited by its room and by the number of free frames.
    pub fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.stock.take_burst(out, n);
    }

    /// Recycles frames, and returns their slots to the senders.
    pub fn recycle(&mut self, frames: &mut RxBurst) {
        if !self.is_fork() {
            for link in self.fed.take() {
                if let Some(end) = &mut self.ends[usize::from(link)] {
                    end.give_back();
                }
            }
        }
        for frame in frames.drain(..) {
            self.stock.put(frame);
        }
    }

    /// Whether this is a copy in a forked child: the links belong to the parent.
    #[inline(always)]
    fn is_fork(&self) -> bool {
        !self.shared.made_by.is_this()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.counters[self.index]
    }

    /// Takes the ends of new links, and releases those of links that have ended.
    #[inline(always)]
    fn follow(&mut self) {
        if self.shared.changes() != self.seen && !self.is_fork() {
            self.change();
        }
    }

    #[cold]
    fn drop_all(&mut self, frames: &mut TxBurst) -> usize {
        self.shared.tx_ended.fetch_add(frames.len() as u64, Ordering::Relaxed);
        self.put_all(frames)
    }

    fn put_all(&mut self, frames: &mut TxBurst) -> usize {
        let all = frames.len();
        frames.drain(..).for_each(|frame| self.stock.put(frame));
        all
    }
}
