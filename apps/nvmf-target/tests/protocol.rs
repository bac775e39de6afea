//! What is seen on the wire alone: capsules that come early, keys that responses invalidate.

use std::time::Duration;

use nvmf::status::Status;
use nvmf::wire::cm::RequestData;
use nvmf::wire::{Cqe, Sgl, Sqe};
use nvmf_target::host::{Controller, Data, Io, Options};
use verbs::rdma_cm::{CmEventType, ConnParam, EventChannel, IdState, MAX_RESP_RES, PortSpace};
use verbs::{Access, QpInitAttr, QpState, RecvWr, SendWr, Wc};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use crate::common::{BLOCK, SUBSYSTEM, Setup, nqn, with_target};

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

// Goal: N11. A capsule that comes before the last message of the connection is served.
#[test]
fn n11_a_capsule_before_the_connection_is_established_is_served() {
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        let context = &view.context;
        let events = EventChannel::new().unwrap();
        let id = context.create_id(Some(&events), PortSpace::Tcp).unwrap();
        let mut comes = |wanted: CmEventType| {
            let mut event = None;
            view.until(&mut host, "an event", || {
                event = events.try_get_event();
                event.is_some()
            });
            assert_eq!(event.unwrap().event(), wanted);
        };
        let soon = Duration::from_secs(60);
        id.resolve_addr(None, view.at, soon).unwrap();
        comes(CmEventType::AddrResolved);
        id.resolve_route(soon).unwrap();
        comes(CmEventType::RouteResolved);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        let up = |state| {
            let (attr, mask) = id.init_qp_attr(state).unwrap();
            qp.modify(&attr, mask).unwrap();
        };
        up(QpState::Init);
        let mr = pd.reg_mr(4096, RIGHTS).unwrap();
        let sge = [mr.sge(1024..1024 + size_of::<Cqe>()).unwrap()];
        qp.post_recv(&[RecvWr::new(1, &sge)]).unwrap();
        let request = RequestData {
            host_receives: U16::new(32),
            host_sends: U16::new(31),
            ..RequestData::new_zeroed()
        };
        let param = ConnParam {
            responder_resources: MAX_RESP_RES,
            initiator_depth: 0,
            qp_num: qp.qp_num().get(),
            ..ConnParam::with_data(request.as_bytes())
        };
        id.connect(&param).unwrap();
        comes(CmEventType::ConnectResponse);
        up(QpState::Rtr);
        up(QpState::Rts);
        // Any command: it is answered as the first one must be.
        let sqe = Sqe { cid: U16::new(7), ..Io::new(1, 0, 1).read(Sgl::keyed(0, 512, 0, false)) };
        mr.write(0, sqe.as_bytes()).unwrap();
        let capsule = [mr.sge(0..Sqe::LEN).unwrap()];
        qp.post_send(&[SendWr::send(2, &capsule)]).unwrap();
        let mut done = [Wc::default()];
        view.until(&mut host, "the response", || cq.poll(&mut done).unwrap() == 1);
        assert!(done[0].is_ok() && done[0].wr_id == 1, "{:?}", done[0]);
        assert_eq!(id.state(), IdState::Responded, "the last message has not been sent");
        let mut response = Cqe::new_zeroed();
        mr.read(1024, response.as_mut_bytes()).unwrap();
        assert_eq!(
            (response.cid.get(), response.status.get() >> 1 & 0x7FF),
            (7, Status::CommandSequenceError.code())
        );
        id.establish().unwrap();
        id.disconnect().unwrap();
        drop((id, qp));
        view.until_nothing_is_left(&mut host);
    });
}

// Goal: a key that a host asks to invalidate is invalid when it has the response, and only then; others stay.
#[test]
fn responses_invalidate_the_keys_that_hosts_ask_for() {
    with_target(&Setup::default(), |view| {
        let mut host = view.host(1);
        let options = Options { queues: 2, ..Options::default() };
        let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
        for (qid, invalidate) in [(1, false), (2, true)] {
            let mut queue = controller.io_queue(&mut host, qid, 16).unwrap();
            let mr = host.pd().alloc_mr(BLOCK).unwrap();
            queue.post(SendWr::reg_mr(9, &mr, 0..BLOCK, RIGHTS).unwrap()).unwrap();
            let sgl = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), invalidate);
            for sqe in [Io::new(1, 0, 1).write(sgl), Io::new(1, 0, 1).read(sgl)] {
                let again = host.call(&mut queue, &sqe, Data::Elsewhere);
                if sqe.opcode == Io::new(1, 0, 1).write(sgl).opcode || !invalidate {
                    again.unwrap();
                } else {
                    // The response to the first command invalidated the key: the target may not use it any more.
                    assert!(again.is_err(), "the key is still valid");
                }
            }
            // A status that is no success invalidates it too.
            if invalidate {
                drop(queue);
                view.until(&mut host, "the queues go", || view.usage().connections == 1);
                let mut queue = controller.io_queue(&mut host, qid, 16).unwrap();
                let mr = host.pd().alloc_mr(BLOCK).unwrap();
                queue.post(SendWr::reg_mr(9, &mr, 0..BLOCK, RIGHTS).unwrap()).unwrap();
                let sgl = Sgl::keyed(mr.iova(), BLOCK as u32, mr.rkey(), true);
                let refused = host.call(&mut queue, &Io::new(1, u64::MAX, 1).read(sgl), Data::Elsewhere);
                assert_eq!(refused.unwrap_err().code(), Some(Status::LbaOutOfRange.code()));
                assert!(host.call(&mut queue, &Io::new(1, 0, 1).read(sgl), Data::Elsewhere).is_err());
            }
        }
    });
}
