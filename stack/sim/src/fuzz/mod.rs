//! The functions that fuzzers run: they take any bytes, return nothing, and panic when something is wrong.
//!
//! The bytes are a program: each target reads from them the set-up, the packets and the calls, and then checks that all
//! invariants hold. The same functions are called by the fuzzer (`stack/fuzz`, on a nightly toolchain) and by
//! the tests of each crate, which [replay] the inputs that were found worth keeping. No input is
//! invalid, none takes long, and none behaves differently the second time.

mod cm;
#[cfg(not(miri))]
mod links;
mod masks;
#[cfg(not(miri))]
mod memif;
mod names;
mod net;
mod ops;
mod packets;
mod reads;
pub mod replay;
mod wire;

pub use cm::cm_bytes;
#[cfg(not(miri))]
pub use links::host_links;
pub use masks::modify_masks;
#[cfg(not(miri))]
pub use memif::memif_peer;
pub use names::port_names;
pub use net::net_frames;
pub use ops::qp_ops;
pub use packets::{completer_bytes, responder_bytes};
pub use reads::read_rings;
pub use wire::wire_parse;

/// A target: its name, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("wire_parse", wire_parse),
    ("responder_bytes", responder_bytes),
    ("completer_bytes", completer_bytes),
    ("qp_ops", qp_ops),
    ("modify_masks", modify_masks),
    ("cm_bytes", cm_bytes),
    ("net_frames", net_frames),
    ("read_rings", read_rings),
    ("port_names", port_names),
    #[cfg(not(miri))]
    ("memif_peer", memif_peer),
    #[cfg(not(miri))]
    ("host_links", host_links),
];

/// Reads numbers from an input; behind its end there are zeros.
#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Whether everything was read.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }
    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }
    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }
    fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }
    /// A number in `0 .. n`.
    fn below(&mut self, n: usize) -> usize {
        (if n > 256 { usize::from(self.u16()) } else { usize::from(self.u8()) }) % n
    }
    /// One of these.
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
    /// Up to `n` bytes.
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// Whether a checker sees the fault that it is there for.
#[cfg(test)]
fn fires(checker: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(checker)).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: an input that ends early is one that ends in zeros.
    #[test]
    fn inputs_end_in_zeros() {
        let mut input = Input(&[1, 2, 3]);
        assert_eq!((input.u16(), input.u32(), input.u64(), input.below(7)), (0x0102, 0x0300_0000, 0, 0));
        assert!(input.is_empty() && input.take(4).is_empty());
    }
}
