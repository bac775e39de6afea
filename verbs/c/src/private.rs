//! Symbols of the private node, which libraries of other devices are linked against: they refuse.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicBool;

use crate::errno::{self, EOPNOTSUPP};

include!(concat!(env!("OUT_DIR"), "/private.rs"));

/// Whether devices may disappear while they are open: read by libraries of other devices, and written by another libibverbs that a
/// program loads beside this one, since the loader gives it the first variable of that name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is C's")]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);
