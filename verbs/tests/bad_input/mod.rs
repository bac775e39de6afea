//! Errors of a program, call by call: each call that can fail is made with an argument that it refuses. It must return the error for that
//! argument, with its number, and change nothing (`bench`). The tables of the modules are complete, which `complete` checks: every call
//! that returns a `Result`, and every variant of every error, is either in a table or in the list of those that are tested elsewhere,
//! with the test.

mod bench;
mod complete;
mod device;
mod inside;
mod memory;
mod post;
mod qp;
mod queues;
mod xrc;
