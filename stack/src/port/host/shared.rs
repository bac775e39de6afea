//! What the keeper of the links and the queues share.
//!
//! The keeper makes and ends links; each queue takes its ends of them. A queue looks at one number in each turn, and at the list only
//! when that has changed. A link that has ended stays there until each queue has taken its end; who has a [`Link`] keeps its number from
//! being used again.

use super::budget::{Budget, Unused};
use super::id::{LINKS_MAX, LinkId};
use super::meeting::Made;
use super::news::News;
use super::published::Published;
use super::talk::Talk;
use crate::port::counters::Counters;
use crate::port::frame::HeapPool;
use crate::port::memif::connection::Connection;
use crate::registry::{HasDescriptors, Run, Wakeups};
use crate::sync::eventfd::EventFd;
use crate::sync::lock::lock;
use crate::sync::process::Process;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// A link, as queues have it.
pub struct Link {
    /// Its number.
    pub id: LinkId,
    /// The process at its other end, as the kernel says; 0: it is not visible from here.
    pub pid: u32,
    /// Its rings.
    pub connection: Connection,
    /// Rings on which the other process sends.
    pub their_queues: usize,
    /// Bytes of the longest frame.
    pub max_frame: usize,
    /// The other process's news, and its number of this link.
    news: News,
    theirs: LinkId,
    /// The runs to which it leads, or led.
    runs: Mutex<Vec<Run>>,
    /// Wake-ups of the other process, and by it, until the link has ended.
    wakeups: Mutex<Option<Wakeups>>,
    broken: AtomicBool,
    over: AtomicBool,
    /// The queues that have taken their ends of it, as bits.
    taken: AtomicU32,
}

impl Link {
    /// One that leads nowhere yet.
    pub fn new(id: LinkId, talk: &Talk, made: Made, theirs: LinkId, their_queues: usize) -> Self {
        Self {
            id,
            pid: talk.pid(),
            connection: made.connection,
            their_queues,
            max_frame: made.terms.max_frame,
            news: made.news,
            theirs,
            runs: Mutex::default(),
            wakeups: Mutex::new(talk.wakeups()),
            broken: AtomicBool::new(false),
            over: AtomicBool::new(false),
            taken: AtomicU32::new(0),
        }
    }

    /// Tells the other process that one of our shards has sent something.
    pub fn tell(&self, shard: usize) {
        self.news.tell(shard % self.their_queues, self.theirs);
    }

    /// Wakes the other process.
    pub fn wake(&self) {
        if let Some(wakeups) = &*lock(&self.wakeups) {
            wakeups.send();
        }
    }

    /// Has an epoll instance wait for wake-ups by the other process, edge-triggered, and report them by the number of the link.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn watch(&self, epoll: &OwnedFd) -> rustix::io::Result<()> {
        let Some(wakeups) = &*lock(&self.wakeups) else { return Ok(()) };
        let data = EventData::new_u64(self.id.number().into());
        epoll::add(epoll, wakeups, data, EventFlags::IN | EventFlags::ET)
    }

    /// Makes room for wake-ups by the other process.
    ///
    /// # Errors
    /// It has sent what is none.
    pub fn take_wakeups(&self) -> Result<(), HasDescriptors> {
        lock(&self.wakeups).as_ref().map_or(Ok(()), Wakeups::take_all_but_one)
    }

    /// It leads to this run, too.
    pub fn leads_to(&self, run: Run) {
        lock(&self.runs).push(run);
    }

    /// The runs to which it leads, or led.
    pub fn runs(&self) -> Vec<Run> {
        lock(&self.runs).clone()
    }

    /// Whether it has ended. Nothing that the other process writes from then on counts.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Notes that a queue takes its end of it; returns whether that had not.
    pub fn take(&self, queue: usize) -> bool {
        self.taken.fetch_or(1 << queue, Ordering::AcqRel) >> queue & 1 == 0
    }

    /// Whether so many queues have taken their ends of it.
    pub fn is_taken_by_all(&self, queues: usize) -> bool {
        self.taken.load(Ordering::Acquire).count_ones() as usize >= queues
    }

    /// Whether a queue has found that the other process breaks the rules of a link.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// What happened to links, and to what others wanted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct LinkCounts {
    /// Links that are up.
    pub up: u64,
    /// Links that came up.
    pub made: u64,
    /// Links that have ended.
    pub ended: u64,
    /// Processes that were refused, or whose link was ended, for what they said or wrote.
    pub refused: u64,
    /// Frames that a shard sent on a link that had ended.
    pub tx_ended: u64,
}

/// What the keeper and the queues share.
pub struct Shared {
    /// The ways to runs.
    pub published: Arc<Published>,
    /// How often the list has changed.
    changes: AtomicU64,
    links: Mutex<Vec<Option<Arc<Link>>>>,
    /// Wakes the keeper.
    pub keeper: EventFd,
    /// Wakes this process's queues: links have changed.
    pub event: EventFd,
    /// Says which links have something; and its descriptor, for others.
    pub news: News,
    pub news_fd: Arc<OwnedFd>,
    pub(super) pool: HeapPool,
    /// The memory of links, and what is to be given back of it.
    pub budget: Arc<Budget>,
    unused: Mutex<Vec<Arc<Unused>>>,
    pub(super) counters: Vec<Counters>,
    /// Frames that were sent on links that had ended.
    pub(super) tx_ended: AtomicU64,
    /// What the keeper has counted.
    pub(super) counts: Mutex<LinkCounts>,
    /// Shards of this process.
    pub queues: usize,
    /// Bytes of the longest frame that this process takes.
    pub max_frame: usize,
    /// How long a process may take nothing before it counts as silent.
    pub(super) stall: Duration,
    pub(super) made_by: Process,
}

impl Shared {
    pub(super) fn new(
        (queues, max_frame): (usize, usize),
        pool: HeapPool,
        (news_fd, news): (OwnedFd, News),
        stall: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            published: Arc::default(),
            changes: AtomicU64::new(0),
            links: Mutex::new(vec![None; LINKS_MAX]),
            keeper: EventFd::new()?,
            event: EventFd::new()?,
            news,
            news_fd: Arc::new(news_fd),
            pool,
            budget: Arc::default(),
            unused: Mutex::default(),
            counters: (0..queues).map(|_| Counters::default()).collect(),
            tx_ended: AtomicU64::new(0),
            counts: Mutex::default(),
            queues,
            max_frame,
            stall,
            made_by: Process::this(),
        })
    }

    /// How often the list of links has changed.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The links, by number.
    pub fn links(&self) -> Vec<Option<Arc<Link>>> {
        lock(&self.links).clone()
    }

    /// A link is up.
    pub fn add(&self, link: &Arc<Link>) {
        lock(&self.links)[usize::from(link.id.0)] = Some(Arc::clone(link));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A link has ended. It stays in the list, so that every queue receives what had arrived. Its connection can be closed.
    pub fn end(&self, link: &Link) {
        *lock(&link.wakeups) = None;
        link.over.store(true, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Takes a link that has ended out of the list. Returns whether nobody else has it any more.
    pub fn remove(&self, link: &Arc<Link>) -> bool {
        if !link.is_taken_by_all(self.queues) {
            return false;
        }
        let listed = &mut lock(&self.links)[usize::from(link.id.0)];
        if listed.as_ref().is_some_and(|listed| Arc::ptr_eq(listed, link)) {
            *listed = None;
        }
        Arc::strong_count(link) == 1
    }

    /// Has the keeper give memory back.
    pub fn give_back(&self, unused: Arc<Unused>) {
        lock(&self.unused).push(unused);
        self.keeper.signal();
    }

    /// Gives memory back.
    pub fn discard_unused(&self) {
        let unused = core::mem::take(&mut *lock(&self.unused));
        drop(unused);
    }

    /// Tells the keeper that the process at the other end of a link breaks its rules.
    pub fn is_broken(&self, link: &Link) {
        link.broken.store(true, Ordering::Relaxed);
        self.keeper.signal();
    }
}
