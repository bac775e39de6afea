//! Any bytes as a frame, and any fields as a packet.

use super::Input;
use stack::id::{Gid, Mac, Psn, Qpn};
use stack::wire::{
    Aeth, AtomicEth, Deth, Ext, ExtHeader, Feth, Flow, HEADERS_MAX, Header, ICRC_LEN, Ingress, Reth, Row,
    Template, Transport, icrc, locate,
};

/// Parses a frame of any bytes, and, from the same bytes, builds a packet and parses that.
///
/// # Panics
/// If a frame that was located cannot be read, or a packet that was built reads differently.
pub fn wire_parse(data: &[u8]) {
    any_frame(data);
    any_fields(&mut Input(data));
}

fn any_frame(frame: &[u8]) {
    let Ok(Ingress::Roce(layout)) = locate(frame) else { return };
    assert!(usize::from(layout.end) <= frame.len());
    let mut copy = frame.to_vec();
    let good = icrc::check(&mut copy, &layout, None);
    assert_eq!(copy, frame, "a check leaves the frame as it was");
    let packet = layout.packet(frame);
    let headers = usize::from(layout.bth) + usize::from(packet.row.header_len);
    assert_eq!(
        headers + packet.payload.len() + usize::from(packet.pad()) + ICRC_LEN,
        usize::from(layout.end),
        "every byte belongs to one part"
    );
    assert_eq!(layout.dst(frame), packet.dst());
    let (flow, header) = (layout.flow(frame), packet.to_header());
    // A packet that was read and is sound can be built again, and is then the same. A sender pads as it must.
    let Some(header) = header.filter(|_| good && packet.pad() == pad_of(packet.payload.len())) else {
        return;
    };
    let built = build(&flow, &header, packet.payload);
    let Ok(Ingress::Roce(again)) = locate(&built) else { panic!("what was built is not located") };
    assert_eq!(again.packet(&built).to_header(), Some(header));
}

fn any_fields(input: &mut Input<'_>) {
    let v6 = input.bool();
    let mut gid = || {
        let mut bytes = [0; 16];
        let given = input.take(16);
        bytes[..given.len()].copy_from_slice(given);
        if v6 {
            bytes[0] |= 0x20;
            Gid(bytes)
        } else {
            Gid::v4([bytes[0], bytes[1], bytes[2], bytes[3]])
        }
    };
    let (src, dst) = (gid(), gid());
    let flow = Flow {
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
        vlan: input.bool().then(|| input.u16()),
        src,
        dst,
        traffic_class: input.u8(),
        hop_limit: input.u8(),
        flow_label: if v6 { input.u32() & 0xf_ffff } else { 0 },
        src_port: input.u16(),
        dqpn: Qpn::new(input.u32()),
        pkey: input.u16(),
        mig_req: input.bool(),
    };
    let rows = Row::all();
    let row = rows[input.below(rows.len())];
    if row.transport == Transport::Rd {
        return;
    }
    let header = header_of(&row, input);
    let payload = input.take(4096);
    let header = Header { payload_len: payload.len() as u32, ..header };
    let frame = build(&flow, &header, payload);
    let Ok(Ingress::Roce(layout)) = locate(&frame) else { panic!("{header:?} is not located") };
    assert!(icrc::check(&mut frame.clone(), &layout, None), "{header:?}");
    let packet = layout.packet(&frame);
    assert_eq!(packet.payload, payload);
    let ip_id = if layout.ipv6 { 0 } else { header.ip_id };
    assert_eq!(packet.to_header(), Some(Header { ip_id, ..header }));
    assert_eq!(layout.flow(&frame), flow);
}

/// Any values for the headers that a row has.
fn header_of(row: &Row, input: &mut Input<'_>) -> Header {
    use ExtHeader as E;
    let (srqn, rest) = match row.headers {
        [E::Xrceth, rest @ ..] => (input.u32() & 0xff_ffff, rest),
        rest => (0, rest),
    };
    let ext = match rest {
        [] => Ext::None,
        [E::ImmDt] => Ext::Imm(input.u32().to_be_bytes()),
        [E::Ieth] => Ext::Inv(input.u32()),
        [E::Reth] => Ext::Reth(reth(input)),
        [E::Reth, E::ImmDt] => Ext::RethImm(reth(input), input.u32().to_be_bytes()),
        [E::Feth, E::Reth] => {
            Ext::FlushReth(Feth { selectivity: input.u8() & 3, placement: input.u8() & 15 }, reth(input))
        }
        [E::AtomicEth] => Ext::Atomic(AtomicEth {
            va: input.u64(),
            rkey: input.u32(),
            swap_add: input.u64(),
            compare: input.u64(),
        }),
        [E::Aeth] => Ext::Aeth(aeth(input)),
        [E::Aeth, E::AtomicAckEth] => Ext::AtomicAck(aeth(input), input.u64()),
        [E::Deth] => Ext::Deth(deth(input)),
        [E::Deth, E::ImmDt] => Ext::DethImm(deth(input), input.u32().to_be_bytes()),
        other => panic!("no extension for {other:?}"),
    };
    Header {
        opcode: row.opcode,
        psn: Psn::new(input.u32()),
        ack_req: input.bool(),
        solicited: input.bool(),
        ip_id: input.u16(),
        srqn,
        ext,
        payload_len: 0,
    }
}

fn reth(input: &mut Input<'_>) -> Reth {
    Reth { va: input.u64(), rkey: input.u32(), len: input.u32() }
}

fn aeth(input: &mut Input<'_>) -> Aeth {
    Aeth { syndrome: input.u8(), msn: input.u32() & 0xff_ffff }
}

fn deth(input: &mut Input<'_>) -> Deth {
    Deth { qkey: input.u32(), src_qpn: Qpn::new(input.u32()) }
}

fn pad_of(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

fn build(flow: &Flow, header: &Header, payload: &[u8]) -> Vec<u8> {
    let template = Template::new(flow);
    let mut buf = vec![0xa5; HEADERS_MAX + payload.len() + 8];
    let at = template.begin(&mut buf, header);
    buf[at..at + payload.len()].copy_from_slice(payload);
    let len = template.seal(&mut buf, at, payload.len());
    buf.truncate(len);
    buf
}
