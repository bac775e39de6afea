//! Draining a queue pair: stopping it such that every posted request has its completion.
//!
//! [`Qp::drain_qp`] moves the queue pair to ERR and returns when everything posted before has completed or was flushed, and all of these
//! completions can be polled. On other devices a program posts a marker request to each queue and polls for its completion. Here the shard
//! reports when it has processed everything up to the end that each queue had. No completion queue is polled, and no completion is added.
//!
//! [`Qp::drain_by_sqd`] is the orderly way. It differs in three points. Requests that have started are waited for instead of flushed, so
//! their outcome is known, but the peer has to respond. Send requests that have not started stay queued, and so do receives. And the queue
//! pair can resume, by the transition SQD to RTS. (SQD is the state of InfiniBand verbs; iWARP uses the name for something else.)
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

/// A drain in progress, from [`Qp::begin_drain`]. Dropping it only stops the observation: the queue pair stays in the state that it was
/// moved to.
#[derive(Debug)]
pub struct Drain<'a> {
    qp: &'a Qp,
    mark: DrainMark,
}

impl Drain<'_> {
    /// Whether the drain has ended. If so, the completion of everything posted before the drain began is in its completion queue. Never
    /// waits and drives no shard: a program with [`Drive::Embedded`](crate::Drive::Embedded) keeps polling its shards between calls.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    pub fn try_finish(&mut self) -> Result<bool, VerbsError> {
        Ok(self.qp.core().drained(&mut self.mark)?)
    }

    /// Waits for the end of the drain. Meanwhile the caller drives shards that no other thread drives.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `timeout`, and the call can then be repeated; `EDEADLK` from inside a turn.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), VerbsError> {
        Ok(self.qp.core().wait_drained(&mut self.mark, timeout)?)
    }
}

impl Qp {
    /// Moves the queue pair to ERR and waits until everything posted to both queues before has completed or was flushed, and all
    /// completions are in their completion queues. After that the memory of these requests may be freed.
    ///
    /// Works in every state, with empty queues, for a queue pair that is already in ERR, and without a peer. Requests that other threads
    /// post during the call, and requests posted later, are flushed too, at some later time. A full completion queue overruns as usual (it
    /// loses completions, with an event), and the drain ends. During the wait the caller drives shards that no other thread drives, so the
    /// call returns in every [`Drive`](crate::Drive), even with a single thread.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `timeout`: the queue pair is then in ERR, and the call can be repeated. `EDEADLK` from inside a turn.
    #[doc(alias = "ib_drain_qp")]
    pub fn drain_qp(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.begin_drain(DrainKind::Qp)?.wait(timeout)
    }

    /// As [`drain_qp`](Self::drain_qp), but waits for the send queue only. The queue pair enters ERR nevertheless.
    ///
    /// # Errors
    /// As [`drain_qp`](Self::drain_qp).
    #[doc(alias = "ib_drain_sq")]
    pub fn drain_sq(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.begin_drain(DrainKind::Sq)?.wait(timeout)
    }

    /// As [`drain_qp`](Self::drain_qp), but waits for the receive queue only; with a shared receive queue, until this queue pair holds none
    /// of its requests. The queue pair enters ERR nevertheless.
    ///
    /// # Errors
    /// As [`drain_qp`](Self::drain_qp).
    #[doc(alias = "ib_drain_rq")]
    pub fn drain_rq(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.begin_drain(DrainKind::Rq)?.wait(timeout)
    }

    /// Moves the queue pair from RTS to SQD (it may be in SQD already) and waits until every send request that had started is complete,
    /// with the completions in their queue. Returns the state at the end:
    ///
    /// - [`QpState::Sqd`]: drained. Receives, and send requests that had not started, stay queued. SQD to RTS resumes;
    ///   [`drain_qp`](Self::drain_qp) flushes the rest.
    /// - [`QpState::Err`]: the queue pair was in ERR, or a request failed during the drain (as when the peer does not respond and the
    ///   retries are exhausted). Both queues are then drained as by [`drain_qp`](Self::drain_qp).
    /// - Another state: another call modified the queue pair during the drain.
    ///
    /// No SQ_DRAINED event is raised.
    ///
    /// # Errors
    /// `EINVAL` in RESET, INIT, RTR and SQE; `ETIMEDOUT` after `timeout`: the queue pair is then in SQD and still draining; `EDEADLK` from
    /// inside a turn.
    pub fn drain_by_sqd(&self, timeout: Duration) -> Result<QpState, VerbsError> {
        self.begin_drain(DrainKind::Sqd)?.wait(timeout)?;
        self.state()
    }

    /// Starts a drain and returns at once. Each of the four methods above corresponds to a [`DrainKind`].
    ///
    /// # Errors
    /// `EINVAL` for [`DrainKind::Sqd`] in a state without a transition to SQD; `EDEADLK` from inside a turn.
    pub fn begin_drain(&self, kind: DrainKind) -> Result<Drain<'_>, VerbsError> {
        Ok(Drain { qp: self, mark: self.core().begin_drain(kind)? })
    }
}
