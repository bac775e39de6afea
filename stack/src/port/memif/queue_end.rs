//! The ends of a queue's rings, as a link has them whatever its control channel is: who sends wakes a receiver that sleeps, and
//! what came before the end of a link is still received.

use super::rx::{Received, Rx};
use super::tx::Tx;
use crate::port::frame::RxBurst;
use crate::port::stock::Stock;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, compiler_fence};

/// Polls without frames until the peer's flag is read again: by then the peer has seen what was sent, or its flag says that it
/// sleeps.
pub const LOOK_AGAIN: u32 = 64;

/// The sending end of a ring.
pub struct TxEnd {
    tx: Tx,
    /// Polls until the receiver's flag is read again; 0: not needed.
    look_again: u32,
}

impl TxEnd {
    /// Of a ring that was never used.
    pub fn new(tx: Tx) -> Self {
        Self { tx, look_again: 0 }
    }

    /// Frames were sent. Whether the receiver is to be woken: it waits for an event.
    #[inline(always)]
    #[must_use]
    pub fn has_sent(&mut self) -> bool {
        self.look_again = LOOK_AGAIN;
        // The compiler must keep the load of the flag behind the store of the index: see `Rx::arm`.
        compiler_fence(Ordering::SeqCst);
        !self.tx.is_polled()
    }

    /// Once more whether the receiver is to be woken: one that went to sleep while we sent may have missed that, as the processor may
    /// load its flag before our store of the index is visible. Called after each poll that brought nothing.
    #[inline(always)]
    #[must_use]
    pub fn look_again(&mut self) -> bool {
        if self.look_again > 0 {
            self.look_again -= 1;
            return self.look_again == 0 && !self.tx.is_polled();
        }
        false
    }

    /// As [`look_again`](Self::look_again), now: the next poll may be far away.
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

/// The receiving end of a ring whose link is over, until what came before is received.
pub struct Left {
    rx: Rx,
    /// Slots that were filled when the link was found to be over. The peer, which still has the memory, may fill more: those are not
    /// received.
    slots: u16,
}

impl Left {
    /// What is left of a ring; `None`: nothing.
    pub fn of(rx: Rx) -> Option<Self> {
        let slots = rx.unread();
        (slots > 0).then_some(Self { rx, slots })
    }

    /// Whether nothing is left any more.
    pub fn is_over(&self) -> bool {
        self.slots == 0
    }

    /// Receives some of it.
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
