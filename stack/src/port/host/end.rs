//! One shard's end of a link: the ring on which it sends, and those from which it receives.

use super::shared::Link;
use super::terms::rings_to;
use crate::crc::copy_function;
use crate::port::frame::RxBurst;
use crate::port::memif::queue_end::TxEnd;
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
            Ok(Rx::new(ring, buffers, copy_function(), max_frame))
        };
        let rx = rings_to(shard, shards, link.their_queues).map(ring).collect::<Result<_, String>>()?;
        let (ring, buffers) = connection.sending(shard)?;
        let event = Arc::clone(&connection.tx[shard].event);
        let tx = TxEnd::new(Tx::new(ring, buffers, max_frame), event);
        Ok(Self { link, rx, tx, stall: Stall::new(stall) })
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

    /// Gives the slots of what was received back to the other process.
    pub fn give_back(&mut self) {
        self.rx.iter_mut().for_each(Rx::give_back);
    }
}
