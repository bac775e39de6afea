//! Counters that a program provides itself, for the snapshots of its device.

use core::cell::Cell;
use std::sync::{Arc, Mutex};

use super::data::Table;
use crate::sync::lock::lock;

/// Fills a table of a snapshot. A source is code of the program, and may call back into the device.
type Source = Arc<dyn Fn() -> Table + Send + Sync>;

thread_local! {
    /// Whether this thread is running a source.
    static IN_SOURCE: Cell<bool> = const { Cell::new(false) };
}

/// The tables of a device's program.
#[derive(Default)]
pub(in crate::device) struct Tables(Mutex<Vec<Source>>);

impl core::fmt::Debug for Tables {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Tables")
    }
}

impl Tables {
    pub(in crate::device) fn add(&self, source: Source) {
        lock(&self.0).push(source);
    }
    /// The tables; none inside a source, which would otherwise call itself endlessly.
    pub(super) fn list(&self) -> Vec<Table> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                IN_SOURCE.set(false);
            }
        }
        if IN_SOURCE.replace(true) {
            return Vec::new();
        }
        let _leave = Leave;
        let sources = lock(&self.0).clone();
        sources.iter().map(|source| source()).collect()
    }
}
