//! The result of one check of a host, and what the checks share.

use serde::Serialize;
use std::path::Path;

/// How a checked thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// Works, and could work better.
    Note,
    /// Keeps RoCE from working.
    Broken,
    /// Could not be read.
    Unknown,
}

impl Verdict {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Broken => "BROKEN",
            Self::Unknown => "?",
        }
    }
}

/// What a check found out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    pub topic: &'static str,
    pub verdict: Verdict,
    pub what: String,
    /// What to do; empty if nothing needs to be done.
    pub advice: String,
}

impl Finding {
    pub fn new(topic: &'static str, verdict: Verdict, what: impl Into<String>) -> Self {
        Self { topic, verdict, what: what.into(), advice: String::new() }
    }
    pub fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Self::new(topic, Verdict::Ok, what)
    }
    pub fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }
}

/// A file of the kernel; empty where it cannot be read.
pub(super) fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).unwrap_or_default()
}

/// A number of bytes with a unit, for people.
pub(super) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{} KiB", n / 1024),
        1_048_576..1_073_741_824 => format!("{} MiB", n / 1_048_576),
        _ => format!("{:.1} GiB", n as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_at_a_glance() {
        let text = [0, 1023, 212_992, 4 << 20, 3 << 29].map(bytes);
        assert_eq!(text, ["0 B", "1023 B", "208 KiB", "4 MiB", "1.5 GiB"]);
    }
}
