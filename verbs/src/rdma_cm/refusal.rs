//! The reasons for which peers refuse, as text.

use std::fmt;

use stack::device::Mtu;
use stack::device::cm::{Reason, SidrStatus};

/// Why a peer refused. `Display` explains the reason, and what to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "rdma_reject_msg")]
pub struct Refusal {
    /// The reason of a REJ message (IBA 12.6.7.2), such as 8 if no program listens, or 28 if the program there refused; for a datagram
    /// service the status of its reply (IBA 12.11.2.1). Peers may send any number.
    pub reason: u16,
    /// Whether a datagram service refused.
    pub of_datagrams: bool,
    /// The requested path MTU.
    pub mtu: Option<Mtu>,
    /// The largest path MTU that the peer accepts, if its reply contains it (reason 26).
    pub peer_mtu: Option<Mtu>,
}

impl Refusal {
    /// The refusal of a connection, from the additional information of a REJ and the requested path MTU.
    pub(super) fn rej(reason: Reason, info: &[u8], mtu: Option<Mtu>) -> Self {
        let named = info.first().filter(|_| reason == Reason::INVALID_MTU);
        let peer_mtu = named.and_then(|code| Mtu::from_enum(*code));
        Self { reason: reason.0, of_datagrams: false, mtu, peer_mtu }
    }
    /// The refusal of a datagram service.
    pub(super) fn sidr(status: SidrStatus) -> Self {
        Self { reason: status.0.into(), of_datagrams: true, mtu: None, peer_mtu: None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason;
        if self.of_datagrams {
            let status = SidrStatus(reason.try_into().unwrap_or(u8::MAX));
            let advice = match status {
                SidrStatus::UNSUPPORTED => "; start the service there, or check address, port and port space",
                SidrStatus::NO_QP => "; its listener has no room for another request, try again later",
                SidrStatus::REJECT => "; the event's private data may say why",
                _ => "",
            };
            return write!(f, "{} (status {reason}){advice}", status.text());
        }
        if let (Reason::INVALID_MTU, Some(ours)) = (Reason(reason), self.mtu) {
            write!(f, "path MTU {} rejected", ours.bytes())?;
            return match self.peer_mtu {
                Some(theirs) => {
                    let theirs = theirs.bytes();
                    write!(
                        f,
                        ", it takes {theirs} at most (reason {reason}); ask for {theirs} with CmOption::PathMtu, or \
                         give both ports the same MTU"
                    )
                }
                None => write!(f, " (reason {reason}); ask for a smaller one with CmOption::PathMtu"),
            };
        }
        let advice = match Reason(reason) {
            Reason::NO_QP | Reason::NO_RESOURCES => {
                "; its listener has no room for another request, try again later"
            }
            Reason::TIMEOUT => "; the program there did not decide in time",
            Reason::INVALID_SERVICE_ID => "; start the server there, or check address, port and port space",
            Reason::INVALID_TRANSPORT => "; the server there takes queue pairs of another type",
            Reason::STALE_CONNECTION => {
                "; it still had an earlier connection of this queue pair, try again with a new one"
            }
            Reason::INVALID_GID => "; the address is none of its own, check it",
            Reason::CONSUMER_DEFINED => "; the event's private data may say why",
            _ => "",
        };
        write!(f, "{} (reason {reason}){advice}", Reason(reason).text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the text contains the reason, its number, both MTUs if they are known, and what to do.
    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let mtu = Some(Mtu::Mtu4096);
        let says = |refusal: Refusal, parts: &[&str]| {
            let text = refusal.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        let rej = |reason, info: &[u8]| Refusal::rej(Reason(reason), info, mtu);
        says(rej(26, &[Mtu::Mtu1024 as u8]), &["4096", "1024", "reason 26", "CmOption::PathMtu"]);
        for unknown in [&[][..], &[0], &[9]] {
            says(rej(26, unknown), &["4096", "reason 26", "smaller"]);
        }
        says(Refusal::rej(Reason(26), &[3], None), &["path MTU rejected", "26"]);
        says(rej(8, &[]), &["nobody listens", "reason 8", "start the server"]);
        says(rej(3, &[]), &["no resources", "reason 3", "try again later"]);
        says(rej(28, &[]), &["by the program", "private data"]);
        for reason in 0..40 {
            says(
                rej(reason, &[3; 72]),
                &[Reason(reason).text().split(' ').next_back().unwrap(), &format!("reason {reason}")],
            );
        }
        for status in 0..=7 {
            says(
                Refusal::sidr(SidrStatus(status)),
                &[SidrStatus(status).text(), &format!("status {status}")],
            );
        }
        assert_eq!(Refusal::sidr(SidrStatus::NO_QP).reason, 3);
    }
}
