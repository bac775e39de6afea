//! The verbs objects of a member: queue pairs, completion queues, and memory for messages whose contents do not matter.

use super::order::{Make, RemoteEnd};
use apps::completion;
use apps::error::{AppError, Result};
use std::time::{Duration, Instant};
use verbs::{
    Access, Context, CqPoller, Mr, Pd, Qp, QpCap, QpInitAttr, RcEndpoint, RcOptions, Reactor, RecvQueue,
    RecvWr, SendQueue, SendWr, Sge, Wc,
};

/// Receives of a queue pair.
const RECEIVES: u32 = 16;
/// Messages up to this size are sent inline.
const INLINE: usize = 64;
/// Completions per poll.
pub const WCS: usize = 32;
/// ACK timeout, 4.096 us times 2 to this power: one second, which is longer than the wait for a core on a busy machine.
const TIMEOUT: u8 = 18;

/// A queue pair.
struct Queue {
    sends: SendQueue,
    receives: RecvQueue,
    /// The peer of the queue pair.
    remote: Option<(RcEndpoint, RemoteEnd)>,
    qp: Qp,
}

/// The objects of a member. The order of the fields is the order of their drops.
pub struct Objects {
    reactor: Option<Reactor>,
    queues: Vec<Queue>,
    sends: CqPoller,
    receives: CqPoller,
    /// The message to send, and the memory to receive into.
    from: [Sge; 1],
    into: [Sge; 1],
    memory: Mr,
    make: Make,
    gid_index: u8,
    _pd: Pd,
}

impl Objects {
    /// Creates the objects and posts the receives, but connects nothing. With a `reactor` the member turns its device itself; otherwise
    /// polling a completion queue does, or a thread of the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(context: &Context, reactor: Option<Reactor>, gid_index: u8, make: Make) -> Result<Self> {
        let Make { count, size, depth, memory } = make;
        let pd = context.alloc_pd()?;
        let size = size as usize;
        // For the message to send, the messages to receive, and the peer's writes.
        let memory = pd
            .reg_mr(memory.max(3 * size), Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        memory.fill(0..memory.len(), 1)?;
        let cq = |each: u32| context.create_cq((count as u32 * each).max(1));
        let (send_cq, recv_cq) = (cq(depth)?, cq(RECEIVES)?);
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE as u32,
        };
        let queue = |_| -> Result<Queue> {
            let qp = pd.create_qp(&QpInitAttr::rc(&send_cq, &recv_cq).cap(cap))?;
            qp.init_rc(&options())?;
            let (sends, receives) = qp.split()?;
            Ok(Queue { sends, receives, remote: None, qp })
        };
        let queues = (0..count).map(queue).collect::<Result<_>>()?;
        let mut objects = Self {
            reactor,
            queues,
            sends: send_cq.poller()?,
            receives: recv_cq.poller()?,
            from: [memory.sge(0..size)?],
            into: [memory.sge(size..2 * size)?],
            memory,
            make,
            gid_index,
            _pd: pd,
        };
        for at in 0..count {
            for _ in 0..RECEIVES {
                objects.post_receive(at)?;
            }
        }
        Ok(objects)
    }

    /// Number of queue pairs.
    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// Most requests outstanding of a queue pair.
    pub fn depth(&self) -> u32 {
        self.make.depth
    }

    /// The queue pairs, as their peers need them to connect.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn ours(&self) -> Result<Vec<RemoteEnd>> {
        let addr = self.memory.addr() + 2 * u64::from(self.make.size);
        let of = |queue: &Queue| -> Result<RemoteEnd> {
            let endpoint = queue.qp.endpoint(self.gid_index)?.to_string();
            Ok(RemoteEnd { endpoint, addr, rkey: self.memory.rkey() })
        };
        self.queues.iter().map(of).collect()
    }

    /// Connects each queue pair to that of a peer.
    ///
    /// # Errors
    /// Errors of the device; another number of peers, or an invalid endpoint.
    pub fn connect(&mut self, peers: Vec<RemoteEnd>) -> Result<()> {
        if peers.len() != self.queues.len() {
            let (ours, theirs) = (self.queues.len(), peers.len());
            return Err(AppError::ProtocolViolation(format!(
                "{ours} queue pairs were to be connected with {theirs}"
            )));
        }
        peers.into_iter().enumerate().try_for_each(|(at, remote)| self.connect_one(at, remote))
    }

    /// Connects queue pair `at` to that of a peer.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_one(&mut self, at: usize, remote: RemoteEnd) -> Result<()> {
        let endpoint: RcEndpoint =
            remote.endpoint.parse().map_err(|e| AppError::ProtocolViolation(format!("{e}")))?;
        let queue = self.queues.get_mut(at);
        let queue =
            queue.ok_or_else(|| AppError::ProtocolViolation(format!("there is no queue pair {at}")))?;
        queue.qp.connect_rc(&endpoint, &options())?;
        queue.remote = Some((endpoint, remote));
        Ok(())
    }

    /// Whether this thread turns the device.
    pub fn are_turned_here(&self) -> bool {
        self.reactor.is_some()
    }

    /// Makes one turn, if this thread turns the device.
    #[inline]
    pub fn turn(&mut self) {
        if let Some(reactor) = &mut self.reactor {
            let _ = reactor.poll_once();
        }
    }

    /// The handle for turns, if this thread turns the device.
    pub fn reactor(&mut self) -> Option<&mut Reactor> {
        self.reactor.as_mut()
    }

    /// Sends a message on a queue pair, signalled or not.
    ///
    /// # Errors
    /// A full queue, or a failed queue pair.
    #[inline]
    pub fn send(&mut self, at: usize, is_signaled: bool) -> Result<()> {
        let wr = SendWr::send(at as u64, &self.from);
        let data = [0; INLINE];
        let size = self.make.size as usize;
        let wr = if size <= INLINE { wr.inline(&data[..size]) } else { wr };
        Ok(self.queues[at].sends.post_send(&[if is_signaled { wr.signaled() } else { wr }])?)
    }

    /// Writes a message to the memory of a queue pair's peer, with a completion.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn write(&mut self, at: usize) -> Result<()> {
        let queue = &mut self.queues[at];
        let Some((_, remote)) = &queue.remote else {
            return Err(AppError::ProtocolViolation("a WRITE on a queue pair that is not connected".into()));
        };
        let wr = SendWr::write(at as u64, &self.from, remote.addr, remote.rkey).signaled();
        Ok(queue.sends.post_send(&[wr])?)
    }

    /// Polls completions of requests, successful or not; returns their number.
    ///
    /// # Errors
    /// Errors of the device.
    #[inline]
    pub fn poll_any(&mut self, wcs: &mut [Wc; WCS]) -> Result<usize> {
        Ok(self.sends.poll(wcs)?)
    }

    /// Polls completions of requests; returns their number.
    ///
    /// # Errors
    /// Errors of the device; a request that failed.
    #[inline]
    pub fn poll_sends(&mut self, op: &str, wcs: &mut [Wc; WCS]) -> Result<usize> {
        let n = self.sends.poll(wcs)?;
        match wcs[..n].iter().find(|wc| !wc.is_ok()) {
            Some(wc) => Err(self.failed(op, wc)),
            None => Ok(n),
        }
    }

    /// Polls received messages, and posts their receives again. Returns how many arrived on queue pair `on`.
    ///
    /// # Errors
    /// Errors of the device; a receive that failed.
    #[inline]
    pub fn receive(&mut self, on: usize) -> Result<u64> {
        let mut wcs = [Wc::default(); WCS];
        let n = self.receives.poll(&mut wcs)?;
        let mut came = 0;
        for wc in &wcs[..n] {
            if !wc.is_ok() {
                return Err(self.failed("receive", wc));
            }
            came += u64::from(wc.wr_id == on as u64);
            self.post_receive(wc.wr_id as usize)?;
        }
        Ok(came)
    }

    #[inline]
    fn post_receive(&mut self, at: usize) -> Result<()> {
        Ok(self.queues[at].receives.post_recv(&[RecvWr::new(at as u64, &self.into)])?)
    }

    #[cold]
    fn failed(&self, op: &str, wc: &Wc) -> AppError {
        match self.queues.get(wc.wr_id as usize).and_then(|queue| queue.remote.as_ref()) {
            Some((endpoint, _)) => completion::failed(op, wc, &endpoint.gid),
            None => AppError::Completion(completion::status(wc)),
        }
    }
}

fn options() -> RcOptions {
    RcOptions::default().timeout(TIMEOUT).access(Access::REMOTE_WRITE | Access::REMOTE_READ)
}

/// How long a member waits for a completion or a message: its peer may wait for a core.
const PATIENCE: Duration = Duration::from_secs(60);
/// Polls between two readings of the clock.
const LOOK: u32 = 4096;

/// A wait with a time limit.
#[derive(Default)]
pub struct Wait {
    polls: u32,
    since: Option<Instant>,
}

impl Wait {
    /// Notes that a poll found nothing. Returns whether the caller should check for other work now.
    ///
    /// # Errors
    /// [`AppError::Timeout`] after a minute.
    #[inline]
    pub fn on(&mut self, what: &str) -> Result<bool> {
        self.polls += 1;
        if !self.polls.is_multiple_of(LOOK) {
            return Ok(false);
        }
        self.look(what).map(|()| true)
    }

    #[cold]
    fn look(&mut self, what: &str) -> Result<()> {
        if self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            return Ok(());
        }
        Err(AppError::Timeout(format!(
            "{what}: nothing came for {PATIENCE:?}; do the other processes run, and have the same port?"
        )))
    }
}
