//! Benchmarks live in `benches/`; this library is what they share.
