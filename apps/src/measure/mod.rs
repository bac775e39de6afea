//! The timed loops. They use split handles and allocate nothing while they run.

pub mod exchange;
pub mod flow;
pub mod lat;
mod meter;
pub mod queues;
pub mod raw;
mod shared;
pub mod visit;
pub mod watch;

use hdrhistogram::Histogram;

/// Longest latency that is distinguished: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// An empty histogram of nanoseconds with three digits, which records without allocating.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .expect("1 ns to a minute with three digits is a valid range")
}

/// Quantiles at which the distribution of a latency is reported, in addition to its percentiles.
pub const QUANTILES: [f64; 20] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995,
    0.9999, 0.99999,
];

/// The figures of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Number of recorded latencies.
    pub count: u64,
    /// The latency at each of [`QUANTILES`].
    pub curve: [u64; QUANTILES.len()],
}

impl From<&Histogram<u64>> for Latency {
    fn from(h: &Histogram<u64>) -> Self {
        Self {
            min_ns: h.min(),
            p50_ns: h.value_at_quantile(0.5),
            p99_ns: h.value_at_quantile(0.99),
            p999_ns: h.value_at_quantile(0.999),
            max_ns: h.max(),
            count: h.len(),
            curve: QUANTILES.map(|q| h.value_at_quantile(q)),
        }
    }
}
