//! Two shards on two queues, and packets that arrive on the wrong queue: they are handed over, and the transfers complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::{self, PATIENCE, all_rights, options};
use verbs::port::{Port, PortOptions, Steering, pair_with};
use verbs::{Context, Counter, Cq, DeviceConfig, Drive, Mr, Qp, QpInitAttr, RecvWr, SendWr, Wc};

/// Bytes of a message: several packets.
const LEN: usize = 20_000;
/// Number of rounds of each queue pair.
const ROUNDS: usize = 8;

fn drives() -> [Drive; 3] {
    [Drive::Embedded, Drive::Caller, Drive::Dedicated { cores: vec![] }]
}

struct End {
    context: Context,
    mr: Mr,
    cq: Cq,
    qps: Vec<Qp>,
}

impl End {
    /// Two queue pairs, one on each shard. Data is sent from the first half of the memory, and arrives in the second.
    fn new(port: Box<dyn Port>, last: u8, drive: &Drive) -> Self {
        let config = DeviceConfig::new(port).addr([192, 0, 2, last], 24).shards(2).drive(drive.clone());
        let context = Context::open(config).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let mr = pd.reg_mr(2 * 2 * LEN, all_rights()).unwrap();
        let qps = (0..2).map(|n| pd.create_qp(&QpInitAttr::rc(&cq, &cq).on_shard(n)).unwrap()).collect();
        Self { context, mr, cq, qps }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.context.counters().get(counter)
    }
}

/// Polls `cq` until `n` requests are complete, and drives both devices if none of their threads does.
fn wait(drive: &Drive, ends: [&End; 2], cq: &Cq, n: usize) {
    let (start, mut done, mut wc) = (Instant::now(), 0, [Wc::default(); 16]);
    while done < n {
        assert!(start.elapsed() < 3 * PATIENCE, "{done} of {n} completions in {drive:?}");
        if *drive == Drive::Embedded {
            ends.iter().for_each(|end| common::pump(&end.context));
        }
        let got = cq.poll(&mut wc).unwrap();
        assert!(wc[..got].iter().all(Wc::is_ok), "{:?}", &wc[..got]);
        done += got;
    }
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 7) as u8).collect()
}

/// Runs SEND, WRITE and READ on both queue pairs several times, and compares the data; returns the two ends.
fn main_job(drive: &Drive, steering: Steering) -> [End; 2] {
    let queues = PortOptions { queues: 2, ..PortOptions::default() };
    let (a, b) = pair_with(&queues, &queues, steering);
    let (a, b) = (End::new(a, 1, drive), End::new(b, 2, drive));
    for (qa, qb) in a.qps.iter().zip(&b.qps) {
        qa.connect_rc(&qb.endpoint(1).unwrap(), &options()).unwrap();
        qb.connect_rc(&qa.endpoint(1).unwrap(), &options()).unwrap();
    }
    let ours = |n: usize| n * LEN..(n + 1) * LEN;
    let theirs = |n: usize| (2 + n) * LEN..(3 + n) * LEN;
    for round in 0..ROUNDS {
        // Both queue pairs at once, so that both shards work.
        let check = |what: &str, mr: &Mr, at: &dyn Fn(usize) -> std::ops::Range<usize>, seed: usize| {
            for n in 0..2 {
                assert!(mr.to_vec(at(n)).unwrap() == pattern(seed + n), "{what} {n} in {drive:?}");
            }
        };
        let fill = |mr: &Mr, at: &dyn Fn(usize) -> std::ops::Range<usize>, seed: usize| {
            (0..2).for_each(|n| mr.write(at(n).start, &pattern(seed + n)).unwrap());
        };
        let seed = 16 * round;
        fill(&a.mr, &ours, seed);
        for n in 0..2 {
            b.qps[n].post_recv(&[RecvWr::new(1, &[b.mr.sge(theirs(n)).unwrap()])]).unwrap();
            a.qps[n].post_send(&[SendWr::send(2, &[a.mr.sge(ours(n)).unwrap()]).signaled()]).unwrap();
        }
        wait(drive, [&a, &b], &b.cq, 2);
        wait(drive, [&a, &b], &a.cq, 2);
        check("SEND", &b.mr, &theirs, seed);

        fill(&a.mr, &ours, seed + 4);
        for n in 0..2 {
            let (from, to) = ([a.mr.sge(ours(n)).unwrap()], b.mr.addr() + theirs(n).start as u64);
            a.qps[n].post_send(&[SendWr::write(3, &from, to, b.mr.rkey()).signaled()]).unwrap();
        }
        wait(drive, [&a, &b], &a.cq, 2);
        check("WRITE", &b.mr, &theirs, seed + 4);

        fill(&b.mr, &ours, seed + 8);
        for n in 0..2 {
            let (to, from) = ([a.mr.sge(theirs(n)).unwrap()], b.mr.addr() + ours(n).start as u64);
            a.qps[n].post_send(&[SendWr::read(4, &to, from, b.mr.rkey()).signaled()]).unwrap();
        }
        wait(drive, [&a, &b], &a.cq, 2);
        check("READ", &a.mr, &theirs, seed + 8);
    }
    [a, b]
}

#[test]
fn packets_on_the_right_queue_are_not_handed_over() {
    for drive in drives() {
        for end in main_job(&drive, Arc::new(|from, _, _| from)) {
            assert_eq!(end.count(Counter::HandedOver), 0, "{drive:?}");
        }
    }
}

#[test]
fn every_packet_on_the_wrong_queue() {
    for drive in drives() {
        for end in main_job(&drive, Arc::new(|from, _, _| from + 1)) {
            let (handed, acks) = (end.count(Counter::HandedOver), end.count(Counter::AcksReceived));
            let requests = end.count(Counter::RequestsReceived);
            // The packets of this queue pair reached its shard through the other one.
            assert!(handed > 0 && handed >= acks + requests, "{handed} {acks} {requests} in {drive:?}");
        }
    }
}

#[test]
fn every_packet_on_one_queue() {
    for drive in drives() {
        for end in main_job(&drive, Arc::new(|_, _, _| 0)) {
            assert!(end.count(Counter::HandedOver) > 0, "{drive:?}");
        }
    }
}

// Packets of one message are distributed alternately over the queues: they are reordered, and retransmitted.
#[test]
fn packets_that_take_turns_between_the_queues() {
    for drive in drives() {
        let next = AtomicUsize::new(0);
        for end in main_job(&drive, Arc::new(move |_, _, _| next.fetch_add(1, Ordering::Relaxed) / 3)) {
            assert!(end.count(Counter::HandedOver) > 0, "{drive:?}");
        }
    }
}
