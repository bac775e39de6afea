//! Prints what the stack and the programs report by `tracing`: programs print the warnings, services a log of a chosen level,
//! as sentences with the time or as one JSON object a line.
//!
//! Warnings tell of a peer that refuses, of packets too long for their path, of an interface that is down.

use crate::out::note;
use serde_json::{Map, Value};
use std::fmt::{Debug, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Prints warnings from now on.
pub fn show() {
    log(Log { level: LevelFilter::WARN, time: false, json: false });
}

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// The least severe level that is printed.
    pub level: LevelFilter,
    /// Sentences begin with the time; objects always have it.
    pub time: bool,
    /// One JSON object a line; else sentences.
    pub json: bool,
}

/// Prints what is reported from now on. The first call in a process decides.
pub fn log(log: Log) {
    // A program that calls this twice prints already, as the first call said.
    let _ = tracing::subscriber::set_global_default(Printer(log));
}

struct Printer(Log);

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0.level
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.level)
    }
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        match self.0 {
            Log { json: true, .. } => {
                note!("{}", line.object(now.as_secs_f64(), metadata.level(), metadata.target()));
            }
            Log { time: true, .. } => note!("{} {}", utc(now), line.sentence(metadata.level())),
            Log { .. } => note!("{}", line.sentence(metadata.level())),
        }
    }
    // The stack has no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A time since the epoch, in UTC (RFC 3339), to the millisecond.
fn utc(since: Duration) -> String {
    let (days, seconds) = (since.as_secs() / 86400, since.as_secs() % 86400);
    // Years that begin in March, so that the leap day is the last one, in eras of 400 years (146097 days).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

/// The parts of an event.
#[derive(Default)]
struct Line {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Line {
    fn sentence(&self, level: &Level) -> String {
        let kind = match *level {
            Level::WARN => "warning",
            Level::ERROR => "error",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            _ => "trace",
        };
        let mut text = format!("{kind}: {}", self.message);
        for (name, value) in &self.fields {
            // Writing to a string does not fail.
            let _ = match value {
                Value::String(value) => write!(text, " ({name}: {value})"),
                value => write!(text, " ({name}: {value})"),
            };
        }
        text
    }
    fn object(self, seconds: f64, level: &Level, target: &str) -> String {
        let mut object = Map::new();
        object.insert("time".into(), seconds.into());
        object.insert("level".into(), level.as_str().to_lowercase().into());
        object.insert("target".into(), target.into());
        object.insert("message".into(), self.message.into());
        object.extend(self.fields.into_iter().map(|(name, value)| (name.to_string(), value)));
        Value::Object(object).to_string()
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}").into())),
        }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.name(), value.into()));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.name(), value.into()));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.name(), value.into()));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.into(),
            name => self.fields.push((name, value.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: against date(1), around leap days and ends of years.
    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, is) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_798_761_599, "2026-12-31T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(utc(Duration::new(seconds, 7_000_000)), is);
        }
    }

    #[test]
    fn an_event_is_a_sentence_or_an_object() {
        let line = || Line {
            message: "a host has connected".into(),
            fields: vec![("host", "nqn \"x\"\n".into()), ("controller", 7.into())],
        };
        assert_eq!(
            line().sentence(&Level::INFO),
            "info: a host has connected (host: nqn \"x\"\n) (controller: 7)"
        );
        let text = line().object(1.5, &Level::WARN, "nvmf");
        assert!(!text.contains('\n'), "{text}");
        let object: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&object["host"], &object["controller"]), (&"nqn \"x\"\n".into(), &7.into()));
        assert_eq!((&object["time"], &object["level"]), (&1.5.into(), &"warn".into()));
    }
}
