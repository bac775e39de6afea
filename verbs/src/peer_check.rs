//! Whether the peer of a reliable connection still has its queue pair, asked where nothing is under way that would tell.

use stack::device::PeerCheck;

use crate::error::VerbsError;
use crate::qp::Qp;

impl Qp {
    /// Asks the peer whether it still has its queue pair: for a connection that was idle for long, as a host that is gone says
    /// nothing. Returns at once; [`PeerCheck::state`] tells what is known by now.
    ///
    /// What is sent needs no right and no receive request at the peer, makes no completion at either side, and takes no place in
    /// the send queue: an empty SEND with the number of the last packet that the peer acknowledged. Any peer answers such a
    /// duplicate with an acknowledgement, and does nothing else. It is repeated as a request would be (`timeout`, `retry_cnt`), so
    /// the answer is known when a request would have failed with `RETRY_EXC_ERR`, at the latest; without a `timeout`, within
    /// seconds. While a request is under way nothing is sent for it: its acknowledgement tells.
    ///
    /// A peer that is silent changes nothing here: to end the connection, disconnect its identifier, or move the queue pair to ERR.
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
    /// `EDEADLK` from inside a turn; `EIO` where its shard died of a panic.
    pub fn check_peer(&self) -> Result<PeerCheck, VerbsError> {
        Ok(self.core().device().check_peer(self.qp_num())?)
    }
}
