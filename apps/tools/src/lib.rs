//! The library of the tools of development: `roce-bench`, `roce-interop`, `roce-many` and `roce-relay`.
//!
//! `bench` runs `roce-perf` through the table of marks, and other programs beside it. `interop` runs the stack against Linux
//! soft-RoCE, and examines captures. `many` is many processes of a host, and what they cost each other. `relay` is a network that caps each flow.

// These macros panic when the output cannot be written; `apps::out` has replacements.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod interop;
pub mod many;
pub mod relay;
