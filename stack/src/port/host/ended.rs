//! A link that has ended: the frames that had arrived, and then the report of its end.

use super::id::LinkId;
use super::shared::Link;
use crate::port::frame::RxBurst;
use crate::port::memif::queue_end::Left;
use crate::port::memif::rx::{Received, Rx};
use crate::port::stock::Stock;
use crate::registry::Run;
use std::sync::Arc;

/// The report that a link has ended, after all frames that had arrived were received. Drop it when nothing refers to the link any more:
/// another link may get its number then.
pub struct Ended(Arc<Link>);

impl Ended {
    /// The link.
    pub fn link(&self) -> LinkId {
        self.0.id
    }

    /// The peer process; 0 if it was not visible from this PID namespace.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The runs to which the link led.
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

/// A link that has ended, until the frames that had arrived are received.
pub(super) struct Ending {
    link: Arc<Link>,
    left: Vec<Left>,
}

impl Ending {
    /// The end of a link on which this queue received from these rings.
    pub fn new(link: Arc<Link>, rings: impl IntoIterator<Item = Rx>) -> Self {
        Self { link, left: rings.into_iter().filter_map(Left::of).collect() }
    }

    /// Receives some of the frames that had arrived.
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

    /// The report of the link's end, once all frames were received; else `self`.
    pub fn end(self) -> Result<Ended, Self> {
        if self.left.is_empty() { Ok(Ended(self.link)) } else { Err(self) }
    }
}
