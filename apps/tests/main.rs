//! Tests of the programs, as one binary. They share a process: none changes its environment, counts its threads or
//! descriptors, or ends it. Those that do are binaries of their own, listed in `Cargo.toml` with the reason.

mod bad_input;
mod capture;
mod cli;
mod common;
mod end_to_end;
mod guests;
mod host;
mod host_cm;
mod json_rows;
mod readme;
mod run;
mod stat;
mod stat_host;
mod terminal;
mod udp;
