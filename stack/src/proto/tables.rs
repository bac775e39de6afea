//! Small tables of the specification: RNR timers, credit codes, AETH syndromes, the local ACK timeout.

use core::time::Duration;

use super::status::WcStatus;

/// Delay of each RNR NAK timer code, in units of 10 us (IBA 9.7.5.2.8, Table 45).
#[rustfmt::skip]
const RNR_TIMER_10US: [u32; 32] = [
    65536,    1,    2,     3,     4,     6,     8,    12,
       16,   24,   32,    48,    64,    96,   128,   192,
      256,  384,  512,   768,  1024,  1536,  2048,  3072,
     4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Largest RNR NAK timer code.
pub(crate) const RNR_TIMER_MAX: u8 = 31;
/// Largest local ACK timeout exponent.
pub(crate) const ACK_TIMEOUT_MAX: u8 = 31;
/// Largest number of transport retries or RNR retries.
pub(crate) const RETRY_MAX: u8 = 7;
/// The RNR retry count that means "unlimited".
pub(crate) const RNR_RETRY_FOREVER: u8 = 7;

/// How long a requester must wait after an RNR NAK with this timer code: 10 us (code 1) to 655.36 ms (code 0).
///
/// Only the low five bits are used: the syndrome carries no more.
pub const fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMER_10US[(code & 0x1f) as usize] as u64 * 10)
}

/// The local ACK timeout, `4.096 us * 2^exponent` (IBA 9.7.6.1.3); `None` for exponent 0, which means no timeout.
///
/// An exponent above 31, which [`modify`](super::state::modify) refuses, counts as 31.
pub const fn ack_timeout(exponent: u8) -> Option<Duration> {
    match ack_timeout_ns(exponent) {
        None => None,
        Some(ns) => Some(Duration::from_nanos(ns)),
    }
}

/// [`ack_timeout`], in nanoseconds.
#[inline(always)]
pub(super) const fn ack_timeout_ns(exponent: u8) -> Option<u64> {
    match exponent {
        0 => None,
        1..=ACK_TIMEOUT_MAX => Some(4096 << exponent),
        _ => Some(4096 << ACK_TIMEOUT_MAX),
    }
}

/// How many receive requests each end-to-end credit code stands for (IBA 9.7.7.2). Code 31 is not a number.
#[rustfmt::skip]
const CREDITS: [u32; 31] = [
       0,    1,    2,    3,     4,     6,     8,    12,
      16,   24,   32,   48,    64,    96,   128,   192,
     256,  384,  512,  768,  1024,  1536,  2048,  3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The credit code that means "no limit".
pub(crate) const CREDIT_UNLIMITED: u8 = 0x1f;

/// How many receive requests a credit code stands for; `None` for code 31, "no limit".
///
/// Only the low five bits are used: the syndrome carries no more.
#[inline(always)]
pub const fn credits(code: u8) -> Option<u32> {
    let code = (code & 0x1f) as usize;
    if code < CREDITS.len() { Some(CREDITS[code]) } else { None }
}

/// The largest credit code that promises no more than `available` receive requests.
pub(crate) const fn credit_code(available: u32) -> u8 {
    // From 2 on, the table has two entries for each power of two: the power itself and 1.5 times it.
    let most = CREDITS[CREDITS.len() - 1];
    let n = if available < most { available } else { most };
    match n {
        0 | 1 => n as u8,
        _ => (2 * n.ilog2() + (n >> (n.ilog2() - 1) & 1)) as u8,
    }
}

/// The code of a NAK: why a responder refused a request, or that a packet is missing (IBA 9.7.5.2). The discriminant is the whole syndrome
/// byte of the AETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: send again from the PSN of the NAK on.
    PsnSequenceError = 0x60,
    /// The request is invalid.
    InvalidRequest = 0x61,
    /// The key, the range or the access right is wrong.
    RemoteAccessError = 0x62,
    /// The responder cannot carry the request out.
    RemoteOperationalError = 0x63,
    /// Only for reliable datagrams.
    InvalidRdRequest = 0x64,
}

impl NakCode {
    /// Every code, ascending.
    pub const ALL: [Self; 5] = [
        Self::PsnSequenceError,
        Self::InvalidRequest,
        Self::RemoteAccessError,
        Self::RemoteOperationalError,
        Self::InvalidRdRequest,
    ];

    /// The status with which the requester completes the refused request; `None` if it retries instead.
    pub(crate) const fn requester_status(self) -> Option<WcStatus> {
        match self {
            Self::PsnSequenceError => None,
            Self::InvalidRequest => Some(WcStatus::RemInvReqErr),
            Self::RemoteAccessError => Some(WcStatus::RemAccessErr),
            Self::RemoteOperationalError => Some(WcStatus::RemOpErr),
            Self::InvalidRdRequest => Some(WcStatus::RemInvRdReqErr),
        }
    }
}

/// The meaning of the syndrome, the first byte of an AETH (IBA 9.7.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Syndrome {
    /// Everything up to the PSN arrived.
    Ack {
        /// How many receive requests the responder has, rounded down to a number that has a code; `None`: no limit.
        credits: Option<u32>,
    },
    /// The responder had no receive request: send again after [`rnr_delay`] of the timer code.
    RnrNak {
        /// Timer code, `0 ..= 31`.
        timer: u8,
    },
    /// The request was refused, or a packet is missing.
    Nak(NakCode),
    /// A reserved value; the packet is ignored.
    Reserved,
}

impl Syndrome {
    /// Whether a syndrome byte means ACK.
    #[inline(always)]
    pub const fn is_ack(byte: u8) -> bool {
        byte >> 5 == 0
    }

    /// Decodes a syndrome byte. Every byte has a meaning.
    #[inline(always)]
    pub const fn decode(byte: u8) -> Self {
        if Self::is_ack(byte) { Self::Ack { credits: credits(byte) } } else { Self::decode_other(byte) }
    }

    #[inline(never)]
    const fn decode_other(byte: u8) -> Self {
        match byte >> 5 {
            0b001 => Self::RnrNak { timer: byte & 0x1f },
            0b011 => match byte {
                0x60 => Self::Nak(NakCode::PsnSequenceError),
                0x61 => Self::Nak(NakCode::InvalidRequest),
                0x62 => Self::Nak(NakCode::RemoteAccessError),
                0x63 => Self::Nak(NakCode::RemoteOperationalError),
                0x64 => Self::Nak(NakCode::InvalidRdRequest),
                _ => Self::Reserved,
            },
            _ => Self::Reserved,
        }
    }

    /// The syndrome byte. Credits are rounded down to a number that has a code; only the low five bits of a timer are used.
    /// [`Syndrome::Reserved`] gives 0x40, which requesters ignore.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack { credits: None } => CREDIT_UNLIMITED,
            Self::Ack { credits: Some(available) } => credit_code(available),
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => code as u8,
            Self::Reserved => 0x40,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // In hundredths of a millisecond the table is easy to get wrong once; twice alike is unlikely.
    #[test]
    fn q18_rnr_timers() {
        const MS: &str = "655.36 0.01 0.02 0.03 0.04 0.06 0.08 0.12 0.16 0.24 0.32 0.48 0.64 0.96 1.28 1.92 \
            2.56 3.84 5.12 7.68 10.24 15.36 20.48 30.72 40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52";
        assert_eq!(MS.split_whitespace().count(), 32);
        for (code, ms) in MS.split_whitespace().enumerate() {
            let (whole, hundredths) = ms.split_once('.').unwrap();
            let us = whole.parse::<u64>().unwrap() * 1000 + hundredths.parse::<u64>().unwrap() * 10;
            assert_eq!(rnr_delay(code as u8), Duration::from_micros(us), "code {code}");
        }
    }

    // Code 0 is the longest; the others rise, doubling every second step from code 4 on.
    #[test]
    fn q18_rnr_timers_are_monotone() {
        for code in 1..31 {
            assert!(rnr_delay(code) < rnr_delay(code + 1), "code {code}");
        }
        assert!((1..32).all(|code| rnr_delay(code) < rnr_delay(0)));
        for code in 4..30 {
            assert_eq!(rnr_delay(code) * 2, rnr_delay(code + 2), "code {code}");
        }
        assert_eq!(rnr_delay(32), rnr_delay(0));
    }

    #[test]
    fn q58_credit_codes() {
        const VALUES: &str = "0 1 2 3 4 6 8 12 16 24 32 48 64 96 128 192 256 384 512 768 1024 1536 2048 3072 \
            4096 6144 8192 12288 16384 24576 32768";
        assert_eq!(VALUES.split_whitespace().count(), 31);
        for (code, value) in VALUES.split_whitespace().enumerate() {
            assert_eq!(credits(code as u8), Some(value.parse().unwrap()), "code {code}");
        }
        assert_eq!(credits(0x1f), None);
    }

    #[test]
    fn q58_credit_encoding_never_promises_too_much() {
        for available in (0..=70_000).chain([u32::MAX]) {
            let code = credit_code(available);
            assert!(code < CREDIT_UNLIMITED);
            assert!(credits(code).unwrap() <= available);
            assert!(credits(code + 1).is_none_or(|more| more > available), "a larger code fits {available}");
        }
    }

    #[test]
    fn syndromes_all_256() {
        for byte in 0..=255u8 {
            let syndrome = Syndrome::decode(byte);
            match byte {
                0x00..=0x1f => assert_eq!(syndrome, Syndrome::Ack { credits: credits(byte) }),
                0x20..=0x3f => assert_eq!(syndrome, Syndrome::RnrNak { timer: byte - 0x20 }),
                0x60..=0x64 => {
                    assert_eq!(syndrome, Syndrome::Nak(NakCode::ALL[usize::from(byte - 0x60)]));
                }
                _ => assert_eq!(syndrome, Syndrome::Reserved, "{byte:#x}"),
            }
            if syndrome != Syndrome::Reserved {
                assert_eq!(syndrome.encode(), byte);
            }
        }
        assert_eq!(Syndrome::decode(Syndrome::Reserved.encode()), Syndrome::Reserved);
    }

    #[test]
    fn q25_status_of_each_nak() {
        let numbers = NakCode::ALL.map(|c| c.requester_status().map(|s| s.number()));
        assert_eq!(numbers, [None, Some(9), Some(10), Some(11), Some(15)]);
    }

    #[test]
    fn ack_timeouts() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31).unwrap().as_secs(), 8796);
        assert_eq!(ack_timeout(255), ack_timeout(31));
    }
}
