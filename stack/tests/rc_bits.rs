//! Bits of a packet that must not matter to a reliable connection.

use sim::peer::{Rig, bth_of, pkt, reseal};
use stack::proto::status::WcStatus;
use stack::shard::counters::Counter;
use stack::wire::{Discard, Opcode as O};

/// Checks that a SEND with these bits of a BTH byte flipped is received and acknowledged like any other.
#[track_caller]
fn makes_no_difference(byte: usize, bits: u8) {
    let mut rig = Rig::new();
    for (psn, flip) in [(0x100, bits), (0x101, 0), (0x102, bits)] {
        let mut frame = rig.frame(&pkt(O::RC_SEND_ONLY, psn).a().data(b"bits"));
        let bth = bth_of(&frame);
        frame[bth + byte] ^= flip;
        reseal(&mut frame);
        let said = rig.send_frame(&frame);
        assert!(said.len() == 1 && said[0].is_ack(psn), "{said:?}");
    }
    let cqes = rig.cqes();
    assert!(
        cqes.len() == 3 && cqes.iter().all(|c| c.status == WcStatus::Success && c.byte_len == 4),
        "{cqes:?}"
    );
    assert_eq!(rig.received(2, 4), b"bits");
    assert_eq!(rig.node.counters().drops(), 0);
}

// Goal: FECN and BECN on a data packet are for congestion control; its data is received as usual.
#[test]
fn r61_congestion_bits() {
    for bits in [0x80, 0x40, 0xc0] {
        makes_no_difference(4, bits);
    }
}

// Goal: a congestion notification is counted, and changes nothing else; one from an unknown peer is dropped.
#[test]
fn a_congestion_notification_of_the_peer_is_taken() {
    let mut rig = Rig::new();
    let cnp = rig.frame(&pkt(O::CNP, 0).len(16));
    assert!(rig.send_frame(&cnp).is_empty());
    let counters = rig.node.counters();
    assert_eq!((counters.get(Counter::NotificationsReceived), counters.drops()), (1, 0));
    let mut stranger = cnp.clone();
    stranger[14 + 12 + 3] ^= 0x40;
    reseal(&mut stranger);
    assert!(rig.send_frame(&stranger).is_empty());
    let counters = rig.node.counters();
    assert_eq!(counters.get(Counter::NotificationsReceived), 1);
    assert_eq!(counters.discarded(Discard::WrongPeer), 1);
    let said = rig.send_frame(&rig.frame(&pkt(O::RC_SEND_ONLY, 0x100).a().len(4)));
    assert!(said.len() == 1 && said[0].is_ack(0x100), "{said:?}");
}

// Goal: NICs send MigReq as 1, soft-RoCE as 0.
#[test]
fn i05_mig_req_of_either_kind() {
    makes_no_difference(1, 0x40);
}
