//! Prints lines on standard error: why a call failed, and warnings of the stack. `ROCE_LOG` sets the level.
//!
//! A line may be printed inside a poll, in any process and thread of the program. Therefore writing takes no lock (a forked child would
//! wait for one that its parent held), never waits for the reader of standard error, is not a cancellation point, and preserves `errno`.
//! Lines are limited in length, rate and number. Excess lines are counted, and the next line tells how many.
//!
//! The reports come from this library's own copy of `tracing`. A Rust program that loads the library keeps its own subscriber.

use core::ffi::{c_int, c_long};
use core::fmt::Display;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::str::FromStr;

use verbs::log::{Level, LevelFilter, Report};

/// The level of messages that are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Log(LevelFilter);

impl Default for Log {
    fn default() -> Self {
        Self(LevelFilter::WARN)
    }
}

impl FromStr for Log {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let levels = [
            ("off", LevelFilter::OFF),
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("info", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
        ];
        let level = levels.iter().find(|(name, _)| *name == text);
        level.map(|(_, level)| Self(*level)).ok_or_else(|| "it is off, error, warn, info, or debug".into())
    }
}

/// Sets the level. The first call also begins to print the reports of the stack.
pub(crate) fn begin(log: Log) {
    let index = RATES.iter().position(|rate| rate.level == log.0).unwrap_or(USUAL);
    CHOSEN.store(index, Ordering::Relaxed);
    static PRINTS: AtomicBool = AtomicBool::new(false);
    if !PRINTS.swap(true, Ordering::Relaxed) {
        // At the most verbose level, because the process may open the device again with another level.
        verbs::log::report_to(LevelFilter::DEBUG, report);
    }
}

/// Prints a report of the stack.
fn report(report: &Report<'_>) {
    let level = report.level();
    line(level, || report.parts().sentence(level));
}

/// Prints why a call fails.
pub(crate) fn say(why: impl Display) {
    line(Level::ERROR, || why.to_string());
}

/// Prints the text only the first time, because a program may retry often.
pub(crate) fn say_once(said: &AtomicBool, why: impl Display) {
    if !said.swap(true, Ordering::Relaxed) {
        say(why);
    }
}

/// Prints a line, unless its level is not enabled or the limits are exceeded.
fn line(level: Level, text: impl FnOnce() -> String) {
    let rate = &RATES[CHOSEN.load(Ordering::Relaxed)];
    if level > rate.level {
        return;
    }
    static BOUND: Bound = Bound::new();
    let Some(more) = BOUND.admit(rate, now()) else { return };
    let mut line = format!("roce: {}", text());
    // A line shorter than PIPE_BUF is not mixed with lines of others.
    let fits = (0..=LINE_MAX.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
    line.truncate(fits.unwrap_or(0));
    if more.left_out > 0 {
        line += &format!(" ({} lines before this one were left out)", more.left_out);
    }
    if more.last {
        line += "; this is the last line of this process";
    }
    line.push('\n');
    if !write(line.as_bytes()) {
        BOUND.left_out.fetch_add(more.left_out.saturating_add(1), Ordering::Relaxed);
    }
}

/// Monotonic time, since some moment before the process started.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure that the call fills in.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Maximum length of a line in bytes, without what it tells about other lines.
const LINE_MAX: usize = 1000;

/// The limits of a level.
struct Rate {
    level: LevelFilter,
    /// How many lines may be printed at once.
    burst: u32,
    /// The time after which one more line may be printed.
    every: Duration,
    /// How many lines a process may print.
    most: u32,
}

const fn rate(level: LevelFilter, burst: u32, every_ms: u64, most: u32) -> Rate {
    Rate { level, burst, every: Duration::from_millis(every_ms), most }
}

#[rustfmt::skip]
static RATES: [Rate; 5] = [
    rate(LevelFilter::OFF,    0,    0,    0),
    rate(LevelFilter::ERROR, 20, 1000, 1000),
    rate(LevelFilter::WARN,  20, 1000, 1000),
    rate(LevelFilter::INFO, 200,  100, 100_000),
    rate(LevelFilter::DEBUG, 2000, 10, 1_000_000),
];
/// The index of [`LevelFilter::WARN`] in this table.
const USUAL: usize = 2;
/// The index of the level in force.
static CHOSEN: AtomicUsize = AtomicUsize::new(USUAL);

/// Counts printed lines: a bucket of `burst` lines, from which one is removed after each `every`.
struct Bound {
    /// The time at which the bucket is empty again, in nanoseconds.
    empty_at_ns: AtomicU64,
    printed: AtomicU32,
    left_out: AtomicU32,
}

/// What a line tells besides its text.
#[derive(PartialEq, Eq, Debug)]
struct More {
    /// How many lines were left out since the previous one.
    left_out: u32,
    /// Whether no other line will follow.
    last: bool,
}

impl Bound {
    const fn new() -> Self {
        Self { empty_at_ns: AtomicU64::new(0), printed: AtomicU32::new(0), left_out: AtomicU32::new(0) }
    }

    /// Whether a line may be printed; `None` if not.
    fn admit(&self, rate: &Rate, now: Duration) -> Option<More> {
        let [now, every] = [now, rate.every].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let full = now.saturating_add(every.saturating_mul(rate.burst.into()));
        let fill = |empty_at: u64| {
            let after = empty_at.max(now).saturating_add(every);
            (after <= full).then_some(after)
        };
        let count = |printed: u32| (printed < rate.most).then_some(printed + 1);
        let (relaxed, here) = (Ordering::Relaxed, &self.printed);
        let room = self.empty_at_ns.fetch_update(relaxed, relaxed, fill).is_ok();
        match room.then(|| here.fetch_update(relaxed, relaxed, count).ok()).flatten() {
            Some(before) => {
                Some(More { left_out: self.left_out.swap(0, relaxed), last: before + 1 == rate.most })
            }
            None => {
                self.left_out.fetch_add(1, relaxed);
                None
            }
        }
    }
}

/// Writes to standard error if that is possible immediately. So a stopped terminal or a full pipe does not block the program, and SIGPIPE
/// of a pipe without a reader does not end it. Returns whether the bytes were written.
fn write(bytes: &[u8]) -> bool {
    let mut wanted = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Uses syscall(2), which is not a cancellation point, unlike ppoll(2) and write(2) of the C library.
    // SAFETY: the kernel fills in one structure of ours and reads another; no signal set is given.
    let ready = unsafe {
        keeping_errno(|| {
            let nobody = core::ptr::null::<libc::sigset_t>();
            libc::syscall(libc::SYS_ppoll, &raw mut wanted, 1usize, &raw const at_once, nobody, 8usize)
        })
    };
    // SAFETY: only reads these bytes.
    let write =
        || unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, bytes.as_ptr(), bytes.len()) };
    // SAFETY: as above.
    ready == 1 && wanted.revents == libc::POLLOUT && unsafe { keeping_errno(write) } > 0
}

/// Makes a call and restores the thread's `errno`.
///
/// # Safety
/// That of the call.
unsafe fn keeping_errno(call: impl FnOnce() -> c_long) -> c_long {
    // SAFETY: returns the address of the calling thread's own variable.
    let errno: *mut c_int = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = call();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_in_rate_and_in_number() {
        let rate = rate(LevelFilter::WARN, 3, 1000, 6);
        let bound = Bound::new();
        let admit = |ms| bound.admit(&rate, Duration::from_millis(ms)).map(|more| (more.left_out, more.last));
        let plain = Some((0, false));
        assert_eq!([admit(0), admit(0), admit(1), admit(2), admit(3)], [plain, plain, plain, None, None]);
        // One more is printed after a second, but no burst until there is room for one.
        assert_eq!([admit(1000), admit(1001)], [Some((2, false)), None]);
        assert_eq!([admit(9000), admit(9000), admit(9000)], [Some((1, false)), Some((0, true)), None]);
        assert_eq!(admit(90_000), None, "six were printed");
    }

    #[test]
    fn nothing_is_printed_at_the_level_off() {
        assert_eq!("off".parse(), Ok(Log(LevelFilter::OFF)));
        for level in [Level::ERROR, Level::WARN, Level::DEBUG] {
            assert!(level > RATES[0].level);
        }
        assert_eq!(RATES[USUAL].level, Log::default().0);
        assert!("verbose".parse::<Log>().unwrap_err().contains("off, error"));
    }
}
