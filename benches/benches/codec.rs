//! Headers built and parsed.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stack::id::{Gid, Psn, Qpn};
use stack::wire::{Ext, Flow, HEADERS_MAX, Header, Ingress, Opcode, Reth, Template, locate};
use std::hint::black_box;

fn flow() -> Flow {
    Flow {
        src: Gid::v4([192, 0, 2, 1]),
        dst: Gid::v4([192, 0, 2, 2]),
        dqpn: Qpn::new(0x123),
        ..Flow::default()
    }
}

fn header(opcode: Opcode, len: usize) -> Header {
    let write = matches!(opcode, Opcode::RC_WRITE_ONLY);
    let ext = if write { Ext::Reth(Reth { va: 4096, rkey: 7, len: len as u32 }) } else { Ext::None };
    Header { opcode, psn: Psn::new(9), ext, payload_len: len as u32, ..Header::default() }
}

fn codec(c: &mut Criterion) {
    let template = Template::new(&flow());
    let mut group = c.benchmark_group("codec");
    for (name, opcode) in [("SEND ONLY", Opcode::RC_SEND_ONLY), ("WRITE ONLY", Opcode::RC_WRITE_ONLY)] {
        for len in [64, 4096] {
            let header = header(opcode, len);
            let mut frame = vec![0u8; HEADERS_MAX + len + 8];
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function(BenchmarkId::new(format!("{name} begin"), len), |b| {
                b.iter(|| template.begin(black_box(&mut frame), black_box(&header)))
            });
            group.bench_function(BenchmarkId::new(format!("{name} begin and seal"), len), |b| {
                b.iter(|| {
                    let at = template.begin(black_box(&mut frame), black_box(&header));
                    template.seal(&mut frame, at, len)
                })
            });
            let at = template.begin(&mut frame, &header);
            let end = template.seal(&mut frame, at, len);
            group.bench_function(BenchmarkId::new(format!("{name} locate and parse"), len), |b| {
                b.iter(|| match locate(black_box(&frame[..end])) {
                    Ok(Ingress::Roce(layout)) => layout.packet(&frame).psn,
                    _ => panic!("the frame is a packet"),
                })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
