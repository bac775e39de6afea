//! Arming races with completing: a reader that sleeps until its event arrives is never left asleep. `STRESS_MS` sets the duration (250 by
//! default).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use stack::sync::lanes::{Arm, cq_with_events};

const LANES: usize = 2;
/// Longest time that an event may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn arm_against_complete() {
    let ms = std::env::var("STRESS_MS").ok().and_then(|s| s.parse().ok()).unwrap_or(250);
    let (mut reader, lanes) = cq_with_events::<(usize, u64)>(64, LANES);
    let (events, event) = channel();
    let (stop, published) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut next = [0; LANES];
    let mut slept = 0;
    std::thread::scope(|scope| {
        let (stop, published) = (&stop, &published);
        for (lane, mut writer) in lanes.into_iter().enumerate() {
            let events = events.clone();
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    if writer.push((lane, n)).is_ok() {
                        n += 1;
                        published.fetch_add(1, Ordering::Relaxed);
                    }
                    if writer.publish() {
                        // Fails when the reader has ended.
                        let _ = events.send(());
                    }
                    // Sometimes slowly, so that the reader finds no completion and sleeps.
                    if n % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        drop(events);
        let start = Instant::now();
        // Arm, poll once more, sleep: the order that verbs requires.
        while start.elapsed() < Duration::from_millis(ms) {
            reader.armer().arm(Arm::Next);
            loop {
                let n = reader.poll_with(16, |(lane, number)| {
                    assert_eq!(*number, next[*lane], "lane {lane}");
                    next[*lane] += 1;
                });
                if n == 0 {
                    break;
                }
            }
            if event.recv_timeout(PATIENCE).is_err() {
                stop.store(true, Ordering::Relaxed);
                panic!("armed, nothing there, and no event for {PATIENCE:?}");
            }
            slept += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    while reader.poll_with(16, |(lane, number)| {
        assert_eq!(*number, next[*lane]);
        next[*lane] += 1;
    }) > 0
    {}
    assert_eq!(next.iter().sum::<u64>(), published.into_inner(), "every completion arrived");
    assert!(slept > 0);
}
