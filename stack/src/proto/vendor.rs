//! `vendor_err` of a completion: says more precisely what went wrong than the completion status.
//!
//! Bits 8 and up say who found the error, the low byte what it was:
//!
//! | number | meaning | low byte |
//! | --- | --- | --- |
//! | 0 | no error | |
//! | 0x100 | flushed: the queue pair was in ERR (or SQE) already | |
//! | 0x200 + n | refused here, before or while it was sent | the status (`enum ibv_wc_status`) |
//! | 0x300 + n | refused by the peer | the NAK code of its syndrome, 0x60 to 0x64 (IBA 9.7.5.2.8) |
//! | 0x400 + n | retries used up | the cause of the last retry: 0 no retry was allowed, 1 no answer, 2 sequence NAK, 3 gap in the responses, 4 RNR NAK, 5 nothing could be sent, because the address of the next hop was not resolved, 6 the process of the peer has ended |
//! | 0x500 + n | the peer's answer made no sense | the status |
//! | 0x600 + n | our responder refused the peer's message, for which the receive request was used | the [`Fault`], counted from 1 in the order of its variants |

use core::fmt;

use super::fault::Fault;
use super::recovery::RetryCause;
use super::status::WcStatus;

const FLUSHED: u32 = 0x100;
const LOCAL: u32 = 0x200;
const NAK: u32 = 0x300;
const RETRIES: u32 = 0x400;
const RESPONSE: u32 = 0x500;
const FAULT: u32 = 0x600;

/// A vendor error number. `Display` gives its text.
///
/// ```
/// use stack::proto::vendor::VendorErr;
/// assert_eq!(VendorErr(0x362).to_string(), "the peer refused with NAK 0x62");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct VendorErr(pub u32);

impl VendorErr {
    /// The number for a send request that ended with `status`. `retried` is the cause of the last retry of its queue pair.
    pub(crate) fn of_send(status: WcStatus, retried: Option<RetryCause>) -> Self {
        Self(match status {
            WcStatus::Success => 0,
            WcStatus::WrFlushErr => FLUSHED,
            WcStatus::RemInvReqErr => NAK | 0x61,
            WcStatus::RemAccessErr => NAK | 0x62,
            WcStatus::RemOpErr => NAK | 0x63,
            WcStatus::RemInvRdReqErr => NAK | 0x64,
            WcStatus::RnrRetryExcErr => RETRIES | 4,
            WcStatus::RetryExcErr => match retried {
                Some(RetryCause::Timeout) => RETRIES | 1,
                Some(RetryCause::SequenceNak) => RETRIES | 2,
                Some(RetryCause::ImpliedNak) => RETRIES | 3,
                Some(RetryCause::Rnr) => RETRIES | 4,
                Some(RetryCause::Unreachable) => RETRIES | 5,
                Some(RetryCause::PeerEnded) => RETRIES | 6,
                Some(RetryCause::Probe) | None => RETRIES,
            },
            WcStatus::BadRespErr | WcStatus::FatalErr => RESPONSE | u32::from(status.number()),
            _ => LOCAL | u32::from(status.number()),
        })
    }

    /// The number for a receive request that ended with `status`. `fault` is the fault of the peer's message, if that is the reason.
    pub(crate) fn of_recv(status: WcStatus, fault: Option<Fault>) -> Self {
        Self(match (status, fault) {
            (WcStatus::Success, _) => 0,
            (WcStatus::WrFlushErr, _) => FLUSHED,
            (_, Some(fault)) => FAULT | (fault as u32 + 1),
            (_, None) => LOCAL | u32::from(status.number()),
        })
    }
}

impl fmt::Display for VendorErr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = self.0 & 0xff;
        let status = WcStatus::from_number(low);
        match (self.0 & !0xff, status) {
            (0, _) if low == 0 => f.write_str("no error"),
            (FLUSHED, _) if low == 0 => f.write_str("flushed: the queue pair had failed before"),
            (LOCAL, Some(status)) => write!(f, "refused here: {status}"),
            (RESPONSE, Some(status)) => write!(f, "the peer's answer made no sense: {status}"),
            (NAK, _) => write!(f, "the peer refused with NAK {low:#x}"),
            (RETRIES, _) if low <= 6 => f.write_str(match low {
                0 => "no answer, and no retry was allowed",
                1 => "retries used up: no answer",
                2 => "retries used up: the peer missed packets each time",
                3 => "retries used up: responses were missing each time",
                4 => "retries used up: the peer had no receive request",
                5 => "unreachable: nobody answered for the address of the peer, or of the gateway to it",
                _ => "the process of the peer has ended",
            }),
            (FAULT, _) => match Fault::all().nth((low as usize).wrapping_sub(1)) {
                Some(fault) => write!(f, "refused the peer's message: {fault:?}"),
                None => write!(f, "unknown error {:#x}", self.0),
            },
            _ => write!(f, "unknown error {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each number that is ever given has a text of its own.
    #[test]
    fn every_number_has_its_text() {
        use std::collections::HashMap;
        let causes = [
            RetryCause::Timeout,
            RetryCause::SequenceNak,
            RetryCause::ImpliedNak,
            RetryCause::Rnr,
            RetryCause::Unreachable,
            RetryCause::PeerEnded,
        ];
        let retried = causes.map(Some).into_iter().chain([None]);
        let sends = WcStatus::ALL.iter().flat_map(|s| retried.clone().map(|r| VendorErr::of_send(*s, r)));
        let faults: Vec<_> = Fault::all().map(Some).chain([None]).collect();
        let recvs = WcStatus::ALL.iter().flat_map(|s| faults.iter().map(|f| VendorErr::of_recv(*s, *f)));
        let mut texts = HashMap::new();
        for error in sends.chain(recvs) {
            assert!(!error.to_string().starts_with("unknown"), "{error:?}");
            assert_eq!(*texts.entry(error.to_string()).or_insert(error), error);
        }
        assert!(texts.len() > 30, "{}", texts.len());
        for unknown in [1, 0x101, 0x2ff, 0x407, 0x600, 0x6ff, 0x1234_5678] {
            assert!(VendorErr(unknown).to_string().starts_with("unknown"), "{unknown:#x}");
        }
    }
}
