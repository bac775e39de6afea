//! The cost of many connected queue pairs: `cargo run --release -p roce-benches --example many_qps`.
//!
//! Two devices on an in-process link, driven and used by one thread. Each message goes to a queue pair drawn at random, 64
//! are outstanding, one per queue pair. The CPU time of the thread is counted, so other programs disturb less; runs with few
//! and with many queue pairs are interleaved. Arguments: queue pairs (100000), messages per run (1000000), messages per visit
//! (all of 1 and 16).

use std::time::Instant;

use arrayvec::ArrayVec;
use verbs::port::pair;
use verbs::{
    Access, Context, CqPoller, DeviceConfig, Drive, Pd, Qp, QpCap, QpInitAttr, RcOptions, Reactor, RecvQueue,
    RecvWr, SendQueue, SendWr, Wc,
};

const IN_FLIGHT: usize = 64;
const LEN: usize = 64;
const VISIT_MAX: usize = 64;

struct End {
    context: Context,
    reactor: Reactor,
    pd: Pd,
}

fn open(port: Box<dyn verbs::port::Port>, last: u8) -> End {
    let config = DeviceConfig::new(port).qps_per_shard(131_072);
    let config = config.addr([192, 0, 2, last], 24).drive(Drive::Embedded);
    let context = Context::open(config).expect("a device");
    let (reactor, pd) = (context.reactor(0).expect("its shard"), context.alloc_pd().expect("a domain"));
    End { context, reactor, pd }
}

/// Connected queue pairs of both ends.
struct Pairs {
    sqs: Vec<SendQueue>,
    rqs: Vec<RecvQueue>,
    send: CqPoller,
    recv: CqPoller,
    from: verbs::Mr,
    to: verbs::Mr,
    busy: Vec<bool>,
    draw: u64,
    visit: usize,
    _qps: Vec<[Qp; 2]>,
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: usize| pages * 4096)
}

/// The counters of a device.
fn counted(end: &End) -> String {
    let all = end.context.counters();
    all.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(" ")
}

/// CPU time of this thread.
fn on_core() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds")
}

impl Pairs {
    fn new(a: &mut End, b: &mut End, qps: usize, visit: usize) -> Self {
        let (before, start) = (resident(), Instant::now());
        let cq = |end: &End| end.context.create_cq(4096).expect("a queue");
        let (send, recv) = (cq(a), cq(b));
        let depth = visit.max(1) as u32;
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: 4 * depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let options = RcOptions::default().sgid_index(1).max_rd_atomic(1).max_dest_rd_atomic(1);
        let (mut sqs, mut rqs, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..qps {
            let qa = a.pd.create_qp(&QpInitAttr::rc(&send, &send).cap(QpCap { max_recv_wr: 1, ..cap }));
            let qb = b.pd.create_qp(&QpInitAttr::rc(&recv, &recv).cap(QpCap { max_send_wr: 1, ..cap }));
            pairs.push([qa.expect("a queue pair"), qb.expect("a queue pair")]);
        }
        let created = start.elapsed();
        for (n, [qa, qb]) in pairs.iter().enumerate() {
            if n % 64 < 4 {
                // The hosts resolve each other meanwhile.
                let _ = (a.reactor.poll_once(), b.reactor.poll_once());
            }
            qa.connect_rc(&qb.endpoint(1).expect("an address"), &options).expect("connected");
            qb.connect_rc(&qa.endpoint(1).expect("an address"), &options).expect("connected");
            sqs.push(qa.split().expect("not split yet").0);
            rqs.push(qb.split().expect("not split yet").1);
        }
        verbs::huge_pages(&sqs);
        verbs::huge_pages(&rqs);
        let connected = start.elapsed();
        let (from, to) = (
            a.pd.reg_mr(qps * LEN, Access::LOCAL_WRITE).expect("memory"),
            b.pd.reg_mr(qps * LEN, Access::LOCAL_WRITE).expect("memory"),
        );
        let mut many = Self {
            sqs,
            rqs,
            send: send.poller().expect("the only one"),
            recv: recv.poller().expect("the only one"),
            from,
            to,
            busy: vec![false; qps],
            draw: 0x9e37_79b9_7f4a_7c15,
            visit,
            _qps: pairs,
        };
        for q in 0..qps {
            for _ in 0..4 * visit {
                many.receive(q);
            }
        }
        let each = resident().saturating_sub(before) / qps / 2;
        println!(
            "{qps} pairs, visit {visit}: created {created:?}, connected {connected:?}, {each} B a queue pair"
        );
        many
    }

    fn receive(&mut self, q: usize) {
        let sge = [self.to.sge(q * LEN..(q + 1) * LEN).expect("inside")];
        self.rqs[q].post_recv(&[RecvWr::new(q as u64, &sge)]).expect("room");
    }

    fn pick(&mut self) -> usize {
        loop {
            self.draw ^= self.draw >> 12;
            self.draw ^= self.draw << 25;
            self.draw ^= self.draw >> 27;
            let high = self.draw.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
            let q = ((high * self.sqs.len() as u64) >> 32) as usize;
            if !std::mem::replace(&mut self.busy[q], true) {
                return q;
            }
        }
    }

    fn post(&mut self, q: usize) {
        let sge = [self.from.sge(q * LEN..(q + 1) * LEN).expect("inside")];
        let one = SendWr::send(q as u64, &sge);
        let mut list: ArrayVec<_, VISIT_MAX> = std::iter::repeat_n(one, self.visit - 1).collect();
        list.push(one.signaled());
        self.sqs[q].post_send(&list).expect("room");
    }

    /// CPU time of a message in nanoseconds, both ends together.
    fn run(&mut self, a: &mut End, b: &mut End, messages: usize) -> f64 {
        let (mut posted, mut done, mut flying) = (0, 0, 0);
        let mut wcs = [Wc::default(); 32];
        let start = on_core();
        while done < messages {
            let mut next = [0; IN_FLIGHT];
            let mut drawn = 0;
            while flying < IN_FLIGHT && posted < messages {
                next[drawn] = self.pick();
                posted += self.visit;
                (flying, drawn) = (flying + 1, drawn + 1);
            }
            SendQueue::prefetch_each(&self.sqs, next[..drawn].iter().copied(), self.visit as u32);
            for q in &next[..drawn] {
                self.post(*q);
            }
            let _ = a.reactor.poll_once();
            let _ = b.reactor.poll_once();
            for _ in 0..4 {
                let n = self.recv.poll(&mut wcs).expect("no overrun");
                RecvQueue::prefetch_each(&self.rqs, wcs[..n].iter().map(|wc| wc.wr_id as usize), 1);
                for wc in &wcs[..n] {
                    assert!(wc.is_ok(), "{wc:?}");
                    self.receive(wc.wr_id as usize);
                }
                if n < wcs.len() {
                    break;
                }
            }
            let n = self.send.poll(&mut wcs).expect("no overrun");
            for wc in &wcs[..n] {
                assert!(wc.is_ok(), "{wc:?}: {}, {}", counted(a), counted(b));
                self.busy[wc.wr_id as usize] = false;
                flying -= 1;
                done += self.visit;
            }
        }
        (on_core() - start) as f64 / done as f64
    }
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect();
    let qps = args.first().copied().unwrap_or(100_000);
    let messages = args.get(1).copied().unwrap_or(1_000_000);
    let visits = args.get(2).map_or(vec![1, 16], |&n| vec![n]);
    let runs = args.get(3).copied().unwrap_or(5);
    let (a, b) = pair(1);
    let (mut a, mut b) = (open(a, 1), open(b, 2));
    for visit in visits {
        let mut few = (qps > 100).then(|| Pairs::new(&mut a, &mut b, 100, visit));
        let mut many = Pairs::new(&mut a, &mut b, qps, visit);
        let mut ratios = Vec::new();
        for _ in 0..runs {
            let one = few.as_mut().map_or(0.0, |few| few.run(&mut a, &mut b, messages));
            let two = many.run(&mut a, &mut b, messages);
            println!(
                "visit {visit}: 100 queue pairs {one:.0} ns, {qps} {two:.0} ns, {:.0} %",
                100.0 * one / two
            );
            ratios.push(one / two);
        }
        ratios.sort_by(f64::total_cmp);
        if let Some(median) = ratios.get(runs / 2) {
            println!("visit {visit}: {:.0} % of the rate of 100 queue pairs (median)", 100.0 * median);
        }
        let (start, n) = (Instant::now(), qps * 2);
        drop(many);
        println!("{n} queue pairs destroyed in {:?}", start.elapsed());
    }
}
