//! A whole turn of the loop at both ends, by burst; an idle turn; a message on its own.

use benches::path::{self, Calls, Op, Path, Scenario};
use benches::{End, Link};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stack::id::Mtu;
use stack::time::Instant;

fn turn(c: &mut Criterion) {
    let mut group = c.benchmark_group("turn");
    let mut link = Link::new(Mtu::Mtu4096);
    let mut now = 1_000_000_000u64;
    group.bench_function("idle", |b| {
        b.iter(|| {
            now += 1000;
            let End { shard, .. } = &mut link.a;
            shard.poll_once(Instant::from_nanos(now))
        })
    });
    for (name, op, len) in
        [("SEND", Op::Send, 64), ("WRITE", Op::Write, 64), ("READ", Op::Read, 64), ("WRITE", Op::Write, 4096)]
    {
        for batch in [1, 8, 32].into_iter().filter(|n| op != Op::Read || *n <= 16) {
            let scenario = Scenario {
                name: "turn",
                op,
                len,
                batch,
                shards: 1,
                link: path::Link::Pair,
                calls: Calls::Handles,
            };
            let mut path = Path::new(&scenario);
            path.rounds(&scenario, 3, false);
            group.throughput(Throughput::Elements(batch as u64));
            group.bench_function(BenchmarkId::new(format!("{name} {len} B, lists of"), batch), |b| {
                b.iter_custom(|times| {
                    let lists = usize::try_from(times).expect("so many are not asked for");
                    let start = std::time::Instant::now();
                    path.rounds(&scenario, lists, false);
                    start.elapsed()
                })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, turn);
criterion_main!(benches);
