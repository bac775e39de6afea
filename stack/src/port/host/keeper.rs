//! The keeper of a process's links, on a thread of its own: accepts calls, calls other processes where a shard needs a link, makes links,
//! and notices their ends. It never waits for another process.
//!
//! Two processes have at most one link between them, if they see each other's PIDs (one PID namespace). Both may call at once: of two
//! offers that cross, the offer of the process with the lower first run counts. The kernel says which process holds a run: the process that
//! is bound to the run's name. The runs that a peer announces are only hints to check there.

use super::farewell::Word;
use super::growing::IDLE;
use super::id::{LINKS_MAX, LinkId};
use super::inbox::Inbox;
use super::meeting::{Made, Meeting, Step};
use super::shared::{Link, Shared};
use super::table::Table;
use super::talk::Talk;
use super::terms::About;
use crate::port::share;
use crate::registry::{Holder, Life, Registry, Run};
use crate::sync::eventfd::wait_readable;
use crate::sync::lock::lock;
use crate::sync::scheduling::wake_at_once;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Most connections to one process that wait to be closed before its next call is handled.
const CLOSING_MAX: usize = 4;
/// Pause before work is retried that waits for a process's share.
const RETRY: Duration = Duration::from_millis(10);

/// A link that is up.
struct Up {
    /// Dropped before the connection.
    last_word: Option<Word>,
    talk: Talk,
    /// A pidfd, readable when the process has ended, where the kernel supports it.
    life: Option<OwnedFd>,
    link: Arc<Link>,
}

impl Up {
    /// The descriptors that report the end of the link. The connection alone does not report it while descriptors of its other end lie in
    /// its receive queue. Wake-ups are not polled for here: the shards consume them.
    fn ends(&self) -> impl Iterator<Item = PollFd<'_>> {
        let connection = PollFd::from_borrowed_fd(self.talk.as_fd(), PollFlags::RDHUP);
        [connection].into_iter().chain(self.life.iter().map(|life| PollFd::new(life, PollFlags::IN)))
    }
}

/// The keeper.
pub struct Keeper {
    pub(super) registry: Arc<Registry>,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) table: Table,
    /// This port, where processes have their shares.
    pub(super) port: u64,
    pub(super) patience: Duration,
    /// The number of the last handshake.
    pub(super) last_meeting: u64,
    pub(super) meetings: VecDeque<Meeting>,
    up: Vec<Up>,
    /// Links that have ended, while a queue refers to them.
    ended: Vec<Arc<Link>>,
    /// Connections to be closed.
    pub(super) closing: Vec<Talk>,
    /// When sleeping shards are woken next to check for idle links; `None` while no link uses memory of the budget.
    idle_at: Option<Instant>,
    /// The last text that was logged, which is not repeated.
    logged: Option<String>,
}

impl Keeper {
    /// A keeper without links.
    pub fn new(registry: Arc<Registry>, shared: Arc<Shared>, inbox: Arc<Inbox>, patience: Duration) -> Self {
        Self {
            table: Table::new(Arc::clone(&shared.published), patience),
            port: share::port_number(),
            registry,
            shared,
            inbox,
            patience,
            last_meeting: 0,
            meetings: VecDeque::new(),
            up: Vec::new(),
            ended: Vec::new(),
            closing: Vec::new(),
            idle_at: None,
            logged: None,
        }
    }

    /// Keeps links until `is_over` is set, then ends them.
    pub fn run(mut self, is_over: &AtomicBool) {
        // Other processes wait for this thread. The threads that it starts inherit its scheduling.
        wake_at_once();
        while !is_over.load(Ordering::Relaxed) {
            let ended = self.wait(Instant::now());
            // Cleared before the work, so that a later signal wakes the keeper again.
            self.shared.keeper.clear();
            self.end_links(&ended);
            self.take_steps(Instant::now());
        }
        while !self.up.is_empty() {
            self.end(0);
        }
    }

    /// Waits until there is work. Returns the links that have ended, as indexes into `up`.
    fn wait(&self, now: Instant) -> Vec<usize> {
        let talks = self.meetings.iter().filter_map(|meeting| meeting.talk.as_ref());
        let unsent = talks.filter_map(Talk::unsent_until);
        let silent = self.meetings.iter().filter(|meeting| meeting.talk.is_some());
        let times = silent.map(|meeting| meeting.until).chain(self.table.due()).chain(unsent);
        let is_held = !self.closing.is_empty()
            || self.inbox.has_calls()
            || self.meetings.iter().any(|meeting| meeting.is_held);
        let times = times.chain(self.idle_at);
        let due = times.chain(is_held.then(|| now + RETRY)).min();
        let timeout = due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
        let met = self.meetings.iter().filter(|meeting| !meeting.is_held);
        let met = met.filter_map(|meeting| meeting.talk.as_ref());
        let ends = self.up.iter().enumerate().flat_map(|(at, up)| up.ends().map(move |fd| (at, fd)));
        let (links, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = ends.unzip();
        fds.extend(met.map(|talk| PollFd::from_borrowed_fd(talk.as_fd(), PollFlags::IN)));
        fds.push(PollFd::new(&self.shared.keeper, PollFlags::IN));
        wait_readable(&mut fds, timeout);
        let ended = links.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        ended.map(|(at, _)| at).collect()
    }

    /// Ends links whose peer has ended or breaks the rules of a link.
    fn end_links(&mut self, ended: &[usize]) {
        for at in (0..self.up.len()).rev() {
            let link = &self.up[at].link;
            if link.is_broken() {
                let pid = link.pid;
                self.log(
                    pid,
                    "it writes to the memory of a link what cannot be, or sends descriptors on one",
                );
                lock(&self.shared.counts).refused += 1;
                self.end(at);
            } else if ended.contains(&at) {
                self.end(at);
            }
        }
    }

    /// Returns unused memory to the system, and wakes sleeping shards to look for more.
    fn look_for_unused(&mut self, now: Instant) {
        self.shared.discard_unused();
        let is_due = self.idle_at.is_some_and(|at| at <= now);
        if is_due {
            self.shared.event.signal();
        }
        let is_used = self.shared.budget.is_used();
        self.idle_at = self.idle_at.filter(|_| !is_due).or(is_used.then(|| now + IDLE));
    }

    fn take_steps(&mut self, now: Instant) {
        self.look_for_unused(now);
        self.closing = core::mem::take(&mut self.closing).into_iter().filter_map(Talk::close).collect();
        let closing = |pid| self.closing.iter().filter(|talk| talk.pid() == pid).count();
        for call in self.inbox.take_calls(|pid| closing(pid) < CLOSING_MAX) {
            self.greet(call, now);
        }
        for (number, talk, heard) in self.inbox.take_heard() {
            self.take_heard(number, talk, heard, now);
        }
        for at in (0..self.meetings.len()).rev() {
            self.look_at_meeting(at, now);
        }
        self.table.expire(now);
        for run in self.shared.published.take_wanted() {
            self.table.ask(run, now);
        }
        while let Some(run) = self.table.next_due(now) {
            self.call(run, now);
        }
        if self.table.take_news() {
            self.shared.event.signal();
        }
    }

    /// Puts a new link into service. `[ours, theirs]`: this process's number of the link, which is free, and the peer's.
    pub(super) fn publish(
        &mut self,
        talk: Talk,
        them: &About,
        made: Made,
        [ours, theirs]: [LinkId; 2],
        runs: &[Run],
    ) {
        let pid = talk.pid();
        let link = Arc::new(Link::new(ours, &talk, made, theirs, them.queues));
        let (life, is_over) = match talk.life() {
            Life::Watched(life) => (Some(life), false),
            other => (None, other.is_over()),
        };
        self.up.push(Up { last_word: talk.keep_last_word(), talk, life, link: Arc::clone(&link) });
        runs.iter().for_each(|run| self.lead(*run, &link));
        self.end_calls_to(&link);
        for run in &them.runs {
            let is_its = || matches!(self.registry.holder_of(*run), Ok(Holder::Process(of)) if of == pid);
            if pid != 0 && self.table.link_to(*run).is_none() && is_its() {
                self.lead(*run, &link);
            }
        }
        // Listed after its runs, so that a shard which receives its first frame knows the way back.
        self.shared.add(&link);
        // The epoll instances of sleeping shards do not have its socket yet.
        self.shared.event.signal();
        let mut counts = lock(&self.shared.counts);
        counts.up += 1;
        counts.made += 1;
        drop(counts);
        self.logged = None;
        if is_over {
            self.end(self.up.len() - 1);
        }
    }

    /// Ends the other handshakes in which this process called the peer of a new link.
    fn end_calls_to(&mut self, link: &Link) {
        let is_call = |meeting: &Meeting| {
            link.pid != 0 && meeting.pid == link.pid && !matches!(meeting.step, Step::Offer)
        };
        while let Some(at) = self.meetings.iter().position(is_call) {
            let Some(Meeting { talk, runs, .. }) = self.meetings.remove(at) else { break };
            runs.into_iter().for_each(|run| self.lead(run, link));
            self.closing.extend(talk);
        }
    }

    pub(super) fn lead(&mut self, run: Run, link: &Link) {
        link.leads_to(run);
        self.table.up(run, link.id.number());
    }

    /// The link with a process, if one is up.
    pub(super) fn link_with(&self, pid: u32) -> Option<Arc<Link>> {
        let up = self.up.iter().find(|up| pid != 0 && up.link.pid == pid)?;
        Some(Arc::clone(&up.link))
    }

    /// A number that is free: no link has it, no offer names it, and no link that ended with it is still referred to.
    pub(super) fn free_number(&mut self) -> Option<LinkId> {
        self.ended.retain(|link| !self.shared.remove(link));
        let offered =
            |meeting: &Meeting| if let Step::Up(_, link, _) = &meeting.step { Some(*link) } else { None };
        let links = self.up.iter().map(|up| &up.link).chain(&self.ended).map(|link| link.id);
        let all: Vec<LinkId> = links.chain(self.meetings.iter().filter_map(offered)).collect();
        (0..LINKS_MAX as u8).map(LinkId).find(|id| !all.contains(id))
    }

    fn end(&mut self, at: usize) {
        let Up { last_word, talk, link, .. } = self.up.remove(at);
        drop(last_word);
        self.table.end(link.id.number());
        self.shared.end(&link);
        self.ended.push(link);
        let mut counts = lock(&self.shared.counts);
        counts.up -= 1;
        counts.ended += 1;
        drop(counts);
        self.closing.extend(talk.close());
        self.shared.event.signal();
    }

    pub(super) fn log(&mut self, pid: u32, why: &str) {
        let text = match pid {
            0 => format!("no link with a process of this host: {why}"),
            pid => format!("no link with process {pid} of this host: {why}"),
        };
        if self.logged.as_ref() != Some(&text) {
            tracing::warn!("{text}");
            self.logged = Some(text);
        }
    }
}
