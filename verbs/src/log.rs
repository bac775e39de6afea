//! Prints what the stack reports through `tracing` as lines of text. For programs and libraries without a subscriber of their own.
//!
//! The stack warns of conditions that make transfers fail without an error of a call: a peer that refuses the link, packets that are too
//! long for their path, an interface that is down. This crate never prints by itself. A program with its own subscriber gets the reports
//! there, and does not need this module.

use std::fmt::{self, Debug, Display, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

pub use tracing::Level;
pub use tracing::level_filters::LevelFilter;

/// Passes each report of this level or a more severe one to `print` from now on. Returns `false`, and does nothing, if the process has set
/// a subscriber already.
///
/// `print` runs on the thread that reports, often inside a turn. It must be fast and must not wait.
pub fn report_to(level: LevelFilter, print: impl Fn(&Report<'_>) + Send + Sync + 'static) -> bool {
    tracing::subscriber::set_global_default(Printer { level, print }).is_ok()
}

/// One report. Its text is formatted on demand.
pub struct Report<'a>(&'a Event<'a>);

impl Report<'_> {
    /// How severe it is.
    pub fn level(&self) -> Level {
        *self.0.metadata().level()
    }

    /// The module or component that reports.
    pub fn target(&self) -> &str {
        self.0.metadata().target()
    }

    /// The message and its fields.
    pub fn parts(&self) -> Parts {
        let mut parts = Parts::default();
        self.0.record(&mut parts);
        parts
    }
}

/// A message and its fields. Some of the texts come from peers.
#[derive(Default, Debug)]
#[non_exhaustive]
pub struct Parts {
    /// The message.
    pub message: String,
    /// Fields by name.
    pub fields: Vec<(&'static str, Value)>,
}

impl Parts {
    /// Formats one line, as `warning: message (field: value)`. Each control character is replaced by a question mark, so that no text can
    /// move a terminal's cursor or begin another line.
    pub fn sentence(&self, level: Level) -> String {
        let kind = match level {
            Level::WARN => "warning",
            Level::ERROR => "error",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            _ => "trace",
        };
        let mut text = format!("{kind}: {}", self.message);
        for (name, value) in &self.fields {
            // Writing to a string does not fail.
            let _ = write!(text, " ({name}: {value})");
        }
        text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

/// The value of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A number.
    Unsigned(u64),
    /// A number that may be negative.
    Signed(i64),
    /// True or false.
    Bool(bool),
    /// Any other value, as text.
    Text(String),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => Display::fmt(value, f),
            Self::Signed(value) => Display::fmt(value, f),
            Self::Bool(value) => Display::fmt(value, f),
            Self::Text(value) => Display::fmt(value, f),
        }
    }
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push((name, Value::Text(format!("{value:?}")))),
        }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.name(), Value::Unsigned(value)));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.name(), Value::Signed(value)));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.name(), Value::Bool(value)));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.into(),
            name => self.fields.push((name, Value::Text(value.into()))),
        }
    }
}

struct Printer<F> {
    level: LevelFilter,
    print: F,
}

impl<F: Fn(&Report<'_>) + Send + Sync + 'static> Subscriber for Printer<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }
    fn event(&self, event: &Event<'_>) {
        (self.print)(&Report(event));
    }
    // The stack uses no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_report_is_one_line_whatever_a_peer_writes_into_it() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let print = move |report: &Report<'_>| {
            kept.lock().unwrap().push((report.target().to_owned(), report.parts().sentence(report.level())));
        };
        // For this thread only, because other tests of this process report too.
        tracing::subscriber::with_default(Printer { level: LevelFilter::WARN, print }, || {
            tracing::warn!(target: "nvmf", host = "nqn \"x\"\n", controller = 7, offset = -1, live = true, "it {}", "came");
            tracing::error!(text = ?Some("\u{1b}[2J"), "two\nlines");
            tracing::info!("less severe");
        });
        let lines = lines.lock().unwrap();
        assert_eq!(
            lines[0],
            (
                "nvmf".into(),
                "warning: it came (host: nqn \"x\"?) (controller: 7) (offset: -1) (live: true)".into()
            )
        );
        assert_eq!(lines[1].1, "error: two?lines (text: Some(\"\\u{1b}[2J\"))");
        assert_eq!(lines.len(), 2);
    }
}
