//! Raw bindings to DPDK, over a C shim.
//!
//! A data path mostly calls static inline functions of DPDK's headers, which cannot be linked, and DPDK's structures change
//! from release to release. So a small C shim calls the functions and reads the structures: it has burst functions for the
//! data path, and one function for each step of a port's life. These are its declarations; the contracts are in `shim.h`.
//! Only `stack::port::dpdk` uses this crate.
#![no_std]
#![allow(non_camel_case_types, non_upper_case_globals)]
#![allow(missing_docs)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The drivers that a static build contains, separated by commas; empty in a build with DPDK's shared libraries, which loads those
/// that the distribution has.
pub const BUILT_IN: &str = match option_env!("DPDK_SYS_BUILT_IN") {
    Some(names) => names,
    None => "",
};
