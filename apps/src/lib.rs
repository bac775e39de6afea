//! The library of the programs `roce-perf`, `roce-pingpong`, `roce-stat`, `roce-run` and `roce-xrcd`.
//!
//! All of it uses the public API of the `verbs` crate, as any other program would. `cli` defines the command lines, `plan`
//! and `protocol` what the two ends of `roce-perf` agree on, `session` runs it, `measure` contains the timed loops, `report`
//! and `json` show the result. `stat` shows running stacks, `metrics` serves their counters. `run` starts programs for RDMA
//! hardware on the stack. `xrcd` owns the targets of XRC domains that programs share.

// These macros panic when the output cannot be written; `out` has replacements.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod check;
pub mod cli;
pub mod cm;
pub mod completion;
pub mod counters;
pub mod error;
pub mod fuzz;
pub mod json;
pub mod measure;
pub mod metrics;
pub mod oob;
pub mod out;
pub mod pending;
pub mod pin;
pub mod pingpong;
pub mod plan;
pub mod progress;
pub mod protocol;
pub mod report;
pub mod reusable_port;
pub mod rig;
pub mod run;
pub mod service;
pub mod session;
pub mod stat;
pub mod stop;
pub mod verify;
pub mod warnings;
pub mod xrcd;
