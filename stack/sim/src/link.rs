//! One direction of a link between two nodes, and every fault of links, ports and programs.

use core::time::Duration;

use super::rng::Rng;
use super::seen::Seen;
use stack::port::fault::{self, Flight};
use stack::time::Instant;

stack::link_faults! {
    /// A fault of a frame, of the port that sends it, or of the program.
    ///
    /// Faults of the link are [`fault::Fault`], with the same numbers. A new fault needs three things: its rate in
    /// [`Swarm::draw`](super::swarm::Swarm::draw), the code that injects it, and, if it is a fault of the link, a line in
    /// `each_link_fault_reaches_the_other_side`. A run of many seeds fails if a fault never happened.
    {
        /// A frame for an earlier life of a queue pair arrives: it was sent before a RESET, or before the number was reused.
        EarlierLife "earlier_life",
        /// The transmit ring takes no frame for a while.
        TxFull "tx_full",
        /// The pool allocates no buffer for a while.
        NoBuffer "no_buffer",
        /// The process is stopped, and the ports of its peers detect that.
        Stopped "stopped",
        /// The program does not poll its completions.
        SlowConsumer "slow_consumer",
        /// The program posts no receives.
        FewReceives "few_receives",
        /// A queue pair goes to SQD with requests in flight, and back.
        Drain "drain",
        /// A queue pair goes to ERR with requests in flight.
        ToError "to_error",
        /// A queue pair goes to RESET with requests in flight.
        ToReset "to_reset",
        /// A queue pair is destroyed with requests in flight.
        Destroy "destroy",
        /// A new queue pair gets the number of a destroyed one.
        NumberAgain "number_again",
        /// A region is deregistered while its key is in use.
        Deregister "deregister",
        /// A completion queue that is too small overflows.
        CqOverflow "cq_overflow",
    }
}

/// Number of kinds of faults.
pub const FAULTS: usize = Fault::ALL.len();

/// How often each fault happened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Fired(pub [u64; FAULTS]);

impl Fired {
    /// Counts a fault.
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
    /// The count of each fault, with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Fault::ALL.iter().map(|f| (f.name(), self.get(*f)))
    }
}

/// The faults of a link, or of a port and its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conditions {
    /// The faults and the delay of the link.
    pub path: fault::Plan,
    /// For each fault of a port or a program, by its number: the rate at which it begins, per million turns.
    pub ppm: [u32; FAULTS],
    /// How long a port fault lasts.
    pub stall: Duration,
}

impl Conditions {
    /// No faults; a delay of 2 us.
    pub const CLEAN: Self = Self {
        path: fault::Plan { delay: Duration::from_micros(2), ..fault::Plan::CLEAN },
        ppm: [0; FAULTS],
        stall: Duration::from_micros(50),
    };

    /// The same conditions with one fault at a rate.
    #[must_use]
    pub fn with(mut self, fault: Fault, ppm: u32) -> Self {
        match fault.on_link() {
            Some(fault) => self.path = self.path.with(fault, ppm),
            None => self.ppm[fault as usize] = ppm,
        }
        self
    }

    /// The rate of a fault, per million.
    pub fn rate(&self, fault: Fault) -> u32 {
        fault.on_link().map_or(self.ppm[fault as usize], |fault| self.path.rate(fault))
    }

    /// The same conditions without faults.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        (self.path.ppm, self.ppm) = (fault::Plan::CLEAN.ppm, [0; FAULTS]);
        self
    }
}

/// What a hand-written rule does with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Deliver it.
    Pass,
    /// Drop it.
    Drop,
    /// Deliver it, and deliver it again after this time.
    Again(Duration),
    /// Deliver it this much later.
    Late(Duration),
}

/// A hand-written rule: decides the fate of a packet.
pub type Rule = Box<dyn FnMut(&Seen) -> Fate>;

/// One direction of a link between two nodes.
pub struct SimLink {
    /// Its faults and delay.
    pub conditions: Conditions,
    /// Applied to each packet before random faults.
    pub rule: Option<Rule>,
    link: fault::Link,
}

impl core::fmt::Debug for SimLink {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimLink").field("conditions", &self.conditions).finish_non_exhaustive()
    }
}

impl SimLink {
    /// A link with its own random number generator.
    pub fn new(conditions: Conditions, rng: Rng) -> Self {
        Self { conditions, rule: None, link: fault::Link::new(rng) }
    }

    /// Ends all faults. The delay stays.
    pub fn heal(&mut self) {
        let path = fault::Plan { delay: self.conditions.path.delay, ..fault::Plan::CLEAN };
        self.conditions = Conditions { path, ..Conditions::CLEAN };
        self.rule = None;
        self.link.heal();
    }

    /// Sends a frame at `now`. Appends the frames that arrive, with their times.
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
    /// The corresponding fault of the link; `None` if it is a fault of a port or a program.
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
