//! The library of the development tools: `roce-bench`, `roce-interop`, `roce-many` and `roce-relay`.
//!
//! `bench` measures `roce-perf` and other programs, and compares the results with the goals of this stack. `interop` tests the stack
//! against Linux soft-RoCE, and examines packet captures. `many` measures what many processes on a host cost each other. `relay` forwards
//! packets between two interfaces and limits the rate of each flow.

// These macros panic when the output cannot be written; `apps::out` has replacements.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
pub mod interop;
pub mod many;
pub mod relay;
