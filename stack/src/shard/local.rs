//! Local operations: work requests that change keys and send nothing, and the wait of their completions until no other
//! shard uses a key that they took away.

use core::sync::atomic::Ordering;

use super::env::Env;
use super::qp::Qp;
use crate::mem::Bind;
use crate::proto::status::{WcStatus, WrOpcode};
use crate::proto::wqe::SendWqe;
use crate::sync::asymmetric::heavy;

impl Env {
    /// Carries out the local operation that the requester has reached.
    #[cold]
    pub(super) fn carry_out(&mut self, qp: &mut Qp, seq: u32) {
        let wqe = *SendWqe::of(qp.sq.0.slot(seq));
        let mrs = &self.shared.mrs;
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
                self.keys_revoked();
                qp.requester.local_done(seq);
            }
            Err(_) => qp.requester.fail_local(seq, status),
        }
    }

    /// A key may have been taken away in this turn: what tells of it waits for the other shards.
    pub(super) fn keys_revoked(&mut self) {
        (self.revoked, self.settling) = (true, true);
    }

    /// Whether each other shard has passed the end of the turn in which it may have found a revoked key alive. Says
    /// when a shard is in a turn by [`Shared::turning`](super::Shared), which every turn writes and this reads, with
    /// the heavy half of the asymmetric fence between the revocation and the look.
    #[cold]
    pub(super) fn settle(&mut self) -> bool {
        let turning = &self.shared.turning;
        let others = || turning.iter().enumerate().filter(|(shard, _)| *shard != self.id);
        if self.revoked {
            self.revoked = false;
            self.unsettled.clear();
            if turning.len() > 1 {
                heavy();
                let turns = others().map(|(shard, turn)| (shard, turn.load(Ordering::Acquire)));
                self.unsettled.extend(turns.filter(|(_, turn)| turn % 2 != 0));
            }
        }
        self.unsettled.retain(|(shard, turn)| turning[*shard].load(Ordering::Acquire) == *turn);
        self.settling = !self.unsettled.is_empty();
        !self.settling
    }
}
