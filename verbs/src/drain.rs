//! Draining a queue pair: stopping it so that every posted request has its completion.
//!
//! [`Qp::drain_qp`] moves the queue pair to ERR and returns when everything that was posted before has completed or was
//! flushed, and all of these completions can be polled. On other devices a program posts a marker to each queue and polls for
//! it. Here the shard reports when it has passed what was the end of each queue: no completion queue is polled and no
//! completion is added.
//!
//! [`Qp::drain_by_sqd`] is the orderly way, and differs in three points: requests that have started are waited for instead of
//! being flushed, so their outcome is known and the peer has to be there; requests that have not started stay queued, as
//! receives do; and the queue pair can resume, by SQD to RTS. (SQD of InfiniBand verbs, that is; iWARP uses the name for
//! something else.)
//!
//! ```
//! # use verbs::{Context, DeviceConfig, QpInitAttr, RcOptions, RecvWr, Wc, WcStatus};
//! # use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let context = Context::open(DeviceConfig::loopback())?;
//! # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//! # let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
//! # qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
//! qp.post_recv(&[RecvWr::new(7, &[])])?;
//! qp.drain_qp(Duration::from_secs(1))?;
//! // Not "some time later": now.
//! let mut wc = [Wc::default(); 16];
//! assert_eq!(cq.poll(&mut wc)?, 1);
//! assert_eq!((wc[0].wr_id, wc[0].status), (7, WcStatus::WrFlushErr));
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use stack::device::{DrainKind, DrainMark, QpState};

use crate::error::VerbsError;
use crate::qp::Qp;

/// A drain under way, from [`Qp::begin_drain`]. Dropping it only stops observing: the queue pair stays in the state that it
/// was moved to.
#[derive(Debug)]
pub struct Drain<'a> {
    qp: &'a Qp,
    mark: DrainMark,
}

impl Drain<'_> {
    /// Whether the drain is over: then each completion of what was posted before it began is in its completion queue. Never
    /// waits and drives no shard: a program with [`Drive::Embedded`](crate::Drive::Embedded) keeps polling its shards between
    /// calls.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    pub fn try_finish(&mut self) -> Result<bool, VerbsError> {
        Ok(self.qp.core().drained(&mut self.mark)?)
    }

    /// Waits for the end of the drain, and drives shards that no other thread drives meanwhile.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `timeout`, after which the call can be repeated; `EDEADLK` from inside a turn.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), VerbsError> {
        Ok(self.qp.core().wait_drained(&mut self.mark, timeout)?)
    }
}

impl Qp {
    /// Moves the queue pair to ERR and waits until everything posted to both queues before has completed or was flushed, with
    /// all completions in their queues: after that the memory of these requests may be freed.
    ///
    /// Works in every state, on empty queues, for a queue pair that is in ERR already, and with a peer that is gone. What
    /// other threads post meanwhile, or is posted later, is flushed too, some time later. A full completion queue overruns as
    /// it does otherwise (it loses completions, with an event), and the drain ends. While it waits, the caller drives shards
    /// that no other thread drives, so it returns in every [`Drive`](crate::Drive), even with a single thread.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `timeout`: the queue pair is in ERR then, and the call can be repeated. `EDEADLK` from inside
    /// a turn.
    #[doc(alias = "ib_drain_qp")]
    pub fn drain_qp(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.begin_drain(DrainKind::Qp)?.wait(timeout)
    }

    /// As [`drain_qp`](Self::drain_qp), but waits for the send queue only. The queue pair is in ERR all the same.
    ///
    /// # Errors
    /// As [`drain_qp`](Self::drain_qp).
    #[doc(alias = "ib_drain_sq")]
    pub fn drain_sq(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.begin_drain(DrainKind::Sq)?.wait(timeout)
    }

    /// As [`drain_qp`](Self::drain_qp), but waits for the receive queue only. With a shared receive queue: until this
    /// queue pair holds none of its requests. The queue pair is in ERR all the same.
    ///
    /// # Errors
    /// As [`drain_qp`](Self::drain_qp).
    #[doc(alias = "ib_drain_rq")]
    pub fn drain_rq(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.begin_drain(DrainKind::Rq)?.wait(timeout)
    }

    /// Moves the queue pair from RTS to SQD (it may be there already) and waits until every send request that had started is
    /// complete, with the completions in their queue. Returns the state that it ended in:
    ///
    /// - [`QpState::Sqd`]: drained. Requests that had not started and receives stay queued; SQD to RTS resumes,
    ///   [`drain_qp`](Self::drain_qp) ends the rest.
    /// - [`QpState::Err`]: it was in ERR, or a request failed meanwhile (a peer that is gone ends its retries so). Both
    ///   queues are then drained as by [`drain_qp`](Self::drain_qp).
    /// - Another state: another call modified the queue pair meanwhile.
    ///
    /// No SQ_DRAINED event is raised.
    ///
    /// # Errors
    /// `EINVAL` in RESET, INIT, RTR and SQE; `ETIMEDOUT` after `timeout`, with the queue pair in SQD and still draining;
    /// `EDEADLK` from inside a turn.
    pub fn drain_by_sqd(&self, timeout: Duration) -> Result<QpState, VerbsError> {
        self.begin_drain(DrainKind::Sqd)?.wait(timeout)?;
        self.state()
    }

    /// Starts a drain and returns at once. Each of the four calls above has its [`DrainKind`].
    ///
    /// # Errors
    /// `EINVAL` for [`DrainKind::Sqd`] in a state from which SQD is not entered; `EDEADLK` from inside a turn.
    pub fn begin_drain(&self, kind: DrainKind) -> Result<Drain<'_>, VerbsError> {
        Ok(Drain { qp: self, mark: self.core().begin_drain(kind)? })
    }
}
