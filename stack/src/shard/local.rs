//! Local operations: work requests that change keys and send no packet.

use super::keys::Keys;
use super::qp::Qp;
use crate::mem::{Bind, MrTable};
use crate::proto::status::{WcStatus, WrOpcode};
use crate::proto::wqe::SendWqe;

impl Keys {
    /// Performs the local operation that the requester has reached.
    #[cold]
    pub fn execute_local(&mut self, mrs: &MrTable, qp: &mut Qp, seq: u32) {
        let wqe = *SendWqe::of(qp.sq.0.slot(seq));
        let (key, access) = wqe.key_and_access();
        let (result, status) = match wqe.opcode() {
            WrOpcode::LocalInv => (mrs.invalidate(wqe.rkey, qp.pd, None), WcStatus::LocQpOpErr),
            WrOpcode::RegMr => {
                let result = mrs.fast_register(wqe.rkey, qp.pd, wqe.remote_addr, wqe.arg1, access);
                (result, WcStatus::LocQpOpErr)
            }
            _ => {
                let bind = Bind {
                    window: wqe.rkey,
                    qpn: qp.qpn,
                    pd: qp.pd,
                    region: key,
                    addr: wqe.remote_addr,
                    len: wqe.arg1,
                    access,
                };
                (mrs.bind(&bind), WcStatus::MwBindErr)
            }
        };
        match result {
            Ok(()) => {
                self.note_revoked();
                qp.requester.local_done(seq);
            }
            Err(_) => qp.requester.fail_local(seq, status),
        }
    }
}
