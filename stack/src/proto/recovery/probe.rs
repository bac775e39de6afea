//! A scheme for tests.

use super::{InFlight, Psn, Repair, RetryCause, go_back_n};

/// Go-back-N, or the first lost packet alone; writes down what it is told.
#[derive(Default, Debug)]
pub(in crate::proto) struct Probe {
    /// Of what was lost only the first packet goes out again.
    pub first_alone: bool,
    /// Signs of loss, and from where on packets were sent again.
    pub losses: Vec<(RetryCause, Option<Psn>)>,
    /// The oldest packet in flight after each progress.
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
