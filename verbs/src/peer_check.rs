//! Checks whether the peer of an idle reliable connection still has its queue pair.

use stack::device::PeerCheck;

use crate::error::VerbsError;
use crate::qp::Qp;

impl Qp {
    /// Asks the peer whether it still has its queue pair. For a connection that has been idle for long, because a host that fails sends
    /// nothing. Returns at once; [`PeerCheck::state`] returns what is known so far.
    ///
    /// The probe is an empty SEND with the PSN of the last packet that the peer acknowledged. It needs no access right and no receive
    /// request at the peer, generates no completion on either side, and occupies no slot of the send queue. Any peer acknowledges such a
    /// duplicate and otherwise ignores it. The probe is repeated like a request (`timeout`, `retry_cnt`), so the result is known at the
    /// latest when a request would fail with `RETRY_EXC_ERR`; without a `timeout`, within seconds. While a request is outstanding no probe
    /// is sent, because its acknowledgement answers the question.
    ///
    /// A silent peer changes nothing here. To end the connection, disconnect its identifier or move the queue pair to ERR.
    ///
    /// ```
    /// # use verbs::{Context, DeviceConfig, PeerState, QpInitAttr, RcOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(DeviceConfig::loopback())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
    /// # qp.connect_rc(&qp.endpoint(1)?, &RcOptions::default())?;
    /// let check = qp.check_peer()?;
    /// while check.state() == PeerState::Asked {
    ///     std::thread::yield_now(); // or whatever the program does otherwise
    /// }
    /// assert_eq!(check.state(), PeerState::Alive);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EDEADLK` from inside a turn; `EIO` if the queue pair's shard died of a panic.
    pub fn check_peer(&self) -> Result<PeerCheck, VerbsError> {
        Ok(self.core().device().check_peer(self.qp_num())?)
    }
}
