//! One shard's ends of all links of the process: frames to a link, frames from all of them.
//!
//! Nothing here waits or makes a system call, but to wake a process that sleeps and to ask the keeper for a link.
//!
//! Few links bring something at a time: those are looked at in each burst, and others when the process at their other end has told so
//! ([`sync::news`](crate::sync::news)). All are looked at once a millisecond, and before a sleep.

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

/// Links that are looked at in each burst.
pub(super) const NEAR: usize = 4;
/// Time between two looks at all links, and bursts between two looks at the clock.
pub(super) const ALL_EVERY: Duration = Duration::from_millis(1);
const CLOCK_EVERY: u32 = 16;
/// Frames that a link may bring before others that wait get their turn.
pub(super) const TURN: usize = 8;
const _: () = assert!(RX_BURST.is_multiple_of(TURN));

/// How a queue pair number is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// By this link.
    Link(LinkId),
    /// It is being found out. What is to be sent there waits, as for the address of a neighbour: no link has it, so none loses it, and
    /// no retry is charged.
    Asked,
    /// It is this process's own.
    Ourselves,
    /// No process has it.
    Vacant,
    /// A process has it to which there is no link, for now.
    Unlinked,
}

/// A shard's ends of all links.
pub struct LinkQueue {
    pub(super) index: usize,
    /// How often the list of links had changed when it was looked at.
    pub(super) seen: u64,
    /// By number.
    pub(super) ends: Vec<Option<Box<End>>>,
    /// The numbers of those that there are.
    pub(super) order: ArrayVec<u8, LINKS_MAX>,
    /// The link with which the next burst begins.
    turn: u8,
    /// Links that are looked at in each burst, and bursts so far.
    pub(super) near: ArrayVec<u8, NEAR>,
    bursts: u32,
    /// When all links are looked at next.
    pub(super) all_at: Instant,
    /// When it is looked next which links are idle.
    pub(super) idle_at: Instant,
    /// Links on which something was sent, whose receivers may have gone to sleep meanwhile: lately, and some time ago. And empty bursts
    /// until it is looked whether the latter sleep.
    pub(super) sent: ArrayVec<u8, LINKS_MAX>,
    pub(super) owed: ArrayVec<u8, LINKS_MAX>,
    pub(super) look_in: u32,
    /// Links that brought something in the last burst.
    fed: ArrayVec<u8, RX_BURST>,
    pub(super) ending: Vec<Ending>,
    pub(super) ended: VecDeque<Ended>,
    pub(super) stock: Stock,
    /// What a sleep of the shard waits for, once there was one.
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

    /// How a number is reached. Has a link made if there is none: ask again then.
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
                // One that has ended meanwhile is asked for anew.
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
            // Who has leased it since has changed that count before anyone knew its numbers: it is asked again in a moment.
            Way::Vacant(leases) if leases == self.registry.leases(run) as u8 => Reach::Vacant,
            Way::Vacant(_) => Reach::Asked,
        }
    }

    /// Whether there is any link.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.order.is_empty()
    }

    /// Bytes that a packet may carry on a link.
    pub fn segment_on(&self, link: LinkId) -> Option<Mtu> {
        let end = self.ends[usize::from(link.0)].as_ref()?;
        Mtu::of_link(end.link.max_frame.saturating_sub(L2_OVERHEAD))
    }

    /// The most bytes that a packet may carry on any link.
    pub fn longest_segment(&self) -> Option<Mtu> {
        Mtu::of_link(self.shared.max_frame.saturating_sub(L2_OVERHEAD))
    }

    /// The links that there are.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.order.iter().map(|link| LinkId(*link))
    }

    /// The next link of which the end was noticed. What it had brought was received before.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.follow();
        self.ended.pop_front()
    }

    /// Appends received frames to `out`, while it has room; returns how many. Links that have many waiting share the room.
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
            // Alone, it is looked at in any case.
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

    /// Receives from the one link that is looked at in each burst, if there is one, while there are no news of others.
    fn receive_alone(&mut self, out: &mut RxBurst) {
        if let Some(&link) = self.near.first()
            && self.look_at(link, false, out) >= TURN
            && !out.is_full()
        {
            self.receive_from(link, RX_BURST, out);
        }
    }

    /// Receives from the links that are looked at in each burst, and from those of which there are news.
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
        // There is room left: those go on that have more.
        for link in more {
            if !out.is_full() {
                self.receive_from(link, RX_BURST, out);
            }
        }
    }

    /// Receives up to so many frames from a link; returns how many.
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
        // What was received is likely to be answered.
        end.tx.prefetch();
        let _ = self.fed.try_push(link);
        let counters = self.counters();
        counters.rx(got.frames, got.bytes);
        if got.dropped > 0 {
            counters.rx_dropped.add(got.dropped as u64);
        }
        got.frames
    }

    /// Takes frames off the front of `frames` as long as the link has room; returns how many. Those to a link that has ended are
    /// dropped, and counted under [`LinkCounts::tx_ended`](super::LinkCounts::tx_ended).
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

    /// Whether the process at the other end takes no frames.
    pub fn stalled(&mut self, link: LinkId, now: time::Instant) -> Stalled {
        self.follow();
        let Some(end) = &mut self.ends[usize::from(link.0)] else { return Stalled::No };
        end.stall.look(end.tx.reached().map(u64::from), now)
    }

    /// Prepares a sleep, as [`arm`](crate::port::PortQueue::arm) of a port. The end of a link, and a new one, wake as frames do.
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
        // One fence for all.
        asymmetric::heavy_between_processes();
        let mut is_quiet = self.shared.changes() == self.seen;
        for link in &self.order {
            if let Some(end) = &mut self.ends[usize::from(*link)] {
                // Who sent meanwhile may have seen that we looked, and told nothing.
                if !end.rx.iter_mut().all(Rx::waits) {
                    self.shared.news.tell(self.index, LinkId(*link));
                    is_quiet = false;
                }
            }
        }
        if is_quiet { Armed::Event(event) } else { Armed::Pending }
    }

    /// An empty frame; `None` while all are in use.
    pub fn alloc(&mut self) -> Option<Frame> {
        self.stock.take()
    }

    /// Appends up to `n` empty frames to `out`, as far as there is room and there are any.
    pub fn alloc_burst(&mut self, out: &mut TxBurst, n: usize) {
        self.stock.take_burst(out, n);
    }

    /// Gives back frames, and their slots to those who sent them.
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

    /// Whether this is the copy of a fork: the links are its parent's.
    #[inline(always)]
    fn is_fork(&self) -> bool {
        !self.shared.made_by.is_this()
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters[self.index]
    }

    /// Takes the ends of new links, and gives up those of links that have ended.
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
