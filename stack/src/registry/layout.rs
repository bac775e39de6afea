//! Where each part of a registry's memory is, in words.

use super::run::Run;

/// Words of the header: a page.
pub(super) const HEADER: usize = 512;
/// Words of a run: a cache line.
pub(super) const RUN: usize = 8;
/// Words of the header and the runs: all that leases need.
pub const LEASE_WORDS: usize = HEADER + RUN * Run::COUNT;

/// Words of a binding.
pub(super) const BINDING: usize = 4;
/// Bindings of a bucket: so many can services have that share it.
pub(super) const BUCKET: usize = 16;
/// Buckets of bindings.
pub(super) const BUCKETS: usize = 2048;
/// Words that say in which buckets somebody has ever listened, a bit for each.
pub(super) const LISTENED: usize = BUCKETS / 64;
/// Where bindings begin, with these words.
pub(super) const BINDINGS: usize = LEASE_WORDS;
/// Words of all of them.
pub(super) const WORDS_OF_BINDINGS: usize = LISTENED + BINDING * BUCKET * BUCKETS;

/// Words of a request.
pub(super) const REQUEST: usize = 2;
/// Requests among which one with a hash has to be.
pub(super) const WAYS: usize = 4;
/// Places for a hash.
pub(super) const SETS: usize = 1024;
/// Where requests begin.
pub(super) const REQUESTS: usize = BINDINGS + WORDS_OF_BINDINGS;
/// Words of all of them.
pub(super) const WORDS_OF_REQUESTS: usize = REQUEST * WAYS * SETS;

/// Words of it all.
pub const WORDS: usize = REQUESTS + WORDS_OF_REQUESTS;
/// Bytes of it all.
pub const BYTES: usize = WORDS * size_of::<u64>();
