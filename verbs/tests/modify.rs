//! Modify QP through the public API: every transition of every type, every attribute, every out-of-range value.

use crate::common::{self, PATIENCE, embedded, options, pump};
use std::time::Instant;
use verbs::{
    Access, AhAttr, AttrMask, Context, Cq, Gid, GlobalRoute, Mtu, Pd, Qp, QpAttr, QpInitAttr, QpState,
    QpType, RecvWr, SendWr, VerbsError, Wc, WcStatus, errno, state_name, type_name,
};

/// The legal transitions with their required and optional attributes, in the short names of the kernel's table.
const TRANSITIONS: &str = include_str!("../../stack/src/proto/state/transitions.txt");

fn bit(short: &str) -> AttrMask {
    match short {
        "CUR" => AttrMask::CUR_STATE,
        "NTF" => AttrMask::EN_SQD_ASYNC_NOTIFY,
        "ACC" => AttrMask::ACCESS_FLAGS,
        "PKI" => AttrMask::PKEY_INDEX,
        "PORT" => AttrMask::PORT,
        "QKEY" => AttrMask::QKEY,
        "AV" => AttrMask::AV,
        "MTU" => AttrMask::PATH_MTU,
        "TMO" => AttrMask::TIMEOUT,
        "RTY" => AttrMask::RETRY_CNT,
        "RNR" => AttrMask::RNR_RETRY,
        "RQP" => AttrMask::RQ_PSN,
        "MRD" => AttrMask::MAX_QP_RD_ATOMIC,
        "ALT" => AttrMask::ALT_PATH,
        "MNR" => AttrMask::MIN_RNR_TIMER,
        "SQP" => AttrMask::SQ_PSN,
        "MDR" => AttrMask::MAX_DEST_RD_ATOMIC,
        "MIG" => AttrMask::PATH_MIG_STATE,
        "DQP" => AttrMask::DEST_QPN,
        _ => panic!("no attribute {short}"),
    }
}

/// Required and optional attributes of a transition; `None` if it is illegal.
fn rule(from: QpState, to: QpState, ty: QpType) -> Option<(AttrMask, AttrMask)> {
    if matches!(to, QpState::Reset | QpState::Err) {
        return Some((AttrMask::empty(), AttrMask::empty()));
    }
    let bits = |list: &str| list.split_whitespace().map(bit).fold(AttrMask::empty(), AttrMask::union);
    TRANSITIONS.lines().find_map(|line| {
        let [head, required, optional] = line.split(':').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let [f, t, types] = head.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        let mine =
            f == state_name(from) && t == state_name(to) && types.split(',').any(|x| x == type_name(ty));
        mine.then(|| (bits(required), bits(optional)))
    })
}

/// Every attribute that RoCE allows for a transition.
fn full(from: QpState, to: QpState, ty: QpType) -> AttrMask {
    let (required, optional) = rule(from, to, ty).unwrap_or((AttrMask::empty(), AttrMask::empty()));
    (required | optional).difference(AttrMask::ALT_PATH) | AttrMask::STATE
}

/// Valid values for every attribute.
fn good(gid: Gid, from: QpState, to: QpState) -> QpAttr {
    let grh = GlobalRoute { dgid: gid, sgid_index: 1, hop_limit: 64, ..GlobalRoute::default() };
    QpAttr {
        qp_state: to,
        cur_qp_state: from,
        path_mtu: 3,
        ah_attr: AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() },
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 12,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        dest_qp_num: 0x1234,
        qkey: 0x1234,
        qp_access_flags: Access::REMOTE_WRITE.bits(),
        ..QpAttr::default()
    }
}

/// A device on which queue pairs of each type are brought into each state.
struct Bench {
    cq: Cq,
    pd: Pd,
    gid: Gid,
    context: Context,
}

impl Bench {
    fn new() -> Self {
        let context = embedded();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        Self { cq, pd, gid: context.query_gid(1, 1).unwrap(), context }
    }

    fn qp(&self, ty: QpType) -> Qp {
        self.pd.create_qp(&QpInitAttr::new(ty, &self.cq, &self.cq)).unwrap()
    }

    fn step(&self, qp: &Qp, to: QpState) {
        let from = qp.state().unwrap();
        let ty = qp.qp_type();
        let (required, _) = rule(from, to, ty).unwrap_or_else(|| panic!("{from:?} -> {to:?} {ty:?}"));
        qp.modify(&good(self.gid, from, to), required | AttrMask::STATE).unwrap();
    }

    /// A new queue pair of this type in this state.
    fn at(&self, ty: QpType, state: QpState) -> Qp {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let qp = self.qp(ty);
        let way: &[QpState] = match state {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts | Sqe => &[Init, Rtr, Rts],
            Sqd => &[Init, Rtr, Rts, Sqd],
            Err => &[Err],
        };
        for to in way {
            self.step(&qp, *to);
        }
        assert_ne!(state, Sqe, "no call enters SQE");
        assert_eq!(qp.state().unwrap(), state);
        qp
    }

    /// Makes a call that must be refused, and checks that nothing has changed.
    fn refused(&self, qp: &Qp, attr: &QpAttr, mask: AttrMask) -> VerbsError {
        let before = qp.query().unwrap().0;
        let error = qp.modify(attr, mask).unwrap_err();
        assert_eq!(qp.query().unwrap().0, before, "{error}");
        error
    }

    /// Makes a call that is valid except for one value, on an RC queue pair; returns the error.
    fn wrong(&self, from: QpState, to: QpState, change: impl FnOnce(&mut QpAttr)) -> VerbsError {
        let qp = self.at(QpType::Rc, from);
        let mut attr = good(self.gid, from, to);
        change(&mut attr);
        self.refused(&qp, &attr, full(from, to, QpType::Rc))
    }
}

const ENTERED: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

fn every_pair(bench: &Bench, ty: QpType) {
    for (from, to) in ENTERED.into_iter().flat_map(|from| QpState::ALL.map(|to| (from, to))) {
        let qp = bench.at(ty, from);
        let (attr, mask) = (good(bench.gid, from, to), full(from, to, ty));
        if rule(from, to, ty).is_some() {
            qp.modify(&attr, mask).unwrap_or_else(|e| panic!("{from:?} -> {to:?} {ty:?}: {e}"));
            assert_eq!(qp.state().unwrap(), to);
        } else {
            let error = bench.refused(&qp, &attr, mask);
            assert_eq!(error.errno(), errno::EINVAL, "{from:?} -> {to:?} {ty:?}: {error}");
        }
    }
}

#[test]
fn s01_every_pair_of_states_rc() {
    every_pair(&Bench::new(), QpType::Rc);
}

#[test]
fn s02_every_pair_of_states_of_the_other_types() {
    let bench = Bench::new();
    for ty in [QpType::Uc, QpType::Ud, QpType::Gsi] {
        every_pair(&bench, ty);
    }
}

#[test]
fn s03_a_required_attribute_is_missing() {
    let bench = Bench::new();
    use QpState::{Init, Reset, Rtr, Rts};
    for (from, to, count) in [(Reset, Init, 3), (Init, Rtr, 6), (Rtr, Rts, 5)] {
        let (required, _) = rule(from, to, QpType::Rc).unwrap();
        assert_eq!(required.iter().count(), count);
        let qp = bench.at(QpType::Rc, from);
        for missing in required.iter() {
            let mask = full(from, to, QpType::Rc).difference(missing);
            let error = bench.refused(&qp, &good(bench.gid, from, to), mask);
            assert_eq!(error.errno(), errno::EINVAL);
            assert!(error.to_string().contains(&missing.to_string()), "{missing}: {error}");
        }
    }
}

#[test]
fn s04_a_foreign_attribute_is_added() {
    let bench = Bench::new();
    for (from, to) in ENTERED.into_iter().flat_map(|from| QpState::ALL.map(|to| (from, to))) {
        let Some((required, optional)) = rule(from, to, QpType::Rc) else { continue };
        let qp = bench.at(QpType::Rc, from);
        let legal = required | optional | AttrMask::STATE | AttrMask::CAP | AttrMask::ALT_PATH;
        for foreign in AttrMask::all().difference(legal).iter() {
            let mask = full(from, to, QpType::Rc) | foreign;
            let error = bench.refused(&qp, &good(bench.gid, from, to), mask);
            assert_eq!(error.errno(), errno::EINVAL);
            assert!(error.to_string().contains(&foreign.to_string()), "{foreign}: {error}");
        }
    }
}

#[test]
fn s05_reset_and_err_take_no_attributes() {
    let bench = Bench::new();
    for from in ENTERED {
        let qp = bench.at(QpType::Rc, from);
        for to in [QpState::Reset, QpState::Err] {
            for extra in AttrMask::all().difference(AttrMask::STATE).iter() {
                let error = bench.refused(&qp, &good(bench.gid, from, to), AttrMask::STATE | extra);
                assert_eq!(error.errno(), errno::EINVAL, "{from:?} -> {to:?} with {extra}");
            }
        }
    }
}

#[test]
fn s06_reset_to_err() {
    let bench = Bench::new();
    for ty in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
        bench.step(&bench.at(ty, QpState::Reset), QpState::Err);
    }
}

#[test]
fn s07_s08_cur_state_must_be_the_state() {
    let bench = Bench::new();
    let qp = bench.at(QpType::Rc, QpState::Rts);
    for state in QpState::ALL.into_iter().filter(|s| *s != QpState::Rts) {
        let mut attr = good(bench.gid, QpState::Rts, QpState::Rts);
        attr.cur_qp_state = state;
        let error = bench.refused(&qp, &attr, AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS);
        assert_eq!(error.errno(), errno::EINVAL, "{state:?}");
    }
    qp.modify(&good(bench.gid, QpState::Rts, QpState::Rts), AttrMask::CUR_STATE).unwrap();
}

#[test]
fn s09_queues_are_not_resized() {
    let bench = Bench::new();
    for from in ENTERED {
        for to in QpState::ALL.into_iter().filter(|to| rule(from, *to, QpType::Rc).is_some()) {
            let qp = bench.at(QpType::Rc, from);
            let mask = full(from, to, QpType::Rc) | AttrMask::CAP;
            let error = bench.refused(&qp, &good(bench.gid, from, to), mask);
            assert_eq!(error.errno(), errno::EINVAL, "{from:?} -> {to:?}");
        }
    }
}

#[test]
fn s11_psns_are_cut_to_24_bits() {
    let bench = Bench::new();
    let qp = bench.at(QpType::Rc, QpState::Init);
    let mut attr = good(bench.gid, QpState::Init, QpState::Rtr);
    attr.rq_psn = 0x1ff_ffff;
    qp.modify(&attr, full(QpState::Init, QpState::Rtr, QpType::Rc)).unwrap();
    let mut attr = good(bench.gid, QpState::Rtr, QpState::Rts);
    attr.sq_psn = 0x3ff_fffe;
    qp.modify(&attr, full(QpState::Rtr, QpState::Rts, QpType::Rc)).unwrap();
    let now = qp.query().unwrap().0;
    assert_eq!((now.rq_psn, now.sq_psn), (0xff_ffff, 0xff_fffe));
}

#[test]
fn s12_path_mtu_out_of_range() {
    let bench = Bench::new();
    for mtu in [0, 6, 255] {
        let error = bench.wrong(QpState::Init, QpState::Rtr, |a| a.path_mtu = mtu);
        assert_eq!(error.errno(), errno::EINVAL, "{mtu}");
    }
    let small =
        Context::open(verbs::DeviceConfig::loopback().mtu(1500).drive(verbs::Drive::Embedded)).unwrap();
    assert_eq!(small.query_port(1).unwrap().active_mtu, Mtu::Mtu1024);
    let (pd, cq) = (small.alloc_pd().unwrap(), small.create_cq(1).unwrap());
    let bench = Bench { gid: small.query_gid(1, 1).unwrap(), pd, cq, context: small };
    for (mtu, fits) in [(1, true), (2, true), (3, true), (4, false), (5, false)] {
        let qp = bench.at(QpType::Rc, QpState::Init);
        let mut attr = good(bench.gid, QpState::Init, QpState::Rtr);
        attr.path_mtu = mtu;
        let mask = full(QpState::Init, QpState::Rtr, QpType::Rc);
        if fits {
            qp.modify(&attr, mask).unwrap();
        } else {
            assert_eq!(bench.refused(&qp, &attr, mask).errno(), errno::EINVAL);
        }
    }
}

#[test]
fn s13_counts_and_timers_out_of_range() {
    let bench = Bench::new();
    let changes: [fn(&mut QpAttr); 4] =
        [|a| a.timeout = 32, |a| a.retry_cnt = 8, |a| a.rnr_retry = 8, |a| a.min_rnr_timer = 32];
    for change in changes {
        assert_eq!(bench.wrong(QpState::Rtr, QpState::Rts, change).errno(), errno::EINVAL);
    }
    let error = bench.wrong(QpState::Init, QpState::Rtr, |a| a.min_rnr_timer = 32);
    assert_eq!(error.errno(), errno::EINVAL);
}

#[test]
fn s14_address_vectors_that_lead_nowhere() {
    let bench = Bench::new();
    let changes: [fn(&mut QpAttr); 6] = [
        |a| a.ah_attr.grh = None,
        |a| a.ah_attr.grh.as_mut().unwrap().sgid_index = 99,
        |a| a.ah_attr.grh.as_mut().unwrap().dgid = Gid::v4([224, 0, 0, 1]),
        |a| a.ah_attr.grh.as_mut().unwrap().flow_label = 1 << 20,
        |a| a.ah_attr.sl = 8,
        |a| a.ah_attr.port_num = 2,
    ];
    for change in changes {
        assert_eq!(bench.wrong(QpState::Init, QpState::Rtr, change).errno(), errno::EINVAL);
    }
}

#[test]
fn s15_no_alternate_path_on_roce() {
    let bench = Bench::new();
    for (from, to) in
        [(QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts), (QpState::Rts, QpState::Rts)]
    {
        let qp = bench.at(QpType::Rc, from);
        let mask = full(from, to, QpType::Rc) | AttrMask::ALT_PATH;
        assert_eq!(bench.refused(&qp, &good(bench.gid, from, to), mask).errno(), errno::EINVAL);
    }
}

#[test]
fn s16_privileged_qkey_is_not_permitted() {
    let bench = Bench::new();
    let qp = bench.at(QpType::Ud, QpState::Reset);
    let mut attr = good(bench.gid, QpState::Reset, QpState::Init);
    attr.qkey = 0x8000_0001;
    let mask = full(QpState::Reset, QpState::Init, QpType::Ud);
    assert_eq!(bench.refused(&qp, &attr, mask).errno(), errno::EPERM);
    attr.qkey = 0x7fff_ffff;
    qp.modify(&attr, mask).unwrap();
}

#[test]
fn s17_more_reads_than_the_device_has() {
    let bench = Bench::new();
    let limits = bench.context.query_device();
    let above = limits.max_qp_init_rd_atom + 1;
    let error = bench.wrong(QpState::Rtr, QpState::Rts, |a| a.max_rd_atomic = above);
    assert_eq!(error.errno(), errno::EINVAL);
    let above = limits.max_qp_rd_atom + 1;
    let error = bench.wrong(QpState::Init, QpState::Rtr, |a| a.max_dest_rd_atomic = above);
    assert_eq!(error.errno(), errno::EINVAL);
}

#[test]
fn unknown_mask_bits_are_not_supported() {
    let bench = Bench::new();
    let qp = bench.at(QpType::Rc, QpState::Reset);
    for b in (21..32).filter(|b| *b != 25) {
        let mask = full(QpState::Reset, QpState::Init, QpType::Rc) | AttrMask::from_bits_retain(1 << b);
        let error = bench.refused(&qp, &good(bench.gid, QpState::Reset, QpState::Init), mask);
        assert_eq!(error.errno(), errno::EOPNOTSUPP, "bit {b}");
    }
}

/// Polls until `n` completions have arrived.
fn done(bench: &Bench, n: usize) -> Vec<Wc> {
    common::take(&bench.context, &bench.cq, n)
}

#[test]
fn s21_err_flushes_both_queues_in_order() {
    let bench = Bench::new();
    let qp = bench.at(QpType::Rc, QpState::Rts); // its peer does not exist
    for id in 0..5 {
        let signaled = SendWr::send(id, &[]);
        qp.post_send(&[if id % 2 == 0 { signaled.signaled() } else { signaled }]).unwrap();
        qp.post_recv(&[RecvWr::new(100 + id, &[])]).unwrap();
    }
    pump(&bench.context);
    bench.step(&qp, QpState::Err);
    let done = done(&bench, 10);
    assert!(done.iter().all(|wc| wc.status == WcStatus::WrFlushErr), "{done:?}");
    let ids = |recv: bool| -> Vec<u64> {
        done.iter().map(|wc| wc.wr_id).filter(|id| (*id >= 100) == recv).collect()
    };
    assert_eq!((ids(false), ids(true)), (vec![0, 1, 2, 3, 4], vec![100, 101, 102, 103, 104]));
    common::assert_no_completion(&bench.context, &bench.cq);
}

#[test]
fn s23_s25_requests_to_a_queue_pair_that_takes_none() {
    for state in [QpState::Init, QpState::Err] {
        let bench = Bench::new();
        let deaf = bench.at(QpType::Rc, state);
        let requester = bench.qp(QpType::Rc);
        let quick = options().timeout(1).retry_cnt(1);
        requester.connect_rc(&deaf.endpoint(1).unwrap(), &quick).unwrap();
        let before = bench.context.counters();
        requester.post_send(&[SendWr::send(1, &[])]).unwrap();
        let start = Instant::now();
        assert_eq!(done(&bench, 1)[0].status, WcStatus::RetryExcErr, "{state:?}");
        assert!(start.elapsed() < PATIENCE);
        assert_eq!((requester.state().unwrap(), deaf.state().unwrap()), (QpState::Err, state));
        let dropped = bench.context.counters().discarded(verbs::Discard::BadState)
            - before.discarded(verbs::Discard::BadState);
        assert_eq!(dropped, 2, "the request and its retry");
    }
}
