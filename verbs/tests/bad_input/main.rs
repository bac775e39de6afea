//! What a program can do wrong, call by call: each call that can fail is made with what it refuses, gets the error that
//! names it, with its number, and nothing has changed (`bench`). The tables of the modules are complete, and
//! `complete` sees to it that they stay so: every call that returns a `Result`, and every variant of every error, is
//! either in a table or in the list of those that are tested elsewhere, with the test.

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod complete;
mod device;
mod inside;
mod memory;
#[path = "../common/nowhere.rs"]
mod nowhere;
mod post;
mod qp;
mod queues;
mod xrc;
