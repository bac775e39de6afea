//! Every limit, and how limits relate.

use core::time::Duration;

/// Entries that an admin submission queue may have (RDMA transport: at least and at most 32).
pub const ADMIN_ENTRIES: u16 = 32;
/// Namespace identifiers are 1 to this.
pub const NAMESPACES_MAX: u32 = 1024;
/// Asynchronous event requests that a controller keeps.
pub const EVENT_REQUESTS: usize = 4;
/// Entries of the error log.
pub const ERROR_ENTRIES: usize = 16;
/// Namespaces that the Changed Namespace List can name: at least as many as a subsystem can have.
pub const CHANGED_NAMESPACES: usize = 1024;
/// Ranges of a Dataset Management command.
pub const DSM_RANGES: usize = 256;
/// The most bytes of the host that the library itself reads for a command.
pub const INPUT_MAX: usize = 4096;
/// Granularity of keep alive timeouts, in 100 ms.
pub const KEEP_ALIVE_GRANULARITY: u16 = 10;
/// How long a new connection may take to send its Connect command.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// How long Connect waits for commands of the host's earlier queues. Then the host is told to try again later: without an answer
/// it would give up, Linux after a minute.
pub const QUIESCE_PATIENCE: Duration = Duration::from_secs(20);
/// Keep alive timeout of discovery controllers whose host asks for none: it wants a log and goes.
pub const DISCOVERY_PATIENCE: Duration = Duration::from_secs(120);

/// Submission queue entries of an I/O queue.
pub const QUEUE_ENTRIES: core::ops::RangeInclusive<u16> = 2..=4096;
/// Exponents of the largest transfer, in 4 KiB: a data descriptor has 24 bits of length.
pub const MDTS: core::ops::RangeInclusive<u8> = 1..=11;
/// The most that a discovery controller transfers at a time, as such an exponent.
pub const DISCOVERY_MDTS: u8 = 5;
/// Bytes of in-capsule data.
pub const IN_CAPSULE_MAX: u32 = 1 << 20;
/// Exponents of block sizes.
pub const BLOCK_SHIFTS: core::ops::RangeInclusive<u8> = 9..=12;

const _: () = assert!(DSM_RANGES * size_of::<crate::wire::io::DsmRange>() <= INPUT_MAX);
const _: () = assert!(crate::wire::fabrics::ConnectData::LEN <= INPUT_MAX);
const _: () = assert!((4096u64 << *MDTS.end()) < 1 << 24);
const _: () = assert!(CHANGED_NAMESPACES * 4 == crate::wire::identify::LEN);
const _: () = assert!(NAMESPACES_MAX as usize <= CHANGED_NAMESPACES);
