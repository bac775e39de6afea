use super::*;

// A snapshot lists counters and drop reasons together.
#[test]
fn no_two_have_one_name() {
    let reasons = Discard::ALL.iter().map(|reason| reason.name());
    let names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).chain(reasons).collect();
    let once: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(once.len(), names.len(), "{names:?}");
}

// Each counter of a queue pair has its own place; shard-only counters have none.
#[test]
fn a_queue_pairs_counters_have_places_of_their_own() {
    let qp = QpCounters::default();
    for (n, counter) in Counter::ALL.iter().enumerate() {
        (0..=n).for_each(|_| qp.count(*counter));
    }
    for (n, reason) in Discard::ALL.into_iter().enumerate() {
        (0..1000 + n).for_each(|_| qp.discard(reason));
    }
    let values = qp.snapshot();
    for (n, counter) in Counter::ALL.iter().enumerate() {
        assert_eq!(values.get(*counter), if counter.per_qp() { n as u64 + 1 } else { 0 }, "{counter:?}");
    }
    for (n, reason) in Discard::ALL.into_iter().enumerate() {
        assert_eq!(values.discarded(reason), 1000 + n as u64, "{reason}");
    }
    assert!(Counter::QpErrors.per_qp() && !Counter::IcrcWeak.per_qp() && !Counter::NetFrames.per_qp());
}

#[test]
fn what_every_packet_moves_is_one_line() {
    let qp = QpCounters::default();
    let base = &raw const qp as usize;
    assert_eq!(base % 64, 0);
    assert_eq!(&raw const qp.hot as usize, base);
    qp.received(100);
    qp.sent(1, 70);
    qp.send_done(2, 8);
    qp.recv_done(5);
    let hot: Vec<_> = qp.hot.iter().map(|c| c.load(Ordering::Relaxed)).collect();
    assert_eq!(hot, [1, 100, 1, 70, 2, 8, 1, 5]);
}

#[test]
fn a_peer_is_told_and_taken_back() {
    let qp = QpCounters::default();
    assert_eq!(qp.peer(), None);
    let gid = Gid(core::array::from_fn(|i| i as u8 + 1));
    qp.set_peer(Some((gid, Qpn::new(0x12_3456))));
    assert_eq!(qp.peer(), Some((gid, Qpn::new(0x12_3456))));
    qp.set_peer(None);
    assert_eq!(qp.peer(), None);
}
