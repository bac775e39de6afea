//! Behaviour on the wire that is particular to Linux soft-RoCE, simulated by a test peer. An `i` and a number name the case; the same
//! cases against a real kernel need a machine with one.

use std::time::Duration;

use sim::peer::{Pkt, REMOTE_KEY, REMOTE_VA, Rig, ack, ack_with, bth_of, opcodes, pkt, psns, reseal};
use stack::config::GAP_LONGEST;
use stack::proto::status::{WcStatus, WrOpcode};
use stack::wire::{Ext, Opcode as O, Reth};

use WcStatus::Success;

const MTU: usize = 1024;
/// The PSN of the rig's first request.
const FIRST: u32 = 0x100;

fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.unlimited();
    rig
}

/// Response `i` of the `n` to a READ that soft-RoCE processes as a whole: only the very first packet is FIRST.
fn response(i: u32, n: u32) -> Pkt {
    let opcode = match i {
        0 => O::RC_READ_RESPONSE_FIRST,
        _ if i == n - 1 => O::RC_READ_RESPONSE_LAST,
        _ => O::RC_READ_RESPONSE_MIDDLE,
    };
    let p = pkt(opcode, FIRST + i).data(&[i as u8; MTU]);
    if opcode == O::RC_READ_RESPONSE_MIDDLE { p } else { p.aeth(0x1f, 1) }
}

fn asks_for(i: u32, n: u32) -> Ext {
    let (skipped, len) = (i as usize * MTU, (n - i) * MTU as u32);
    Ext::Reth(Reth { va: REMOTE_VA + skipped as u64, rkey: REMOTE_KEY, len })
}

#[test]
fn i03_soft_roce_is_out_of_receives_for_61_ms() {
    let mut rig = rig();
    rig.post(&rig.wr(1, WrOpcode::Send, 10));
    // Code 25 of its min_rnr_timer: 61.44 ms.
    assert!(rig.send(&ack_with(FIRST, 0x20 | 25, 0)).is_empty());
    assert!(rig.wait(Duration::from_micros(61_400)).is_empty());
    let said = rig.wait(Duration::from_micros(100));
    assert_eq!((opcodes(&said), psns(&said)), (vec![O::RC_SEND_ONLY], vec![FIRST]));
    rig.send(&ack(FIRST, 1));
    assert_eq!(rig.done(), [(1, Success)]);
}

// A READ of 64 KiB whose response is lost somewhere: the responses to the rest may begin with FIRST, as in the specification, or
// continue with MIDDLE or LAST.
#[test]
fn i04_read_of_64_kib_with_a_loss_in_the_middle() {
    const N: u32 = 64;
    for lost in [1, 31, 62, 63] {
        for specified in [true, false] {
            let mut rig = rig();
            rig.post(&rig.wr(1, WrOpcode::RdmaRead, N as usize * MTU));
            let mut said = Vec::new();
            for i in (0..lost).chain(lost + 1..N) {
                said.extend(rig.send(&response(i, N)));
            }
            said.extend(rig.wait(if lost == N - 1 { Duration::from_millis(70) } else { 2 * GAP_LONGEST }));
            assert_eq!((said.len(), said[0].psn), (1, FIRST + lost), "one request for the rest");
            assert_eq!(said[0].ext, asks_for(lost, N));
            for i in lost..N {
                let mut p = response(i, N);
                if specified && i == lost {
                    let opcode =
                        if lost == N - 1 { O::RC_READ_RESPONSE_ONLY } else { O::RC_READ_RESPONSE_FIRST };
                    p = pkt(opcode, FIRST + i).data(&[i as u8; MTU]).aeth(0x1f, 1);
                }
                assert!(rig.send(&p).is_empty());
            }
            assert_eq!(rig.done(), [(1, Success)], "lost {lost}, specified {specified}");
            let data = rig.node.mr(rig.buf).read(0, N as usize * MTU);
            let right = data.chunks(MTU).enumerate().all(|(i, part)| part.iter().all(|b| *b == i as u8));
            assert!(right, "lost {lost}, specified {specified}");
        }
    }
}

// Soft-RoCE sends 0, RDMA NICs send 1: neither requests a migration.
#[test]
fn i05_migration_bit_either_way() {
    for bit in [0, 0x40] {
        let mut rig = rig();
        let mut frame = rig.frame(&pkt(O::RC_SEND_ONLY, FIRST).data(b"hello").a());
        let at = bth_of(&frame) + 1;
        frame[at] = frame[at] & !0x40 | bit;
        reseal(&mut frame);
        let said = rig.send_frame(&frame);
        assert_eq!((opcodes(&said), psns(&said)), (vec![O::RC_ACKNOWLEDGE], vec![FIRST]));
        assert_eq!(rig.done().len(), 1);
    }
}

// While the rest of a READ is requested again, responses of the first answer continue to arrive, each out of order. They must not cause
// further requests.
#[test]
fn i06_restarted_read_is_asked_for_once() {
    const N: u32 = 16;
    let mut rig = rig();
    rig.post(&rig.wr(1, WrOpcode::RdmaRead, N as usize * MTU));
    rig.send(&response(0, N));
    let mut said = Vec::new();
    for i in 2..N {
        said.extend(rig.send(&response(i, N)));
    }
    said.extend(rig.wait(2 * GAP_LONGEST));
    assert_eq!((said.len(), said[0].psn), (1, FIRST + 1));
    for i in 1..N {
        assert!(rig.send(&response(i, N)).is_empty(), "packet {i} answers the second request");
    }
    assert_eq!(rig.done(), [(1, Success)]);
    // A response that arrived twice is late, and causes no request.
    assert!(rig.send(&response(N - 1, N)).is_empty());
    assert!(rig.wait(Duration::from_millis(500)).is_empty());
}
