//! Strangers: requests by the thousand, and messages that make no sense, beside a connection that works.

mod cm;

use std::net::SocketAddr;

use cm::{World, addrs};
use stack::cm::{Config, Connect, IpHeader, MAD_LEN, Machine, Path, PortSpace, ServiceId};
use stack::time::Instant;
use verbs::rdma_cm::{CmEventType as E, ConnParam};
use verbs::{GSI_QKEY, Gid, QpInitAttr, QpType, Qpn, SendWr, ah_attr_to};

const PORT: u16 = 7471;

// A's program has queue pair 1 to itself, and sends B what it likes.
#[test]
fn a_flood_of_requests_leaves_connections_alone() {
    let w = World::new();
    // A connection that stands, made without connection management at A.
    let cb = w.b.channel();
    let listener = w.b.id(&cb);
    listener.bind_addr(cm::any(PORT)).unwrap();
    listener.listen(4).unwrap();
    let qps = [&w.a, &w.b].map(|h| h.pd.create_qp(&QpInitAttr::rc(&h.cq, &h.cq)).unwrap());
    let options = verbs::RcOptions { sgid_index: 1, ..Default::default() };
    qps[0].connect_rc(&qps[1].endpoint(1).unwrap(), &options).unwrap();
    qps[1].connect_rc(&qps[0].endpoint(1).unwrap(), &options).unwrap();
    let message = |n| {
        w.b.post_recv(&qps[1], n);
        w.a.send(&qps[0], n);
        assert!(w.take(&w.a.cq, 1)[0].is_ok() && w.take(&w.b.cq, 1)[0].is_ok());
    };
    message(0);

    let silent = w.a.context.create_cq(16).unwrap();
    let mut init = QpInitAttr::new(QpType::Gsi, &silent, &silent);
    (init.cap.max_inline_data, init.cap.max_send_wr) = (MAD_LEN as u32, 64);
    let gsi = w.a.pd.create_qp(&init).unwrap();
    gsi.activate_ud(GSI_QKEY).unwrap();
    let [from, to] = addrs(false);
    let (sgid, dgid) = (Gid::from_ip(from), Gid::from_ip(to));
    let ah = w.a.pd.create_ah(&ah_attr_to(dgid, 1)).unwrap();
    let send = |mad: &[u8]| {
        w.until("room for a message", || {
            gsi.post_send(&[SendWr::send(0, &[]).inline(mad).to(&ah, Qpn::GSI, GSI_QKEY)]).ok()
        });
    };
    let mut forged = 0;
    for guid in 1..=60 {
        // Each is another node, with fifty requests and as many messages of noise.
        let mut node = Machine::new(Config { ca_guid: guid, seed: guid, ..Config::default() });
        let path = Path { sgid, dgid, ..Path::default() };
        for qpn in 2..52 {
            let mut connect = Connect::new(ServiceId::new(PortSpace::Tcp, PORT), path, Qpn::new(qpn));
            connect.ip = Some(IpHeader { src_port: 9, src: from, dst: to });
            node.connect(Instant::ZERO, &connect).unwrap();
            let mut mad = node.poll_send().unwrap().mad;
            send(&mad);
            mad[usize::from((qpn % 24) as u8)] ^= 0x55;
            send(&mad);
            forged += 2;
        }
        message(guid);
    }
    assert_eq!(forged, 6000);
    let counters: std::collections::HashMap<_, _> = cb.counters().into_iter().collect();
    assert!(counters["mad_received"] > 5000, "{counters:?}");
    // Four wait at the listener. Everybody else is refused, and what makes no sense has its name.
    let waiting: Vec<_> = std::iter::from_fn(|| cb.try_get_event()).collect();
    assert_eq!(waiting.len(), 4);
    assert!(waiting.iter().all(|e| e.event() == E::ConnectRequest));
    assert!(counters["rejected_by_us"] + counters["reject_backlog_full"] > 2000, "{counters:?}");
    assert!(counters["ignored_class"] > 0 && counters["ignored_method"] > 0, "{counters:?}");
    drop(waiting);
    drop((gsi, ah, silent));

    // And whoever comes in good faith is served.
    let ca = w.a.channel();
    let client = w.resolved(&ca, SocketAddr::new(to, PORT));
    client.connect(&ConnParam::default()).unwrap();
    let server = w.event(&cb, E::ConnectRequest).take_id().unwrap();
    w.b.qp(&server);
    server.accept(&ConnParam::default()).unwrap();
    w.event(&ca, E::Established).ack();
    w.event(&cb, E::Established).ack();
    w.exchange(&client, &server);
    message(99);
}
