//! `--host --json`: one object per interval, one per line.

use super::rows::ProcessRow;
use serde::Serialize;

/// Field names are the interface for scripts: fields may be added, but are never renamed.
#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    processes: &'a [ProcessRow],
}

/// The object of an interval.
pub fn line(processes: &[ProcessRow]) -> String {
    serde_json::to_string(&Line { version: 1, processes }).expect("keys are strings")
}
