//! Multicast through the public API: attaching, what the link hears of it, and copies for everybody.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{embedded, pump};
use verbs::port::{Port, PortInfo, PortQueue, PortStats, RxBurst, TxBurst, pair};
use verbs::{Clock, Context, Cq, DeviceConfig, Drive, Gid, Pd, Qp, QpInitAttr, QpType, error::errno};

fn group(last: u8) -> Gid {
    Gid::v4([239, 1, 2, last])
}

fn ud(pd: &Pd, cq: &Cq) -> Qp {
    pd.create_qp(&QpInitAttr::new(QpType::Ud, cq, cq)).unwrap()
}

/// A port whose cable can be pulled.
struct Cable(Box<dyn Port>, Arc<AtomicBool>);

impl Port for Cable {
    fn info(&self) -> &PortInfo {
        self.0.info()
    }
    fn take_queue(&self, index: usize) -> Option<Box<dyn PortQueue>> {
        self.0.take_queue(index)
    }
    fn link_up(&self) -> bool {
        self.1.load(Ordering::Acquire)
    }
    fn stats(&self) -> PortStats {
        self.0.stats()
    }
}

/// A device whose link ends in the test's hands.
struct Wire {
    context: Context,
    pd: Pd,
    cq: Cq,
    peer: Box<dyn PortQueue>,
    clock: Arc<AtomicU64>,
    link: Arc<AtomicBool>,
    _port: Box<dyn Port>,
}

impl Wire {
    fn new() -> Self {
        let (ours, port) = pair(1);
        let link = Arc::new(AtomicBool::new(true));
        let ours: Box<dyn Port> = Box::new(Cable(ours, link.clone()));
        let clock = Arc::new(AtomicU64::new(1));
        let mut config = DeviceConfig::new(ours).addr([192, 0, 2, 1], 24).drive(Drive::Embedded);
        config.clock = Clock::Manual(clock.clone());
        let context = Context::open(config).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let peer = port.take_queue(0).unwrap();
        Self { context, pd, cq, peer, clock, link, _port: port }
    }

    /// What the device says in a few turns.
    fn said(&mut self) -> Vec<Vec<u8>> {
        let mut said = Vec::new();
        for _ in 0..5 {
            pump(&self.context);
            let mut burst = RxBurst::new();
            self.peer.rx_burst(&mut burst);
            said.extend(burst.drain(..).map(|frame| frame.data().to_vec()));
        }
        said
    }

    fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_nanos() as u64, Ordering::AcqRel);
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut burst = TxBurst::new();
        let mut frame = self.peer.alloc().unwrap();
        assert!(frame.fill(bytes));
        burst.push(frame);
        self.peer.tx_burst(&mut burst);
    }
}

/// Kind and group of an IGMP message.
fn igmp(frame: &[u8]) -> (u8, Gid) {
    assert_eq!((frame[12..14].to_vec(), frame[23]), (vec![8, 0], 2), "IPv4, IGMP: {frame:x?}");
    (frame[38], Gid::v4(frame[42..46].try_into().unwrap()))
}

#[test]
fn the_link_hears_of_the_first_and_the_last() {
    let mut w = Wire::new();
    let (a, b) = (ud(&w.pd, &w.cq), ud(&w.pd, &w.cq));
    a.attach_mcast(group(3), 0).unwrap();
    let said = w.said();
    assert_eq!(said.len(), 1);
    assert_eq!(said[0][..6], [1, 0, 0x5e, 1, 2, 3]);
    assert_eq!(igmp(&said[0]), (0x16, group(3)));
    b.attach_mcast(group(3), 0xc000).unwrap();
    a.attach_mcast(group(3), 0).unwrap();
    a.detach_mcast(group(3), 0).unwrap();
    assert_eq!(w.said(), Vec::<Vec<u8>>::new(), "it is a member all the while");
    // A router asks who is there, with no time to lose: at most a tenth of a second.
    let mut query = said[0].clone();
    query[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1]);
    query[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    query[26..34].copy_from_slice(&[192, 0, 2, 9, 224, 0, 0, 1]);
    query[38..46].copy_from_slice(&[0x11, 1, 0xee, 0xfe, 0, 0, 0, 0]);
    query[24..26].copy_from_slice(&[0, 0]);
    let sum: u32 = query[14..38].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    query[24..26].copy_from_slice(&sum.to_be_bytes());
    w.send(&query);
    let mut said = w.said();
    w.pass(Duration::from_millis(100));
    said.extend(w.said());
    assert_eq!(said.iter().map(|f| igmp(f)).collect::<Vec<_>>(), [(0x16, group(3))]);

    drop(b);
    let said = w.said();
    assert_eq!(said.last().map(|f| igmp(f)), Some((0x17, group(3))), "a queue pair that is dropped leaves");
}

#[test]
fn a_link_that_comes_up_hears_of_every_group() {
    let mut w = Wire::new();
    let qp = ud(&w.pd, &w.cq);
    qp.attach_mcast(group(1), 0).unwrap();
    qp.attach_mcast(group(2), 0).unwrap();
    for _ in 0..10 {
        w.said();
        w.pass(Duration::from_secs(1));
    }
    assert_eq!(w.said(), Vec::<Vec<u8>>::new(), "everything has been said");
    w.link.store(false, Ordering::Release);
    w.pass(Duration::from_millis(20));
    assert_eq!(w.said(), Vec::<Vec<u8>>::new());
    w.link.store(true, Ordering::Release);
    w.pass(Duration::from_millis(20));
    let mut said: Vec<_> = w.said().iter().map(|f| igmp(f)).collect();
    said.sort_by_key(|(_, group)| group.0);
    assert_eq!(said, [(0x16, group(1)), (0x16, group(2))]);
}

#[test]
fn ipv6_groups_are_reported_by_mld() {
    let mut w = Wire::new();
    let qp = ud(&w.pd, &w.cq);
    let group = Gid::from_ip("ff05::1:3".parse().unwrap());
    qp.attach_mcast(group, 0).unwrap();
    let said = w.said();
    assert_eq!(said.len(), 1);
    assert_eq!((&said[0][..6], &said[0][12..14]), (&[0x33, 0x33, 0, 1, 0, 3][..], &[0x86, 0xdd][..]));
    assert_eq!((said[0][62], &said[0][70..86]), (131, &group.0[..]));
}

#[test]
fn attach_and_detach_refuse_what_makes_no_sense() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = ud(&pd, &cq);
    for gid in [Gid::v4([10, 0, 0, 1]), Gid::default(), Gid::from_ip("fe80::1".parse().unwrap())] {
        let e = qp.attach_mcast(gid, 0).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL);
        assert!(e.to_string().contains(&gid.to_string()), "{e}");
        assert_eq!(qp.detach_mcast(gid, 0).unwrap_err().errno(), errno::EINVAL);
    }
    for ty in [QpType::Rc, QpType::Uc, QpType::Gsi] {
        let other = pd.create_qp(&QpInitAttr::new(ty, &cq, &cq)).unwrap();
        let e = other.attach_mcast(group(1), 0).unwrap_err();
        assert_eq!(e.errno(), errno::EINVAL);
        assert!(e.to_string().contains(verbs::type_name(ty)), "{e}");
        other.destroy().unwrap();
    }
    assert_eq!(qp.detach_mcast(group(1), 0).unwrap_err().errno(), errno::EINVAL, "not attached");
    qp.attach_mcast(group(1), 0).unwrap();
    assert_eq!(qp.detach_mcast(group(2), 0).unwrap_err().errno(), errno::EINVAL, "to another one");
    qp.detach_mcast(group(1), 0).unwrap();
    assert_eq!(qp.detach_mcast(group(1), 0).unwrap_err().errno(), errno::EINVAL, "not any more");
}

#[test]
fn an_attached_queue_pair_is_busy() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qp = ud(&pd, &cq);
    qp.attach_mcast(group(1), 0).unwrap();
    qp.attach_mcast(group(2), 0).unwrap();
    let (e, qp) = qp.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    qp.detach_mcast(group(1), 0).unwrap();
    let (e, qp) = qp.destroy().unwrap_err();
    assert_eq!(e.errno(), errno::EBUSY, "{e}");
    qp.detach_mcast(group(2), 0).unwrap();
    qp.destroy().unwrap();
}

#[test]
fn limits_are_those_announced() {
    let context = embedded();
    let attr = context.query_device();
    assert_eq!(attr.max_total_mcast_qp_attach, attr.max_mcast_grp * attr.max_mcast_qp_attach);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let qps: Vec<Qp> = (0..=attr.max_mcast_qp_attach).map(|_| ud(&pd, &cq)).collect();
    let (last, most) = qps.split_last().unwrap();
    let group = |n: usize| Gid::v4([239, 2, (n >> 8) as u8, n as u8]);
    most.iter().for_each(|qp| qp.attach_mcast(group(0), 0).unwrap());
    assert_eq!(last.attach_mcast(group(0), 0).unwrap_err().errno(), errno::ENOMEM);
    (1..attr.max_mcast_grp).for_each(|n| last.attach_mcast(group(n), 0).unwrap());
    let e = last.attach_mcast(group(attr.max_mcast_grp), 0).unwrap_err();
    assert_eq!(e.errno(), errno::ENOMEM, "{e}");
    assert_eq!(most[0].attach_mcast(group(attr.max_mcast_grp), 0).unwrap_err().errno(), errno::ENOMEM);
    // One that goes makes room, at once.
    last.detach_mcast(group(7), 0).unwrap();
    last.attach_mcast(group(attr.max_mcast_grp), 0).unwrap();
    drop(qps);
    let qp = ud(&pd, &cq);
    (0..attr.max_mcast_grp).for_each(|n| qp.attach_mcast(group(1000 + n), 0).unwrap());
}
