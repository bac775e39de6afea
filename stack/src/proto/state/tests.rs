//! The state tables against a second transcription, exhaustively.

use super::*;
use crate::proto::attr::{AhAttr, GlobalRoute};

type M = AttrMask;

/// The table a second time, as text in the short names of the kernel's table, by required and optional.
const SECOND: &str = include_str!("transitions.txt");

fn bit(short: &str) -> u32 {
    // Bit positions, not the constants: they are what the C API fixes.
    let position = match short {
        "CUR" => 1,
        "NTF" => 2,
        "ACC" => 3,
        "PKI" => 4,
        "PORT" => 5,
        "QKEY" => 6,
        "AV" => 7,
        "MTU" => 8,
        "TMO" => 9,
        "RTY" => 10,
        "RNR" => 11,
        "RQP" => 12,
        "MRD" => 13,
        "ALT" => 14,
        "MNR" => 15,
        "SQP" => 16,
        "MDR" => 17,
        "MIG" => 18,
        "DQP" => 20,
        _ => panic!("no attribute {short}"),
    };
    1 << position
}

/// Required and optional bits of a cell in the second transcription; `None`: illegal.
fn second(from: QpState, to: QpState, ty: QpType) -> Option<(u32, u32)> {
    if matches!(to, QpState::Reset | QpState::Err) {
        return Some((0, 0));
    }
    let bits = |list: &str| list.split_whitespace().map(bit).sum();
    SECOND.lines().filter(|line| !line.trim().is_empty()).find_map(|line| {
        let [head, required, optional] = line.split(':').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let [f, t, types] = head.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        let mine =
            f == state_name(from) && t == state_name(to) && types.split(',').any(|x| x == type_name(ty));
        mine.then(|| (bits(required), bits(optional)))
    })
}

fn cells() -> impl Iterator<Item = (QpState, QpState, QpType)> {
    QpState::ALL.into_iter().flat_map(|from| {
        QpState::ALL.into_iter().flat_map(move |to| QpType::ALL.into_iter().map(move |ty| (from, to, ty)))
    })
}

fn context(ty: QpType, state: QpState) -> ModifyContext {
    ModifyContext {
        ty,
        state,
        draining: false,
        port_mtu: Mtu::Mtu4096,
        gids: 2,
        source: Some(Gid::v4([10, 0, 0, 1])),
        pkeys: 1,
        privileged: false,
    }
}

/// Attributes whose every value is allowed.
fn good(from: QpState, to: QpState) -> QpAttr {
    let grh = GlobalRoute { dgid: Gid::v4([10, 0, 0, 2]), sgid_index: 1, ..GlobalRoute::default() };
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
        max_rd_atomic: RD_ATOMIC_MAX,
        max_dest_rd_atomic: RD_ATOMIC_MAX,
        qkey: 0x1234,
        ..QpAttr::default()
    }
}

/// The fullest mask that the table and RoCE allow.
fn full_mask(from: QpState, to: QpState, ty: QpType) -> M {
    let (required, optional) = second(from, to, ty).unwrap_or_default();
    M::from_bits_retain(required | optional).difference(M::ALT_PATH) | M::STATE
}

/// Judges a call that is right but for what `change` does to it.
fn judge(
    ty: QpType,
    from: QpState,
    to: QpState,
    extra: M,
    change: impl FnOnce(&mut ModifyContext, &mut QpAttr),
) -> Result<QpState, ModifyError> {
    let (mut context, mut attr) = (context(ty, from), good(from, to));
    change(&mut context, &mut attr);
    modify(&context, &attr, full_mask(from, to, ty) | extra)
}

#[track_caller]
fn refused(result: Result<QpState, ModifyError>, text: &str) {
    let error = result.expect_err(text);
    assert_eq!(error.to_string(), text);
}

#[test]
fn table_agrees_with_a_second_transcription() {
    for (from, to, ty) in cells() {
        let ours = rule(from, to, ty).map(|r| (r.required.bits(), r.optional.bits()));
        assert_eq!(ours, second(from, to, ty), "{from:?} -> {to:?} {ty:?}");
    }
    // Nothing in the text is left unread: every line is some cell's.
    let legal = cells().filter(|(from, to, ty)| rule(*from, *to, *ty).is_some()).count();
    let in_text: usize = SECOND
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(|types| types.split(',').count())
        .sum();
    assert_eq!(legal, in_text + 2 * 7 * 6);
}

// Every cell times every bit of the mask: the required set passes, each missing bit and each foreign bit is named.
#[test]
fn every_cell_and_every_attribute_bit() {
    let mut judged = 0;
    for (from, to, ty) in cells() {
        let Some((required, optional)) = second(from, to, ty) else {
            for extra in (0..32).map(|b| M::from_bits_retain(1 << b)).chain([M::empty(), M::all()]) {
                assert_eq!(check_modify(from, to, ty, extra), Err(ModifyError::Illegal { from, to, ty }));
            }
            continue;
        };
        let required = M::from_bits_retain(required);
        for with_state in [M::empty(), M::STATE] {
            assert_eq!(check_modify(from, to, ty, required | with_state), Ok(()));
            for b in (0..32).map(|b| M::from_bits_retain(1 << b)) {
                judged += 1;
                if required.contains(b) {
                    let given = required.difference(b) | with_state;
                    assert_eq!(check_modify(from, to, ty, given), Err(ModifyError::Missing(b)));
                } else if b == M::STATE || optional & b.bits() != 0 {
                    assert_eq!(check_modify(from, to, ty, required | b | with_state), Ok(()));
                } else {
                    let result = check_modify(from, to, ty, required | b | with_state);
                    assert_eq!(result, Err(ModifyError::Unexpected(b)), "{from:?} -> {to:?} {ty:?}");
                }
            }
        }
    }
    assert_eq!(judged, 2 * 32 * cells().filter(|c| second(c.0, c.1, c.2).is_some()).count());
}

fn every_pair(ty: QpType) {
    for (from, to, _) in cells().filter(|c| c.2 == ty) {
        let result = modify(&context(ty, from), &good(from, to), full_mask(from, to, ty));
        match second(from, to, ty) {
            Some(_) => assert_eq!(result, Ok(to)),
            None => assert_eq!(result, Err(ModifyError::Illegal { from, to, ty })),
        }
    }
}

#[test]
fn s01_every_pair_rc() {
    every_pair(QpType::Rc);
    let legal = |f: QpState| QpState::ALL.map(|t| rule(f, t, QpType::Rc).is_some());
    //                                       RESET  INIT   RTR    RTS    SQD    SQE    ERR
    assert_eq!(legal(QpState::Reset), [true, true, false, false, false, false, true]);
    assert_eq!(legal(QpState::Init), [true, true, true, false, false, false, true]);
    assert_eq!(legal(QpState::Rtr), [true, false, false, true, false, false, true]);
    assert_eq!(legal(QpState::Rts), [true, false, false, true, true, false, true]);
    assert_eq!(legal(QpState::Sqd), [true, false, false, true, true, false, true]);
    assert_eq!(legal(QpState::Sqe), [true, false, false, false, false, false, true]);
    assert_eq!(legal(QpState::Err), [true, false, false, false, false, false, true]);
}

#[test]
fn s02_every_pair_of_the_other_types() {
    for ty in QpType::ALL.into_iter().filter(|ty| *ty != QpType::Rc) {
        every_pair(ty);
    }
    for ty in [QpType::Uc, QpType::Ud, QpType::Gsi] {
        assert!(rule(QpState::Sqe, QpState::Rts, ty).is_some());
    }
    for ty in [QpType::XrcIni, QpType::XrcTgt] {
        assert!(rule(QpState::Sqe, QpState::Rts, ty).is_none());
    }
}

#[test]
fn s03_each_required_attribute_missing() {
    use QpState::{Init, Reset, Rtr, Rts};
    for (from, to, count) in [(Reset, Init, 3), (Init, Rtr, 6), (Rtr, Rts, 5)] {
        let required = rule(from, to, QpType::Rc).unwrap().required;
        assert_eq!(required.iter().count(), count);
        for missing in required.iter() {
            let mask = full_mask(from, to, QpType::Rc).difference(missing);
            let result = modify(&context(QpType::Rc, from), &good(from, to), mask);
            refused(result, &format!("required attributes are missing: {missing}"));
        }
    }
}

#[test]
fn s04_each_foreign_attribute_added() {
    for (from, to, ty) in cells().filter(|c| c.2 == QpType::Rc) {
        let Some(rule) = rule(from, to, ty) else { continue };
        let legal = rule.required | rule.optional | M::STATE;
        for foreign in M::all().difference(legal | M::CAP | M::ALT_PATH).iter() {
            let result = judge(ty, from, to, foreign, |_, _| ());
            let text = format!("attributes that this transition does not take: {foreign}");
            refused(result, &text);
        }
    }
}

#[test]
fn s05_reset_and_err_take_nothing() {
    for from in QpState::ALL {
        for to in [QpState::Reset, QpState::Err] {
            for extra in M::all().difference(M::STATE).iter() {
                let result = judge(QpType::Rc, from, to, extra, |_, _| ());
                assert!(result.is_err(), "{from:?} -> {to:?} with {extra}");
            }
        }
    }
}

#[test]
fn s06_reset_to_err_is_legal() {
    for ty in QpType::ALL {
        assert_eq!(judge(ty, QpState::Reset, QpState::Err, M::empty(), |_, _| ()), Ok(QpState::Err));
    }
}

#[test]
fn s07_cur_state_must_be_the_state() {
    let result =
        judge(QpType::Rc, QpState::Rts, QpState::Rts, M::CUR_STATE, |_, a| a.cur_qp_state = QpState::Rtr);
    refused(result, "cur_qp_state is RTR, the queue pair is in RTS");
    assert_eq!(judge(QpType::Rc, QpState::Rts, QpState::Rts, M::CUR_STATE, |_, _| ()), Ok(QpState::Rts));
}

#[test]
fn s08_cur_state_that_no_transition_starts_from() {
    let result =
        judge(QpType::Rc, QpState::Rts, QpState::Rts, M::CUR_STATE, |_, a| a.cur_qp_state = QpState::Init);
    refused(result, "cur_qp_state is INIT, the queue pair is in RTS");
}

#[test]
fn s09_cap_is_refused_everywhere() {
    for (from, to, ty) in cells() {
        refused(judge(ty, from, to, M::CAP, |_, _| ()), "queues are not resized: CAP must be absent");
    }
}

#[test]
fn s10_access_flags_again_in_init() {
    let mut attr = QpAttr { qp_access_flags: 1, ..QpAttr::default() };
    let given = QpAttr { qp_access_flags: 0xe, ..good(QpState::Init, QpState::Init) };
    let mask = M::STATE | M::ACCESS_FLAGS;
    assert_eq!(modify(&context(QpType::Rc, QpState::Init), &given, mask), Ok(QpState::Init));
    attr.take(&given, mask);
    assert_eq!(attr.qp_access_flags, 0xe);
}

#[test]
fn flags_of_a_region_alone_mean_nothing_to_a_queue_pair() {
    // Goal: a program may use one set of flags for its region and its queue pair.
    let flags = crate::mem::Access::all().bits();
    assert_eq!(QP_ACCESS_FLAGS, flags);
    let to_init =
        judge(QpType::Rc, QpState::Reset, QpState::Init, M::empty(), |_, a| a.qp_access_flags = flags);
    assert_eq!(to_init, Ok(QpState::Init));
}

#[test]
fn s11_psns_are_masked() {
    let mut attr = QpAttr::default();
    let given = QpAttr { rq_psn: 0x1ff_ffff, sq_psn: 0x1ff_fffe, ..good(QpState::Init, QpState::Rtr) };
    let mask = full_mask(QpState::Init, QpState::Rtr, QpType::Rc);
    assert_eq!(modify(&context(QpType::Rc, QpState::Init), &given, mask), Ok(QpState::Rtr));
    attr.take(&given, mask);
    assert_eq!((attr.rq_psn, attr.sq_psn), (0xff_ffff, 0));
}

fn to_rtr(change: impl FnOnce(&mut ModifyContext, &mut QpAttr)) -> Result<QpState, ModifyError> {
    judge(QpType::Rc, QpState::Init, QpState::Rtr, M::empty(), change)
}

fn to_rts(change: impl FnOnce(&mut ModifyContext, &mut QpAttr)) -> Result<QpState, ModifyError> {
    judge(QpType::Rc, QpState::Rtr, QpState::Rts, M::empty(), change)
}

#[test]
fn s12_path_mtu_range() {
    refused(to_rtr(|_, a| a.path_mtu = 0), "path_mtu is 0, allowed are 1 to 5");
    refused(to_rtr(|_, a| a.path_mtu = 6), "path_mtu is 6, allowed are 1 to 5");
    let above = to_rtr(|c, a| {
        c.port_mtu = Mtu::Mtu1024;
        a.path_mtu = 4;
    });
    refused(above, "path_mtu is 4 (2048 bytes), the port carries up to 3 (1024 bytes)");
    for mtu in Mtu::ALL {
        assert_eq!(to_rtr(|_, a| a.path_mtu = mtu as u8), Ok(QpState::Rtr));
    }
}

#[test]
fn s13_counts_and_timers_out_of_range() {
    refused(to_rts(|_, a| a.timeout = 32), "timeout is 32, allowed are 0 to 31");
    refused(to_rts(|_, a| a.min_rnr_timer = 32), "min_rnr_timer is 32, allowed are 0 to 31");
    refused(to_rtr(|_, a| a.min_rnr_timer = 255), "min_rnr_timer is 255, allowed are 0 to 31");
    refused(to_rts(|_, a| a.retry_cnt = 8), "retry_cnt is 8, allowed are 0 to 7");
    refused(to_rts(|_, a| a.rnr_retry = 8), "rnr_retry is 8, allowed are 0 to 7");
    let edge = to_rts(|_, a| {
        (a.timeout, a.min_rnr_timer, a.retry_cnt, a.rnr_retry) = (31, 31, 7, 7);
    });
    assert_eq!(edge, Ok(QpState::Rts));
}

#[test]
fn s14_address_vector() {
    refused(to_rtr(|_, a| a.ah_attr.grh = None), "ah_attr has no GRH (is_global is 0); RoCE needs one");
    let index = |n| move |_: &mut ModifyContext, a: &mut QpAttr| grh(a).sgid_index = n;
    refused(to_rtr(index(2)), "ah_attr.grh.sgid_index is 2, allowed are 0 to 1");
    assert_eq!(to_rtr(index(0)), Ok(QpState::Rtr));
    refused(
        to_rtr(|_, a| grh(a).dgid = Gid::v4([224, 0, 0, 1])),
        "dgid is ::ffff:224.0.0.1, a connected queue pair needs a unicast address",
    );
    refused(to_rtr(|_, a| a.ah_attr.sl = 8), "ah_attr.sl is 8, allowed are 0 to 7");
    let label = to_rtr(|_, a| grh(a).flow_label = 0x10_0000);
    refused(label, "ah_attr.grh.flow_label is 1048576, allowed are 0 to 1048575");
    refused(to_rtr(|_, a| a.ah_attr.port_num = 0), "ah_attr.port_num is 0, allowed are 1 to 1");
    let gone = to_rtr(|c, _| c.source = None);
    let text = "ah_attr.grh.sgid_index is 1, where the GID table has no address; choose one that it has";
    refused(gone, text);
    refused(to_rtr(|_, a| grh(a).dgid = Gid::default()), "dgid is ::, which is nobody's address");
}

// In each transition that takes an address vector, and for each type that has one.
#[test]
fn source_and_destination_are_of_one_ip_version() {
    let v6 = Gid::from_ip("fd00::1".parse().unwrap());
    let mut cells = cells().filter(|(from, to, ty)| {
        rule(*from, *to, *ty).is_some_and(|r| r.required.union(r.optional).contains(M::AV))
    });
    let mut taken = 0;
    for (from, to, ty) in &mut cells {
        let given = M::AV | rule(from, to, ty).unwrap().required | M::STATE;
        let judge = |change: &dyn Fn(&mut ModifyContext, &mut QpAttr)| {
            let (mut context, mut attr) = (context(ty, from), good(from, to));
            change(&mut context, &mut attr);
            modify(&context, &attr, given)
        };
        let text =
            "dgid is ::ffff:10.0.0.2, the address at sgid_index is fd00::1; both must be IPv4, or both IPv6";
        refused(judge(&|c, _| c.source = Some(v6)), text);
        let text =
            "dgid is fd00::1, the address at sgid_index is ::ffff:10.0.0.1; both must be IPv4, or both IPv6";
        refused(judge(&|_, a| grh(a).dgid = v6), text);
        assert_eq!(judge(&|c, a| (c.source, grh(a).dgid) = (Some(v6), v6)), Ok(to));
        assert_eq!(judge(&|_, _| ()), Ok(to));
        taken += 1;
    }
    assert!(taken >= 6, "{taken}: INIT to RTR and SQD to SQD of the connected types");
}

fn grh(attr: &mut QpAttr) -> &mut GlobalRoute {
    attr.ah_attr.grh.as_mut().unwrap()
}

#[test]
fn s15_no_alternate_path() {
    let text = "an alternate path was given; RoCE has no path migration, ALT_PATH must be absent";
    for (from, to) in
        [(QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts), (QpState::Rts, QpState::Rts)]
    {
        refused(judge(QpType::Rc, from, to, M::ALT_PATH, |_, _| ()), text);
    }
    let armed = to_rts(|_, a| a.path_mig_state = PathMigState::Armed);
    refused(armed, "path_mig_state is Armed; RoCE has no path migration, allowed is Migrated");
}

#[test]
fn s16_privileged_qkey() {
    let set = |privileged| {
        judge(QpType::Ud, QpState::Reset, QpState::Init, M::empty(), move |c, a| {
            c.privileged = privileged;
            a.qkey = 0x8000_0001;
        })
    };
    let text = "qkey is 0x80000001: values with bit 31 set need privilege, allowed are 0 to 0x7fffffff";
    refused(set(false), text);
    assert_eq!(set(true), Ok(QpState::Init));
}

#[test]
fn s17_read_depth_above_the_device() {
    let above = RD_ATOMIC_MAX + 1;
    let text = |name: &str| format!("{name} is {above}, allowed are 0 to {RD_ATOMIC_MAX}");
    refused(to_rts(|_, a| a.max_rd_atomic = above), &text("max_rd_atomic"));
    refused(to_rtr(|_, a| a.max_dest_rd_atomic = above), &text("max_dest_rd_atomic"));
}

#[test]
fn s29_while_draining_only_reset_and_err() {
    for ty in QpType::ALL {
        for to in [QpState::Rts, QpState::Sqd] {
            let error = judge(ty, QpState::Sqd, to, M::empty(), |c, _| c.draining = true).unwrap_err();
            assert_eq!(error, ModifyError::Draining);
            assert_eq!(judge(ty, QpState::Sqd, to, M::empty(), |_, _| ()), Ok(to));
        }
        for to in [QpState::Reset, QpState::Err] {
            assert_eq!(judge(ty, QpState::Sqd, to, M::empty(), |c, _| c.draining = true), Ok(to));
        }
    }
}

#[test]
fn other_values_out_of_range() {
    let to_init = |change: fn(&mut QpAttr)| {
        judge(QpType::Rc, QpState::Reset, QpState::Init, M::empty(), |_, a| change(a))
    };
    refused(to_init(|a| a.port_num = 2), "port_num is 2, allowed are 1 to 1");
    refused(to_init(|a| a.pkey_index = 1), "pkey_index is 1, allowed are 0 to 0");
    refused(
        to_init(|a| a.qp_access_flags = 0x40e),
        "qp_access_flags has bits 0x400 that a queue pair cannot grant, allowed are 0x1003ff",
    );
    refused(to_rtr(|_, a| a.dest_qp_num = 1 << 24), "dest_qp_num is 16777216, allowed are 0 to 16777215");
}

#[test]
fn bits_that_name_nothing_are_not_supported() {
    for b in (21..32).filter(|b| *b != 25) {
        let extra = M::from_bits_retain(1 << b);
        let result = judge(QpType::Rc, QpState::Reset, QpState::Init, extra, |_, _| ());
        refused(result, &format!("attribute mask bits {:#x} name no attribute", 1u32 << b));
    }
}

// A refused call names what would have been legal.
#[test]
fn illegal_transitions_say_what_is_legal() {
    let result = judge(QpType::Rc, QpState::Reset, QpState::Rts, M::empty(), |_, _| ());
    refused(result, "no transition RESET -> RTS for RC; from RESET are legal: RESET, INIT, ERR");
}

#[test]
fn without_state_the_state_stays() {
    let attr = QpAttr { qp_access_flags: 2, ..QpAttr::default() };
    assert_eq!(modify(&context(QpType::Rc, QpState::Rts), &attr, M::ACCESS_FLAGS), Ok(QpState::Rts));
    let error = modify(&context(QpType::Rc, QpState::Rtr), &attr, M::ACCESS_FLAGS).unwrap_err();
    assert_eq!(error, ModifyError::Illegal { from: QpState::Rtr, to: QpState::Rtr, ty: QpType::Rc });
}

// What a user is told each state does, word for word, against the gates.
#[test]
fn gates_agree_with_the_description_of_the_states() {
    const TABLE: &str = "
        post_recv  error   ok       ok       ok        ok        ok      ok
        post_send  error   error    error    ok        ok        ok      ok
        receives   none    none     process  process   process   process flush
        sends      none    none     none     process   started   flush   flush
        incoming   drop    drop     handle   handle    handle    handle  drop
        outgoing   none    none     respond  initiate  started   none    none";
    for line in TABLE.lines().filter(|l| !l.trim().is_empty()) {
        let words: Vec<_> = line.split_whitespace().collect();
        for (state, word) in QpState::ALL.into_iter().zip(&words[1..]) {
            let ty = if state == QpState::Sqe { QpType::Uc } else { QpType::Rc };
            let gates = Gates::of(state, ty);
            let started = (gates.has(Gates::START_WQE), gates.has(Gates::TX_RETRY));
            let actual = match words[0] {
                "post_recv" => ["error", "ok"][usize::from(gates.has(Gates::POST_RECV))],
                "post_send" => ["error", "ok"][usize::from(gates.has(Gates::POST_SEND))],
                "receives" if gates.has(Gates::FLUSH_RQ) => "flush",
                "receives" => ["none", "process"][usize::from(gates.has(Gates::RX_REQ))],
                "sends" if gates.has(Gates::FLUSH_SQ) => "flush",
                "sends" => match started {
                    (true, true) => "process",
                    (false, true) => "started",
                    _ => "none",
                },
                "incoming" => ["drop", "handle"][usize::from(gates.has(Gates::RX_REQ))],
                // In SQE nothing is initiated, and the types that have it answer nothing.
                "outgoing" => match (started, gates.has(Gates::RX_REQ)) {
                    ((true, true), _) => "initiate",
                    ((false, true), _) => "started",
                    (_, true) if state != QpState::Sqe => "respond",
                    _ => "none",
                },
                other => panic!("{other}"),
            };
            assert_eq!(actual, *word, "{} in {state:?}", words[0]);
        }
    }
}

#[test]
fn gates_of_types_with_one_side() {
    for state in QpState::ALL {
        let (ini, tgt) = (Gates::of(state, QpType::XrcIni), Gates::of(state, QpType::XrcTgt));
        for gate in [Gates::POST_RECV, Gates::RX_REQ, Gates::FLUSH_RQ] {
            assert!(!ini.has(gate), "{state:?}");
        }
        for gate in [Gates::POST_RECV, Gates::POST_SEND, Gates::RX_RESP, Gates::START_WQE, Gates::FLUSH_SQ] {
            assert!(!tgt.has(gate), "{state:?}");
        }
        assert_eq!(
            tgt.has(Gates::RX_REQ),
            Gates::of(state, QpType::Rc).has(Gates::RX_REQ) && state != QpState::Sqe
        );
    }
    for ty in [QpType::Rc, QpType::XrcIni, QpType::XrcTgt] {
        assert_eq!(Gates::of(QpState::Sqe, ty), Gates::CLOSED);
    }
    assert!(!Gates::of(QpState::Rts, QpType::Rc).without(Gates::POST_RECV).has(Gates::POST_RECV));
    assert_eq!(size_of::<Gates>(), 1);
}

#[test]
fn gates_are_distinct_bits() {
    assert_eq!(GATE_NAMES.iter().map(|(g, _)| u32::from(g.bits())).sum::<u32>(), 0xff);
    assert_eq!(format!("{:?}", Gates::of(QpState::Rtr, QpType::Rc)), "POST_RECV | RX_REQ");
    assert_eq!(format!("{:?}", Gates::CLOSED), "none");
}

#[test]
fn internal_transitions() {
    use Event::{Fatal, SendError, SqDrained};
    for state in QpState::ALL {
        for ty in QpType::ALL {
            let sending = matches!(state, QpState::Rts | QpState::Sqd);
            let failed = if has_sqe(ty) { QpState::Sqe } else { QpState::Err };
            assert_eq!(internal(state, ty, SendError), sending.then_some(failed));
            let alive = !matches!(state, QpState::Reset | QpState::Err);
            assert_eq!(internal(state, ty, Fatal), alive.then_some(QpState::Err));
            assert_eq!(internal(state, ty, SqDrained), (state == QpState::Sqd).then_some(QpState::Sqd));
        }
    }
}

/// Compares with a committed file; `UPDATE_SNAPSHOTS=1` rewrites it, and the change is a diff to review.
fn snapshot(name: &str, committed: &str, actual: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/proto/snapshots/");
        std::fs::write(format!("{folder}{name}"), actual).unwrap();
        return;
    }
    assert_eq!(actual, committed, "{name} differs; UPDATE_SNAPSHOTS=1 rewrites it");
}

#[test]
fn snapshot_of_the_diagram() {
    snapshot("qp_states.dot", include_str!("../snapshots/qp_states.dot"), &dot());
}

#[test]
fn snapshot_of_the_tables() {
    snapshot("qp_states.md", include_str!("../snapshots/qp_states.md"), &markdown());
}
