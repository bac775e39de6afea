//! One direction of a link, and every fault of it. The same seed gives the same faults, at the same frames.

use super::rng::Rng;
use crate::time::Instant;
use crate::wire::{Ingress, Layout, locate};
use core::time::Duration;

/// Makes an enum `Fault` of the faults of a link, and of more behind them: the simulator has others, too.
#[doc(hidden)]
#[macro_export]
macro_rules! link_faults {
    ($(#[$attr:meta])* { $($more:tt)* }) => {
        $crate::link_faults! { @of $(#[$attr])* {
            /// One frame is lost.
            Loss "loss",
            /// Every frame is lost for a while.
            Blackhole "blackhole",
            /// Nothing gets through in this direction, until the link is healed.
            Partition "partition",
            /// The frame arrives twice.
            Duplicate "duplicate",
            /// The frame is overtaken by later ones.
            Reorder "reorder",
            /// One bit that the ICRC covers is flipped (any bit of a frame that has no ICRC).
            Corrupt "corrupt",
            /// The end of the frame is missing.
            Truncate "truncate",
            /// A second copy arrives long after the sender's window has moved past it.
            LateDuplicate "late_duplicate",
            /// For a while the path loses all but small frames.
            Narrow "narrow",
            /// A switch marks the frame: congestion experienced in the IP header, FECN and BECN in the BTH.
            Mark "ecn_mark",
            $($more)*
        } }
    };
    (@of $(#[$attr:meta])* { $($(#[doc = $doc:literal])+ $name:ident $text:literal,)+ }) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Fault {
            /// Every fault, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// Its name in a report.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

link_faults! {
    /// What may happen to a frame on its way.
    {}
}

/// How a link behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Time from one end to the other.
    pub delay: Duration,
    /// Frames in a million that meet each fault, by its number.
    pub ppm: [u32; Fault::ALL.len()],
    /// How long a blackhole or a narrow path lasts.
    pub hole: Duration,
    /// How much later a reordered frame may come; at least 1 ns.
    pub jitter: Duration,
    /// How much later a late duplicate comes.
    pub late: Duration,
}

impl Plan {
    /// Nothing goes wrong, and nothing takes time.
    pub const CLEAN: Self = Self {
        delay: Duration::ZERO,
        ppm: [0; Fault::ALL.len()],
        hole: Duration::from_micros(200),
        jitter: Duration::from_micros(20),
        late: Duration::from_millis(5),
    };

    /// The same with one fault at a rate, in frames of a million.
    #[must_use]
    pub const fn with(mut self, fault: Fault, ppm: u32) -> Self {
        self.ppm[fault as usize] = ppm;
        self
    }

    /// The rate of a fault, in frames of a million.
    pub const fn rate(&self, fault: Fault) -> u32 {
        self.ppm[fault as usize]
    }
}

/// A frame on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flight {
    /// When it arrives.
    pub at: Instant,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The bytes are as they were sent, ECN marks aside.
    pub whole: bool,
}

/// Bytes of a frame that a narrow path still carries.
const NARROW: usize = 200;

/// One direction of a link. It has no clock: callers pass `now` in.
#[derive(Clone, Debug)]
pub struct Link {
    hole_until: Instant,
    narrow_until: Instant,
    partitioned: bool,
    rng: Rng,
}

impl Link {
    /// A link with a generator of its own.
    pub fn new(rng: Rng) -> Self {
        Self { hole_until: Instant::ZERO, narrow_until: Instant::ZERO, partitioned: false, rng }
    }

    /// Ends the faults that last: partition, blackhole and narrow path.
    pub fn heal(&mut self) {
        (self.hole_until, self.narrow_until, self.partitioned) = (Instant::ZERO, Instant::ZERO, false);
    }

    /// Takes a frame that is sent at `now` over a link that behaves like `plan`. Appends the frames that arrive; calls `met` for
    /// each fault.
    pub fn carry(
        &mut self,
        plan: &Plan,
        now: Instant,
        frame: &[u8],
        mut met: impl FnMut(Fault),
        out: &mut Vec<Flight>,
    ) {
        let mut at = now.after(plan.delay);
        let mut hit = |fault: Fault, rng: &mut Rng| {
            let hit = rng.ppm(plan.rate(fault));
            if hit {
                met(fault);
            }
            hit
        };
        if self.partitioned || hit(Fault::Partition, &mut self.rng) {
            self.partitioned = true;
            return;
        }
        if now < self.hole_until || hit(Fault::Blackhole, &mut self.rng) {
            if now >= self.hole_until {
                self.hole_until = now.after(plan.hole);
            }
            return;
        }
        if hit(Fault::Loss, &mut self.rng) {
            return;
        }
        if frame.len() > NARROW && (now < self.narrow_until || hit(Fault::Narrow, &mut self.rng)) {
            if now >= self.narrow_until {
                self.narrow_until = now.after(plan.hole);
            }
            return;
        }
        let mut bytes = frame.to_vec();
        if hit(Fault::Mark, &mut self.rng) {
            congest(&mut bytes, &mut self.rng);
        }
        if hit(Fault::Duplicate, &mut self.rng) {
            out.push(Flight { at, bytes: bytes.clone(), whole: true });
        }
        if hit(Fault::LateDuplicate, &mut self.rng) {
            out.push(Flight { at: at.after(plan.late), bytes: bytes.clone(), whole: true });
        }
        if hit(Fault::Reorder, &mut self.rng) {
            at = at.after_nanos(self.rng.range(1, (plan.jitter.as_nanos() as u64).max(1)));
        }
        let mut whole = true;
        if hit(Fault::Corrupt, &mut self.rng) {
            whole = false;
            corrupt(&mut bytes, &mut self.rng);
        }
        if hit(Fault::Truncate, &mut self.rng) {
            whole = false;
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        }
        out.push(Flight { at, bytes, whole });
    }
}

/// Sets the bits that a congested switch sets: the ECN bits to "congestion experienced", and any of FECN and BECN.
fn congest(bytes: &mut [u8], rng: &mut Rng) {
    let Ok(Ingress::Roce(layout)) = locate(bytes) else { return };
    let (l3, bth) = (usize::from(layout.l3), usize::from(layout.bth));
    if layout.ipv6 {
        bytes[l3 + 1] |= 0x30;
    } else {
        bytes[l3 + 1] |= 3;
        bytes[l3 + 10..l3 + 12].fill(0);
        let words = bytes[l3..l3 + 20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes[bth + 4] |= rng.pick(&[0x80, 0x40, 0xc0]);
}

/// Flips one bit that the ICRC covers; any bit of a frame that has none.
fn corrupt(bytes: &mut [u8], rng: &mut Rng) {
    let layout = match locate(bytes) {
        Ok(Ingress::Roce(layout)) => Some(layout),
        _ => None,
    };
    while !bytes.is_empty() {
        let bit = rng.below(bytes.len() as u64 * 8) as usize;
        if layout.is_none_or(|l| is_covered(&l, bit / 8)) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            return;
        }
    }
}

/// Whether byte `at` of a located frame is covered by the ICRC: a changed bit there must be noticed.
fn is_covered(layout: &Layout, at: usize) -> bool {
    let Some(at) = at.checked_sub(usize::from(layout.l3)) else { return false };
    if at + usize::from(layout.l3) >= usize::from(layout.end) {
        return false;
    }
    if layout.ipv6 {
        !matches!(at, 0..=3 | 7 | 46 | 47 | 52)
    } else {
        !matches!(at, 1 | 8 | 10 | 11 | 26 | 27 | 32)
    }
}
