//! One shard's end of a link: the ring on which it sends, and those from which it receives.

use super::shared::Link;
use super::terms::rings_to;
use crate::crc::copy_function;
use crate::port::frame::RxBurst;
use crate::port::memif::queue_end::TxEnd;
use crate::port::memif::ring::Attention;
use crate::port::memif::rx::{Received, Rx};
use crate::port::memif::slots::Impossible;
use crate::port::memif::tx::Tx;
use crate::port::stall::Stall;
use crate::port::stock::Stock;
use core::time::Duration;
use std::sync::Arc;

/// A shard's end of a link.
pub(super) struct End {
    /// The link.
    pub link: Arc<Link>,
    /// The rings that lead here.
    pub rx: Vec<Rx>,
    /// The ring to the other process.
    pub tx: TxEnd,
    /// Whether that takes what waits for it.
    pub stall: Stall,
    /// Whether the rings are looked at in each burst, and how many brought nothing.
    pub is_near: bool,
    pub idle: u32,
}

impl End {
    /// That of a shard, of so many.
    ///
    /// # Errors
    /// Its rings are not in its memory.
    pub fn new(link: Arc<Link>, shard: usize, shards: usize, stall: Duration) -> Result<Self, String> {
        let (connection, max_frame) = (&link.connection, link.max_frame);
        let ring = |number| {
            let (ring, buffers) = connection.receiving(number)?;
            let mut rx = Rx::new(ring, buffers, copy_function(), max_frame);
            rx.look_when(Attention::News);
            Ok(rx)
        };
        let rx = rings_to(shard, shards, link.their_queues).map(ring).collect::<Result<_, String>>()?;
        let (ring, buffers) = connection.sending(shard)?;
        let event = Arc::clone(&connection.tx[shard].event);
        let tx = TxEnd::new(Tx::new(ring, buffers, max_frame), event);
        Ok(Self { link, rx, tx, stall: Stall::new(stall), is_near: false, idle: 0 })
    }

    /// Receives up to so many frames.
    ///
    /// # Errors
    /// The other process moved an index to where it cannot be.
    pub fn receive(
        &mut self,
        most: usize,
        out: &mut RxBurst,
        stock: &mut Stock,
    ) -> Result<Received, Impossible> {
        let mut all = Received::default();
        for rx in &mut self.rx {
            let got = rx.burst_of(most, out, stock)?;
            all.frames += got.frames;
            all.bytes += got.bytes;
            all.dropped += got.dropped;
        }
        Ok(all)
    }

    /// Says when the rings are looked at.
    pub fn look_when(&mut self, attention: Attention) {
        (self.is_near, self.idle) = (attention == Attention::Polled, 0);
        self.rx.iter_mut().for_each(|rx| rx.look_when(attention));
    }

    /// Whether there is something left to receive.
    pub fn has_more(&self) -> bool {
        self.rx.iter().any(|rx| rx.unread() > 0)
    }

    /// Gives the slots of what was received back to the other process.
    pub fn give_back(&mut self) {
        self.rx.iter_mut().for_each(Rx::give_back);
    }
}
