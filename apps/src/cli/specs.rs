//! The options of `roce-perf client` turned into complete specifications of measurements.

use super::perf::{MeasureArgs, RawClientArgs};
use crate::error::{AppError, Result};
use crate::plan::{Mode, Op, Pattern, RawSpec, Spec};

/// Visits outstanding, unless --in-flight says otherwise.
const IN_FLIGHT: u32 = 64;
/// Bytes that a queue pair has outstanding in a bandwidth measurement.
const BYTES_OUTSTANDING: u64 = 512 << 10;
/// Messages that all queue pairs together have outstanding in a rate measurement.
const RATE_OUTSTANDING: u32 = 1024;
/// Receive requests posted, at most: otherwise twice the number of outstanding messages.
const RX_DEPTH: u32 = 512;

/// Sizes of `--all`.
fn all_sizes() -> Vec<u64> {
    (1..=23).map(|n| 1 << n).collect()
}

/// Every measurement of a client's command line, in the order of the table.
///
/// # Errors
/// [`AppError::Usage`] with the options that contradict each other.
pub fn specs_of(args: &MeasureArgs) -> Result<Vec<Spec>> {
    let mut ops = Vec::new();
    for op in args.op.iter().flat_map(|arg| arg.ops()) {
        if !ops.contains(op) {
            ops.push(*op);
        }
    }
    let mut specs: Vec<Spec> = Vec::new();
    if args.pattern == Pattern::All && (args.visit.is_some() || args.in_flight.is_some()) {
        return Err(AppError::Usage("--visit and --in-flight are for --pattern random".into()));
    }
    if args.pattern == Pattern::Random && (args.tx_depth.or(args.post_list).or(args.cq_mod).is_some()) {
        return Err(AppError::Usage(
            "--pattern random posts a visit as one list, the last request signalled; --tx-depth, --post-list and \
             --cq-mod are for --pattern all"
                .into(),
        ));
    }
    if args.srq && !ops.contains(&Op::Send) {
        return Err(AppError::Usage("--srq is for SEND: other operations take no receive requests".into()));
    }
    for &mode in &args.mode {
        if mode == Mode::Lat && args.mode.len() == 1 && (args.qps > 1 || args.bidirectional) {
            return Err(AppError::Usage(
                "--mode lat uses one queue pair, one message at a time; --qps and --bidirectional are for bw \
                 and rate"
                    .into(),
            ));
        }
        for &op in &ops {
            let sizes = match mode {
                _ if op.is_atomic() => vec![8],
                _ if args.all => all_sizes(),
                _ if !args.size.is_empty() => args.size.clone(),
                Mode::Bw => vec![65536],
                Mode::Lat | Mode::Rate => vec![64],
            };
            for size in sizes {
                let spec = one(args, op, mode, size);
                spec.check().map_err(AppError::Usage)?;
                if !specs.contains(&spec) {
                    specs.push(spec);
                }
            }
        }
    }
    Ok(specs)
}

/// Default number of outstanding send requests: enough to keep the other end busy, and no more, because only outstanding
/// requests that fit in a cache are fast.
fn default_tx_depth(mode: Mode, size: u64, qps: u32) -> u32 {
    match mode {
        Mode::Bw => (BYTES_OUTSTANDING / size.max(1)).clamp(4, 128) as u32,
        Mode::Lat => 64,
        Mode::Rate => (RATE_OUTSTANDING / qps.max(1)).clamp(64, 512),
    }
}

fn one(args: &MeasureArgs, op: Op, mode: Mode, size: u64) -> Spec {
    let (inline, post_list, cq_mod) = match mode {
        Mode::Bw => (0, 1, 16),
        Mode::Lat => (64, 1, 16),
        Mode::Rate => (0, 32, 64),
    };
    let tx_depth = args.tx_depth.unwrap_or(default_tx_depth(mode, size, args.qps));
    let inline = u64::from(args.inline.unwrap_or(inline));
    let visit = args.visit.unwrap_or(1);
    let in_flight = if args.pattern == Pattern::Random { IN_FLIGHT } else { 1 };
    Spec {
        op,
        mode,
        size,
        iters: args.iters,
        duration_ms: args.duration.as_millis() as u64,
        tx_depth,
        rx_depth: args.rx_depth.unwrap_or(match args.pattern {
            Pattern::Random => 4 * visit,
            Pattern::All => tx_depth.saturating_mul(2).min(RX_DEPTH),
        }),
        qps: args.qps,
        mtu: args.mtu.map(|m| m.bytes() as u32),
        inline: size <= inline && inline > 0 && !op.answers(),
        post_list: args.post_list.unwrap_or(post_list),
        cq_mod: args.cq_mod.unwrap_or(cq_mod),
        outs: args.outs,
        bidirectional: args.bidirectional,
        tclass: args.tclass,
        timeout: args.timeout,
        retry: args.retry,
        rnr_retry: args.rnr_retry,
        verify: args.verify,
        pattern: args.pattern,
        visit,
        in_flight: args.in_flight.unwrap_or(in_flight),
        srq: args.srq && op == Op::Send,
    }
    .adjusted()
}

/// The raw measurements of a raw client's command line.
pub fn raw_specs_of(args: &RawClientArgs) -> Vec<RawSpec> {
    let duration_ms = args.duration.as_millis() as u64;
    let pairs = args.mode.iter().flat_map(|&mode| args.size.iter().map(move |&size| (mode, size)));
    pairs.map(|(mode, size)| RawSpec { mode, frame: size as u32, duration_ms }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::perf::{PerfCli, PerfCommand};
    use super::*;

    #[test]
    fn what_is_outstanding_fits_a_cache_unless_told_otherwise() {
        let bw = |size| default_tx_depth(Mode::Bw, size, 1);
        assert_eq!([0, 64, 4096, 65536, 262_144, 8 << 20].map(bw), [128, 128, 128, 8, 4, 4]);
        let rate = |qps| default_tx_depth(Mode::Rate, 64, qps);
        assert_eq!([1, 2, 4, 16, 1024].map(rate), [512, 512, 256, 64, 64]);
        for (mode, size, qps) in [(Mode::Bw, 65536, 1), (Mode::Bw, 8 << 20, 1), (Mode::Rate, 64, 16)] {
            let size = size.to_string();
            let line =
                ["roce-perf", "client", "--op", "send,write,read", "--mode", mode.name(), "--size", &size];
            let line = line.into_iter().map(String::from).chain([
                "--qps".into(),
                qps.to_string(),
                "localhost".into(),
            ]);
            let cli = <PerfCli as clap::Parser>::try_parse_from(line).unwrap();
            let Some(PerfCommand::Client(args)) = cli.command else { panic!("a client") };
            for spec in specs_of(&args.measure).unwrap() {
                assert!(spec.tx_depth <= spec.rx_depth && spec.cq_mod <= spec.tx_depth / 2, "{spec:?}");
            }
        }
    }
}
