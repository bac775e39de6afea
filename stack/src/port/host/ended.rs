//! What is left of a link that has ended: frames that had arrived, and then the word of its end.

use super::id::LinkId;
use super::shared::Link;
use crate::port::frame::RxBurst;
use crate::port::memif::queue_end::Left;
use crate::port::memif::rx::{Received, Rx};
use crate::port::stock::Stock;
use crate::registry::Run;
use std::sync::Arc;

/// A link has ended, and all that had arrived on it was received. Drop this when the link is named nowhere any more: its number may be
/// another link's then.
pub struct Ended(Arc<Link>);

impl Ended {
    /// The link.
    pub fn link(&self) -> LinkId {
        self.0.id
    }

    /// The process that was at its other end; 0: it was not visible from here.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The runs to which it led.
    pub fn runs(&self) -> Vec<Run> {
        self.0.runs()
    }
}

impl core::fmt::Debug for Ended {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ended")
            .field("link", &self.link())
            .field("runs", &self.runs())
            .finish_non_exhaustive()
    }
}

/// A link that has ended, until what had arrived is received.
pub(super) struct Ending {
    link: Arc<Link>,
    left: Vec<Left>,
}

impl Ending {
    /// Of a link on which this queue received from these rings.
    pub fn new(link: Arc<Link>, rings: impl IntoIterator<Item = Rx>) -> Self {
        Self { link, left: rings.into_iter().filter_map(Left::of).collect() }
    }

    /// Receives some of what had arrived.
    pub fn receive(&mut self, out: &mut RxBurst, stock: &mut Stock) -> Received {
        let mut all = Received::default();
        for left in &mut self.left {
            if out.is_full() {
                break;
            }
            let got = left.receive(out, stock);
            all.frames += got.frames;
            all.bytes += got.bytes;
            all.dropped += got.dropped;
        }
        self.left.retain(|left| !left.is_over());
        all
    }

    /// The word of its end, if all was received.
    pub fn end(self) -> Result<Ended, Self> {
        if self.left.is_empty() { Ok(Ended(self.link)) } else { Err(self) }
    }
}
