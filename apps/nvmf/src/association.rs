//! The state that the queues of one controller share. They may be on different threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

use crate::fair::Who;
use crate::limits;
use crate::live::Live;
use crate::nqn::Nqn;
use crate::status::Status;
use crate::sync::lock;
use crate::wire::Sqe;
use crate::wire::log::ErrorEntry;

/// The association of a host and a controller: it lasts from Connect on the admin queue until that queue ends.
#[derive(Debug)]
pub(crate) struct Association {
    pub cntlid: u16,
    pub host: Nqn,
    pub host_id: [u8; 16],
    /// The party in the shares of [`fair`](crate::fair).
    pub who: Who,
    /// Whether the subsystem lists the host.
    pub named: bool,
    /// The subsystem; `None` for a discovery controller.
    pub live: Option<Arc<Live>>,
    /// 0 after the association has ended; else a number that changes with each reset, so that I/O queues see that they have ended.
    life: AtomicU32,
    /// Whether a command came since the keep alive timer was last checked.
    traffic: AtomicBool,
    queues: Mutex<Queues>,
    errors: Mutex<ErrorLog>,
}

/// A host that asks for a controller.
#[derive(Debug)]
pub(crate) struct Applicant {
    pub host: Nqn,
    pub host_id: [u8; 16],
    pub who: Who,
    /// Whether the subsystem lists the host.
    pub named: bool,
}

/// The I/O queues of a controller: whether they may be created, how many were granted, and which numbers are in use.
#[derive(Debug)]
struct Queues {
    enabled: bool,
    granted: u16,
    taken: Vec<u16>,
}

/// The time between two resets of a controller. An I/O queue belongs to the one in which it was created and ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life(u32);

/// Why an I/O queue is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoQueue {
    /// The number was not granted.
    Number,
    /// The controller is not enabled, or the queue exists already.
    Sequence,
}

impl Association {
    pub fn new(cntlid: u16, host: Applicant, live: Option<Arc<Live>>, io_queues: u16) -> Self {
        let Applicant { host, host_id, who, named } = host;
        let granted = if live.is_some() { io_queues } else { 0 };
        Self {
            cntlid,
            host,
            host_id,
            who,
            named,
            live,
            life: AtomicU32::new(1),
            traffic: AtomicBool::new(false),
            queues: Mutex::new(Queues { enabled: false, granted, taken: Vec::new() }),
            errors: Mutex::default(),
        }
    }

    /// Ends the association, and with it all of its queues.
    pub fn end(&self) {
        self.life.store(0, Ordering::Release);
    }
    pub fn is_over(&self) -> bool {
        self.life.load(Ordering::Acquire) == 0
    }
    /// Whether the controller has not been reset since `life` began. If it was, the I/O queues of `life` have ended.
    #[inline]
    pub fn is_in(&self, life: Life) -> bool {
        self.life.load(Ordering::Acquire) == life.0
    }

    /// Allows I/O queues to be created.
    pub fn enable(&self) {
        lock(&self.queues).enabled = true;
    }
    /// Ends the I/O queues, and allows no new ones until the controller is enabled. Sets the number of granted queues to `io_queues`.
    pub fn disable(&self, io_queues: u16) {
        let mut queues = lock(&self.queues);
        *queues = Queues { enabled: false, granted: io_queues, taken: Vec::new() };
        // Under the lock, so that no queue is created in between. An association that has ended does not come back.
        let life = self.life.load(Ordering::Relaxed);
        let next = life.checked_add(1).unwrap_or(1);
        if life != 0 {
            let _over = self.life.compare_exchange(life, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
    /// Grants `asked` I/O queues, but no more than `most`, and returns the number; `None` if I/O queues exist already.
    pub fn grant(&self, asked: u16, most: u16) -> Option<u16> {
        let mut queues = lock(&self.queues);
        queues.taken.is_empty().then(|| {
            queues.granted = asked.min(most);
            queues.granted
        })
    }
    pub fn granted(&self) -> u16 {
        lock(&self.queues).granted
    }
    /// Reserves the number `qid` for a new I/O queue.
    pub fn take_queue(&self, qid: u16) -> Result<Life, NoQueue> {
        let mut queues = lock(&self.queues);
        if qid > queues.granted {
            return Err(NoQueue::Number);
        }
        let life = Life(self.life.load(Ordering::Acquire));
        if !queues.enabled || life.0 == 0 || queues.taken.contains(&qid) {
            return Err(NoQueue::Sequence);
        }
        queues.taken.push(qid);
        Ok(life)
    }
    /// Frees the number of I/O queue `qid` of `life`, which has ended.
    pub fn give_queue(&self, qid: u16, life: Life) {
        let mut queues = lock(&self.queues);
        if self.is_in(life) {
            queues.taken.retain(|&q| q != qid);
        }
    }

    /// Notes for the keep alive timer that a command came.
    #[inline]
    pub fn note_traffic(&self) {
        // The flag is read by all queues: it is written only when it changes.
        if !self.traffic.load(Ordering::Relaxed) {
            self.traffic.store(true, Ordering::Relaxed);
        }
    }
    /// Whether a command came since the last call.
    pub fn take_traffic(&self) -> bool {
        self.traffic.swap(false, Ordering::Relaxed)
    }

    /// Adds an entry to the error log.
    #[cold]
    pub fn note_error(&self, qid: u16, sqe: ErrorOf, status: Status) {
        lock(&self.errors).note(qid, sqe, status);
    }
    /// The error log, latest entry first, and how many errors there were since the controller was created.
    pub fn errors(&self) -> ([ErrorEntry; limits::ERROR_ENTRIES], u64) {
        lock(&self.errors).list()
    }
}

/// What the error log records of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorOf {
    pub cid: u16,
    pub nsid: u32,
    pub lba: u64,
}

impl ErrorOf {
    pub fn command(sqe: &Sqe) -> Self {
        Self { cid: sqe.cid.get(), nsid: sqe.nsid.get(), lba: 0 }
    }
}

/// The latest errors, in a ring.
#[derive(Debug)]
struct ErrorLog {
    count: u64,
    ring: [ErrorEntry; limits::ERROR_ENTRIES],
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self { count: 0, ring: [ErrorEntry::new_zeroed(); limits::ERROR_ENTRIES] }
    }
}

impl ErrorLog {
    fn note(&mut self, qid: u16, of: ErrorOf, status: Status) {
        let at = (self.count % limits::ERROR_ENTRIES as u64) as usize;
        self.count += 1;
        self.ring[at] = ErrorEntry {
            count: U64::new(self.count),
            sq_id: U16::new(qid),
            cid: U16::new(of.cid),
            status: U16::new(status.field()),
            location: U16::new(0xFFFF),
            lba: U64::new(of.lba),
            nsid: U32::new(of.nsid),
            transport: 1,
            ..ErrorEntry::new_zeroed()
        };
    }
    fn list(&self) -> ([ErrorEntry; limits::ERROR_ENTRIES], u64) {
        let mut list = self.ring;
        list.sort_unstable_by_key(|entry| core::cmp::Reverse(entry.count.get()));
        (list, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn association() -> Association {
        let live = Live::new("nqn.2024-01.test:a".parse().unwrap(), Default::default(), Default::default());
        let host: Nqn = "nqn.2024-01.test:h".parse().unwrap();
        let who = Who::named([10, 0, 0, 1].into(), &host, &[1; 16]);
        Association::new(1, Applicant { host, host_id: [1; 16], who, named: false }, Some(Arc::new(live)), 4)
    }

    #[test]
    fn a_reset_ends_the_io_queues_and_frees_their_numbers() {
        let a = association();
        assert_eq!(a.take_queue(1), Err(NoQueue::Sequence));
        a.enable();
        let first = a.take_queue(1).unwrap();
        assert_eq!(a.take_queue(1), Err(NoQueue::Sequence));
        assert_eq!(a.take_queue(5), Err(NoQueue::Number));
        assert_eq!(a.grant(2, 4), None);
        a.disable(4);
        assert!(!a.is_in(first));
        a.enable();
        let second = a.take_queue(1).unwrap();
        a.give_queue(1, first);
        assert_eq!(
            a.take_queue(1),
            Err(NoQueue::Sequence),
            "an older queue gave back the number of a newer one"
        );
        a.give_queue(1, second);
        assert_eq!(a.grant(9, 4), Some(4));
        a.end();
        a.disable(4);
        assert!(a.is_over());
    }

    #[test]
    fn the_error_log_keeps_the_latest() {
        let a = association();
        for cid in 0..limits::ERROR_ENTRIES as u16 + 3 {
            a.note_error(7, ErrorOf { cid, nsid: 1, lba: 9 }, Status::LbaOutOfRange);
        }
        let (list, count) = a.errors();
        assert_eq!(count, limits::ERROR_ENTRIES as u64 + 3);
        let counts: Vec<u64> = list.iter().map(|e| e.count.get()).collect();
        assert_eq!(counts, (4..=count).rev().collect::<Vec<_>>());
        assert_eq!((list[0].sq_id.get(), list[0].cid.get()), (7, limits::ERROR_ENTRIES as u16 + 2));
    }
}
