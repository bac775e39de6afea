//! The ends of a queue's rings, independent of the link's control channel: a sender wakes a receiver that sleeps, and frames that arrived
//! before the end of a link are still received.

use super::rx::{Received, Rx};
use super::tx::Tx;
use crate::port::frame::RxBurst;
use crate::port::stock::Stock;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, compiler_fence};

/// Empty polls until the peer's flag is read again: by then the peer has seen the frames that were sent, or its flag says that it sleeps.
pub const LOOK_AGAIN: u32 = 64;

/// The sending end of a ring.
pub struct TxEnd {
    tx: Tx,
    /// Polls until the receiver's flag is read again; 0 if not needed.
    look_again: u32,
}

impl TxEnd {
    /// The sending end of an unused ring.
    pub fn new(tx: Tx) -> Self {
        Self { tx, look_again: 0 }
    }

    /// Called after frames were sent. Returns whether the receiver does not poll the ring and must be signalled.
    #[inline(always)]
    #[must_use]
    pub fn has_sent(&mut self) -> bool {
        self.look_again = LOOK_AGAIN;
        // The compiler must not move the load of the flag before the store of the index: see `Rx::arm`.
        compiler_fence(Ordering::SeqCst);
        !self.tx.is_polled()
    }

    /// Checks again whether the receiver must be signalled. A receiver that went to sleep while this end sent may have missed the frames,
    /// as the processor may load its flag before the store of the index is visible. Called after each empty poll.
    #[inline(always)]
    #[must_use]
    pub fn look_again(&mut self) -> bool {
        if self.look_again > 0 {
            self.look_again -= 1;
            return self.look_again == 0 && !self.tx.is_polled();
        }
        false
    }

    /// As [`look_again`](Self::look_again), but checks at once, as the next poll may be far away.
    #[must_use]
    pub fn look_now(&mut self) -> bool {
        self.look_again = self.look_again.min(1);
        self.look_again()
    }
}

impl Deref for TxEnd {
    type Target = Tx;

    #[inline(always)]
    fn deref(&self) -> &Tx {
        &self.tx
    }
}

impl DerefMut for TxEnd {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Tx {
        &mut self.tx
    }
}

/// The receiving end of a ring whose link has ended, until the frames that had arrived are received.
pub struct Left {
    rx: Rx,
    /// Slots that were filled when the end of the link was found. The peer, which still has the memory, may fill more: those are not
    /// received.
    slots: u16,
}

impl Left {
    /// The frames that are left in a ring; `None` if none.
    pub fn of(rx: Rx) -> Option<Self> {
        let slots = rx.unread();
        (slots > 0).then_some(Self { rx, slots })
    }

    /// Whether all were received.
    pub fn is_over(&self) -> bool {
        self.slots == 0
    }

    /// Receives some of the frames.
    pub fn receive(&mut self, out: &mut RxBurst, stock: &mut Stock) -> Received {
        let Ok(got) = self.rx.burst(out, stock) else {
            self.slots = 0;
            return Received::default();
        };
        let slots = self.slots.saturating_sub((got.frames + got.dropped) as u16);
        self.slots = slots.min(self.rx.unread());
        got
    }
}
