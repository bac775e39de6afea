//! Symbols of the private version node, which libraries of other devices are linked against. They always fail.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicBool;

use crate::errno::{self, EOPNOTSUPP};

include!(concat!(env!("OUT_DIR"), "/private.rs"));

/// Whether devices may disappear while they are open. Libraries of other devices read it. If a program loads another libibverbs as well,
/// that one writes it, because the loader resolves the name to the first variable.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is C's")]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);
