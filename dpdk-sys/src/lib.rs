//! Raw bindings to DPDK, over a C shim.
//!
//! Most of what a data path calls in DPDK are static inline functions of its headers, and its structures change
//! from release to release. So a small shim in C does both: burst functions for the data path, one
//! function for each step of a port's life. These are its declarations; the contracts are in `shim.h`.
//! Only `stack::port::dpdk` uses this crate.
#![no_std]
#![allow(non_camel_case_types, non_upper_case_globals)]
#![allow(missing_docs)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
