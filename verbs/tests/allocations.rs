//! Goal: after the start the data path allocates nothing, whatever the operation and the type of queue pair.
//!
//! The allocator counts allocations of the calling thread; only this thread polls the devices.

mod common;

use allocation_counter::{AllocationInfo, measure};
use common::{all_rights, options};
use verbs::port::{Port, pair};
use verbs::{
    Access, Ah, AttrMask, Context, Cq, CqPoller, DeviceConfig, Drive, FlushLevel, FlushPlacement, GRH_LEN,
    Mr, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpType, Qpn, Reactor, RecvQueue, RecvWr, SendQueue, SendWr, Sge,
    SrqInitAttr, Wc, ah_attr_to,
};

const QKEY: u32 = 0x1111;
/// Requests of a list.
const BATCH: usize = 16;
/// Lists that are measured for each case.
const ROUNDS: usize = 400;
/// Bytes reserved for a message.
const STRIDE: usize = 20 << 10;

struct End {
    sq: SendQueue,
    rq: Option<RecvQueue>,
    cq: CqPoller,
    reactor: Reactor,
    mr: Mr,
    _cq: Cq,
    qp: Qp,
    pd: Pd,
    context: Context,
}

/// Two devices on an in-process cable.
struct Link {
    a: End,
    b: End,
}

fn opened(port: Box<dyn Port>, last: u8) -> (Context, Pd, Cq, Mr) {
    let config = DeviceConfig::new(port).addr([192, 0, 2, last], 24).drive(Drive::Embedded);
    let context = Context::open(config).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1024).unwrap());
    let mr = pd.reg_mr(BATCH * STRIDE, all_rights() | Access::FLUSH_GLOBAL).unwrap();
    (context, pd, cq, mr)
}

impl Link {
    fn new(ty: QpType) -> Self {
        let (a, b) = pair(1);
        let end = |(context, pd, cq, mr): (Context, Pd, Cq, Mr)| {
            let qp = pd.create_qp(&QpInitAttr::new(ty, &cq, &cq)).unwrap();
            let (sq, rq) = qp.split().unwrap();
            let (poller, reactor) = (cq.poller().unwrap(), context.reactor(0).unwrap());
            End { sq, rq: Some(rq), cq: poller, reactor, mr, _cq: cq, qp, pd, context }
        };
        let (a, b) = (end(opened(a, 1)), end(opened(b, 2)));
        for (from, to) in [(&a.qp, &b.qp), (&b.qp, &a.qp)] {
            let peer = to.endpoint(1).unwrap();
            let mut options = options();
            options.access |= Access::FLUSH_GLOBAL;
            match ty {
                QpType::Rc => from.connect_rc(&peer, &options).unwrap(),
                QpType::Uc => from.connect_uc(&peer, &options).unwrap(),
                _ => from.activate_ud(QKEY).unwrap(),
            }
        }
        Self { a, b }
    }

    fn turn(&mut self) {
        self.a.reactor.poll_once();
        self.b.reactor.poll_once();
    }

    /// Posts one list of requests, and the receives of `b` for it, and polls the completions.
    fn round(&mut self, wrs: &[SendWr<'_>], recvs: &[RecvWr<'_>], taken: u64) {
        if let Some(rq) = self.b.rq.as_mut().filter(|_| taken > 0) {
            rq.post_recv(recvs).unwrap();
        }
        self.a.sq.post_send(wrs).unwrap();
        let (mut sent, mut received) = (0, 0);
        let mut wc = [Wc::default(); 32];
        for _ in 0..1_000_000 {
            self.turn();
            for (cq, n) in [(&mut self.a.cq, &mut sent), (&mut self.b.cq, &mut received)] {
                let got = cq.poll(&mut wc).unwrap();
                for wc in &wc[..got] {
                    assert!(wc.is_ok(), "{wc:?}");
                }
                *n += got as u64;
            }
            if sent == 1 && received == taken {
                return;
            }
        }
        panic!("no progress: {sent} sent, {received} of {taken} received");
    }
}

fn address(link: &Link, ty: QpType) -> Option<(Ah, Qpn)> {
    let gid = link.b.context.query_gid(1, 1).unwrap();
    (ty == QpType::Ud).then(|| (link.a.pd.create_ah(&ah_attr_to(gid, 1)).unwrap(), link.b.qp.qp_num()))
}

/// Every operation: its name, whether it consumes a receive, and the types that support it.
const OPERATIONS: [(&str, bool, &[QpType]); 10] = [
    ("send", true, &[QpType::Rc, QpType::Uc, QpType::Ud]),
    ("send_inline", true, &[QpType::Rc, QpType::Uc, QpType::Ud]),
    ("send_with_imm", true, &[QpType::Rc, QpType::Uc, QpType::Ud]),
    ("write", false, &[QpType::Rc, QpType::Uc]),
    ("write_with_imm", true, &[QpType::Rc, QpType::Uc]),
    ("read", false, &[QpType::Rc]),
    ("cmp_and_swp", false, &[QpType::Rc]),
    ("fetch_and_add", false, &[QpType::Rc]),
    ("atomic_write", false, &[QpType::Rc]),
    ("flush", false, &[QpType::Rc]),
];

fn request<'a>(
    name: &str,
    sge: &'a [Sge],
    inline: &'a [u8],
    (at, rkey): (u64, u32),
    to: Option<&'a (Ah, Qpn)>,
) -> SendWr<'a> {
    let wr = match name {
        "send" => SendWr::send(0, sge),
        "send_inline" => SendWr::send(0, &[]).inline(inline),
        "send_with_imm" => SendWr::send_with_imm(0, sge, 7),
        "write" => SendWr::write(0, sge, at, rkey),
        "write_with_imm" => SendWr::write_with_imm(0, sge, at, rkey, 7),
        "read" => SendWr::read(0, sge, at, rkey),
        "cmp_and_swp" => SendWr::cmp_and_swp(0, sge, at, rkey, 0, 0),
        "fetch_and_add" => SendWr::fetch_and_add(0, sge, at, rkey, 1),
        "atomic_write" => SendWr::atomic_write(0, sge, at, rkey),
        "flush" => SendWr::flush(0, at, 64, rkey, FlushPlacement::GLOBAL, FlushLevel::Range),
        other => panic!("no operation {other}"),
    };
    match to {
        Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
        None => wr,
    }
}

/// The allocations of one operation in [`ROUNDS`] lists, after one list that resolves the neighbour.
fn allocated(link: &mut Link, ty: QpType, name: &str, len: usize, takes: bool) -> AllocationInfo {
    let to = address(link, ty);
    let len = if name.contains("atomic") || name.contains('_') && !takes { 8 } else { len };
    let len = if name == "send_inline" { len.min(64) } else { len };
    let head = if ty == QpType::Ud { GRH_LEN } else { 0 };
    let sges: Vec<_> = (0..BATCH).map(|n| link.a.mr.sge(n * STRIDE..n * STRIDE + len).unwrap()).collect();
    let rooms: Vec<_> =
        (0..BATCH).map(|n| link.b.mr.sge(n * STRIDE..n * STRIDE + head + len).unwrap()).collect();
    let inline = vec![7; len];
    let (base, rkey) = (link.b.mr.addr(), link.b.mr.rkey());
    let wrs: Vec<_> = (0..BATCH)
        .map(|n| {
            let at = (base + (n * STRIDE) as u64, rkey);
            let wr = request(name, std::slice::from_ref(&sges[n]), &inline, at, to.as_ref());
            if n + 1 == BATCH { wr.signaled() } else { wr }
        })
        .collect();
    let recvs: Vec<_> = rooms.iter().map(|sge| RecvWr::new(0, std::slice::from_ref(sge))).collect();
    let taken = if takes { BATCH as u64 } else { 0 };
    link.round(&wrs, &recvs, taken);
    measure(|| {
        for _ in 0..ROUNDS {
            link.round(&wrs, &recvs, taken);
        }
    })
}

fn nothing_is_allocated(ty: QpType, sizes: &[usize]) {
    for (name, takes, types) in OPERATIONS.iter().filter(|(_, _, types)| types.contains(&ty)) {
        for &size in sizes {
            let info = allocated(&mut Link::new(ty), ty, name, size, *takes);
            assert_eq!(
                (info.count_total, info.bytes_total),
                (0, 0),
                "{types:?}: {name} of {size} bytes allocated in {} messages: {info:?}",
                ROUNDS * BATCH
            );
        }
    }
}

#[test]
fn reliable_connections_allocate_nothing() {
    // A message of one packet, and a message of several.
    nothing_is_allocated(QpType::Rc, &[64, 20_000]);
}

#[test]
fn unreliable_connections_allocate_nothing() {
    nothing_is_allocated(QpType::Uc, &[64, 20_000]);
}

#[test]
fn datagrams_allocate_nothing() {
    nothing_is_allocated(QpType::Ud, &[64, 4000]);
}

#[test]
fn shared_receive_queues_allocate_nothing() {
    let (a, b) = pair(1);
    let (context_a, pd_a, cq_a, mr_a) = opened(a, 1);
    let (context_b, pd_b, cq_b, mr_b) = opened(b, 2);
    let srq = pd_b.create_srq(&SrqInitAttr::new(64, 1)).unwrap();
    let from = pd_a.create_qp(&QpInitAttr::rc(&cq_a, &cq_a)).unwrap();
    let to = pd_b.create_qp(&QpInitAttr::rc(&cq_b, &cq_b).srq(&srq)).unwrap();
    from.connect_rc(&to.endpoint(1).unwrap(), &options()).unwrap();
    to.connect_rc(&from.endpoint(1).unwrap(), &options()).unwrap();
    let (mut turn_a, mut turn_b) = (context_a.reactor(0).unwrap(), context_b.reactor(0).unwrap());
    let (sge, room) = ([mr_a.sge(0..64).unwrap()], [mr_b.sge(0..64).unwrap()]);
    let mut round = |n: u64| {
        srq.post_recv(&[RecvWr::new(n, &room)]).unwrap();
        from.post_send(&[SendWr::send(n, &sge).signaled()]).unwrap();
        let (mut done, mut wc) = (0, [Wc::default(); 4]);
        for _ in 0..1_000_000 {
            turn_a.poll_once();
            turn_b.poll_once();
            done += cq_a.poll(&mut wc).unwrap() + cq_b.poll(&mut wc).unwrap();
            if done == 2 {
                return;
            }
        }
        panic!("no progress");
    };
    round(0);
    let info = measure(|| (1..2000).for_each(&mut round));
    assert_eq!((info.count_total, info.bytes_total), (0, 0), "{info:?}");
}

/// Bytes of memory of an idle connected queue pair with this many requests each way and this many READs. Each queue pair is connected
/// to itself.
fn idle(depth: u32, reads: u8) -> i64 {
    const QPS: usize = 4096; // memory for the states of this many is allocated at once
    let (_context, pd, cq, _) = opened(pair(1).0, 1);
    let cap = QpCap {
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let options = options().max_rd_atomic(reads).max_dest_rd_atomic(reads);
    let mut qps = Vec::with_capacity(QPS);
    let used = measure(|| {
        for _ in 0..QPS {
            let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap)).unwrap();
            qp.connect_rc(&qp.endpoint(1).unwrap(), &options).unwrap();
            qps.push(qp);
        }
    });
    used.bytes_current / QPS as i64
}

// Memory of an idle queue pair, in bytes requested from the allocator:
//
// | for | bytes |
// |---|--:|
// | its state in the shard | 512 |
// | its counters; those of rare events are allocated at the first event | 192 |
// | its attributes | 136 |
// | the indices of its two rings | 256 |
// | a send request, a receive request of one buffer, the record of a sent request | 64 + 32 + 4 |
// | its handle with the locks of its two rings, and its entry among the device's queue pairs | about 460 |
//
// Rings grow with their depth, and the responder's memory by 64 bytes for each READ or atomic that the peer may have
// outstanding.
#[test]
fn an_idle_queue_pair_is_small() {
    let least = idle(1, 0);
    // The maps by number use random hashes, so they differ by a few bytes from run to run.
    let grown = |depth, reads, by: i64| (idle(depth, reads) - least - by).abs() <= 16;
    assert!(grown(64, 0, 63 * (64 + 32 + 4)));
    assert!(grown(1, 16, 16 * 64));
    assert!(least <= 1704, "{least} bytes");
}

// Control: the counter sees allocations, in the same places.
#[test]
fn the_counter_fires() {
    let info = measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!((info.count_total, info.bytes_total), (1, 100));
    let mut link = Link::new(QpType::Rc);
    let (sge, room) = ([link.a.mr.sge(0..64).unwrap()], [link.b.mr.sge(0..64).unwrap()]);
    let info = measure(|| {
        link.round(&[SendWr::send(0, &sge).signaled()], &[RecvWr::new(0, &room)], 1);
        // A control call during traffic does allocate.
        drop(std::hint::black_box(link.a.context.gid_table()));
        let attr = QpAttr { min_rnr_timer: 13, ..QpAttr::default() };
        link.a.qp.modify(&attr, AttrMask::MIN_RNR_TIMER).unwrap();
    });
    assert!(info.count_total >= 1, "{info:?}");
}
