//! Work queues and completion lanes, both ends on one thread: their own work, no cache line between cores.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stack::sync::lanes::cq;
use stack::sync::spsc::ring;
use std::hint::black_box;

const BURSTS: [u32; 3] = [1, 8, 32];

fn rings(c: &mut Criterion) {
    let mut group = c.benchmark_group("rings");
    for burst in BURSTS {
        group.throughput(Throughput::Elements(burst.into()));
        let (mut producer, mut consumer) = ring::<[u64; 8]>(256, 1);
        let mut seq = 0u32;
        group.bench_function(BenchmarkId::new("work queue", burst), |b| {
            b.iter(|| {
                for n in 0..burst {
                    producer.slot(n).expect("room")[0] = black_box([u64::from(n); 8]);
                }
                producer.publish(burst);
                for _ in 0..burst {
                    black_box(consumer.get(seq).expect("published"));
                    seq = seq.wrapping_add(1);
                }
                consumer.release_to(seq);
            })
        });
        let (mut reader, mut lanes) = cq::<[u64; 4]>(256, 1);
        let mut lane = lanes.remove(0);
        group.bench_function(BenchmarkId::new("completion lane", burst), |b| {
            b.iter(|| {
                for n in 0..burst {
                    lane.push(black_box([u64::from(n); 4])).expect("room");
                }
                lane.publish();
                let mut taken = 0;
                reader.poll_with(burst as usize, |cqe| taken += cqe[0]);
                taken
            })
        });
    }
    group.finish();
}

criterion_group!(benches, rings);
criterion_main!(benches);
