//! Prints what the stack and the programs report by `tracing`. Programs print warnings; services write a log of a chosen level, as
//! sentences with the time or as one JSON object a line.
//!
//! Warnings report, for example, a peer that refuses, packets too long for their path, or an interface that is down.

use crate::out::note;
use serde_json::{Map, Value};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbs::log::{Level, LevelFilter, Parts, Report};

/// Prints warnings from now on.
pub fn show() {
    log(Log { level: LevelFilter::WARN, time: false, json: false });
}

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// The least severe level that is printed.
    pub level: LevelFilter,
    /// Whether sentences begin with the time; objects always have it.
    pub time: bool,
    /// Whether to print one JSON object a line, instead of sentences.
    pub json: bool,
}

/// Prints what is reported from now on. Only the first call in a process has an effect.
pub fn log(log: Log) {
    // Fails after an earlier call, whose log continues.
    let _ = verbs::log::report_to(log.level, move |report| print(log, report));
}

fn print(log: Log, report: &Report<'_>) {
    let (parts, level) = (report.parts(), report.level());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match log {
        Log { json: true, .. } => note!("{}", object(parts, now.as_secs_f64(), level, report.target())),
        Log { time: true, .. } => note!("{} {}", utc(now), parts.sentence(level)),
        Log { .. } => note!("{}", parts.sentence(level)),
    }
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

fn object(parts: Parts, seconds: f64, level: Level, target: &str) -> String {
    let mut object = Map::new();
    object.insert("time".into(), seconds.into());
    object.insert("level".into(), level.as_str().to_lowercase().into());
    object.insert("target".into(), target.into());
    object.insert("message".into(), parts.message.into());
    object.extend(parts.fields.into_iter().map(|(name, field)| (name.to_string(), value(field))));
    Value::Object(object).to_string()
}

fn value(field: verbs::log::Value) -> Value {
    match field {
        verbs::log::Value::Unsigned(value) => value.into(),
        verbs::log::Value::Signed(value) => value.into(),
        verbs::log::Value::Bool(value) => value.into(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::log::Value::{Text, Unsigned};

    // Goal: the times agree with date(1), around leap days and ends of years.
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
    fn an_event_is_an_object_on_one_line() {
        let mut parts = Parts::default();
        parts.message = "a host has connected".into();
        parts.fields = vec![("host", Text("nqn \"x\"\n".into())), ("controller", Unsigned(7))];
        let text = object(parts, 1.5, Level::WARN, "nvmf");
        assert!(!text.contains('\n'), "{text}");
        let object: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&object["host"], &object["controller"]), (&"nqn \"x\"\n".into(), &7.into()));
        assert_eq!((&object["time"], &object["level"]), (&1.5.into(), &"warn".into()));
    }
}
