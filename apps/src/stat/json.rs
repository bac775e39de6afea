//! `--json`: one object per interval, one per line.

use super::rates::StackRates;
use serde::Serialize;

/// Field names are the interface for scripts: fields may be added, but are never renamed.
#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    stacks: &'a [StackRates],
}

/// The object of an interval.
pub fn line(stacks: &[StackRates]) -> String {
    serde_json::to_string(&Line { version: 1, stacks }).expect("keys are strings")
}
