//! Goal: processes of a host that need each other get one link, frames pass in order and whole, the end of a process is seen by those
//! who had a link with it, and one that goes mad spoils its own links alone.
#![cfg(not(miri))]

#[path = "../process/mod.rs"]
mod process;

mod by_hand;
mod death;
mod hostile;
mod meeting;
mod member;
mod memory;

/// The other process: see [`member`].
#[test]
fn child() {
    member::child();
}
