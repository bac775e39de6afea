//! All links of a process, and the thread that keeps them.

use super::inbox::Inbox;
use super::keeper::Keeper;
use super::news::News;
use super::queue::LinkQueue;
use super::shared::{LinkCounts, Shared};
use super::talk;
use crate::ipc::renumbered;
use crate::port::counters::sum;
use crate::port::frame::HeapPool;
use crate::port::info::{PortInfo, PortStats};
use crate::port::stock::STOCK;
use crate::port::taken::Taken;
use crate::registry::{Registry, TakeCalls};
use crate::sync::asymmetric;
use crate::sync::lock::lock;
use crate::sync::worker::Worker;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;

/// The configuration of a process's links.
#[derive(Clone, Copy, Debug)]
pub struct LinksConfig {
    /// Queues of frames, one for each shard.
    pub queues: usize,
    /// Bytes of the longest frame.
    pub max_frame: usize,
    /// Receive buffers of each queue.
    pub frames: usize,
    /// How long a handshake may take before the other process counts as not answering.
    pub patience: Duration,
    /// Longest time for which a peer that consumes no frames counts as stalled: see [`Stalled`](crate::port::Stalled).
    pub stall: Duration,
}

impl LinksConfig {
    /// The configuration for a port with these options.
    pub fn of(info: &PortInfo, frames: usize) -> Self {
        let (patience, stall) = (Duration::from_secs(5), Duration::from_secs(60));
        Self { queues: info.queues, max_frame: info.max_frame(), frames, patience, stall }
    }
}

/// The links of a process. Dropping this ends them.
pub struct Links {
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    taken: Taken,
    is_over: Arc<AtomicBool>,
    keeper: Worker,
}

impl Links {
    /// Starts the keeper, which accepts calls through the registry of the host from now on.
    ///
    /// # Errors
    /// Those of memfd_create(2), mmap(2), eventfd(2) and pthread_create(3).
    ///
    /// # Panics
    /// If the configuration has no queue or more queues than `SHARDS_MAX`, or if `HeapPool::new` panics for its frames and bytes.
    pub fn new(registry: Arc<Registry>, config: &LinksConfig) -> io::Result<Self> {
        let LinksConfig { queues, max_frame, frames, patience, stall } = *config;
        assert!((1..=crate::config::SHARDS_MAX).contains(&queues), "{queues} queues");
        // Registers this process for the barrier that sleeping peers issue: see `LinkQueue::arm`.
        asymmetric::join();
        // Copies of frames write whole blocks of 16 bytes, past the end of the frame.
        let pool = HeapPool::new(queues * (frames + STOCK), max_frame.next_multiple_of(64));
        let (news_fd, news) = News::make()?;
        let news = (renumbered(news_fd, talk::LEAST), news);
        let shared = Arc::new(Shared::new((queues, max_frame), pool, news, stall)?);
        let inbox = Arc::new(Inbox::new(Arc::clone(&shared)));
        let is_over = Arc::new(AtomicBool::new(false));
        let keeper = Keeper::new(Arc::clone(&registry), Arc::clone(&shared), Arc::clone(&inbox), patience);
        let over = Arc::clone(&is_over);
        let keeper = Worker::start("roce-links", move || keeper.run(&over))?;
        registry.take_calls(Some(inbox as Arc<dyn TakeCalls>));
        Ok(Self { registry, shared, taken: Taken::none_of(queues), is_over, keeper })
    }

    /// The queue of a shard. `None` if the queue was taken before.
    pub fn take_queue(&self, index: usize) -> Option<LinkQueue> {
        self.taken.take(index)?;
        Some(LinkQueue::new(Arc::clone(&self.registry), Arc::clone(&self.shared), index))
    }

    /// The pool of receive buffers, which the port's sockets use, too.
    pub(in crate::port) fn pool(&self) -> HeapPool {
        self.shared.pool.clone()
    }

    /// The counters of links.
    pub fn counts(&self) -> LinkCounts {
        let tx_ended = self.shared.tx_ended.load(Ordering::Relaxed);
        LinkCounts { tx_ended, ..*lock(&self.shared.counts) }
    }

    /// The counters of frames, summed over all queues and links.
    pub fn stats(&self) -> PortStats {
        sum(&self.shared.counters)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // The keeper never waits for another process, so this returns soon.
        self.keeper.end(|| {
            self.registry.take_calls(None);
            self.is_over.store(true, Ordering::Relaxed);
            self.shared.keeper.signal();
        });
    }
}
