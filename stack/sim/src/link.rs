//! One direction of a link, and every fault of it.

use core::time::Duration;

use super::peer::is_covered;
use super::rng::Rng;
use super::seen::Seen;
use stack::time::Instant;
use stack::wire::{Ingress, locate};

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// A fault of a frame, of the port that sends it, or of the program.
        ///
        /// A new one needs three things: its rate in [`Swarm::draw`](super::swarm::Swarm::draw), the place where it happens, and
        /// a line in `each_link_fault_reaches_the_other_side` if it is the link's. A run of many seeds fails if one never
        /// happened.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
            /// Whether it happens on a link; the others happen to a port or in a program.
            pub const fn of_link(self) -> bool {
                (self as u8) < Self::EarlierLife as u8
            }
            /// Its name in a report.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

faults! {
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
    /// One bit that the ICRC covers is another.
    Corrupt "corrupt",
    /// The end of the frame is missing.
    Truncate "truncate",
    /// A second copy arrives after its window is long over.
    LateDuplicate "late_duplicate",
    /// The path carries small frames alone for a while.
    Narrow "narrow",
    /// A switch marks the frame: congestion experienced in the IP header, FECN and BECN in the BTH.
    Mark "ecn_mark",
    /// A frame sent to an earlier life of a queue pair arrives: before a RESET, or before its number was used again.
    EarlierLife "earlier_life",
    /// The transmit ring takes no frame for a while.
    TxFull "tx_full",
    /// The pool gives no buffer out for a while.
    NoBuffer "no_buffer",
    /// The program does not poll its completions.
    SlowConsumer "slow_consumer",
    /// The program posts no receives.
    FewReceives "few_receives",
    /// A queue pair goes to SQD in the middle of its work, and back.
    Drain "drain",
    /// A queue pair goes to ERR in the middle of its work.
    ToError "to_error",
    /// A queue pair goes to RESET in the middle of its work.
    ToReset "to_reset",
    /// A queue pair is destroyed in the middle of its work.
    Destroy "destroy",
    /// A new queue pair gets the number of one that was destroyed.
    NumberAgain "number_again",
    /// A region is deregistered while its key is in use.
    Deregister "deregister",
    /// A completion queue without room for everything overflows.
    CqOverflow "cq_overflow",
}

/// Kinds of faults.
pub const FAULTS: usize = Fault::ALL.len();

/// How often each fault happened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Fired(pub [u64; FAULTS]);

impl Fired {
    /// Counts one.
    pub fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }
    /// How often this fault happened.
    pub fn get(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }
    /// Every fault by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Fault::ALL.iter().map(|f| (f.name(), self.get(*f)))
    }
}

/// How a link, or a port, behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Time from one end to the other.
    pub delay: Duration,
    /// Frames in a million that meet each fault; for port faults, turns in a million after which one begins.
    pub ppm: [u32; FAULTS],
    /// How long a blackhole or a narrow path lasts.
    pub hole: Duration,
    /// How much later a reordered frame may come.
    pub jitter: Duration,
    /// How much later a late duplicate comes.
    pub late: Duration,
    /// How long a port fault lasts.
    pub stall: Duration,
}

impl Plan {
    /// Nothing goes wrong.
    pub const CLEAN: Self = Self {
        delay: Duration::from_micros(2),
        ppm: [0; FAULTS],
        hole: Duration::from_micros(200),
        jitter: Duration::from_micros(20),
        late: Duration::from_millis(5),
        stall: Duration::from_micros(50),
    };

    /// The same with one fault at a rate.
    #[must_use]
    pub const fn with(mut self, fault: Fault, ppm: u32) -> Self {
        self.ppm[fault as usize] = ppm;
        self
    }

    /// The rate of a fault.
    pub const fn rate(&self, fault: Fault) -> u32 {
        self.ppm[fault as usize]
    }
}

/// The fate that a hand-written rule gives a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Carries it.
    Pass,
    /// Loses it.
    Drop,
    /// Carries it, and again after this time.
    Again(Duration),
    /// Carries it this much later.
    Late(Duration),
}

/// A hand-written rule.
pub type Rule = Box<dyn FnMut(&Seen) -> Fate>;

/// A frame on its way.
#[derive(Clone, Debug)]
pub struct Flight {
    /// When it arrives.
    pub at: Instant,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The bytes are as they were sent, ECN marks aside.
    pub whole: bool,
}

/// Bytes of a frame that a narrow path still carries.
pub const NARROW: usize = 200;

/// One direction between two nodes.
pub struct Link {
    /// How it behaves.
    pub plan: Plan,
    /// Applied to each frame before random faults.
    pub rule: Option<Rule>,
    hole_until: Instant,
    narrow_until: Instant,
    partitioned: bool,
    rng: Rng,
}

impl core::fmt::Debug for Link {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Link").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Link {
    /// A link with a generator of its own.
    pub fn new(plan: Plan, rng: Rng) -> Self {
        Self {
            plan,
            rule: None,
            hole_until: Instant::ZERO,
            narrow_until: Instant::ZERO,
            partitioned: false,
            rng,
        }
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&mut self) {
        self.plan = Plan { delay: self.plan.delay, ..Plan::CLEAN };
        self.rule = None;
        self.partitioned = false;
        self.hole_until = Instant::ZERO;
        self.narrow_until = Instant::ZERO;
    }

    /// Takes a frame at `now`; appends the frames that arrive, with their times.
    pub fn carry(&mut self, now: Instant, frame: &[u8], fired: &mut Fired, out: &mut Vec<Flight>) {
        let mut at = now.after(self.plan.delay);
        if let Some(rule) = &mut self.rule
            && let Some(seen) = Seen::decode(now, frame)
        {
            match rule(&seen) {
                Fate::Pass => {}
                Fate::Drop => return fired.count(Fault::Loss),
                Fate::Again(after) => {
                    fired.count(Fault::Duplicate);
                    out.push(Flight { at: at.after(after), bytes: frame.to_vec(), whole: true });
                }
                Fate::Late(by) => {
                    fired.count(Fault::Reorder);
                    at = at.after(by);
                }
            }
        }
        let plan = self.plan;
        let mut hit = |fault: Fault, rng: &mut Rng| {
            let hit = rng.ppm(plan.rate(fault));
            if hit {
                fired.count(fault);
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
            at = at.after_nanos(self.rng.range(1, plan.jitter.as_nanos() as u64));
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
    loop {
        let bit = rng.below(bytes.len() as u64 * 8) as usize;
        if layout.is_none_or(|l| is_covered(&l, bit / 8)) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            return;
        }
    }
}
