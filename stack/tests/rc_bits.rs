//! Bits of a packet that must not matter to a reliable connection.

use sim::peer::{Rig, bth_of, pkt, reseal};
use stack::proto::status::WcStatus;
use stack::wire::Opcode as O;

/// A SEND with these bits of one BTH byte flipped is received and acknowledged like any other.
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

// Goal: FECN and BECN on a data packet are for congestion control; the data is data.
#[test]
fn r61_congestion_bits() {
    for bits in [0x80, 0x40, 0xc0] {
        makes_no_difference(4, bits);
    }
}

// Goal: NICs send MigReq as 1, soft-RoCE as 0.
#[test]
fn i05_mig_req_of_either_kind() {
    makes_no_difference(1, 0x40);
}
