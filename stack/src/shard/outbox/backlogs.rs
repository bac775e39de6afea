//! Frames that wait for a route of the port, completions that wait for those frames to leave, and queue pairs that wait for room.

use std::collections::VecDeque;

use crate::config::{TX_BURST, TX_REFUSED, TX_STALL};
use crate::port::{Frame, PortQueue, Route, TxBurst};
use crate::shard::counters::{Counter, Counters};
use crate::time::Instant;
use crate::wire::Discard;

/// The two kinds of outgoing frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Traffic {
    Answers,
    Requests,
}

/// Frames of one kind that wait for one route, oldest first.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub frames: TxBurst,
    /// When the port began to refuse every frame; `None` while it takes some.
    refused_since: Option<Instant>,
    /// Waiting frames were dropped, and none is known to have left since: see [`Outbox::has_stopped`](super::Outbox::has_stopped).
    pub has_stopped: bool,
    /// See [`departed`](Self::departed).
    departed: u64,
    /// Queue pairs that have more to send than this backlog has room for.
    parked: VecDeque<u32>,
}

/// The backlogs of one route.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    /// Acknowledgements and responses: completions wait for these to leave.
    pub answers: Backlog,
    /// Requests, and frames of the IP host.
    pub requests: Backlog,
    /// Unreliable work requests whose frames wait in this backlog, oldest first.
    leaving: VecDeque<Leaving>,
    /// Queue pairs whose receive completions wait for answers in this backlog, oldest first.
    held_back: VecDeque<HeldBack>,
    /// Listed in [`OtherRoutes::in_use`].
    listed: bool,
}

/// Unreliable work requests that are complete when frames of the request backlog have left.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Leaving {
    /// The value of [`Backlog::departed`] once their last frame has left.
    mark: u64,
    pub slot: u32,
    pub epoch: u32,
    /// Sequence number of the first of these requests.
    pub from: u32,
    /// Sequence number behind the last of them.
    pub seq: u32,
}

/// A queue pair with receive completions that may become visible when frames of the answer backlog have left.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct HeldBack {
    mark: u64,
    pub slot: u32,
    pub epoch: u32,
}

/// The routes of a port with several, except [`Route::default`].
#[derive(Default)]
pub(super) struct OtherRoutes {
    /// By route number; empty for a port with one link.
    by_route: Vec<Option<Box<Backlogs>>>,
    /// Routes for which something waits, and some for which nothing waits any more.
    in_use: Vec<Route>,
}

impl OtherRoutes {
    /// The backlogs of a route, for adding to them.
    #[cold]
    pub fn of(&mut self, route: Route) -> &mut Backlogs {
        let at = usize::from(route.0);
        if self.by_route.len() <= at {
            self.by_route.resize_with(at + 1, || None);
        }
        let backlogs = self.by_route[at].get_or_insert_default();
        if !core::mem::replace(&mut backlogs.listed, true) {
            self.in_use.push(route);
        }
        backlogs
    }

    #[inline]
    pub fn get(&self, route: Route) -> Option<&Backlogs> {
        self.by_route.get(usize::from(route.0))?.as_deref()
    }

    /// Whether no other route was used so far.
    pub fn is_empty(&self) -> bool {
        self.by_route.is_empty()
    }

    /// Whether something waits, or waited at the last flush.
    pub fn any_in_use(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// The backlogs in which something waits.
    pub fn iter(&self) -> impl Iterator<Item = &Backlogs> {
        self.in_use.iter().filter_map(|route| self.get(*route))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Backlogs> {
        self.by_route.iter_mut().flatten().map(|backlogs| &mut **backlogs).filter(|backlogs| backlogs.listed)
    }

    /// Hands waiting frames to the port. Returns the number of frames that it took.
    #[cold]
    pub fn flush(&mut self, queue: &mut dyn PortQueue, now: Instant, counters: &Counters) -> usize {
        let Self { by_route, in_use } = self;
        let mut sent = 0;
        in_use.retain(|route| {
            let Some(backlogs) = &mut by_route[usize::from(route.0)] else { return false };
            sent += backlogs.flush(queue, *route, now, counters);
            backlogs.listed = !backlogs.is_empty();
            backlogs.listed
        });
        sent
    }
}

impl Backlogs {
    #[inline(always)]
    pub fn of(&self, traffic: Traffic) -> &Backlog {
        match traffic {
            Traffic::Answers => &self.answers,
            Traffic::Requests => &self.requests,
        }
    }

    #[inline(always)]
    pub fn of_mut(&mut self, traffic: Traffic) -> &mut Backlog {
        match traffic {
            Traffic::Answers => &mut self.answers,
            Traffic::Requests => &mut self.requests,
        }
    }

    /// Whether the port currently takes no frames.
    pub fn refuses(&self) -> bool {
        self.answers.refused_since.or(self.requests.refused_since).is_some()
    }

    /// Number of frames that it has room for, as one of several routes.
    pub fn room(&self, traffic: Traffic) -> usize {
        let most = if self.refuses() { TX_REFUSED } else { TX_BURST };
        most.saturating_sub(self.of(traffic).frames.len())
    }

    /// As [`room`](Self::room) for requests; 0 if waiting frames were dropped and the peer has not resumed as far as is known.
    pub fn room_for_datagrams(&self) -> usize {
        if self.requests.has_stopped { 0 } else { self.room(Traffic::Requests) }
    }

    /// Number of waiting frames.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.answers.frames.len() + self.requests.frames.len()
    }

    /// Whether neither a queue pair nor a completion waits for this route.
    pub fn has_no_waiters(&self) -> bool {
        let parked = self.answers.parked.len() + self.requests.parked.len();
        parked == 0 && self.leaving.is_empty() && self.held_back.is_empty()
    }

    /// Whether no frame waits, and nothing waits for this route.
    fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.has_no_waiters()
    }

    /// Hands frames to the port, answers first. Returns the number of frames that it took.
    #[inline]
    pub fn flush(
        &mut self,
        queue: &mut dyn PortQueue,
        route: Route,
        now: Instant,
        counters: &Counters,
    ) -> usize {
        let mut sent = 0;
        if !self.answers.frames.is_empty() {
            sent += self.answers.flush(queue, route, now, counters);
        }
        if self.answers.frames.is_empty() && !self.requests.frames.is_empty() {
            sent += self.requests.flush(queue, route, now, counters);
        }
        sent
    }

    /// Notes that unreliable work requests `from..seq` are complete when the frames that wait now have left.
    #[inline]
    pub fn note_leaving(&mut self, slot: u32, epoch: u32, from: u32, seq: u32) {
        self.leaving.push_back(Leaving { mark: self.requests.mark(), slot, epoch, from, seq });
    }

    /// Finds the latest work requests noted for a queue pair that end before `seq`, and extends them to end before `to`. Returns whether it
    /// found some.
    pub fn extend_leaving(&mut self, slot: u32, epoch: u32, seq: u32, to: u32) -> bool {
        let same = |noted: &&mut Leaving| (noted.slot, noted.epoch, noted.seq) == (slot, epoch, seq);
        self.leaving.iter_mut().rev().find(same).map(|noted| noted.seq = to).is_some()
    }

    /// Makes receive completions of a queue pair wait until the answers that wait now have left. Returns the value of [`Backlog::departed`]
    /// at that time.
    pub fn hold_back(&mut self, slot: u32, epoch: u32) -> u64 {
        let mark = self.answers.mark();
        self.held_back.push_back(HeldBack { mark, slot, epoch });
        mark
    }

    /// Parks the queue pair in this slot, which has more frames of this kind than there is room for.
    pub fn park(&mut self, traffic: Traffic, slot: u32) {
        self.of_mut(traffic).parked.push_back(slot);
    }

    /// Returns parked queue pairs: as many as there is room for frames, in the order in which they were parked.
    pub fn unpark(&mut self, traffic: Traffic, back: impl FnMut(u32)) {
        let room = self.room(traffic);
        let parked = &mut self.of_mut(traffic).parked;
        let n = parked.len().min(room);
        parked.drain(..n).for_each(back);
    }

    pub fn next_sent(&mut self) -> Option<Leaving> {
        let departed = self.leaving.front().is_some_and(|leaving| leaving.mark <= self.requests.departed);
        if departed { self.leaving.pop_front() } else { None }
    }

    pub fn next_released(&mut self) -> Option<HeldBack> {
        let departed = self.held_back.front().is_some_and(|held| held.mark <= self.answers.departed);
        if departed { self.held_back.pop_front() } else { None }
    }
}

impl Backlog {
    /// Number of frames that have ever left: the port took them, or they were dropped because the link was down too long.
    pub fn departed(&self) -> u64 {
        self.departed
    }

    /// The value of `departed` once all waiting frames have left.
    fn mark(&self) -> u64 {
        self.departed + self.frames.len() as u64
    }

    /// Hands frames to the port. Returns the number of frames that it took.
    #[inline]
    pub fn flush(
        &mut self,
        queue: &mut dyn PortQueue,
        route: Route,
        now: Instant,
        counters: &Counters,
    ) -> usize {
        let bytes: usize = self.frames.iter().map(Frame::len).sum();
        let sent = queue.tx_burst(route, &mut self.frames);
        let left: usize = self.frames.iter().map(Frame::len).sum();
        self.departed += sent as u64;
        if sent > 0 {
            counters.add(Counter::TxFrames, sent as u64);
            counters.add(Counter::TxBytes, (bytes - left) as u64);
            self.refused_since = None;
        } else {
            // A link that is down keeps its frames for a moment; then they count as lost on it.
            let since = *self.refused_since.get_or_insert(now);
            if now.nanos_since(since) >= TX_STALL.as_nanos() as u64 {
                counters.discard(Discard::TxStalled, self.frames.len() as u64);
                self.departed += self.frames.len() as u64;
                self.frames.clear();
                self.refused_since = None;
                self.has_stopped = true;
            }
        }
        sent
    }
}
