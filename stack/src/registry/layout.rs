//! The layout of a registry's memory, in 64-bit words.

use super::run::Run;

/// Words of the header: one page.
pub(super) const HEADER: usize = 512;
/// Words of a run: one cache line.
pub(super) const RUN: usize = 8;
/// Words of the header and of the runs: the part that leases need.
pub const LEASE_WORDS: usize = HEADER + RUN * Run::COUNT;

/// Words of a binding.
pub(super) const BINDING: usize = 4;
/// Bindings of a bucket: the most for all services that share it.
pub(super) const BUCKET: usize = 16;
/// Number of buckets.
pub(super) const BUCKETS: usize = 2048;
/// Words of a bitmap of the buckets in which a process has ever listened.
pub(super) const LISTENED: usize = BUCKETS / 64;
/// Index of the first word of the bindings, where this bitmap is.
pub(super) const BINDINGS: usize = LEASE_WORDS;
/// Words of all bindings and of the bitmap.
pub(super) const WORDS_OF_BINDINGS: usize = LISTENED + BINDING * BUCKET * BUCKETS;

/// Words of a request.
pub(super) const REQUEST: usize = 2;
/// Requests of a set: a request can be in any place of its set.
pub(super) const WAYS: usize = 4;
/// Number of sets.
pub(super) const SETS: usize = 1024;
/// Index of the first word of the requests.
pub(super) const REQUESTS: usize = BINDINGS + WORDS_OF_BINDINGS;
/// Words of all requests.
pub(super) const WORDS_OF_REQUESTS: usize = REQUEST * WAYS * SETS;

/// Words of the whole memory.
pub const WORDS: usize = REQUESTS + WORDS_OF_REQUESTS;
/// Bytes of the whole memory.
pub const BYTES: usize = WORDS * size_of::<u64>();
