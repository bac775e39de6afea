//! The one switch between the atomics of `std` and those of `loom`.
//!
//! Everything in [`crate::sync`] takes its atomics from here, so that `--cfg loom` puts the whole module under loom without other
//! changes.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
