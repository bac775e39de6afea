//! Measures how much of the two cores is available. A virtual machine's core may be one hardware thread of a real core, whose other
//! thread is busy at one moment and idle at the next.

use apps::pin;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The cores of all measurements: the server's and the client's.
pub const CORES: [usize; 2] = [0, 1];
/// Rounds of a piece of work: about a tenth of a millisecond.
const ROUNDS: u32 = 50_000;
/// Number of pieces; the fastest counts, so that short disturbances do not.
const PIECES: usize = 3;
/// Least share of its best speed at which a core counts as whole.
pub const WHOLE: f64 = 0.9;

/// Time that a fixed piece of work takes on the slower of the two cores while both work, in nanoseconds.
pub fn work_ns() -> u64 {
    let ready = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers = CORES.map(|core| {
            scope.spawn({
                let ready = &ready;
                move || on(core, ready)
            })
        });
        workers.into_iter().map(|worker| worker.join().unwrap_or(u64::MAX)).max().unwrap_or(u64::MAX)
    })
}

/// The share of a core that is available, from the time of a piece of work and the best time of all pieces.
pub fn share(work_ns: u64, best: u64) -> f64 {
    best as f64 / work_ns.max(1) as f64
}

fn on(core: usize, ready: &AtomicUsize) -> u64 {
    pin::pin_if_possible(core);
    ready.fetch_add(1, Ordering::Relaxed);
    while ready.load(Ordering::Relaxed) < CORES.len() {
        spin_loop();
    }
    let piece = |n| {
        let since = Instant::now();
        black_box(work(black_box(n)));
        since.elapsed().as_nanos() as u64
    };
    (0..PIECES as u64).map(piece).min().unwrap_or(u64::MAX)
}

/// Work that uses a whole core: additions that do not depend on each other.
fn work(seed: u64) -> u64 {
    let mut all = [seed, 1, 2, 3, 4, 5];
    for _ in 0..ROUNDS {
        for n in &mut all {
            // `black_box` keeps the additions scalar, and in order.
            *n = black_box(n.wrapping_add(1));
        }
    }
    all.iter().fold(0, |sum, n| sum ^ n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_a_share_is_of_the_best() {
        let ns = work_ns();
        assert!(ns > 1000 && ns < u64::MAX, "{ns} ns");
        assert!((share(200, 100) - 0.5).abs() < 1e-9 && share(0, 100) > 1.0);
    }
}
