//! Links between the processes of a host: each with each other one, made when a shard first needs it, over rings in memory that two
//! processes share.
//!
//! Frames pass as through a memif; only how the two ends come together differs. There is no path of a socket and nobody who waits there:
//! a process calls another one by the registry (`keeper`, `greeting`), at the name of the run that a queue pair number is in. A shard
//! has one [`LinkQueue`] for all links, and reads which of them leads to a number without a lock (`published`).
//!
//! Processes of the same user are admitted, and never believed. What one says is checked where it enters (`greeting`), what it writes
//! is copied and then checked, as a memif does, and which numbers it has is the kernel's word. It can spoil its own links, and cannot
//! make this process wait. A fork has nothing of its parent's links.

mod attention;
mod end;
mod ended;
mod following;
mod greeting;
mod id;
mod inbox;
mod keeper;
mod making;
mod meeting;
mod news;
mod published;
mod queue;
mod shared;
mod table;
mod talk;
mod terms;

pub use ended::Ended;
pub use id::{LINKS_MAX, LinkId};
pub use queue::{LinkQueue, Reach};
pub use shared::LinkCounts;

use super::counters::sum;
use super::frame::HeapPool;
use super::info::{PortInfo, PortStats};
use super::stock::STOCK;
use super::taken::Taken;
use crate::ipc::renumbered;
use crate::registry::{Registry, TakeCalls};
use crate::sync::eventfd::EventFd;
use crate::sync::lock::lock;
use crate::sync::process::Process;
use crate::sync::{apart, asymmetric};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use inbox::Inbox;
use keeper::Keeper;
use news::News;
use shared::Shared;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How a process has links.
#[derive(Clone, Copy, Debug)]
pub struct LinksConfig {
    /// Shards: queues of frames.
    pub queues: usize,
    /// Bytes of the longest frame.
    pub max_frame: usize,
    /// Buffers of each queue.
    pub frames: usize,
    /// How long another process may keep this one waiting until there is a link.
    pub patience: Duration,
    /// How long another process may take nothing before it counts as silent.
    pub stall: Duration,
}

impl LinksConfig {
    /// For a port that is opened so.
    pub fn of(info: &PortInfo, frames: usize) -> Self {
        let (patience, stall) = (Duration::from_secs(5), Duration::from_secs(60));
        Self { queues: info.queues, max_frame: info.max_frame(), frames, patience, stall }
    }
}

/// The links of a process. When this is dropped they end.
pub struct Links {
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    taken: Taken,
    is_over: Arc<AtomicBool>,
    /// `None` only while it is dropped.
    keeper: Option<JoinHandle<()>>,
    made_by: Process,
}

impl Links {
    /// Takes calls from now on, by the registry of the host.
    ///
    /// # Errors
    /// Those of eventfd(2) and pthread_create(3).
    ///
    /// # Panics
    /// When the configuration has no queue, no buffers, or more than there can be.
    pub fn new(registry: Arc<Registry>, config: &LinksConfig) -> io::Result<Self> {
        let LinksConfig { queues, max_frame, frames, patience, stall } = *config;
        assert!((1..=crate::config::SHARDS_MAX).contains(&queues), "{queues} queues");
        // For others that sleep: see `LinkQueue::arm`.
        asymmetric::join();
        // Frames are copied in whole blocks of 16 bytes, past their end.
        let pool = HeapPool::new(queues * (frames + STOCK), max_frame.next_multiple_of(64));
        let event = renumbered(EventFd::new()?.into(), talk::LEAST);
        let (news_fd, news) = News::make()?;
        let news = (renumbered(news_fd, talk::LEAST), news);
        let shared = Arc::new(Shared::new(queues, pool, event, news, stall)?);
        let inbox = Arc::new(Inbox::new(Arc::clone(&shared)));
        let is_over = Arc::new(AtomicBool::new(false));
        let keeper =
            Keeper::new(Arc::clone(&registry), Arc::clone(&shared), Arc::clone(&inbox), max_frame, patience);
        let over = Arc::clone(&is_over);
        let keeper = Some(apart::spawn("roce-links", move || keeper.run(&over))?);
        registry.take_calls(Some(inbox as Arc<dyn TakeCalls>));
        let (taken, made_by) = (Taken::none_of(queues), Process::this());
        Ok(Self { registry, shared, taken, is_over, keeper, made_by })
    }

    /// The queue of a shard, once.
    pub fn take_queue(&self, index: usize) -> Option<LinkQueue> {
        self.taken.take(index)?;
        Some(LinkQueue::new(Arc::clone(&self.shared), index))
    }

    /// What happened to links.
    pub fn counts(&self) -> LinkCounts {
        let tx_ended = self.shared.tx_ended.load(Ordering::Relaxed);
        LinkCounts { tx_ended, ..*lock(&self.shared.counts) }
    }

    /// Frames, over all queues and links.
    pub fn stats(&self) -> PortStats {
        sum(&self.shared.counters)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let keeper = self.keeper.take();
        if !self.made_by.is_this() {
            // A fork has no such thread.
            core::mem::forget(keeper);
            return;
        }
        self.registry.take_calls(None);
        self.is_over.store(true, Ordering::Relaxed);
        self.shared.keeper.signal();
        // It waits for nobody.
        let _ = keeper.map(JoinHandle::join);
    }
}
