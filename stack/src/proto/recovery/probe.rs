//! A loss recovery scheme for tests.

use super::{InFlight, Psn, Repair, RetryCause, go_back_n};

/// Sends again as go-back-N does, or only the first lost packet. Records the events.
#[derive(Default, Debug)]
pub(in crate::proto) struct Probe {
    /// Whether only the first lost packet is sent again.
    pub first_alone: bool,
    /// The signs of loss, each with the PSN of the first packet that was sent again, if any.
    pub losses: Vec<(RetryCause, Option<Psn>)>,
    /// The oldest PSN in flight after each progress.
    pub progress: Vec<Psn>,
}

impl Probe {
    pub(super) fn handle_loss(
        &mut self,
        repair: &mut Repair,
        in_flight: &InFlight,
        cause: RetryCause,
    ) -> Option<Psn> {
        let first = go_back_n::handle_loss(repair, in_flight, cause);
        self.losses.push((cause, first));
        first
    }

    pub(super) fn next(&self, in_flight: &InFlight, behind: Psn) -> Psn {
        if self.first_alone { in_flight.next() } else { go_back_n::next(in_flight, behind) }
    }

    pub(super) fn handle_progress(&mut self, repair: &mut Repair, in_flight: &InFlight) {
        go_back_n::handle_progress(repair, in_flight);
        self.progress.push(in_flight.una());
    }
}
