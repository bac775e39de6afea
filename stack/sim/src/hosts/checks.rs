//! What is checked of frames on their way to a process: each arrives once, and where it belongs.

use std::collections::BTreeSet;

use super::host::Pid;
use stack::registry::RequestKey;

/// What was delivered.
#[derive(Default)]
pub(super) struct Deliveries {
    seen: BTreeSet<u64>,
    /// Requests for connections, and to which process that listened the first went.
    requests: Vec<(RequestKey, Pid)>,
    failure: Option<String>,
}

impl Deliveries {
    /// A checker complains; the first complaint counts.
    pub fn fail(&mut self, complaint: String) {
        self.failure.get_or_insert(complaint);
    }

    /// The complaint.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// A frame is delivered.
    pub fn once(&mut self, number: u64) {
        if !self.seen.insert(number) {
            self.fail(format!("frame {number} is delivered twice"));
        }
    }

    /// To which process a request went.
    pub fn request(&self, key: RequestKey) -> Option<Pid> {
        self.requests.iter().rfind(|(of, _)| *of == key).map(|(_, pid)| *pid)
    }

    /// A request went to a process.
    pub fn note_request(&mut self, key: RequestKey, pid: Pid) {
        self.requests.push((key, pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_delivered_twice_is_noticed() {
        let mut deliveries = Deliveries::default();
        deliveries.once(1);
        deliveries.once(2);
        assert_eq!(deliveries.take_failure(), None);
        deliveries.once(1);
        assert!(deliveries.take_failure().is_some_and(|why| why.contains("twice")));
    }
}
