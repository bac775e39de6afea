//! Limits of the stack that programs see or that modules share, with the assertions between them. A constant that only one module
//! uses may stay in that module.

use core::time::Duration;

use crate::id::QpnBlock;

/// Frames taken from a queue in one burst.
pub const RX_BURST: usize = 32;
/// A port may end a burst at this many bytes, so that all of it is still in L1 or L2 when it is handled.
pub const RX_BURST_BYTES: u64 = 8192;
/// Most bursts taken in a turn, fewer if one brings requests to answer; and most bursts received ahead.
pub const RX_BURSTS: usize = 4;
/// Frames a turn may hold for the port: an ACK for each frame received, and as many data packets.
pub const TX_BURST: usize = 64;
/// Packets one queue pair may build in a turn before the next one gets its chance, where the port sends each by itself. Where it sends
/// messages of several ([`PortInfo::message`](crate::port::PortInfo::message)) they are as many as a message may have.
pub const QP_TX_BUDGET: usize = 16;
/// A packet of this many bytes or more gets its ICRC at once, while it is in L1; shorter ones wait for the end of the burst.
pub const LONG_PACKET: usize = 1024;
/// When a long packet is placed, memory is prefetched this many bytes ahead of where the last one was placed.
pub const PLACE_AHEAD: u64 = 4096;
/// Queue pairs served in a turn from the list of those with requests, and from that of those with answers.
pub const READY_BUDGET: usize = 64;
/// Queue pairs whose send queues a shard checks every turn, so that their posters need not ring.
pub const WATCHED_MAX: usize = 8;
/// A queue pair is watched after this many doorbells, each at most [`WATCH_GAP`] after the one before.
pub const WATCH_AFTER: u8 = 16;
/// See [`WATCH_AFTER`].
pub const WATCH_GAP: Duration = Duration::from_micros(100);
/// A queue pair is watched until nothing was posted for this long.
pub const WATCH_IDLE: Duration = Duration::from_millis(1);
/// A shard with at least this many queue pairs prefetches their state a burst ahead: it does not all stay in L1 and L2.
pub const PREFETCH_FROM: usize = 256;
/// Frames waiting in a shard's inbox (handed over, or addressed to ourselves).
pub const INBOX_DEPTH: usize = 1024;
/// Frames of a kind that wait for one of several links, while it refuses all: the buffers are everybody's.
pub const TX_REFUSED: usize = TX_BURST / 4;
/// How long a port may refuse every frame before the backlog is dropped, under its counter: some time slices of the
/// peer's process or virtual machine, and less than the usual ACK timeout (67 ms), which a dropped frame costs.
pub const TX_STALL: Duration = Duration::from_millis(20);
/// Turns that a queue pair gets to send what was posted before it is destroyed: enough for a full queue.
pub const LAST_TURNS: usize = QUEUE_DEPTH_MAX as usize / QP_TX_BUDGET;

/// How much longer than its timeout an ACK timer runs, because the packet leaves a while after the clock was read at the start of
/// its turn. With it the shortest timeout (8 us) stays within four times its length (IBA 9.7.6.1.3).
pub const TURN_SLACK: Duration = Duration::from_micros(16);
/// Most extra time that a retry after a timeout waits for its answer: the peer may be a process that does not run for a while.
/// With the usual ACK timeout of 67 ms and 7 retries the requester gives up after 1.5 s rather than 0.5 s.
pub const RETRY_PATIENCE: Duration = Duration::from_millis(250);

/// Shards a device can have.
pub const SHARDS_MAX: usize = 16;
/// Queue pairs a shard can hold.
pub const QPS_PER_SHARD_MAX: usize = 1 << 17;

/// Work requests in a send or receive queue.
pub const QUEUE_DEPTH_MAX: u32 = 1 << 15;
/// Scatter/gather elements of a work request.
pub const SGE_MAX: usize = 16;
/// Inline bytes of a work request.
pub const INLINE_MAX: u32 = 512;
/// Protection domains of a device.
pub const PD_MAX: usize = 1 << 16;
/// Completion queues of a device.
pub const CQ_MAX: usize = 1 << 16;
/// Entries of a completion queue.
pub const CQE_MAX: u32 = 1 << 22;
/// Bytes of a message (IBA 9.7.7: 2^31).
pub const MESSAGE_MAX: u32 = 1 << 31;
/// READ and ATOMIC requests outstanding at either end of a queue pair. A responder keeps 64 bytes for each of its
/// `max_dest_rd_atomic`.
pub const RD_ATOMIC_MAX: u8 = 128;
/// Shared receive queues of a device.
pub const SRQ_MAX: usize = 1 << 16;
/// Bytes of a memory region: the largest object that a program can have.
pub const MR_SIZE_MAX: u64 = isize::MAX as u64;
/// Memory regions and windows of a device, together. Fewer under Miri, which takes a quarter of a minute to set up all of them.
pub const MR_MAX: usize = if cfg!(miri) { 1 << 10 } else { 1 << 16 };

/// Request packets a queue pair may have unacknowledged.
pub const WINDOW_PACKETS: u32 = 256;
/// A packet requests an acknowledgement at least this often inside a message.
pub const ACK_REQ_STRIDE: u32 = 32;
/// With fewer credits left than this, every message requests an acknowledgement, which brings new ones.
pub const CREDITS_LOW: i32 = 16;

/// How long a connection tries a source port of its own while nothing is answered.
pub const SOURCE_PORT_TRY: Duration = Duration::from_millis(200);
/// Of so many connections with a host that answered only packets from port 4791 one tries another port.
pub const SOURCE_PORT_AGAIN: u8 = 16;
/// Time between two packets of a shard that are timed, to learn how long the peer takes to answer.
pub const RTT_PERIOD: Duration = Duration::from_micros(100);
/// A packet that was not answered for so long is not timed any more: longer times change nothing.
pub const RTT_LONGEST: Duration = Duration::from_millis(1);
/// Packets that must have come from behind a gap before what is missing counts as lost earlier than after [`GAP_LONGEST`].
pub const GAP_THRESHOLD: u32 = 3;
/// A missing packet is waited for as long as so many packets take, where it does not know the round-trip time.
pub const GAP_PACKETS: u32 = 16;
/// It waits this long at least, where it does not know the round-trip time.
pub const GAP_SHORTEST: Duration = Duration::from_micros(5);
/// It waits no longer than this.
pub const GAP_LONGEST: Duration = Duration::from_micros(100);
/// How many packets from behind a gap a queue pair holds of its requests, and as many of its responses; and how far behind the gap a
/// request may be.
pub const HELD_PER_QP: u32 = 32;
/// Packets that a shard holds: half of the buffers that a port's queue has at least, so that what is missing finds one. The queue
/// pairs with one host hold half of what the others leave at most.
pub const HELD_PER_SHARD: u32 = 128;
/// How long they are held after the last of a queue pair has come: a requester that was told of the gap sends all of them again.
pub const HELD_FOR: Duration = Duration::from_millis(10);

/// Time between two requests of a neighbour resolution. [`NEIGHBOUR_TRIES`] of them take 4 s, so that a neighbour whose program
/// or machine was not scheduled for a while does not count as gone (Linux: 3 requests, 1 s apart).
pub const NEIGHBOUR_RETRY: Duration = Duration::from_millis(250);
/// Requests sent before a neighbour counts as unreachable.
pub const NEIGHBOUR_TRIES: u8 = 16;
/// How many of these requests go first, by unicast, to the known Ethernet address; meanwhile no other host may answer instead.
pub const NEIGHBOUR_UNICAST_TRIES: u8 = 8;
/// Time from the end of one check whether a neighbour is still at its Ethernet address to the next one that another host's claim
/// can cause.
pub const NEIGHBOUR_CLAIM_GAP: Duration = Duration::from_secs(1);
/// How long an unreachable neighbour is remembered before it is resolved again.
pub const NEIGHBOUR_FAILED_HOLD: Duration = Duration::from_secs(1);
/// How long a neighbour entry is used before it is refreshed (the old address stays in use meanwhile); and how long an entry
/// counts as used after it was resolved.
pub const NEIGHBOUR_LIFETIME: Duration = Duration::from_secs(60);
/// Entries of the neighbour table beside those that connected queue pairs hold and the configured ones.
pub const NEIGHBOUR_MAX: usize = 1024;
/// Most of these entries for strangers: hosts that resolve us or need an answer, and that this host did not resolve.
pub const NEIGHBOUR_STRANGERS_MAX: usize = 256;
/// Strangers whose Ethernet addresses are remembered, for the replies to their messages alone.
pub const REPLY_MACS: usize = 256;
/// Queue pairs that a shard updates in a turn after a neighbour moved.
pub const NEIGHBOUR_VISITS: usize = 64;

/// Multicast groups that a device can be in.
pub const MCAST_GRP_MAX: usize = 128;
/// Queue pairs attached to one multicast group.
pub const MCAST_QP_ATTACH_MAX: usize = 64;
/// Reports sent when a multicast group is joined: the robustness variable (RFC 3376 8.1), and one more.
pub const GROUP_REPORTS: u8 = 3;
/// Time between these reports (RFC 3376 8.11).
pub const GROUP_REPORT_GAP: Duration = Duration::from_secs(1);

/// The background helper polls hot this long after the last frame.
pub const HELPER_HOT: Duration = Duration::from_micros(50);
/// Longest time between two polls by the helper of a port that cannot signal, while a queue pair is connected, and between two
/// looks at a shard that callers turn.
pub const HELPER_SLEEP: Duration = Duration::from_millis(1);

/// Most queue pair numbers of a block in use. The others stay free, so that a number drawn at random is hard to guess.
pub const QPN_BLOCK_USE: u32 = QpnBlock::NUMBERS / 2;

/// Blocks of queue pair numbers that a process leases together, from the registry of its host.
pub const RUN_BLOCKS: usize = 8;
/// Runs, of so many blocks, that a process may have: each takes a descriptor.
pub const RUNS_PER_PROCESS: usize = 8;
/// How long the numbers of a process that has ended rest: longer than a packet to it is under way, or repeated.
pub const RUN_REST: Duration = Duration::from_secs(10);
/// How long a process waits, in all, for those who let it join the registry: they may be stopped, or not run for a while.
pub const REGISTRY_PATIENCE: Duration = Duration::from_secs(20);

const _: () = assert!(QpnBlock::COUNT.is_multiple_of(RUN_BLOCKS));
const _: () = assert!(
    SHARDS_MAX * QPS_PER_SHARD_MAX <= QPN_BLOCK_USE as usize * QpnBlock::COUNT / 2,
    "blocks for every queue pair, and as many for numbers at rest"
);
const _: () = assert!(TX_BURST >= 2 * RX_BURST, "a burst received must find room for its ACKs");
const _: () = assert!(
    NEIGHBOUR_UNICAST_TRIES < NEIGHBOUR_TRIES,
    "a station that moved must be asked for by group address"
);
const _: () = assert!(NEIGHBOUR_STRANGERS_MAX < NEIGHBOUR_MAX && REPLY_MACS.is_power_of_two());
const _: () =
    assert!(GAP_SHORTEST.as_nanos() < GAP_LONGEST.as_nanos() && GAP_LONGEST.as_nanos() < HELD_FOR.as_nanos());
const _: () =
    assert!(HELD_PER_QP < HELD_PER_SHARD / 2, "one queue pair leaves something to the others of its host");
const _: () = assert!(RTT_LONGEST.as_nanos() > 4 * GAP_LONGEST.as_nanos());
const _: () = assert!(WATCH_GAP.as_nanos() < WATCH_IDLE.as_nanos());
const _: () = assert!(WINDOW_PACKETS < 1 << 23, "half the PSN circle is the specification's limit");
const _: () = assert!(ACK_REQ_STRIDE * 2 <= WINDOW_PACKETS, "an ACK must arrive before the window closes");
const _: () = assert!(QUEUE_DEPTH_MAX.is_power_of_two() && QUEUE_DEPTH_MAX < 1 << 23);
const _: () = assert!(MR_MAX.is_power_of_two() && MR_MAX <= 1 << 24);
