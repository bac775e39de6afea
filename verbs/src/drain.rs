//! Draining a queue pair: ending it so that nothing posted is left without a completion.
//!
//! [`Qp::drain_qp`] moves the queue pair to ERR and returns when everything that was posted before has completed or
//! was flushed, and all of these completions are where the program polls. A program on other devices posts a marker to
//! each queue and polls for it; here the markers are the ends of the queues, the shard tells when they are passed, and
//! no completion queue is polled and no completion added.
//!
//! [`Qp::drain_by_sqd`] is the orderly way, and different in three points: what has started is waited for instead of
//! being flushed, so its fate is known and the peer has to be there; what has not started stays queued, as receives do;
//! and the queue pair can go on, by SQD to RTS. (SQD of InfiniBand verbs, that is; iWARP calls something else so.)
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

/// A drain under way, from [`Qp::begin_drain`]. Dropping it stops looking; the queue pair stays in the state that it
/// was moved to.
#[derive(Debug)]
pub struct Drain<'a> {
    qp: &'a Qp,
    mark: DrainMark,
}

impl Drain<'_> {
    /// Whether the drain is over: then each completion of what was posted before it began is in its completion queue.
    /// Never waits and turns nothing, so a program with [`Drive::Embedded`](crate::Drive::Embedded) goes on turning
    /// its shards.
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn.
    pub fn try_finish(&mut self) -> Result<bool, VerbsError> {
        Ok(self.qp.core().drained(&mut self.mark)?)
    }

    /// Waits for the end of the drain, and turns shards that nobody else turns meanwhile.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `timeout`, after which it can be waited for again; `EDEADLK` from inside a turn.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), VerbsError> {
        Ok(self.qp.core().wait_drained(&mut self.mark, timeout)?)
    }
}

impl Qp {
    /// Moves the queue pair to ERR and waits until everything posted to both queues before has completed or was
    /// flushed, with all completions in their queues: what one must know before freeing the memory behind them.
    ///
    /// Works in every state, on empty queues, for a queue pair that is in ERR already, and with a peer that is gone.
    /// What is posted by others meanwhile or later is flushed too, some time later. A full completion queue overruns
    /// as it does otherwise (it loses completions, with an event), and the drain ends. While it waits the caller turns
    /// shards that nobody else turns, so it returns in every [`Drive`](crate::Drive), also on the only thread there is.
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

    /// Orderly: moves the queue pair from RTS to SQD (it may be there already) and waits until every send request that
    /// had started is complete, with the completions in their queue. Returns the state it ended in:
    ///
    /// - [`QpState::Sqd`]: drained. Requests that had not started and receives stay queued; SQD to RTS resumes,
    ///   [`drain_qp`](Self::drain_qp) ends the rest.
    /// - [`QpState::Err`]: it was in ERR, or a request failed meanwhile (a peer that is gone ends its retries so). Both
    ///   queues are then drained as by [`drain_qp`](Self::drain_qp).
    /// - Another one: somebody modified the queue pair meanwhile.
    ///
    /// No SQ_DRAINED event is raised for it.
    ///
    /// # Errors
    /// `EINVAL` in RESET, INIT, RTR and SQE; `ETIMEDOUT` after `timeout`, with the queue pair in SQD and draining on;
    /// `EDEADLK` from inside a turn.
    pub fn drain_by_sqd(&self, timeout: Duration) -> Result<QpState, VerbsError> {
        self.begin_drain(DrainKind::Sqd)?.wait(timeout)?;
        self.state()
    }

    /// Starts a drain and returns at once. [`DrainKind`] says which: each of the four calls above has its own.
    ///
    /// # Errors
    /// `EINVAL` for [`DrainKind::Sqd`] in a state from which SQD is not entered; `EDEADLK` from inside a turn.
    pub fn begin_drain(&self, kind: DrainKind) -> Result<Drain<'_>, VerbsError> {
        Ok(Drain { qp: self, mark: self.core().begin_drain(kind)? })
    }
}
