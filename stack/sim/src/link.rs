//! One direction of a link between two nodes, and every fault of links, ports and programs.

use core::time::Duration;

use super::rng::Rng;
use super::seen::Seen;
use stack::port::fault::{self, Flight};
use stack::time::Instant;

stack::link_faults! {
    /// A fault of a frame, of the port that sends it, or of the program.
    ///
    /// Those of the link are [`fault::Fault`], by the same numbers. A new one needs three things: its rate in
    /// [`Swarm::draw`](super::swarm::Swarm::draw), the place where it happens, and a line in
    /// `each_link_fault_reaches_the_other_side` if it is the link's. A run of many seeds fails if one never happened.
    {
        /// A frame sent to an earlier life of a queue pair arrives: before a RESET, or before its number was used again.
        EarlierLife "earlier_life",
        /// The transmit ring takes no frame for a while.
        TxFull "tx_full",
        /// The pool gives no buffer out for a while.
        NoBuffer "no_buffer",
        /// The process is stopped, and the ports of its peers see it.
        Stopped "stopped",
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

/// How a link, or a port and its program, behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conditions {
    /// The link.
    pub path: fault::Plan,
    /// Turns in a million after which each fault of a port or a program begins, by its number.
    pub ppm: [u32; FAULTS],
    /// How long a port fault lasts.
    pub stall: Duration,
}

impl Conditions {
    /// Nothing goes wrong.
    pub const CLEAN: Self = Self {
        path: fault::Plan { delay: Duration::from_micros(2), ..fault::Plan::CLEAN },
        ppm: [0; FAULTS],
        stall: Duration::from_micros(50),
    };

    /// The same with one fault at a rate.
    #[must_use]
    pub fn with(mut self, fault: Fault, ppm: u32) -> Self {
        match fault.on_link() {
            Some(fault) => self.path = self.path.with(fault, ppm),
            None => self.ppm[fault as usize] = ppm,
        }
        self
    }

    /// The rate of a fault.
    pub fn rate(&self, fault: Fault) -> u32 {
        fault.on_link().map_or(self.ppm[fault as usize], |fault| self.path.rate(fault))
    }

    /// The same without a fault.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        (self.path.ppm, self.ppm) = (fault::Plan::CLEAN.ppm, [0; FAULTS]);
        self
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

/// One direction between two nodes.
pub struct SimLink {
    /// How it behaves.
    pub conditions: Conditions,
    /// Applied to each frame before random faults.
    pub rule: Option<Rule>,
    link: fault::Link,
}

impl core::fmt::Debug for SimLink {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimLink").field("conditions", &self.conditions).finish_non_exhaustive()
    }
}

impl SimLink {
    /// A link with a generator of its own.
    pub fn new(conditions: Conditions, rng: Rng) -> Self {
        Self { conditions, rule: None, link: fault::Link::new(rng) }
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&mut self) {
        let path = fault::Plan { delay: self.conditions.path.delay, ..fault::Plan::CLEAN };
        self.conditions = Conditions { path, ..Conditions::CLEAN };
        self.rule = None;
        self.link.heal();
    }

    /// Takes a frame at `now`; appends the frames that arrive, with their times.
    pub fn carry(&mut self, now: Instant, frame: &[u8], fired: &mut Fired, out: &mut Vec<Flight>) {
        let mut path = self.conditions.path;
        if let Some(rule) = &mut self.rule
            && let Some(seen) = Seen::decode(now, frame)
        {
            match rule(&seen) {
                Fate::Pass => {}
                Fate::Drop => return fired.count(Fault::Loss),
                Fate::Again(after) => {
                    fired.count(Fault::Duplicate);
                    let at = now.after(path.delay).after(after);
                    out.push(Flight { at, bytes: frame.to_vec(), whole: true });
                }
                Fate::Late(by) => {
                    fired.count(Fault::Reorder);
                    path.delay += by;
                }
            }
        }
        self.link.carry(&path, now, frame, |fault| fired.count(fault.into()), out);
    }
}

impl Fault {
    /// The fault of the link that it is; `None` if it happens to a port or in a program.
    pub fn on_link(self) -> Option<fault::Fault> {
        fault::Fault::ALL.get(self as usize).copied()
    }
}

impl From<fault::Fault> for Fault {
    fn from(fault: fault::Fault) -> Self {
        Self::ALL[fault as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_link_have_one_number_and_one_name() {
        for fault in fault::Fault::ALL {
            assert_eq!(Fault::from(*fault).on_link(), Some(*fault));
            assert_eq!(Fault::from(*fault).name(), fault.name());
        }
        assert_eq!(Fault::EarlierLife.on_link(), None);
        assert_eq!(
            Fault::EarlierLife as usize,
            fault::Fault::ALL.len(),
            "the first that is none of the link's"
        );
    }
}
