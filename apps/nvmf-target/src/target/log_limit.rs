//! A rate limit for log messages about failures that hosts can cause as often as they like.

use std::time::Duration;

use nvmf::Instant;

/// How long the same thing is not logged again.
const AGAIN: Duration = Duration::from_secs(60);
/// The most different things that are logged in that time.
const MOST: usize = 64;

/// The things that were logged lately.
#[derive(Debug)]
pub struct LogLimit<T>(Vec<Logged<T>>);

#[derive(Debug)]
struct Logged<T> {
    what: T,
    at: Instant,
}

impl<T> Default for LogLimit<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: PartialEq> LogLimit<T> {
    /// Whether to log this now. False if it was logged lately, or too many other things were. If true, it counts as logged.
    pub fn is_news(&mut self, what: T, now: Instant) -> bool {
        self.0.retain(|logged| now < logged.at.after(AGAIN));
        if self.0.len() >= MOST || self.0.iter().any(|logged| logged.what == what) {
            return false;
        }
        self.0.push(Logged { what, at: now });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf::BackendError::{Io, NoSpace};

    // Goal: if a disk fails in several ways at once, each of them is logged once a minute, and not for each command.
    #[test]
    fn each_kind_of_failure_is_logged_once_a_minute() {
        let mut logged = LogLimit::default();
        let second = |n: u64| Instant::from_nanos(n * 1_000_000_000);
        let failures = (0..120).flat_map(|n| [(n, Io), (n, NoSpace)]);
        let news = failures.filter(|&(n, error)| logged.is_news(error, second(n)));
        assert_eq!(news.collect::<Vec<_>>(), [(0, Io), (0, NoSpace), (60, Io), (60, NoSpace)]);
    }
}
