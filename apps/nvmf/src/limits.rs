//! All limits, and assertions about how they relate.

use core::time::Duration;

/// The maximum number of entries of an admin submission queue. The RDMA transport specification requires exactly this value.
pub const ADMIN_ENTRIES: u16 = 32;
/// The largest namespace identifier; the smallest is 1.
pub const NAMESPACES_MAX: u32 = 1024;
/// The most Asynchronous Event Requests that may be outstanding on a controller.
pub const EVENT_REQUESTS: usize = 4;
/// The number of entries of the error log.
pub const ERROR_ENTRIES: usize = 16;
/// The capacity of the Changed Namespace List, in namespace identifiers: at least as many as a subsystem can have.
pub const CHANGED_NAMESPACES: usize = 1024;
/// The most ranges of a Dataset Management command.
pub const DSM_RANGES: usize = 256;
/// The most bytes that [`Step::Fetch`](crate::Step::Fetch) asks for: data that the library itself reads.
pub const INPUT_MAX: usize = 4096;
/// Granularity of keep alive timeouts, in units of 100 ms.
pub const KEEP_ALIVE_GRANULARITY: u16 = 10;
/// How long the host of a new connection may take to send Connect. Then the queue ends.
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// How long Connect waits for commands of the host's earlier queues. Then Connect fails with a status that lets the host try again later.
/// Without a response the host would give up; Linux does so after a minute.
pub const QUIESCE_PATIENCE: Duration = Duration::from_secs(20);
/// Keep alive timeout of discovery controllers whose host sets none: such a host reads the log and disconnects.
pub const DISCOVERY_PATIENCE: Duration = Duration::from_secs(120);

/// The range of the setting for submission queue entries of an I/O queue.
pub const QUEUE_ENTRIES: core::ops::RangeInclusive<u16> = 2..=4096;
/// The range of MDTS: the largest transfer is 2 to this power times 4 KiB. The length of a keyed SGL descriptor has 24 bits.
pub const MDTS: core::ops::RangeInclusive<u8> = 1..=11;
/// The largest MDTS of a discovery controller.
pub const DISCOVERY_MDTS: u8 = 5;
/// The most bytes of in-capsule data that can be configured.
pub const IN_CAPSULE_MAX: u32 = 1 << 20;
/// The range of block sizes, as powers of two in bytes.
pub const BLOCK_SHIFTS: core::ops::RangeInclusive<u8> = 9..=12;

const _: () = assert!(DSM_RANGES * size_of::<crate::wire::io::DsmRange>() <= INPUT_MAX);
const _: () = assert!(crate::wire::fabrics::ConnectData::LEN <= INPUT_MAX);
const _: () = assert!((4096u64 << *MDTS.end()) < 1 << 24);
const _: () = assert!(CHANGED_NAMESPACES * 4 == crate::wire::identify::LEN);
const _: () = assert!(NAMESPACES_MAX as usize <= CHANGED_NAMESPACES);
