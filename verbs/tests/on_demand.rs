//! Goal: memory that is registered on demand need not be mapped. An access to an unmapped page fails like an access without the right,
//! locally and for the peer, and never ends the process; mapped pages are accessed like other memory. Also regions without any
//! memory (null regions).

use std::io::Write;

use crate::common::{Pair, all_rights, assert_no_completion, embedded};
use crate::mapped::Mapped;
use verbs::{Access, MwBindInfo, MwType, RecvWr, Rereg, SendWr, Sge, WcStatus};

const PAGE: usize = 4096;
const ON_DEMAND: Access = all().union(Access::ON_DEMAND);

const fn all() -> Access {
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC)
}

/// A pair, if this device supports on-demand regions.
fn pair() -> Option<Pair> {
    let p = Pair::new(embedded());
    if !p.context.query_device().on_demand {
        assert!(p.pd.reg_mr(64, ON_DEMAND).is_err());
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED memory on demand: this kernel copies nothing within a process"
        );
        return None;
    }
    Some(p)
}

/// An operation on the bytes of a region, from the peer or from this side: its name, and the function that posts it.
type Operation = (&'static str, fn(&Pair, Sge, u32));

/// Operations of A on memory of B at `at`, or on A's own memory.
const OPERATIONS: &[Operation] = &[
    ("WRITE", |p, at, rkey| post(p, SendWr::write(1, &[local(p, 0, at.length)], at.addr, rkey))),
    ("WRITE of many packets", |p, at, rkey| {
        // Across page boundaries.
        post(p, SendWr::write(1, &[local(p, 0, 3 * PAGE as u32)], at.addr, rkey));
    }),
    ("READ", |p, at, rkey| post(p, SendWr::read(1, &[local(p, 0, at.length)], at.addr, rkey))),
    ("READ of many packets", |p, at, rkey| {
        post(p, SendWr::read(1, &[local(p, 0, 3 * PAGE as u32)], at.addr, rkey));
    }),
    ("FETCH&ADD", |p, at, rkey| post(p, SendWr::fetch_and_add(1, &[local(p, 0, 8)], at.addr, rkey, 5))),
    ("COMPARE&SWAP", |p, at, rkey| post(p, SendWr::cmp_and_swp(1, &[local(p, 0, 8)], at.addr, rkey, 0, 5))),
];

fn local(p: &Pair, at: usize, len: u32) -> Sge {
    p.mr.sge(at..at + len as usize).unwrap()
}

fn post(p: &Pair, wr: SendWr<'_>) {
    p.a.post_send(&[wr.signaled()]).unwrap();
}

#[test]
fn what_is_not_mapped_is_a_wrong_access() {
    for (name, post) in OPERATIONS {
        // Unmapped as a whole, and from the second page on.
        for (from, offset, ends) in [(0, 0, "all"), (1, PAGE - 8, "some")] {
            let Some(p) = pair() else { return };
            let memory = Mapped::new(4 * PAGE);
            let mr = memory.register(&p.pd, ON_DEMAND);
            let at = Sge { addr: memory.addr() + offset as u64, length: 64, lkey: mr.lkey() };
            memory.unmap(from * PAGE..4 * PAGE);
            post(&p, at, mr.rkey());
            let status = p.done_a(1)[0].status;
            // The word at the end of the first page is still mapped.
            let there = from == 1 && name.contains('&');
            let wanted = if there { WcStatus::Success } else { WcStatus::RemAccessErr };
            assert_eq!(status, wanted, "{name}, {ends} of it gone");
            assert_no_completion(&p.context, &p.cq_a);
        }
    }
}

#[test]
fn what_is_mapped_is_accessed_as_other_memory() {
    let Some(p) = pair() else { return };
    let memory = Mapped::new(4 * PAGE);
    // Registered while nothing is mapped.
    memory.unmap(0..4 * PAGE);
    let mr = memory.register(&p.pd, ON_DEMAND);
    memory.map(0..4 * PAGE);
    let text: Vec<u8> = (0..3 * PAGE).map(|n| (n * 7 % 251) as u8).collect();
    for len in [1, 7, 8, 16, 40, 64, 65, 300, 1024, 1025, 3 * PAGE] {
        p.mr.write(0, &text[..len]).unwrap();
        p.mr.fill(32 << 10..(32 << 10) + len, 0).unwrap();
        let there = memory.addr() + 5;
        let (out, back) = ([local(&p, 0, len as u32)], [local(&p, 32 << 10, len as u32)]);
        post(&p, SendWr::write(1, &out, there, mr.rkey()));
        post(&p, SendWr::read(2, &back, there, mr.rkey()));
        assert!(p.done_a(2).iter().all(|wc| wc.is_ok()), "{len} bytes");
        assert_eq!(p.mr.to_vec(32 << 10..(32 << 10) + len).unwrap(), text[..len]);
        assert_eq!(memory.bytes(5..5 + len), text[..len]);
        // The same by SEND and receive, between two places of such memory.
        let (from, to) = (memory.addr() + 5, memory.addr() + 2 * PAGE as u64);
        if len <= PAGE {
            p.b.post_recv(&[RecvWr::new(3, &[Sge { addr: to, length: len as u32, lkey: mr.lkey() }])])
                .unwrap();
            post(&p, SendWr::send(4, &[Sge { addr: from, length: len as u32, lkey: mr.lkey() }]));
            assert!(p.done_b(1)[0].is_ok() && p.done_a(1)[0].is_ok());
            assert_eq!(memory.bytes(2 * PAGE..2 * PAGE + len), text[..len]);
        }
    }
    // Atomics, one after the other.
    memory.write(64, &40_u64.to_ne_bytes());
    let (word, result) = (memory.addr() + 64, [local(&p, 0, 8)]);
    for (wr, before, after) in [
        (SendWr::fetch_and_add(1, &result, word, mr.rkey(), 2), 40_u64, 42_u64),
        (SendWr::cmp_and_swp(1, &result, word, mr.rkey(), 41, 7), 42, 42),
        (SendWr::cmp_and_swp(1, &result, word, mr.rkey(), 42, 7), 42, 7),
    ] {
        post(&p, wr);
        assert!(p.done_a(1)[0].is_ok());
        assert_eq!((p.mr.read_u64(0).unwrap(), memory.bytes(64..72)), (before, after.to_ne_bytes().to_vec()));
    }
    // ATOMIC WRITE must be a single store, which copies by the kernel do not guarantee.
    post(&p, SendWr::atomic_write(5, &result, word, mr.rkey()));
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
}

#[test]
fn what_this_side_has_unmapped_is_a_protection_error() {
    let Some(p) = pair() else { return };
    let memory = Mapped::new(PAGE);
    let mr = memory.register(&p.pd, ON_DEMAND);
    memory.unmap(0..PAGE);
    let gone = [Sge { addr: memory.addr(), length: 64, lkey: mr.lkey() }];
    post(&p, SendWr::send(1, &gone));
    assert_eq!(p.done_a(1)[0].status, WcStatus::LocProtErr);

    let p = pair().expect("as before");
    let mr = memory.register(&p.pd, ON_DEMAND);
    let gone = [Sge { lkey: mr.lkey(), ..gone[0] }];
    p.b.post_recv(&[RecvWr::new(2, &gone)]).unwrap();
    post(&p, SendWr::send(1, &[local(&p, 0, 64)]));
    assert_eq!(p.done_b(1)[0].status, WcStatus::LocProtErr);
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemOpErr);

    let p = pair().expect("as before");
    let mr = memory.register(&p.pd, ON_DEMAND);
    let gone = [Sge { lkey: mr.lkey(), ..gone[0] }];
    post(&p, SendWr::read(1, &gone, p.mr.addr(), p.mr.rkey()));
    assert_eq!(p.done_a(1)[0].status, WcStatus::LocProtErr);
}

#[test]
fn what_may_not_be_written_is_not_written() {
    let Some(p) = pair() else { return };
    let memory = Mapped::new(PAGE);
    let mr = memory.register(&p.pd, ON_DEMAND);
    memory.write(0, b"read only");
    memory.protect();
    post(&p, SendWr::read(1, &[local(&p, 0, 9)], memory.addr(), mr.rkey()));
    assert!(p.done_a(1)[0].is_ok());
    assert_eq!(p.mr.to_vec(0..9).unwrap(), b"read only");
    post(&p, SendWr::write(1, &[local(&p, 64, 9)], memory.addr(), mr.rkey()));
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
    assert_eq!(memory.bytes(0..9), b"read only");
}

#[test]
fn a_window_reaches_memory_as_its_region_does() {
    let Some(p) = pair() else { return };
    let memory = Mapped::new(PAGE);
    let mr = memory.register(&p.pd, ON_DEMAND | Access::MW_BIND);
    let mw = p.pd.alloc_mw(MwType::Two).unwrap();
    let key = mw.rkey() ^ 1;
    let bind = MwBindInfo::new(&mr, 0..PAGE, Access::REMOTE_WRITE).unwrap();
    p.b.post_send(&[SendWr::bind_mw(1, &mw, key, &bind).unwrap().signaled()]).unwrap();
    assert!(p.done_b(1)[0].is_ok());
    post(&p, SendWr::write(1, &[local(&p, 0, 8)], memory.addr(), key));
    assert!(p.done_a(1)[0].is_ok());
    memory.unmap(0..PAGE);
    post(&p, SendWr::write(1, &[local(&p, 0, 8)], memory.addr(), key));
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
}

#[test]
fn a_region_stays_on_demand_until_it_gets_new_memory() {
    let Some(p) = pair() else { return };
    let memory = Mapped::new(PAGE);
    let mut mr = memory.register(&p.pd, ON_DEMAND);
    mr.rereg(&Rereg { access: Some(all_rights()), ..Rereg::default() }).unwrap();
    assert_eq!(mr.access(), ON_DEMAND);
    memory.unmap(0..PAGE);
    post(&p, SendWr::write(1, &[local(&p, 0, 8)], memory.addr(), mr.rkey()));
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
    mr.rereg(&Rereg { access: Some(all_rights()), len: Some(64), pd: None }).unwrap();
    assert_eq!(mr.access(), all_rights());
}

#[test]
fn a_null_region_has_every_address_and_no_memory() {
    let p = Pair::new(embedded());
    let null = p.pd.alloc_null_mr().unwrap();
    for (addr, len) in [(0, 5_u32), (0xdead_beef_0000, 64), (u64::MAX - 4096, 2048), (1, 3000), (8, 0)] {
        let skipped = Sge { addr, length: len, lkey: null.lkey() };
        let whole = len + 12;
        // The null region sends zeros, between bytes of ordinary memory.
        p.mr.write(0, b"beforebehind").unwrap();
        p.mr.fill(4096..8192, 0xa5).unwrap();
        p.b.post_recv(&[RecvWr::new(1, &[local(&p, 4096, whole)])]).unwrap();
        post(&p, SendWr::send(2, &[local(&p, 0, 6), skipped, local(&p, 6, 6)]));
        assert!(p.done_b(1)[0].is_ok() && p.done_a(1)[0].is_ok());
        let got = p.mr.to_vec(4096..4096 + whole as usize).unwrap();
        let (before, rest) = got.split_at(6);
        let (zeros, behind) = rest.split_at(len as usize);
        assert_eq!((before, behind), (b"before".as_slice(), b"behind".as_slice()));
        assert!(zeros.iter().all(|byte| *byte == 0));
        // Bytes that arrive in the null region are discarded.
        p.mr.fill(8192..12288, 0).unwrap();
        p.b.post_recv(&[RecvWr::new(1, &[local(&p, 8192, 6), skipped, local(&p, 8198, 6)])]).unwrap();
        post(&p, SendWr::send(2, &[local(&p, 4096, whole)]));
        assert!(p.done_b(1)[0].is_ok() && p.done_a(1)[0].is_ok());
        assert_eq!(p.mr.to_vec(8192..8204).unwrap(), b"beforebehind");
    }
    // A READ, and the results of atomics.
    let skipped = [Sge { addr: 64, length: 8, lkey: null.lkey() }];
    post(&p, SendWr::read(1, &skipped, p.mr.addr(), p.mr.rkey()));
    post(&p, SendWr::fetch_and_add(1, &skipped, p.mr.addr(), p.mr.rkey(), 1));
    assert!(p.done_a(2).iter().all(|wc| wc.is_ok()));
    // The key is valid only on this side.
    post(&p, SendWr::write(1, &[local(&p, 0, 8)], 0, null.lkey()));
    assert_eq!(p.done_a(1)[0].status, WcStatus::RemAccessErr);
    let p = Pair::new(embedded());
    let null = p.pd.alloc_null_mr().unwrap();
    let key = null.lkey();
    drop(null);
    post(&p, SendWr::send(1, &[Sge { addr: 0, length: 8, lkey: key }]));
    assert_eq!(p.done_a(1)[0].status, WcStatus::LocProtErr);
}
