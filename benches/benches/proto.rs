//! The protocol machines without a shard: a request segmented and acknowledged, a request checked, placed and answered.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stack::config::ACK_REQ_STRIDE;
use stack::id::{Gid, Mtu, PdId, Psn, QpState, QpType};
use stack::mem::{Access, Sge};
use stack::proto::requester::{Policies, Requester, RequesterConfig, SendRing, UNSHARED};
use stack::proto::responder::{ReceiveSource, Responder, ResponderConfig};
use stack::proto::state::Gates;
use stack::proto::status::{SendFlags, WrOpcode};
use stack::proto::wqe::{Granule, SendWqe, put_sges, send_stride};
use stack::time::Instant;
use stack::wire::{Aeth, Ext, Flow, HEADERS_MAX, Header, Ingress, Layout, Opcode, Reth, Template, locate};
use std::hint::black_box;

/// A send queue that holds the same request repeatedly, without end.
struct Endless {
    slot: Vec<Granule>,
    published: u32,
}

impl SendRing for Endless {
    fn published(&self) -> u32 {
        self.published
    }
    fn slot(&self, _: u32) -> &[Granule] {
        &self.slot
    }
}

/// A receive queue that never runs out.
struct Receives(u64);

impl ReceiveSource for Receives {
    fn take(&mut self) -> Option<u64> {
        self.0 += 64;
        Some(64)
    }
}

/// A frame built here, and the layout of its parts.
fn frame(header: &Header) -> (Vec<u8>, Layout) {
    let flow = Flow { src: Gid::v4([192, 0, 2, 1]), dst: Gid::v4([192, 0, 2, 2]), ..Flow::default() };
    let template = Template::new(&flow);
    let mut bytes = vec![0u8; HEADERS_MAX + header.payload_len as usize + 8];
    let at = template.begin(&mut bytes, header);
    let end = template.seal(&mut bytes, at, header.payload_len as usize);
    bytes.truncate(end);
    let Ok(Ingress::Roce(layout)) = locate(&bytes) else { panic!("the frame is a packet") };
    (bytes, layout)
}

/// Messages between two acknowledgements.
const STRIDE: u32 = ACK_REQ_STRIDE;

fn requester(c: &mut Criterion) {
    let mut slot = vec![Granule::default(); send_stride(0, 1, 0)];
    let mut wqe = SendWqe::new(1, WrOpcode::RdmaWrite, SendFlags::empty());
    (wqe.length, wqe.num_sge) = (64, 1);
    put_sges(wqe.put(&mut slot), &[Sge { addr: 0, length: 64, lkey: 1 }]);
    let mut sq = Endless { slot, published: 0 };
    let mut requester = Requester::new(256, Policies::default());
    requester.start(&RequesterConfig {
        mtu: Mtu::Mtu4096,
        sq_psn: Psn::new(0),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
    });
    let gates = Gates::of(QpState::Rts, QpType::Rc);
    let now = Instant::from_nanos(1);
    // Unlimited credits.
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 0 });
    let (bytes, layout) = frame(&Header { opcode: Opcode::RC_ACKNOWLEDGE, ext: aeth, ..Header::default() });
    let mut ack = layout.packet(&bytes);
    let mut group = c.benchmark_group("requester");
    group.throughput(Throughput::Elements(STRIDE.into()));
    group.bench_function(format!("{STRIDE} WRITEs and their acknowledgement"), |b| {
        b.iter(|| {
            sq.published = sq.published.wrapping_add(STRIDE);
            let mut last = Psn::new(0);
            let window = requester.send_window(now, UNSHARED);
            for _ in 0..STRIDE {
                last = black_box(requester.poll_transmit(&window, gates, 0, &sq)).expect("a packet").psn;
            }
            ack.psn = last;
            black_box(requester.handle_response(now, &ack, &sq)).expect("it answers something")
        })
    });
    group.finish();
}

fn responder(c: &mut Criterion) {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (keys, key) = benches::keys_of(PdId(1), 4096, 1 << 20, all);
    let mut group = c.benchmark_group("responder");
    group.throughput(Throughput::Elements(1));
    let write = Ext::Reth(Reth { va: 4096, rkey: key, len: 64 });
    for (name, opcode, ext) in
        [("SEND", Opcode::RC_SEND_ONLY, Ext::None), ("WRITE", Opcode::RC_WRITE_ONLY, write)]
    {
        let mut responder = Responder::new();
        let config = ResponderConfig { mtu: Mtu::Mtu4096, access: all, min_rnr_timer: 0 };
        responder.start(&config, Psn::new(0), 16);
        let mut receives = Receives(0);
        let (bytes, layout) =
            frame(&Header { opcode, ext, ack_req: true, payload_len: 64, ..Header::default() });
        let mut packet = layout.packet(&bytes);
        group.bench_function(format!("{name} checked and accepted"), |b| {
            b.iter(|| {
                let effect = responder.handle_expected(&packet, PdId(1), &mut receives, &keys);
                black_box(effect).expect("a good request");
                black_box(responder.accept(&packet));
                packet.psn = packet.psn.add(1);
            })
        });
        assert!(responder.poll_transmit(None).is_some(), "it would have answered");
    }
    group.finish();
}

criterion_group!(benches, requester, responder);
criterion_main!(benches);
