//! Group membership: reports byte for byte, queries of every version, and the times of messages.

use super::*;
use crate::config::{GROUP_REPORT_GAP, GROUP_REPORTS, MCAST_GRP_MAX};
use crate::net::groups::{igmp_delay, mld_delay};

// Laid out by RFC 2236 2 and RFC 2113, and by RFC 2710 3 and RFC 2711, with checksums computed apart from this code. The
// group is that of a service every home network has: its report is known to end 16 00 fa 04 ef ff ff fa.
#[rustfmt::skip]
const IGMP_REPORT_A: [u8; 46] = [
    0x01, 0x00, 0x5e, 0x7f, 0xff, 0xfa, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x08, 0x00, 0x46, 0xc0,
    0x00, 0x20, 0x00, 0x00, 0x40, 0x00, 0x01, 0x02, 0xe9, 0xb8, 0x0a, 0x63, 0x00, 0x02, 0xef, 0xff,
    0xff, 0xfa, 0x94, 0x04, 0x00, 0x00, 0x16, 0x00, 0xfa, 0x04, 0xef, 0xff, 0xff, 0xfa,
];
#[rustfmt::skip]
const IGMP_LEAVE_A: [u8; 46] = [
    0x01, 0x00, 0x5e, 0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x08, 0x00, 0x46, 0xc0,
    0x00, 0x20, 0x00, 0x00, 0x40, 0x00, 0x01, 0x02, 0xf9, 0xb0, 0x0a, 0x63, 0x00, 0x02, 0xe0, 0x00,
    0x00, 0x02, 0x94, 0x04, 0x00, 0x00, 0x17, 0x00, 0xf9, 0x04, 0xef, 0xff, 0xff, 0xfa,
];
#[rustfmt::skip]
const MLD_REPORT_A: [u8; 86] = [
    0x33, 0x33, 0x00, 0x01, 0x00, 0x03, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x86, 0xdd, 0x60, 0x00,
    0x00, 0x00, 0x00, 0x20, 0x00, 0x01, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0xff, 0xfe, 0x00, 0x99, 0x02, 0xff, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x03, 0x3a, 0x00, 0x05, 0x02, 0x00, 0x00, 0x01, 0x00, 0x83, 0x00,
    0xe8, 0x15, 0x00, 0x00, 0x00, 0x00, 0xff, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x03,
];
#[rustfmt::skip]
const MLD_DONE_A: [u8; 86] = [
    0x33, 0x33, 0x00, 0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x00, 0x99, 0x02, 0x86, 0xdd, 0x60, 0x00,
    0x00, 0x00, 0x00, 0x20, 0x00, 0x01, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0xff, 0xfe, 0x00, 0x99, 0x02, 0xff, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x3a, 0x00, 0x05, 0x02, 0x00, 0x00, 0x01, 0x00, 0x84, 0x00,
    0xe7, 0x1a, 0x00, 0x00, 0x00, 0x00, 0xff, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x03,
];

const SECOND: Duration = Duration::from_secs(1);

fn group4() -> Gid {
    gid("239.255.255.250")
}
fn group6() -> Gid {
    gid("ff05::1:3")
}

/// The times at which messages are sent until none is due any more, in nanoseconds after `from`.
fn timeline(net: &mut Net, from: Instant) -> Vec<(u64, Vec<u8>)> {
    let (mut sent, mut now) = (Vec::new(), from);
    loop {
        while let Some(frame) = request(net, now) {
            sent.push((now.nanos_since(from), frame));
            assert!(sent.len() < 1000);
        }
        match net.poll_timeout() {
            Some(at) => now = at,
            None => return sent,
        }
    }
}

/// An IGMP query from B; `message` without its checksum.
fn igmp_query(dst: [u8; 4], mut message: Vec<u8>) -> Vec<u8> {
    let sum = frame::checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut out = vec![0; 64];
    let header = FrameHeader { src: B, dst: Mac::multicast(&Gid::v4(dst)), vlan: None };
    let len = frame::igmp(&mut out, header, [10, 99, 0, 3].into(), dst.into(), 0, [0; 4].into()).unwrap();
    out.truncate(len - 8);
    out.extend(&message);
    let total = (24 + message.len()) as u16;
    out[16..18].copy_from_slice(&total.to_be_bytes());
    out[24..26].copy_from_slice(&[0, 0]);
    let sum = frame::checksum(&[&out[14..38]]);
    out[24..26].copy_from_slice(&sum.to_be_bytes());
    out
}

fn igmp(code: u8, group: [u8; 4]) -> Vec<u8> {
    let [a, b, c, d] = group;
    vec![0x11, code, 0, 0, a, b, c, d]
}

/// An MLD query from B's link-local address.
fn mld_query(dst: &str, code: u16, group: &str, more: &[u8]) -> Vec<u8> {
    let (src, dst) = (v6("fe80::ff:fe00:9903"), v6(dst));
    let mut out = vec![0; 128];
    let header = FrameHeader { src: B, dst: frame::group(dst), vlan: None };
    let len = frame::mld(&mut out, header, src, dst, 130, v6(group)).unwrap();
    out.truncate(len);
    out.extend(more);
    let body = 24 + more.len();
    out[18..20].copy_from_slice(&(8 + body as u16).to_be_bytes());
    out[64..70].copy_from_slice(&[0, 0, (code >> 8) as u8, code as u8, 0, 0]);
    let sum = frame::checksum(&[&frame::icmpv6_pseudo(src, dst, body), &out[62..]]);
    out[64..66].copy_from_slice(&sum.to_be_bytes());
    out
}

#[test]
fn joining_reports_and_leaving_says_so_byte_for_byte() {
    for (group, report, leave) in
        [(group4(), &IGMP_REPORT_A[..], &IGMP_LEAVE_A[..]), (group6(), &MLD_REPORT_A, &MLD_DONE_A)]
    {
        let mut net = host(A);
        assert_eq!((net.is_member(&group), net.poll_timeout()), (false, None));
        net.join(T0, &group).unwrap();
        assert_eq!((net.is_member(&group), net.poll_timeout()), (true, Some(T0)));
        assert_eq!(net.join(T0, &group), Ok(()), "again: nothing more to say");
        let sent = timeline(&mut net, T0);
        let gap = GROUP_REPORT_GAP.as_nanos() as u64;
        assert_eq!(sent.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, gap, 2 * gap]);
        assert!(sent.iter().all(|(_, frame)| frame == report), "{sent:x?}");
        assert_eq!(net.counter(NetCounter::GroupReported), u64::from(GROUP_REPORTS));

        assert!(net.leave(T0, &group));
        assert!(!net.is_member(&group) && !net.leave(T0, &group));
        let sent = timeline(&mut net, T0);
        assert!(sent.len() == 1 && sent[0].1 == leave, "{sent:x?}");
        assert_eq!(net.counter(NetCounter::GroupLeft), 1);
    }
}

#[test]
fn reports_carry_the_vlan_tag() {
    let mut net = vlan_host(A, 7);
    net.join(T0, &group6()).unwrap();
    assert_eq!(request(&mut net, T0).unwrap(), tagged(&MLD_REPORT_A, 7));
    assert_eq!(MLD_REPORT_A.len() + 4, FRAME_MAX);
}

#[test]
fn a_host_without_ipv4_reports_from_nowhere() {
    let mut net = Net::new(&NetConfig::new(A));
    net.join(T0, &group4()).unwrap();
    let report = request(&mut net, T0).unwrap();
    assert_eq!(report[26..30], [0; 4]);
    assert_eq!(frame::checksum(&[&report[14..38]]), 0);
}

#[test]
fn some_groups_are_not_reported() {
    for group in ["224.0.0.1", "ff02::1", "ff01::5", "ff00::1"] {
        let mut net = host(A);
        net.join(T0, &gid(group)).unwrap();
        assert!(net.is_member(&gid(group)));
        assert_eq!(timeline(&mut net, T0), [], "{group}");
        net.report_groups(T0);
        answer(&mut net, T0, &igmp_query([224, 0, 0, 1], igmp(10, [0; 4])));
        answer(&mut net, T0, &mld_query("ff02::1", 10, "::", &[]));
        assert!(net.leave(T0, &gid(group)));
        assert_eq!(timeline(&mut net, T0), [], "{group}");
    }
}

#[test]
fn queries_are_answered_once_in_time() {
    let asked: [(Vec<u8>, Duration, usize); 8] = [
        (igmp_query([224, 0, 0, 1], igmp(10, [0; 4])), SECOND, 2),
        (igmp_query([224, 0, 0, 1], igmp(0, [0; 4])), 10 * SECOND, 2), // version 1
        // Version 3, with its longer form and no sources.
        (igmp_query([224, 0, 0, 1], [igmp(0x80, [0; 4]), vec![2, 125, 0, 0]].concat()), 13 * SECOND, 2),
        (igmp_query([239, 255, 255, 250], igmp(20, [239, 255, 255, 250])), 2 * SECOND, 1),
        (mld_query("ff02::1", 1000, "::", &[]), SECOND, 1),
        (mld_query("ff02::1", 0, "::", &[]), Duration::ZERO, 1),
        (mld_query("ff02::1", 1000, "::", &[2, 125, 0, 0]), SECOND, 1), // version 2
        (mld_query("ff05::1:3", 500, "ff05::1:3", &[]), SECOND / 2, 1),
    ];
    for (query, max, answers) in asked {
        let mut net = host(A);
        for group in [group4(), gid("239.1.2.3"), group6()] {
            net.join(T0, &group).unwrap();
        }
        timeline(&mut net, T0);
        let now = T0.after(100 * SECOND);
        assert_eq!(answer(&mut net, now, &query), None, "an answer waits for its moment");
        assert_eq!(answer(&mut net, now, &query), None, "one answer is enough");
        let sent = timeline(&mut net, now);
        assert_eq!(sent.len(), answers, "{query:x?}");
        assert!(sent.iter().all(|(at, _)| u128::from(*at) <= max.as_nanos()), "{sent:x?} within {max:?}");
        let ipv4 = query[12] == 8;
        let report: &[u8] = if ipv4 { &IGMP_REPORT_A } else { &MLD_REPORT_A };
        assert!(sent.iter().any(|(_, frame)| frame == report), "{sent:x?}");
        assert_eq!(net.counter(NetCounter::GroupQueried), 2);
    }
}

#[test]
fn answers_of_hosts_are_spread() {
    let at = |mac| {
        let mut net = host(mac);
        net.join(T0, &group4()).unwrap();
        timeline(&mut net, T0);
        answer(&mut net, T0, &igmp_query([224, 0, 0, 1], igmp(100, [0; 4])));
        timeline(&mut net, T0)[0].0
    };
    assert_ne!(at(A), at(C));
}

#[test]
fn queries_that_do_not_count() {
    let mut net = host(A);
    net.join(T0, &group4()).unwrap();
    net.join(T0, &group6()).unwrap();
    timeline(&mut net, T0);
    let now = T0.after(100 * SECOND);
    let mut no = |frame: &[u8], why| ignored(&mut net, frame, why);
    use NetCounter::{BadGroupMessage as Bad, OtherGroupMessage as Other};
    no(&igmp_query([239, 1, 2, 3], igmp(10, [239, 1, 2, 3])), Other); // not ours
    no(&igmp_query([224, 0, 0, 1], vec![0x16, 0, 0, 0, 239, 255, 255, 250]), Other); // another host's report
    no(&igmp_query([224, 0, 0, 1], igmp(10, [239, 255, 255, 250])), Bad); // to the wrong address
    no(&igmp_query([239, 255, 255, 250], igmp(10, [0; 4])), Bad);
    no(&igmp_query([224, 0, 0, 1], vec![0x11, 10, 0, 0]), Bad); // short
    let mut wrong = igmp_query([224, 0, 0, 1], igmp(10, [0; 4]));
    wrong[40] ^= 1;
    no(&wrong, Bad); // checksum
    let right = mld_query("ff02::1", 1000, "::", &[]);
    let changed = |at: usize, to: u8| {
        let mut frame = right.clone();
        frame[at] = to;
        frame
    };
    no(&changed(21, 64), Bad); // hop limit: from another link
    no(&changed(22, 0xfd), Bad); // nor from a link-local address
    no(&changed(56, 1), Bad); // no router alert
    no(&changed(70, 9), Bad); // checksum
    no(&changed(54, 17), NetCounter::OtherProtocol);
    no(&changed(55, 200), NetCounter::BadIp); // options longer than the packet
    no(&mld_query("ff02::1", 10, "ff05::1:3", &[]), Bad);
    no(&mld_query("ff05::1:3", 10, "::", &[]), Bad);
    no(&mld_query("ff05::9", 10, "ff05::9", &[]), Other);
    assert_eq!(timeline(&mut net, now), []);
}

#[test]
fn a_link_that_comes_up_gets_every_report_again() {
    let mut net = host(A);
    net.join(T0, &group4()).unwrap();
    net.join(T0, &group6()).unwrap();
    timeline(&mut net, T0);
    net.leave(T0, &group4());
    net.report_groups(T0);
    let sent = timeline(&mut net, T0);
    let reports = sent.iter().filter(|(_, frame)| frame[..] == MLD_REPORT_A).count();
    assert_eq!((reports, sent.len()), (GROUP_REPORTS.into(), usize::from(GROUP_REPORTS) + 1));
}

#[test]
fn joining_again_takes_the_farewell_back() {
    let mut net = host(A);
    net.join(T0, &group4()).unwrap();
    timeline(&mut net, T0);
    net.leave(T0, &group4());
    net.join(T0, &group4()).unwrap();
    let sent = timeline(&mut net, T0);
    assert!(sent.len() == usize::from(GROUP_REPORTS) && sent.iter().all(|s| s.1 == IGMP_REPORT_A));
}

#[test]
fn the_table_is_bounded() {
    let mut net = host(A);
    let group = |n: usize| Gid::v4([239, 9, (n >> 8) as u8, n as u8]);
    for n in 0..MCAST_GRP_MAX {
        net.join(T0, &group(n)).unwrap();
    }
    assert_eq!(net.join(T0, &group(MCAST_GRP_MAX)), Err(JoinError::Full));
    assert_eq!(net.join(T0, &gid("10.0.0.1")), Err(JoinError::NotMulticast(gid("10.0.0.1"))));
    net.leave(T0, &group(7));
    assert_eq!(net.join(T0, &group(MCAST_GRP_MAX)), Ok(()), "before the farewell is out");
    assert!(net.is_member(&group(MCAST_GRP_MAX)) && !net.is_member(&group(7)));
    let sent = timeline(&mut net, T0);
    assert_eq!(sent.len(), MCAST_GRP_MAX * usize::from(GROUP_REPORTS));
}

// RFC 3376 4.1.1 and RFC 3810 5.1.3, at their ends.
#[test]
fn delays_of_queries() {
    let ms = |n| Duration::from_millis(n);
    assert_eq!(
        [0, 1, 127, 128, 255].map(igmp_delay),
        [ms(10_000), ms(100), ms(12_700), ms(12_800), ms(3_174_400)]
    );
    assert_eq!(
        [0, 1, 0x7fff, 0x8000, 0xffff].map(mld_delay),
        [ms(0), ms(1), ms(32_767), ms(32_768), ms(8_387_584)]
    );
}
