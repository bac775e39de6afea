//! A progress bar on the terminal, for runs that take longer than a moment.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Runs shorter than this show no bar.
const WORTH_IT: Duration = Duration::from_secs(2);

/// Steps of a bar that shows one piece of work.
const PARTS: u64 = 1000;

/// A bar over the measurements of a session; invisible without a terminal.
///
/// The bar's own thread redraws it five times a second: the measuring thread touches it only between measurements.
#[derive(Debug)]
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// A bar over `steps` measurements that are expected to take `expected` together (`None`: not known).
    pub fn new(steps: usize, expected: Option<Duration>) -> Self {
        if expected.is_some_and(|t| t < WORTH_IT) {
            return Self(None);
        }
        Self::shown(steps as u64, "{spinner} [{bar:30}] {pos}/{len} {elapsed} {msg}")
    }

    /// A bar that shows one piece of work.
    pub fn of_parts() -> Self {
        Self::shown(PARTS, "{spinner} [{bar:30}] {percent} % {elapsed}")
    }

    fn shown(len: u64, template: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(len);
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some(bar))
    }

    /// Sets the fraction that is done, from 0 to 1.
    pub fn set(&self, part: f64) {
        if let Some(bar) = &self.0 {
            bar.set_position((part * PARTS as f64) as u64);
        }
    }

    /// The next measurement starts.
    pub fn start(&self, what: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(what);
        }
    }

    /// A measurement is done.
    pub fn step(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
