//! The window of a shard: a limit on the bytes in flight of all its reliable queue pairs. A port sets one if its far end drops what it
//! cannot buffer, as UDP sockets do ([`Port::window`](crate::port::Port::window)).
//!
//! Queue pairs with bytes in flight share the window equally. A single one has all of it, and sends less when others begin. A queue pair
//! may have one packet in flight, or one part of a READ, even if nothing of the window is left. So an answer that makes it send more is
//! always outstanding: no queue pair waits for another one's bytes, and none has to be woken.

use super::qp::Qp;
use crate::proto::requester::UNSHARED;

/// Bytes that count for a packet in addition to its path MTU: its headers, and a kernel's bookkeeping.
const PACKET: u64 = 256;

/// The window, and each queue pair's share of it.
#[derive(Debug)]
struct Window {
    /// Size of the window in bytes.
    bytes: u64,
    /// Bytes in flight of each queue pair, by slot; and their sum.
    held: Vec<u64>,
    total: u64,
    /// Number of queue pairs with bytes in flight.
    holders: u64,
}

impl Window {
    fn new(bytes: usize) -> Self {
        Self { bytes: bytes as u64, held: Vec::new(), total: 0, holders: 0 }
    }

    fn reserve(&mut self, slot: u32) {
        self.held.resize(self.held.len().max(slot as usize + 1), 0);
    }

    /// Bytes that a queue pair may have in flight now.
    fn share(&self, slot: u32) -> u64 {
        let held = self.held[slot as usize];
        let fair = self.bytes / (self.holders + u64::from(held == 0));
        let left = self.bytes.saturating_sub(self.total - held);
        fair.min(left)
    }

    /// Sets the bytes that a queue pair has in flight.
    fn hold(&mut self, slot: u32, bytes: u64) {
        let before = core::mem::replace(&mut self.held[slot as usize], bytes);
        self.total = self.total - before + bytes;
        self.holders = self.holders - u64::from(before > 0) + u64::from(bytes > 0);
    }
}

/// Bytes that count for a packet of a queue pair.
fn packet(qp: &Qp) -> u64 {
    qp.requester.mtu().bytes() as u64 + PACKET
}

/// The bytes in flight of a shard's queue pairs: unlimited, or limited by a window.
#[derive(Debug, Default)]
pub(super) struct InFlight(Option<Box<Window>>);

impl InFlight {
    /// Sets a window. Call it before queue pairs are created.
    pub fn bound(&mut self, bytes: usize) {
        self.0 = Some(Box::new(Window::new(bytes)));
    }

    /// Bytes in flight; 0 without a window.
    pub fn used(&self) -> u64 {
        self.0.as_ref().map_or(0, |window| window.total)
    }

    /// Makes room for the queue pair in this slot.
    pub fn reserve(&mut self, slot: u32) {
        if let Some(window) = &mut self.0 {
            window.reserve(slot);
        }
    }

    /// Removes the bytes of a destroyed queue pair.
    pub fn release(&mut self, slot: u32) {
        if let Some(window) = &mut self.0 {
            window.hold(slot, 0);
        }
    }

    /// Packets that a queue pair may have in flight now: see [`Requester::send_window`].
    ///
    /// [`Requester::send_window`]: crate::proto::requester::Requester::send_window
    #[inline(always)]
    pub fn share(&self, qp: &Qp) -> u32 {
        self.0.as_ref().map_or(UNSHARED, |window| share(window, qp))
    }

    /// Updates the bytes that a queue pair has in flight.
    #[inline(always)]
    pub fn note(&mut self, qp: &Qp) {
        if let Some(window) = &mut self.0 {
            hold(window, qp);
        }
    }
}

#[cold]
fn share(window: &Window, qp: &Qp) -> u32 {
    if !qp.hop.is_bounded() {
        return UNSHARED;
    }
    (window.share(qp.slot) / packet(qp)).clamp(1, UNSHARED.into()) as u32
}

#[cold]
fn hold(window: &mut Window, qp: &Qp) {
    let packets =
        if !qp.hop.is_bounded() || qp.is_unreliable() { 0 } else { qp.requester.packets_in_flight() };
    window.hold(qp.slot, u64::from(packets) * packet(qp));
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    fn window(queue_pairs: u32) -> Window {
        let mut window = Window::new(BYTES as usize);
        window.reserve(queue_pairs - 1);
        window
    }

    #[test]
    fn one_has_all_of_it_and_many_come_to_the_same() {
        for n in [1, 2, 8, 100] {
            let mut window = window(n);
            for _ in 0..4 {
                for slot in 0..n {
                    // At least one packet in any case.
                    window.hold(slot, window.share(slot).max(PACKET));
                    assert!(window.total <= BYTES + u64::from(n) * PACKET, "{n}");
                }
            }
            let fair = BYTES / u64::from(n);
            for held in &window.held {
                assert!(held.abs_diff(fair) <= fair / 8, "{n}: {held}, not {fair}");
            }
        }
    }

    #[test]
    fn what_is_given_back_is_there_for_the_others() {
        let mut window = window(3);
        let alone = window.share(2);
        window.hold(0, BYTES);
        window.hold(1, 4096); // one packet in any case
        assert_eq!(window.share(2), 0);
        window.hold(0, 0);
        window.hold(1, 0);
        assert_eq!((window.share(2), window.total), (alone, 0));
    }
}
