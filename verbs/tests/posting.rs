//! The checks of a post, and the operations that it accepts.

use std::cell::Cell;
use std::io::IoSlice;

use crate::common::{self, Pair, assert_no_completion, embedded, options};
use verbs::errno;
use verbs::{PostErrorKind, QpCap, QpInitAttr, RecvWr, SendWr, Sge, WcOpcode, WcStatus};

const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 4, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 60 };

fn small() -> Pair {
    Pair::with(embedded(), |init| init.cap(CAP))
}

#[test]
fn s36_a_bad_request_stops_the_list() {
    let p = small();
    let sges = vec![p.mr.sge(0..1).unwrap(); 4];
    p.b.post_recv(&[RecvWr::new(1, &[p.mr.sge(100..200).unwrap()]), RecvWr::new(2, &[])]).unwrap();
    let e =
        p.a.post_send(&[
            SendWr::send(10, &sges[..1]).signaled(),
            SendWr::send(11, &[]).signaled(),
            SendWr::send(12, &sges).signaled(),
            SendWr::send(13, &[]).signaled(),
        ])
        .unwrap_err();
    assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 2));
    assert_eq!(e.kind, PostErrorKind::TooManySge { given: 4, max: 3 });
    let ids: Vec<_> = p.done_a(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, [(10, WcStatus::Success), (11, WcStatus::Success)]);
    assert_no_completion(&p.context, &p.cq_a);

    let e = p.b.post_recv(&[RecvWr::new(3, &[]), RecvWr::new(4, &sges[..3])]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 1));
}

#[test]
fn s37_full_queues() {
    let p = small();
    let (sends, recvs) = (p.a.cap().max_send_wr as usize, p.a.cap().max_recv_wr as usize);
    let send = SendWr::send(1, &[]).signaled();
    let e = p.a.post_send(&vec![send; sends + 1]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr), (errno::ENOMEM, sends), "{e}");
    assert_eq!(p.a.post_send(&[send]).unwrap_err().errno(), errno::ENOMEM);
    let recv = RecvWr::new(2, &[]);
    let e = p.b.post_recv(&vec![recv; recvs + 1]).unwrap_err();
    assert_eq!((e.errno(), e.bad_wr), (errno::ENOMEM, recvs), "{e}");
    assert_eq!(p.b.post_recv(&[recv]).unwrap_err().errno(), errno::ENOMEM);
    // Completed receives make room again.
    p.done_b(recvs);
    for _ in recvs..sends {
        p.b.post_recv(&[recv]).unwrap();
        p.done_b(1);
    }
    p.done_a(sends);
    p.a.post_send(&vec![send; sends]).unwrap();
}

#[test]
fn q46_atomics_are_8_aligned_bytes() {
    let p = small();
    let at = p.mr.addr() + 64;
    for (len, addr, ok) in
        [(8, at, true), (4, at, false), (16, at, false), (0, at, false), (8, at + 4, false)]
    {
        let sge = [p.mr.sge(0..len).unwrap()];
        for wr in [
            SendWr::fetch_and_add(1, &sge, addr, p.mr.rkey(), 5).signaled(),
            SendWr::cmp_and_swp(1, &sge, addr, p.mr.rkey(), 5, 6).signaled(),
        ] {
            let result = p.a.post_send(&[wr]);
            assert_eq!(result.is_ok(), ok, "{len} bytes at {addr:#x}: {result:?}");
            if let Err(e) = result {
                assert_eq!((e.errno(), e.bad_wr), (errno::EINVAL, 0));
            }
        }
    }
    let done = p.done_a(2);
    assert_eq!((done[0].opcode, done[1].opcode), (WcOpcode::FetchAdd, WcOpcode::CompSwap));
    assert!(done.iter().all(|wc| wc.is_ok()), "{done:?}");
    assert_eq!(p.mr.read_u64(64).unwrap(), 6, "0 + 5, compared with 5, swapped for 6");
    assert_eq!(p.mr.read_u64(0).unwrap(), 5, "what the second one found");
}

#[test]
fn q48_inline_data() {
    let p = small();
    let data = [0xabu8; 61];
    let at = p.mr.addr();
    p.b.post_recv(&[RecvWr::new(1, &[p.mr.sge(0..64).unwrap()])]).unwrap();
    p.a.post_send(&[SendWr::send(1, &[]).inline(&data[..60]).signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(p.done_b(1)[0].byte_len, 60);
    assert_eq!(p.mr.to_vec(0..61).unwrap(), [&data[..60], &[0]].concat());

    let e = p.a.post_send(&[SendWr::send(1, &[]).inline(&data)]).unwrap_err();
    assert_eq!((e.errno(), e.kind), (errno::EINVAL, PostErrorKind::InlineTooLong { given: 61, max: 60 }));
    for wr in [
        SendWr::read(1, &[], at, p.mr.rkey()),
        SendWr::fetch_and_add(1, &[], at, p.mr.rkey(), 1),
        SendWr::cmp_and_swp(1, &[], at, p.mr.rkey(), 1, 1),
    ] {
        let e = p.a.post_send(&[wr.inline(&data[..8])]).unwrap_err();
        assert_eq!((e.errno(), e.kind), (errno::EINVAL, PostErrorKind::InlineNotAllowed(wr.opcode())));
    }
    p.a.post_send(&[SendWr::write(2, &[], at + 100, p.mr.rkey()).inline(b"inline").signaled()]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(p.mr.to_vec(100..106).unwrap(), b"inline");
}

#[test]
fn q51_numbers_of_elements() {
    let p = small();
    p.mr.write(0, b"abc").unwrap();
    let three: Vec<Sge> = (0..3).map(|i| p.mr.sge(i..i + 1).unwrap()).collect();
    let into = [p.mr.sge(16..17).unwrap(), p.mr.sge(32..64).unwrap()];
    p.b.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &into)]).unwrap();
    p.a.post_send(&[SendWr::send(1, &[]).signaled(), SendWr::send(2, &three).signaled()]).unwrap();
    assert!(p.done_a(2).iter().all(|wc| wc.is_ok()));
    let done = p.done_b(2);
    assert_eq!((done[0].byte_len, done[1].byte_len), (0, 3));
    assert_eq!((p.mr.to_vec(16..17).unwrap(), p.mr.to_vec(32..34).unwrap()), (b"a".into(), b"bc".into()));
    let four = [three.as_slice(), &three[..1]].concat();
    let e = p.a.post_send(&[SendWr::send(3, &four)]).unwrap_err();
    assert_eq!((e.errno(), e.kind), (errno::EINVAL, PostErrorKind::TooManySge { given: 4, max: 3 }));
}

#[test]
fn messages_have_a_longest_length() {
    let p = small();
    // The memory is never accessed: the post refuses the length.
    let half = Sge { addr: p.mr.addr(), length: 1 << 31, lkey: p.mr.lkey() };
    let one = p.mr.sge(0..1).unwrap();
    let e = p.a.post_send(&[SendWr::send(1, &[half, one])]).unwrap_err();
    assert_eq!((e.errno(), e.kind), (errno::EINVAL, PostErrorKind::TooLong((1 << 31) + 1)));
}

#[test]
fn q61_operations_of_other_types() {
    let context = embedded();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(1).unwrap());
    let mr = pd.reg_mr(64, common::all_rights()).unwrap();
    let (sge, at, key) = ([mr.sge(0..8).unwrap()], mr.addr(), mr.rkey());

    let uc = pd.create_qp(&QpInitAttr::uc(&cq, &cq)).unwrap();
    uc.connect_uc(&uc.endpoint(1).unwrap(), &options()).unwrap();
    let ud = pd.create_qp(&QpInitAttr::ud(&cq, &cq)).unwrap();
    ud.activate_ud(1).unwrap();

    for (qp, wr) in [
        (&uc, SendWr::send_with_inv(1, &sge, 5)),
        (&uc, SendWr::read(1, &sge, at, key)),
        (&uc, SendWr::fetch_and_add(1, &sge, at, key, 1)),
        (&uc, SendWr::cmp_and_swp(1, &sge, at, key, 1, 2)),
        (&ud, SendWr::write(1, &sge, at, key)),
        (&ud, SendWr::write_with_imm(1, &sge, at, key, 1)),
        (&ud, SendWr::read(1, &sge, at, key)),
    ] {
        let e = qp.post_send(&[wr]).unwrap_err();
        let kind = PostErrorKind::Opcode { opcode: wr.opcode(), qp_type: qp.qp_type() };
        assert_eq!((e.errno(), e.kind), (errno::EINVAL, kind));
    }
}

#[test]
fn sig_all_signals_everything() {
    let p = Pair::with(embedded(), |init| init.sig_all());
    p.a.post_send(&[SendWr::write(1, &[], 0, 0), SendWr::write(2, &[], 0, 0).signaled()]).unwrap();
    let ids: Vec<_> = p.done_a(2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2]);
    let p = Pair::new(embedded());
    p.a.post_send(&[SendWr::write(1, &[], 0, 0), SendWr::write(2, &[], 0, 0).signaled()]).unwrap();
    assert_eq!(p.done_a(1)[0].wr_id, 2);
    assert_no_completion(&p.context, &p.cq_a);
}

// Every operation once, on a queue pair that is connected to itself.
#[test]
fn every_operation_arrives() {
    let context = embedded();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
    qp.connect_rc(&qp.endpoint(1).unwrap(), &options()).unwrap();
    let mr = pd.reg_mr(1 << 20, common::all_rights()).unwrap();
    let window = pd.alloc_mr(64).unwrap();
    qp.post_send(&[SendWr::reg_mr(0, &window, 0..64, common::all_rights()).unwrap()]).unwrap();
    let (big, at, key) = (300_000, mr.addr() + (512 << 10), mr.rkey());
    for i in 0..big {
        mr.write(i, &[(i % 251) as u8]).unwrap();
    }
    let sge = [mr.sge(0..big).unwrap()];
    let back = [mr.sge(512 << 10..(512 << 10) + big).unwrap()];
    let same = || {
        assert_eq!(mr.to_vec(0..big).unwrap(), mr.to_vec(512 << 10..(512 << 10) + big).unwrap());
        mr.fill(512 << 10..(512 << 10) + big, 0).unwrap();
    };

    qp.post_recv(&[RecvWr::new(1, &back)]).unwrap();
    qp.post_send(&[SendWr::send(2, &sge).signaled()]).unwrap();
    assert!(common::take(&context, &cq, 2).iter().all(|wc| wc.is_ok()));
    same();
    qp.post_send(&[SendWr::write(3, &sge, at, key).signaled()]).unwrap();
    assert!(common::take(&context, &cq, 1)[0].is_ok());
    same();
    qp.post_send(&[SendWr::read(4, &back, mr.addr(), key).signaled().fenced()]).unwrap();
    let wc = common::take(&context, &cq, 1)[0];
    assert_eq!((wc.opcode, wc.byte_len as usize, wc.status), (WcOpcode::RdmaRead, big, WcStatus::Success));
    same();
    qp.post_recv(&[RecvWr::new(5, &[]), RecvWr::new(6, &[])]).unwrap();
    qp.post_send(&[
        SendWr::write_with_imm(7, &sge, at, key, 0xdead_beef).solicited(),
        SendWr::send_with_inv(8, &[], window.rkey()),
    ])
    .unwrap();
    let done = common::take(&context, &cq, 2);
    assert_eq!((done[0].opcode, done[0].imm_data()), (WcOpcode::RecvRdmaWithImm, Some(0xdead_beef)));
    assert_eq!(done[0].byte_len as usize, big);
    assert_eq!((done[1].opcode, done[1].invalidated_rkey()), (WcOpcode::Recv, Some(window.rkey())));
    same();
    // The key is invalidated; the region can be deregistered nevertheless.
    qp.post_send(&[SendWr::write(9, &sge, window.addr(), window.rkey())]).unwrap();
    // The queue pair is its own peer: it has failed as responder before the NAK reaches it as requester.
    assert_eq!(common::take(&context, &cq, 1)[0].status, WcStatus::WrFlushErr);
    window.dereg().unwrap();
}

// Any iterator over requests is a list, owned or borrowed; the iterator is not polled beyond the first refused request.
#[test]
fn any_iterator_is_a_list() {
    let p = small();
    let asked = Cell::new(0);
    let sges = [p.mr.sge(0..1).unwrap(); 4];
    let lengths = [1, 0, 4, 2];
    let list = lengths.iter().enumerate().map(|(i, n)| {
        asked.set(asked.get() + 1);
        SendWr::write(i as u64, &sges[..*n], p.mr.addr(), p.mr.rkey()).signaled()
    });
    let e = p.a.post_send(list).unwrap_err();
    assert_eq!((e.bad_wr, e.kind), (2, PostErrorKind::TooManySge { given: 4, max: 3 }));
    assert_eq!(asked.get(), 3);
    let ids: Vec<_> = p.done_a(2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    assert_no_completion(&p.context, &p.cq_a);

    let recvs = || (0..100).map(|i| RecvWr::new(i, &sges[..1]));
    let e = p.b.post_recv(recvs()).unwrap_err();
    assert_eq!((e.bad_wr, e.errno()), (4, errno::ENOMEM));
    let all = vec![SendWr::send(5, &sges[..1]).signaled(); 4];
    p.a.post_send(&all[..1]).unwrap();
    p.a.post_send(all.iter().skip(2)).unwrap();
    p.a.post_send(all.into_iter().take(1)).unwrap();
    let ids: Vec<_> = p.done_b(4).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    p.done_a(4);

    let (mut sq, mut rq) = p.a.split().unwrap();
    sq.post_send((0..2).map(|i| SendWr::write(i, &[], p.mr.addr(), p.mr.rkey()).signaled())).unwrap();
    assert_eq!(rq.post_recv(recvs()).unwrap_err().bad_wr, 4);
    p.done_a(2);
}

#[test]
fn a_list_that_panics_has_posted_nothing() {
    let p = small();
    let list = (0..3).map(|i| {
        assert!(i < 2, "the third of them");
        SendWr::write(i, &[], p.mr.addr(), p.mr.rkey()).signaled()
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| p.a.post_send(list)));
    assert!(panicked.is_err());
    assert_no_completion(&p.context, &p.cq_a);
    p.a.post_send([SendWr::write(7, &[], p.mr.addr(), p.mr.rkey()).signaled(); 8]).unwrap();
    assert!(p.done_a(8).iter().all(|wc| wc.wr_id == 7));
}

#[test]
fn inline_data_in_pieces() {
    let p = small();
    let write = |pieces: &[&[u8]]| {
        let pieces: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let wr = SendWr::write(1, &[], p.mr.addr() + 100, p.mr.rkey()).inline_list(&pieces).signaled();
        p.a.post_send([wr])
    };
    write(&[b"head ", b"", b"and body"]).unwrap();
    p.done_a(1);
    assert_eq!(p.mr.to_vec(100..114).unwrap(), b"head and body\0");
    write(&[&[7; 30], &[8; 30]]).unwrap();
    p.done_a(1);
    assert_eq!(p.mr.to_vec(128..133).unwrap(), [7, 7, 8, 8, 8]);
    let e = write(&[&[7; 30], &[8; 31]]).unwrap_err();
    assert_eq!((e.kind, e.errno()), (PostErrorKind::InlineTooLong { given: 61, max: 60 }, errno::EINVAL));
    write(&[]).unwrap();
    assert!(p.done_a(1)[0].is_ok());
}
