use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const HOUR: u64 = 3_600_000_000_000;

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn wheel(ids: u32) -> Wheel {
    let mut w = Wheel::new(Instant::ZERO);
    w.reserve(ids);
    w
}

fn fired(w: &mut Wheel, now: u64) -> Vec<u32> {
    let mut out = Vec::new();
    // If `pass` returns true, `expire` must have nothing to do.
    let pass = w.pass(at(now));
    while w.expire(at(now), 16, |id| out.push(id)) {}
    assert!(!pass || out.is_empty());
    out
}

#[test]
fn never_early_and_at_most_a_tick_late() {
    for ns in [1, TICK_NANOS - 1, TICK_NANOS, TICK_NANOS + 1, 64 * TICK_NANOS, HOUR, 3 * HOUR + 1] {
        let mut w = wheel(1);
        w.schedule(0, at(ns));
        assert!(fired(&mut w, ns - 1).is_empty(), "{ns}");
        assert_eq!(fired(&mut w, ns + TICK_NANOS - 1), [0], "{ns}");
    }
}

#[test]
fn one_entry_an_id() {
    let mut w = wheel(2);
    w.schedule(0, at(HOUR));
    w.schedule(0, at(TICK_NANOS));
    w.schedule(1, at(2 * TICK_NANOS));
    w.schedule(0, at(3 * TICK_NANOS));
    assert_eq!(w.len(), 2);
    assert_eq!(fired(&mut w, HOUR), [1, 0]);
    assert!(w.is_empty() && !w.cancel(0) && !w.cancel(99) && !w.is_scheduled(0));
    w.schedule(0, at(0));
    assert!(w.cancel(0) && w.next_deadline().is_none());
    assert!(fired(&mut w, 2 * HOUR).is_empty());
}

#[test]
fn clock_that_goes_back() {
    let mut w = wheel(2);
    assert!(fired(&mut w, HOUR).is_empty());
    w.schedule(0, at(HOUR / 2));
    w.schedule(1, at(2 * HOUR));
    assert_eq!(fired(&mut w, 5), [0], "past already, whatever the clock says now");
    assert!(fired(&mut w, 2 * HOUR - TICK_NANOS).is_empty());
    assert_eq!(fired(&mut w, 2 * HOUR + TICK_NANOS), [1]);
}

#[test]
fn far_is_never() {
    let mut w = wheel(1);
    w.schedule(0, Instant::FAR);
    assert!(fired(&mut w, u64::MAX).is_empty());
    assert_eq!(w.next_deadline(), Some(Instant::FAR));
    assert!(w.cancel(0));
}

/// Many deadlines hours ahead, then one jump of the clock: each call does a bounded part of the work.
#[test]
fn jump_is_bounded_work() {
    const IDS: u32 = 20_000;
    const MAX: usize = 64;
    let mut w = wheel(IDS);
    for id in 0..IDS {
        w.schedule(id, at(HOUR + u64::from(id % 777) * 50_000));
    }
    let (mut calls, mut seen) = (0, BTreeSet::new());
    loop {
        let mut n = 0;
        calls += 1;
        let more = w.expire(at(9 * HOUR), MAX, |id| {
            n += 1;
            assert!(seen.insert(id));
        });
        assert!(n <= MAX);
        if !more {
            break;
        }
    }
    assert_eq!(seen.len(), IDS as usize);
    let moves = IDS as usize * (LEVELS - 1) / MOVES_MAX;
    assert!(calls <= moves + IDS as usize / MAX + 2, "{calls} calls");
    assert!(!w.expire(at(9000 * HOUR), 0, |_| ()), "nothing left: no work");
}

/// A thread that sleeps until `next_deadline` wakes up a bounded number of times.
#[test]
fn next_deadline_converges() {
    for ns in [1, 5_000, 1_000_000, 777_777_777, HOUR, 100 * HOUR] {
        let mut w = wheel(1);
        w.schedule(0, at(ns));
        let mut wakes = 0;
        let mut due = false;
        while !due {
            let next = w.next_deadline().expect("scheduled");
            assert!(next.as_nanos() < ns + TICK_NANOS, "{next:?} is after {ns} ns");
            w.expire(next, 1, |_| due = true);
            wakes += 1;
        }
        assert!(wakes <= LEVELS, "{wakes} wakes for {ns} ns");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Schedule(u32, u64),
    /// A deadline before the present.
    Past(u32, u64),
    Cancel(u32),
    Advance(u64, usize),
    Back(u64, usize),
    ToNext(usize),
}

const IDS: u32 = 24;

fn span() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4 * TICK_NANOS,
        0..200 * TICK_NANOS,
        (0..70u64).prop_map(|n| n * 64 * TICK_NANOS),
        0..30_000_000u64,
        0..4 * HOUR,
        (0..36u32).prop_map(|b| TICK_NANOS << b),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let max = prop_oneof![0..4usize, Just(1000)];
    prop_oneof![
        6 => (0..IDS, span()).prop_map(|(id, ns)| Op::Schedule(id, ns)),
        1 => (0..IDS, span()).prop_map(|(id, ns)| Op::Past(id, ns)),
        2 => (0..IDS).prop_map(Op::Cancel),
        4 => (span(), max.clone()).prop_map(|(ns, max)| Op::Advance(ns, max)),
        1 => (span(), max.clone()).prop_map(|(ns, max)| Op::Back(ns, max)),
        2 => max.prop_map(Op::ToNext),
    ]
}

proptest! {
    /// The wheel behaves as a map from id to tick.
    #[test]
    fn wheel_matches_a_map(
        start in prop_oneof![Just(0), 0..100 * HOUR, Just(u64::MAX / 2)],
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        let mut w = Wheel::new(at(start));
        w.reserve(IDS);
        let mut map: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut now, mut latest) = (start, start);
        for op in ops {
            let max = match op {
                Op::Schedule(id, ns) => {
                    w.schedule(id, at(now + ns));
                    map.insert(id, round_up(at(now + ns)));
                    None
                }
                Op::Past(id, ns) => {
                    w.schedule(id, at(now.saturating_sub(ns)));
                    map.insert(id, round_up(at(now.saturating_sub(ns))));
                    None
                }
                Op::Cancel(id) => {
                    prop_assert_eq!(w.cancel(id), map.remove(&id).is_some());
                    None
                }
                Op::Advance(ns, max) => {
                    now += ns;
                    Some(max)
                }
                Op::Back(ns, max) => {
                    now = now.saturating_sub(ns);
                    Some(max)
                }
                Op::ToNext(max) => {
                    now = now.max(w.next_deadline().map_or(now, Instant::as_nanos));
                    Some(max)
                }
            };
            if let Some(max) = max {
                latest = latest.max(now);
                let mut out = Vec::new();
                let pass = w.pass(at(now));
                let more = w.expire(at(now), max, |id| out.push(id));
                prop_assert!(out.len() <= max);
                prop_assert!(!pass || out.is_empty() && !more, "passed what is due");
                for id in out {
                    let tick = map.remove(&id).expect("fired what was scheduled");
                    prop_assert!(tick <= latest >> TICK_LOG2, "early");
                }
                if !more {
                    let late = map.values().filter(|&&tick| tick <= now >> TICK_LOG2).count();
                    prop_assert_eq!(late, 0, "late");
                }
            }
            prop_assert_eq!(w.len(), map.len());
            for id in 0..IDS {
                prop_assert_eq!(w.is_scheduled(id), map.contains_key(&id));
            }
            let first = map.values().min().copied();
            prop_assert_eq!(w.next_deadline().is_some(), first.is_some());
            if let (Some(next), Some(first)) = (w.next_deadline(), first) {
                // A deadline in the past counts as the present.
                prop_assert!(next.as_nanos() >> TICK_LOG2 <= first.max(latest >> TICK_LOG2));
            }
        }
    }

    /// With no deadline in the past, one uninterrupted call fires in the order of the ticks.
    #[test]
    fn fires_in_order(deadlines in proptest::collection::vec(span(), 1..IDS as usize), stop in span()) {
        let mut w = wheel(IDS);
        for (id, &ns) in deadlines.iter().enumerate() {
            w.schedule(id as u32, at(ns));
        }
        let mut out = fired(&mut w, stop);
        out.extend(fired(&mut w, u64::MAX));
        let ticks: Vec<u64> = out.iter().map(|&id| round_up(at(deadlines[id as usize]))).collect();
        prop_assert_eq!(ticks.len(), deadlines.len());
        prop_assert!(ticks.is_sorted(), "{:?}", ticks);
    }
}
