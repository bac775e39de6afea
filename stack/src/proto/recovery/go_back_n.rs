//! Go-back-N: a responder drops everything after a gap, so everything from the oldest packet on is sent again.

use super::{InFlight, Psn, Repair, RetryCause};

/// Goes back only once until there is progress, because answers to packets sent before the retry are further signs of the same loss.
pub(super) fn handle_loss(repair: &mut Repair, in_flight: &InFlight, cause: RetryCause) -> Option<Psn> {
    if cause == RetryCause::Timeout {
        repair.resending = false; // the packets that were sent again are lost, too
        return Some(in_flight.una());
    }
    let news = !core::mem::replace(&mut repair.resending, true);
    news.then_some(in_flight.una())
}

/// All packets are sent, in order.
#[inline(always)]
pub(super) fn next(_: &InFlight, behind: Psn) -> Psn {
    behind
}

#[inline(always)]
pub(super) fn handle_progress(repair: &mut Repair, _: &InFlight) {
    repair.resending = false;
}
