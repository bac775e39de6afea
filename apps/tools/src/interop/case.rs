//! Deliberate errors, each with both sides as the requester: one side makes the error, the other must report it.

use super::cell::{Cell, Network, Op, Requester, Service};
use super::run::{Bench, Pair, Target, Terms};
use apps::error::{AppError, Result};
use verbs::{Access, Mtu, WcStatus};

/// A request with an error, and the expected result.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of the case.
    pub name: &'static str,
    /// The request.
    pub op: Op,
    /// Bytes of the request.
    pub len: u32,
    /// Added to the remote key.
    pub key: u32,
    /// Added to the remote address.
    pub off: u64,
    /// Access flags of the responder's queue pair.
    pub access: Access,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Whether the responder's queue pair is destroyed before the request.
    pub gone: bool,
    /// Whether the address is no multiple of 8, which an atomic needs. This stack and most calls of Linux refuse the post; Linux's newer
    /// interface sends the request, and the responder refuses it.
    pub misaligned: bool,
    /// Bytes of the responder's posted receive.
    pub receive: Option<u32>,
    /// The expected status of the request: with this stack as the requester, and with Linux.
    pub status: [WcStatus; 2],
}

const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

const fn case(name: &'static str, op: Op, len: u32, status: WcStatus) -> Case {
    let status = [status, status];
    Case {
        name,
        op,
        len,
        key: 0,
        off: 0,
        access: RIGHTS,
        rnr_retry: 7,
        gone: false,
        misaligned: false,
        receive: None,
        status,
    }
}

const fn misaligned(name: &'static str, op: Op) -> Case {
    Case { off: 4, misaligned: true, ..case(name, op, 8, WcStatus::RemInvReqErr) }
}

/// Every case.
pub const CASES: &[Case] = &[
    Case { key: 0x100, ..case("bad key, WRITE", Op::Write, 64, WcStatus::RemAccessErr) },
    Case { key: 0x100, ..case("bad key, READ", Op::Read, 64, WcStatus::RemAccessErr) },
    Case { key: 0x100, ..case("bad key, FETCH&ADD", Op::Fadd, 8, WcStatus::RemAccessErr) },
    Case { off: (8 << 20) - 32, ..case("out of bounds, WRITE", Op::Write, 64, WcStatus::RemAccessErr) },
    Case {
        off: (8 << 20) - 3000,
        ..case("out of bounds, long WRITE", Op::Write, 4000, WcStatus::RemAccessErr)
    },
    Case { off: (8 << 20) - 32, ..case("out of bounds, READ", Op::Read, 64, WcStatus::RemAccessErr) },
    Case { off: 8 << 20, ..case("out of bounds, FETCH&ADD", Op::Fadd, 8, WcStatus::RemAccessErr) },
    Case {
        receive: Some(64),
        // Soft-RoCE reports an operational error (NAK 0x63), this stack an invalid request (0x61).
        status: [WcStatus::RemOpErr, WcStatus::RemInvReqErr],
        ..case("longer than the receive, SEND", Op::Send, 128, WcStatus::RemInvReqErr)
    },
    Case { access: Access::REMOTE_READ, ..case("no right, WRITE", Op::Write, 64, WcStatus::RemInvReqErr) },
    Case { access: Access::REMOTE_WRITE, ..case("no right, READ", Op::Read, 64, WcStatus::RemInvReqErr) },
    Case {
        access: Access::REMOTE_WRITE,
        ..case("no right, COMPARE&SWAP", Op::Cas, 8, WcStatus::RemInvReqErr)
    },
    Case {
        rnr_retry: 2,
        ..case("no receive, RNR retries exhausted", Op::Send, 64, WcStatus::RnrRetryExcErr)
    },
    misaligned("misaligned, COMPARE&SWAP", Op::Cas),
    misaligned("misaligned, FETCH&ADD", Op::Fadd),
    misaligned("misaligned, ATOMIC WRITE", Op::AtomicWrite),
    Case { gone: true, ..case("peer gone, retries exhausted", Op::Write, 64, WcStatus::RetryExcErr) },
];

impl Bench {
    /// Runs a case with `by` as the requester. Returns the reason if the case cannot be tried.
    ///
    /// # Errors
    /// The unexpected result.
    pub fn case(&mut self, case: &Case, by: Requester, mtu: Mtu) -> Result<Option<String>> {
        let cell = Cell {
            net: Network::Ipv4,
            service: Service::Rc,
            op: case.op,
            by,
            size: 0,
            len: case.len,
            mtu,
            count: 1,
            srq: false,
            psn: 0x1000,
        };
        let lacks = self.lacks(&cell);
        if lacks.is_some() {
            return Ok(lacks);
        }
        let terms = Terms {
            raw: case.misaligned,
            access: case.access,
            rnr_retry: case.rnr_retry,
            retry_cnt: if case.gone { 2 } else { 7 },
            timeout: if case.gone { 12 } else { 18 },
            ..Terms::default()
        };
        let pair = self.pair(&cell, 16, &terms)?;
        match (case.receive, by) {
            (None, _) => {}
            (Some(len), Requester::Us) => {
                self.remote.ask(&format!("recv qp={} count=1 len={len}", pair.id))?;
            }
            (Some(len), Requester::Linux) => self.post_recv(&pair, 0, len)?,
        }
        match by {
            Requester::Us => self.case_ours(case, pair)?,
            Requester::Linux => self.case_theirs(case, pair)?,
        }
        Ok(None)
    }

    fn case_ours(&mut self, case: &Case, pair: Pair) -> Result<()> {
        if case.gone {
            self.remote.ask(&format!("destroy qp={}", pair.id))?;
        }
        let (addr, rkey) = (pair.addr + case.off, pair.rkey.wrapping_add(case.key));
        let mut to = Target { addr, rkey, seed: 1, slots: 1 };
        let mut wanted = case.status[Requester::Us as usize];
        if case.misaligned {
            if self.post(&pair, case.op, 0, case.len, &to).is_ok() {
                return Err(AppError::Verify("a misaligned atomic was posted without an error".into()));
            }
            // The refused call has changed nothing: a valid request must succeed.
            (to.addr, wanted) = (pair.addr, WcStatus::Success);
        }
        self.post(&pair, case.op, 0, case.len, &to)?;
        let status = self.next()?.status;
        let closed = if case.gone { Ok(()) } else { self.close(pair) };
        judge(wanted, status)?;
        closed
    }

    fn case_theirs(&mut self, case: &Case, mut pair: Pair) -> Result<()> {
        let wanted = case.status[Requester::Linux as usize];
        if case.gone {
            pair.qp.destroy().map_err(|(e, _)| AppError::Setup(e.to_string()))?;
            let reply = self.ask_run(case, pair.id)?;
            self.remote.ask(&format!("destroy qp={}", pair.id))?;
            return judge(wanted, reply);
        }
        let status = self.ask_run(case, pair.id)?;
        pair.rkey = 0;
        self.close(pair)?;
        judge(wanted, status)
    }

    fn ask_run(&mut self, case: &Case, id: u64) -> Result<WcStatus> {
        let (addr, rkey) = self.region();
        let reply = self.remote.ask(&format!(
            "run qp={id} op={} count=1 len={} addr={} rkey={} stride=64 seed=1 window=1",
            case.op.name(),
            case.len,
            addr + case.off,
            rkey.wrapping_add(case.key)
        ))?;
        Ok(WcStatus::from_number(reply.num("status") as u32).unwrap_or(WcStatus::GeneralErr))
    }
}

fn judge(wanted: WcStatus, status: WcStatus) -> Result<()> {
    if status == wanted {
        return Ok(());
    }
    Err(AppError::Verify(format!("ended with {}, not {}", status.name(), wanted.name())))
}
