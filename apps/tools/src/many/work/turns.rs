//! Makes turns in which nothing happens, for a counter of instructions.

use crate::many::objects::Objects;
use crate::many::order::Report;
use apps::error::{AppError, Result};
use std::hint::black_box;
use verbs::Reactor;

/// Turns after which a link that was busy counts as idle and sockets are polled rarely, with a margin.
const UNTIL_IDLE: u32 = 10_000;

/// Makes `turns` turns by [`counted_turn`], each followed by [`turn_is_over`], after as many as it takes until all links count as idle.
///
/// # Errors
/// The member does not turn its device itself.
pub fn run(objects: &mut Objects, turns: u32) -> Result<Report> {
    let reactor = objects.reactor();
    let reactor = reactor
        .ok_or_else(|| AppError::ProtocolViolation("turns are counted of a member that makes them".into()))?;
    for _ in 0..UNTIL_IDLE {
        let _ = reactor.poll_once();
    }
    for turn in 0..turns {
        counted_turn(reactor);
        turn_is_over(turn);
    }
    Ok(Report::Done)
}

/// Names by which a counter of instructions recognizes the two functions below.
pub const COUNTED: &str = "tools::many::work::turns::counted_turn";
/// See [`COUNTED`].
pub const OVER: &str = "tools::many::work::turns::turn_is_over";

/// Makes one turn.
#[inline(never)]
pub fn counted_turn(reactor: &mut Reactor) {
    let _ = reactor.poll_once();
}

/// Marks the end of a counted turn; does nothing.
#[inline(never)]
pub fn turn_is_over(turn: u32) {
    black_box(turn);
}
