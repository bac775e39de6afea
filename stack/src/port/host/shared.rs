//! State that the keeper and the queues share.
//!
//! The keeper makes and ends links; each queue takes its ends of them. In each turn, a queue reads one change counter, and reads the list
//! only when the counter has changed. A link that has ended stays in the list until each queue has taken its end. While any reference to a
//! [`Link`] exists, its number is not reused.

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

/// A link, as the queues see it.
pub struct Link {
    /// Its number.
    pub id: LinkId,
    /// The peer process at its other end, as the kernel reports it; 0 if it is not visible from this PID namespace.
    pub pid: u32,
    /// Its rings.
    pub connection: Connection,
    /// Shards of the peer process.
    pub their_queues: usize,
    /// Bytes of the longest frame.
    pub max_frame: usize,
    /// The peer's notification page, and the peer's number of this link.
    news: News,
    theirs: LinkId,
    /// The runs to which the link leads, or led before it ended.
    runs: Mutex<Vec<Run>>,
    /// Wake-ups to and from the peer, until the link has ended.
    wakeups: Mutex<Option<Wakeups>>,
    broken: AtomicBool,
    over: AtomicBool,
    /// The queues that have taken their ends of the link, a bit for each.
    taken: AtomicU32,
}

impl Link {
    /// A link to which no run is assigned yet.
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

    /// Signals the peer that shard `shard` of this process has sent frames.
    pub fn tell(&self, shard: usize) {
        self.news.tell(shard % self.their_queues, self.theirs);
    }

    /// Wakes the peer.
    pub fn wake(&self) {
        if let Some(wakeups) = &*lock(&self.wakeups) {
            wakeups.send();
        }
    }

    /// Adds the link to an epoll instance, edge-triggered. Wake-ups by the peer are reported with the number of the link.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn watch(&self, epoll: &OwnedFd) -> rustix::io::Result<()> {
        let Some(wakeups) = &*lock(&self.wakeups) else { return Ok(()) };
        let data = EventData::new_u64(self.id.number().into());
        epoll::add(epoll, wakeups, data, EventFlags::IN | EventFlags::ET)
    }

    /// Consumes wake-ups of the peer, all but one, so that the peer's next wake-up finds room.
    ///
    /// # Errors
    /// The peer has sent descriptors, which no wake-up has.
    pub fn take_wakeups(&self) -> Result<(), HasDescriptors> {
        lock(&self.wakeups).as_ref().map_or(Ok(()), Wakeups::take_all_but_one)
    }

    /// Notes that the link leads to this run, too.
    pub fn leads_to(&self, run: Run) {
        lock(&self.runs).push(run);
    }

    /// The runs to which the link leads, or led before it ended.
    pub fn runs(&self) -> Vec<Run> {
        lock(&self.runs).clone()
    }

    /// Whether the link has ended. Everything that the peer writes from then on is ignored.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Notes that a queue takes its end of the link. Returns whether the queue had not taken it before.
    pub fn take(&self, queue: usize) -> bool {
        self.taken.fetch_or(1 << queue, Ordering::AcqRel) >> queue & 1 == 0
    }

    /// Whether at least `queues` queues have taken their ends of the link.
    pub fn is_taken_by_all(&self, queues: usize) -> bool {
        self.taken.load(Ordering::Acquire).count_ones() as usize >= queues
    }

    /// Whether a queue has found that the peer breaks the rules of a link.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// Counters of links, and of processes that were refused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct LinkCounts {
    /// Number of links that are up.
    pub up: u64,
    /// Number of links that came up.
    pub made: u64,
    /// Number of links that have ended.
    pub ended: u64,
    /// Number of processes that were refused, or whose link was ended, because of an invalid message or invalid values in shared memory.
    pub refused: u64,
    /// Number of frames that shards sent on links that had ended.
    pub tx_ended: u64,
}

/// State that the keeper and the queues share.
pub struct Shared {
    /// How runs are reached.
    pub published: Arc<Published>,
    /// How often the list has changed.
    changes: AtomicU64,
    links: Mutex<Vec<Option<Arc<Link>>>>,
    /// Wakes the keeper.
    pub keeper: EventFd,
    /// Wakes the sleeping shards of this process: links have changed.
    pub event: EventFd,
    /// The notification page of this process; and its descriptor, for peers.
    pub news: News,
    pub news_fd: Arc<OwnedFd>,
    pub(super) pool: HeapPool,
    /// The memory budget of the links; below, memory that the keeper is to return to the system.
    pub budget: Arc<Budget>,
    unused: Mutex<Vec<Arc<Unused>>>,
    pub(super) counters: Vec<Counters>,
    /// Number of frames sent on links that had ended.
    pub(super) tx_ended: AtomicU64,
    /// Counters that the keeper maintains.
    pub(super) counts: Mutex<LinkCounts>,
    /// Number of shards of this process.
    pub queues: usize,
    /// Bytes of the longest frame that this process receives.
    pub max_frame: usize,
    /// Longest time for which a peer that consumes no frames counts as stalled: see [`Stalled`](crate::port::traits::Stalled).
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

    /// The links, indexed by number.
    pub fn links(&self) -> Vec<Option<Arc<Link>>> {
        lock(&self.links).clone()
    }

    /// Lists a link that is up.
    pub fn add(&self, link: &Arc<Link>) {
        lock(&self.links)[usize::from(link.id.0)] = Some(Arc::clone(link));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Marks a link as ended. It stays in the list, so that each queue receives the frames that had arrived. Its connection can be closed.
    pub fn end(&self, link: &Link) {
        *lock(&link.wakeups) = None;
        link.over.store(true, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Removes a link that has ended from the list. Returns whether no other reference to it exists.
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

    /// Passes memory to the keeper, which returns it to the system.
    pub fn give_back(&self, unused: Arc<Unused>) {
        lock(&self.unused).push(unused);
        self.keeper.signal();
    }

    /// Returns to the system the memory that queues have passed to the keeper.
    pub fn discard_unused(&self) {
        let unused = core::mem::take(&mut *lock(&self.unused));
        drop(unused);
    }

    /// Reports to the keeper that the peer of a link breaks its rules.
    pub fn is_broken(&self, link: &Link) {
        link.broken.store(true, Ordering::Relaxed);
        self.keeper.signal();
    }
}
