//! Goal: processes that start, stop, fork, are killed or go mad never have one run twice, and those that live are in one
//! registry.

#[path = "../process/mod.rs"]
mod process;

mod by_hand;
mod calls;
mod ends;
mod guests;
mod joining;
mod looking;
mod member;
mod services;
mod strangers;

/// The other process: see [`member`].
#[test]
fn child() {
    member::child();
}
