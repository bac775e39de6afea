//! The checksum: over bytes as the sender runs it, and of a frame as the receiver checks it.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stack::crc;
use stack::id::Gid;
use stack::wire::{Flow, HEADERS_MAX, Header, Ingress, Template, icrc, locate};
use std::hint::black_box;

fn checksum(c: &mut Criterion) {
    let flow = Flow { src: Gid::v4([192, 0, 2, 1]), dst: Gid::v4([192, 0, 2, 2]), ..Flow::default() };
    let template = Template::new(&flow);
    let mut group = c.benchmark_group("icrc");
    for len in [8usize, 64, 256, 1024, 4096] {
        group.throughput(Throughput::Bytes(len as u64));
        let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
        group.bench_function(BenchmarkId::new("of bytes", len), |b| {
            b.iter(|| icrc::of_masked(black_box(&bytes)))
        });
        let mut copy = vec![0u8; len];
        group.bench_function(BenchmarkId::new("a copy, then of bytes", len), |b| {
            b.iter(|| {
                copy.copy_from_slice(black_box(&bytes));
                icrc::of_masked(black_box(&copy))
            })
        });
        group.bench_function(BenchmarkId::new("a copy with its sum", len), |b| {
            b.iter(|| crc::copy(black_box(&mut copy), black_box(&bytes)))
        });
        let mut frame = vec![0u8; HEADERS_MAX + len + 8];
        let at = template.begin(&mut frame, &Header { payload_len: len as u32, ..Header::default() });
        let end = template.seal(&mut frame, at, len);
        frame.truncate(end);
        let Ok(Ingress::Roce(layout)) = locate(&frame) else { panic!("the frame is a packet") };
        group.bench_function(BenchmarkId::new("check a frame", len), |b| {
            b.iter(|| assert!(icrc::check(black_box(&mut frame), &layout, None)))
        });
    }
    group.finish();
}

criterion_group!(benches, checksum);
criterion_main!(benches);
