//! Port spaces and queue pair types: which connections an identifier of each can make, and which are refused.

use std::net::SocketAddr;

use crate::cm::{Host, World, addrs, any, inner};
use verbs::errno::{EINVAL, ENODEV};
use verbs::rdma_cm::{CmEventType as E, CmId, ConnParam, EventChannel, PortSpace, UDP_QKEY};
use verbs::{Access, GRH_LEN, QpInitAttr, QpState, QpType, Qpn, RecvWr, SendWr, VerbsError, WcOpcode};

const PORT: u16 = 4000;

fn of_type(h: &Host, c: &EventChannel, qp_type: QpType) -> CmId {
    h.context.create_id_of_type(Some(c), PortSpace::Ib, qp_type).unwrap()
}

fn connected(h: &Host, qp_type: QpType) -> QpInitAttr<'_> {
    QpInitAttr { qp_type, ..QpInitAttr::rc(&h.cq, &h.cq) }
}

fn listener(w: &World, c: &EventChannel, qp_type: QpType, port: u16) -> CmId {
    let id = of_type(&w.b, c, qp_type);
    id.bind_addr(any(port)).unwrap();
    id.listen(0).unwrap();
    id
}

fn to(port: u16) -> SocketAddr {
    SocketAddr::new(addrs(false)[1], port)
}

#[track_caller]
fn refused<T>(result: Result<T, VerbsError>, errno: i32, variant: &str, says: &str) {
    let e = result.err().expect("it should be refused");
    assert_eq!((e.errno(), inner(&e).as_str()), (errno, variant), "{e}");
    assert!(e.to_string().contains(says), "{e}");
}

// RC and UC over the port space of InfiniBand: messages and WRITEs both ways, and the disconnection.
#[test]
fn identifiers_of_ps_ib_connect_rc_and_uc_queue_pairs() {
    for (qp_type, port) in [(QpType::Rc, PORT), (QpType::Uc, PORT + 1)] {
        let w = World::new();
        let (ca, cb) = (w.a.channel(), w.b.channel());
        let listening = listener(&w, &cb, qp_type, port);
        assert_eq!((listening.port_space(), listening.qp_type()), (PortSpace::Ib, qp_type));
        let client = of_type(&w.a, &ca, qp_type);
        w.resolve(&client, &ca, to(port));
        let qa = client.create_qp(&w.a.pd, &connected(&w.a, qp_type)).unwrap();
        assert_eq!((qa.qp_type(), qa.state().unwrap()), (qp_type, QpState::Init));
        client.connect(&ConnParam::with_data(&[7; 56])).unwrap();
        let mut request = w.event(&cb, E::ConnectRequest);
        assert_eq!(request.private_data(), [7; 56]);
        let reads = u8::from(qp_type == QpType::Rc);
        assert_eq!(request.peer().unwrap().responder_resources.min(1), reads, "UC has no READ");
        let server = request.take_id().unwrap();
        drop(request);
        assert_eq!((server.port_space(), server.qp_type()), (PortSpace::Ib, qp_type));
        server.create_qp(&w.b.pd, &connected(&w.b, qp_type)).unwrap();
        server.accept(&ConnParam::default()).unwrap();
        assert!(w.event(&ca, E::Established).is_of(&client));
        assert!(w.event(&cb, E::Established).is_of(&server));
        w.exchange(&client, &server);
        if qp_type == QpType::Uc {
            // The peer may WRITE: with immediate data, so that the target gets a completion.
            let there = w.b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
            let qb = server.qp().unwrap();
            qb.post_recv(&[RecvWr::new(9, &[])]).unwrap();
            w.a.mr.write(0, b"written").unwrap();
            let sge = [w.a.mr.sge(0..7).unwrap()];
            qa.post_send(&[SendWr::write_with_imm(8, &sge, there.addr(), there.rkey(), 5)]).unwrap();
            let wc = w.take(&w.b.cq, 1)[0];
            assert_eq!((wc.opcode, wc.imm_data()), (WcOpcode::RecvRdmaWithImm, Some(5)));
            let mut bytes = [0; 7];
            there.read(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"written");
        }
        client.disconnect().unwrap();
        assert!(w.event(&cb, E::Disconnected).is_of(&server));
        assert!(w.event(&ca, E::Disconnected).is_of(&client));
        assert_eq!(qa.state().unwrap(), QpState::Err);
    }
}

#[test]
fn identifiers_of_ps_ib_find_datagram_services() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _listening = listener(&w, &cb, QpType::Ud, PORT);
    let client = of_type(&w.a, &ca, QpType::Ud);
    w.resolve(&client, &ca, to(PORT));
    let qa = client.create_qp(&w.a.pd, &QpInitAttr::ud(&w.a.cq, &w.a.cq)).unwrap();
    let server = w.request(&client, &cb, &ConnParam::with_data(&[5; 180]));
    let qb = server.create_qp(&w.b.pd, &QpInitAttr::ud(&w.b.cq, &w.b.cq)).unwrap();
    qb.post_recv(&[RecvWr::new(1, &[w.b.mr.sge(0..256).unwrap()])]).unwrap();
    server.accept(&ConnParam::with_data(&[6; 136])).unwrap();
    let there = w.event(&ca, E::Established);
    let ud = *there.ud().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (qb.qp_num().get(), UDP_QKEY));
    let ah = w.a.pd.create_ah(&ud.ah_attr).unwrap();
    let wr = SendWr::send(2, &[]).inline(b"datagram").to(&ah, Qpn::new(ud.qp_num), ud.qkey);
    qa.post_send(&[wr]).unwrap();
    assert_eq!(w.take(&w.b.cq, 1)[0].byte_len as usize, GRH_LEN + 8);
    assert!(client.disconnect().is_err(), "datagrams have no connection");
}

// A service of one type refuses requests for another type: with reason 9, or status 1 for a datagram service.
#[test]
fn services_refuse_requests_of_another_type() {
    let w = World::new();
    let (ca, cb) = (w.a.channel(), w.b.channel());
    let _uc = listener(&w, &cb, QpType::Uc, PORT);
    let rc = of_type(&w.a, &ca, QpType::Rc);
    w.resolve(&rc, &ca, to(PORT));
    w.a.qp(&rc);
    rc.connect(&ConnParam::default()).unwrap();
    assert_eq!(w.event(&ca, E::Rejected).status(), 9);
    let ud = of_type(&w.a, &ca, QpType::Ud);
    w.resolve(&ud, &ca, to(PORT));
    ud.connect(&ConnParam::default()).unwrap();
    assert_eq!(w.event(&ca, E::Unreachable).status(), 1);
    // The same port of another port space is a different service.
    let tcp = w.a.id(&ca);
    w.resolve(&tcp, &ca, to(PORT));
    w.a.qp(&tcp);
    tcp.connect(&ConnParam::default()).unwrap();
    assert_eq!(w.event(&ca, E::Rejected).status(), 8);
    assert!(cb.try_get_event().is_none());
}

#[test]
fn each_port_space_has_its_types() {
    let w = World::new();
    let c = w.a.channel();
    use QpType::{Rc, Uc, Ud, XrcIni};
    for (space, types) in
        [(PortSpace::Tcp, &[Rc][..]), (PortSpace::Udp, &[Ud]), (PortSpace::Ib, &[Rc, Uc, Ud])]
    {
        assert_eq!(w.a.context.create_id(Some(&c), space).unwrap().qp_type(), types[0]);
        for qp_type in [Rc, Uc, Ud, XrcIni] {
            let made = w.a.context.create_id_of_type(Some(&c), space, qp_type);
            match types.contains(&qp_type) {
                true => assert_eq!(made.unwrap().qp_type(), qp_type),
                false => refused(made, EINVAL, "QpType", "queue pairs"),
            }
        }
    }
    refused(w.a.context.create_id(Some(&c), PortSpace::IpoIb), ENODEV, "NoIpoIb", "use Udp");
    refused(w.a.context.create_id_of_type(Some(&c), PortSpace::IpoIb, Ud), ENODEV, "NoIpoIb", "use Udp");
    // A queue pair whose type is not the identifier's.
    let id = of_type(&w.a, &c, Uc);
    refused(id.create_qp(&w.a.pd, &QpInitAttr::rc(&w.a.cq, &w.a.cq)), EINVAL, "Unsuitable", "UC");
    assert!(id.qp().is_none());
    refused(id.set_option(verbs::rdma_cm::CmOption::AckTimeout(14)), EINVAL, "Option", "reliable");
}
