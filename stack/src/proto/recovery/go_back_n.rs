//! Go-back-N: a responder drops everything behind a gap, so everything from the oldest packet on goes out again.

use super::{InFlight, Psn, Repair, RetryCause};

/// Goes back once until there is progress: answers to packets sent before the retry are more signs of the same loss.
pub(super) fn handle_loss(repair: &mut Repair, in_flight: &InFlight, cause: RetryCause) -> Option<Psn> {
    if cause == RetryCause::Timeout {
        repair.resending = false; // what was sent again is lost, too
        return Some(in_flight.una());
    }
    let news = !core::mem::replace(&mut repair.resending, true);
    news.then_some(in_flight.una())
}

/// All packets follow, in order.
#[inline(always)]
pub(super) fn next(_: &InFlight, behind: Psn) -> Psn {
    behind
}

#[inline(always)]
pub(super) fn handle_progress(repair: &mut Repair, _: &InFlight) {
    repair.resending = false;
}
