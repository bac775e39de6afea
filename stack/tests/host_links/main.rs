//! Goal: two processes of a host that need each other get one link. Frames pass in order and whole, the end of a process is seen by all
//! with a link to it, and a process that violates the protocol harms only its own links.
#![cfg(not(miri))]

#[path = "../process/mod.rs"]
mod process;

mod by_hand;
mod death;
mod guests;
mod hostile;
mod meeting;
mod member;
mod memory;

/// The entry point of the other process: see [`member`].
#[test]
fn child() {
    member::child();
}
