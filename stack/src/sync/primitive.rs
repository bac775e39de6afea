//! The one switch between the atomics and locks of `std` and those of `loom`.
//!
//! Everything in [`crate::sync`] takes its atomics and locks from here, so that `--cfg loom` puts the whole module under loom without other
//! changes.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
