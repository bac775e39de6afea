//! Texts for failed completions.

use crate::error::AppError;
use verbs::{Gid, Wc, WcStatus};

/// The error for a completion in error: `op` is the operation that was requested of `peer`.
pub fn failed(op: &str, wc: &Wc, peer: &Gid) -> AppError {
    let advice = match wc.status {
        WcStatus::RetryExcErr => "; the peer is gone, or no longer reachable",
        WcStatus::WrFlushErr => "; the queue pair had failed before",
        _ => "",
    };
    AppError::Completion(format!(
        "{}: {op} with {} on queue pair {:#08x}{advice}",
        status(wc),
        peer.to_ip(),
        wc.qp_num.get()
    ))
}

/// The request and its status. Scripts search for the words, the number and the tag as the programs of `libibverbs` print
/// them.
pub fn status(wc: &Wc) -> String {
    let name = wc.status.name().trim_start_matches("IBV_WC_");
    format!("Failed status {name} ({}) for wr_id {}: {}", wc.status.number(), wc.wr_id, wc.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_completion_is_told_with_name_number_and_tag() {
        for &status in WcStatus::ALL {
            let mut wc = Wc::default();
            (wc.status, wc.wr_id) = (status, 2);
            let told = failed("SEND", &wc, &Gid::from_ip("10.77.0.1".parse().unwrap())).to_string();
            let name = status.name().trim_start_matches("IBV_WC_");
            for part in [
                &format!("Failed status {name} ({}) for wr_id 2", status.number()),
                status.text(),
                "10.77.0.1",
            ] {
                assert!(told.contains(part), "{part}: {told}");
            }
        }
    }
}
