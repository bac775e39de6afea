//! Turns frames into fields and fields into frames, and guards them with the invariant CRC.
//!
//! Never allocates, keeps no state, reads no clock and knows no queue pair: the layers above decide whether a well-formed packet
//! is *acceptable*. Called by `shard` (both directions), `proto` (opcodes and header fields), `port` (`udp`, and the faults of
//! links) and tests.
//!
//! Receive: [`locate()`] makes every check that needs only the bytes, [`icrc::check`] verifies the ICRC, and [`Layout::packet`] returns the
//! fields. Transmit: [`Template::begin`] writes the headers, the caller copies the payload to the offset that it returns, and
//! [`Template::seal`] pads and writes the ICRC. An [`icrc::OnePass`] writes long packets as a whole instead.

#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod clmul;
mod discard;
mod flow;
mod header;
mod headers;
pub mod icrc;
mod locate;
mod masks;
mod numbers;
mod opcode;
mod packet;
mod template;

#[cfg(test)]
mod tests;

pub use discard::Discard;
pub use flow::{Flow, udp_source_port};
pub use header::{Ext, Header};
pub use headers::{Aeth, AtomicEth, Bth, Deth, Feth, Reth};
pub(crate) use locate::locate_plain;
pub use locate::{Glance, Ingress, Layout, locate, peek};
pub use numbers::{CNP_PAYLOAD, ICRC_LEN, UDP_PORT};
pub(crate) use numbers::{ETH_LEN, ETHER_IPV4, ETHER_IPV6, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, UDP_LEN, be16};
pub use opcode::{ExtHeader, Kind, Opcode, PayloadRule, Position, Row, Tail, Transport};
pub use packet::Packet;
pub use template::{HEADERS_MAX, Laid, Stencil, Template};
