//! Turns in which nothing happens, for a counter of instructions.

use crate::many::objects::Objects;
use crate::many::order::Report;
use apps::error::{AppError, Result};
use std::hint::black_box;
use verbs::Reactor;

/// Turns after which a link that brought something counts as idle, and sockets are asked seldom; with room to spare.
const UNTIL_IDLE: u32 = 10_000;

/// Makes so many, each by [`counted_turn`] with [`turn_is_over`] behind it, after as many as it takes until nothing of what was before matters.
///
/// # Errors
/// The member does not make its turns by itself.
pub fn run(objects: &mut Objects, turns: u32) -> Result<Report> {
    let reactor = objects.reactor();
    let reactor =
        reactor.ok_or_else(|| AppError::Misfit("turns are counted of a member that makes them".into()))?;
    for _ in 0..UNTIL_IDLE {
        let _ = reactor.poll_once();
    }
    for turn in 0..turns {
        counted_turn(reactor);
        turn_is_over(turn);
    }
    Ok(Report::Done)
}

/// The names by which a counter of instructions knows the two functions below.
pub const COUNTED: &str = "tools::many::work::turns::counted_turn";
/// See [`COUNTED`].
pub const OVER: &str = "tools::many::work::turns::turn_is_over";

/// One turn.
#[inline(never)]
pub fn counted_turn(reactor: &mut Reactor) {
    let _ = reactor.poll_once();
}

/// It does nothing.
#[inline(never)]
pub fn turn_is_over(turn: u32) {
    black_box(turn);
}
