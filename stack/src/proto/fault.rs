//! Consequences of a faulty request at the responder (IBA 9.9.3, Table 57, classes A, B, C, D and J): the answer, the status of the receive
//! request, the state of the queue pair, and the asynchronous event.
//!
//! Receive requests are checked when they are posted, so none is malformed here. A completion queue that overflows (class G) ends its queue
//! pairs without the responder.

use super::status::{AsyncEvent, WcStatus};
use super::tables::NakCode;
use crate::id::QpType;

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Fault {
    /// An earlier packet is missing.
    PsnGap,
    /// The receive queue (or shared receive queue) is empty or in error.
    NoReceive,
    /// A FIRST, MIDDLE, LAST or ONLY packet does not fit the message in progress.
    BadSequence,
    /// The opcode, or a field of its header, is reserved.
    BadOpcode,
    /// The queue pair's access flags do not allow this operation.
    NotEnabled,
    /// More READ and ATOMIC requests are outstanding than `max_dest_rd_atomic`.
    TooManyRdAtomic,
    /// The address of an ATOMIC or ATOMIC WRITE is not a multiple of 8.
    Misaligned,
    /// A SEND is longer than the buffers of the receive request.
    SendTooLong,
    /// Any other wrong length: of the payload, the padding or the whole message, or above 2^31.
    BadLength,
    /// The remote key is unknown, belongs to another protection domain, lacks the right, or does not cover the range.
    RemoteAccess,
    /// A buffer of the receive request has an unknown local key, is out of range, or is not writable.
    ReceiveProtection,
    /// A SEND with invalidate names a key that cannot be invalidated.
    BadInvalidate,
    /// The XRC shared receive queue does not exist or belongs to another domain.
    BadXrcSrq,
}

/// The answer to the requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reply {
    /// No answer: the packet is dropped (on UC and UD, the message).
    None,
    /// An RNR NAK with the queue pair's `min_rnr_timer`.
    Rnr,
    /// A NAK.
    Nak(NakCode),
}

/// The consequences of a [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Outcome {
    /// The answer. It is sent before the queue pair enters ERR.
    pub reply: Reply,
    /// Status of the receive request, if the message holds one. `None`: the request is kept, or flushed if `fatal`.
    pub status: Option<WcStatus>,
    /// Whether the queue pair enters ERR.
    pub fatal: bool,
    /// Event to raise if the message holds no receive request that could carry the status.
    pub event: Option<AsyncEvent>,
}

const DROP: Outcome = Outcome { reply: Reply::None, status: None, fatal: false, event: None };

const fn retry(reply: Reply) -> Outcome {
    Outcome { reply, status: None, fatal: false, event: None }
}

const fn fatal(reply: Reply, status: Option<WcStatus>, event: Option<AsyncEvent>) -> Outcome {
    Outcome { reply, status, fatal: true, event }
}

/// One row for each fault: its outcome on reliable types (RC, XRC), then on unreliable types (UC, UD, GSI).
#[rustfmt::skip]
const FAULTS: [(Fault, Outcome, Outcome); 13] = {
    use AsyncEvent::{QpAccessErr, QpReqErr};
    use NakCode::{InvalidRequest, PsnSequenceError, RemoteAccessError, RemoteOperationalError};
    use Reply::{Nak, Rnr};
    use WcStatus::{LocAccessErr, LocLenErr, LocProtErr, RemInvReqErr};
    const NONE: Reply = Reply::None;
    [
    // fault                     reliable                                                                     unreliable
    (Fault::PsnGap,            retry(Nak(PsnSequenceError)),                                                DROP),
    (Fault::NoReceive,         retry(Rnr),                                                                  DROP),
    (Fault::BadSequence,       fatal(Nak(InvalidRequest),         Some(RemInvReqErr), Some(QpReqErr)),      DROP),
    (Fault::BadOpcode,         fatal(Nak(InvalidRequest),         Some(RemInvReqErr), Some(QpReqErr)),      DROP),
    (Fault::NotEnabled,        fatal(Nak(InvalidRequest),         Some(RemInvReqErr), Some(QpReqErr)),      DROP),
    (Fault::TooManyRdAtomic,   fatal(Nak(InvalidRequest),         None,               Some(QpReqErr)),      DROP),
    (Fault::Misaligned,        fatal(Nak(InvalidRequest),         None,               Some(QpAccessErr)),   DROP),
    (Fault::SendTooLong,       fatal(Nak(InvalidRequest),         Some(LocLenErr),    None),                DROP),
    (Fault::BadLength,         fatal(Nak(InvalidRequest),         Some(RemInvReqErr), Some(QpReqErr)),      DROP),
    (Fault::RemoteAccess,      fatal(Nak(RemoteAccessError),      Some(LocAccessErr), Some(QpAccessErr)),   DROP),
    (Fault::ReceiveProtection, fatal(Nak(RemoteOperationalError), Some(LocProtErr),   None),                fatal(NONE, Some(LocProtErr), None)),
    // Class J. Without the NAK the peer would retry until its retries are used up; hardware sends one too.
    (Fault::BadInvalidate,     fatal(Nak(RemoteAccessError),      Some(RemInvReqErr), Some(QpAccessErr)),   DROP),
    (Fault::BadXrcSrq,         fatal(Nak(InvalidRequest),         None,               Some(QpAccessErr)),   DROP),
    ]
};

const _: () = {
    let mut i = 0;
    while i < FAULTS.len() {
        assert!(FAULTS[i].0 as usize == i, "a fault's row is found by its discriminant");
        i += 1;
    }
};

impl Fault {
    /// Every fault, in table order.
    pub fn all() -> impl Iterator<Item = Self> {
        FAULTS.iter().map(|row| row.0)
    }

    /// The consequences of the fault on a queue pair of this type.
    ///
    /// UC and UD never answer; the receive request of a dropped message is kept and used for the next one.
    pub const fn outcome(self, ty: QpType) -> &'static Outcome {
        const TABLE: &[(Fault, Outcome, Outcome); 13] = &FAULTS;
        let row = &TABLE[self as usize];
        match ty {
            QpType::Rc | QpType::XrcIni | QpType::XrcTgt => &row.1,
            QpType::Uc | QpType::Ud | QpType::Gsi => &row.2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The specification's table as text, in C's words and numbers, written independently of the one above.
    #[test]
    fn outcomes_agree_with_a_second_transcription() {
        const RELIABLE: &str = "
            PsnGap             60  -  stays -
            NoReceive          rnr -  stays -
            BadSequence        61  9  err   2
            BadOpcode          61  9  err   2
            NotEnabled         61  9  err   2
            TooManyRdAtomic    61  -  err   2
            Misaligned         61  -  err   3
            SendTooLong        61  1  err   -
            BadLength          61  9  err   2
            RemoteAccess       62  8  err   3
            ReceiveProtection  63  4  err   -
            BadInvalidate      62  9  err   3
            BadXrcSrq          61  -  err   3";
        let mut seen = 0;
        for (line, fault) in RELIABLE.lines().filter(|l| !l.trim().is_empty()).zip(Fault::all()) {
            let outcome = fault.outcome(QpType::Rc);
            let reply = match outcome.reply {
                Reply::None => "-".to_string(),
                Reply::Rnr => "rnr".to_string(),
                Reply::Nak(code) => format!("{:x}", code as u8),
            };
            let number = |n: Option<u8>| n.map_or("-".to_string(), |n| n.to_string());
            let words = [
                format!("{fault:?}"),
                reply,
                number(outcome.status.map(WcStatus::number)),
                if outcome.fatal { "err" } else { "stays" }.to_string(),
                number(outcome.event.map(AsyncEvent::number)),
            ];
            assert_eq!(
                words.each_ref().map(String::as_str).as_slice(),
                line.split_whitespace().collect::<Vec<_>>()
            );
            assert_eq!(fault.outcome(QpType::XrcTgt), outcome);
            seen += 1;
        }
        assert_eq!(seen, FAULTS.len());
    }

    // An unreliable queue pair answers nothing, and only its own broken receive side ends it.
    #[test]
    fn unreliable_types_never_reply() {
        for fault in Fault::all() {
            for ty in [QpType::Uc, QpType::Ud, QpType::Gsi] {
                let outcome = fault.outcome(ty);
                assert_eq!(outcome.reply, Reply::None, "{fault:?}");
                assert_eq!(outcome.fatal, fault == Fault::ReceiveProtection, "{fault:?}");
            }
        }
    }

    // "Its own status, or an event": a fatal fault always tells somebody on this side.
    #[test]
    fn no_fatal_fault_is_silent() {
        for fault in Fault::all() {
            let outcome = fault.outcome(QpType::Rc);
            assert!(!outcome.fatal || outcome.status.is_some() || outcome.event.is_some(), "{fault:?}");
        }
    }
}
