//! The order of a session: turns what the other end says into what this end does next, or into why it ends.
//!
//! No device, no socket, no clock: the loops of [`server`](super::server) and [`client`](super::client) ask here what a
//! message means, and do it. Whatever comes, in whatever order, what is kept of it is bounded by what was agreed on.

use super::path_mtu;
use crate::error::{AppError, Result};
use crate::measure::watch::out_of_turn;
use crate::plan::{Limits, RawSpec, Spec};
use crate::protocol::{End, Gather, Hello, Message, Report};
use std::time::Duration;
use verbs::{Mac, Mtu};

/// Measurements of one session, at most.
pub const SESSION_MAX: usize = 4096;

fn mac(text: &str) -> Result<Mac> {
    text.parse().map_err(|e| AppError::Misfit(format!("it sent no Ethernet address: {e}")))
}

/// What this end has to measure with.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// Largest IP packet of the port.
    pub link_mtu: usize,
    /// Everything is connected by `rdma_cm`: ends have no queue pairs to tell of, and there are no raw frames.
    pub rdma_cm: bool,
    /// What a session may take.
    pub limits: Limits,
}

impl Means {
    fn queue_pairs(&self, spec: &Spec) -> usize {
        if self.rdma_cm { 0 } else { spec.qps as usize }
    }
}

/// What a server does after a message.
#[derive(Clone, Debug)]
pub enum Task {
    /// Listens for more.
    Listen,
    /// Says this, and listens.
    Say(Message),
    /// Says that it refuses, and ends.
    Refuse(String),
    /// Measures frames with a client that has this Ethernet address.
    Raw(RawSpec, Mac),
    /// Opens the device and says so.
    Open,
    /// Connects to the client's end and tells of its own.
    Connect(Spec, Mtu, End),
    /// Measures, and reports.
    Measure,
    /// Lets the queue pairs go.
    Release,
    /// Ends.
    End,
}

/// Where a session is.
#[derive(Clone, Debug)]
enum At {
    /// The list of measurements is next.
    Agreed,
    /// Raw measurements are next, from this one on; then the device, or the end.
    Raw(usize),
    /// RDMA measurements are next, from this one on; then the end.
    Rdma(usize),
    /// The client tells of its queue pairs for this one.
    Telling(usize, Gather),
    /// Both are connected.
    Connected(usize),
    /// The measurement is over, and reported.
    Reported(usize),
    /// Nothing more is expected.
    Over,
}

/// The server's side of a session, from the client's greeting on.
#[derive(Clone, Debug)]
pub struct Serving {
    means: Means,
    theirs: Hello,
    raw: Vec<RawSpec>,
    rdma: Vec<Spec>,
    at: At,
}

impl Serving {
    /// A session with the client that said this.
    pub fn new(means: Means, theirs: Hello) -> Self {
        Self { means, theirs, raw: Vec::new(), rdma: Vec::new(), at: At::Agreed }
    }

    /// What is expected now, for a person.
    pub fn expects(&self) -> &'static str {
        match self.at {
            At::Agreed => "the list of measurements",
            At::Raw(_) | At::Rdma(_) => "the next measurement",
            At::Telling(..) => "the rest of its queue pairs",
            At::Connected(_) => "the start of the measurement",
            At::Reported(_) => "the end of the measurement",
            At::Over => "nothing more",
        }
    }

    /// Whether a list that began with an earlier message goes on: it has the time of one message.
    pub fn is_in_a_list(&self) -> bool {
        matches!(self.at, At::Telling(..))
    }

    /// Hears a message.
    ///
    /// # Errors
    /// The other end's failure; what is out of turn, or does not fit what was agreed on.
    pub fn hear(&mut self, message: Message) -> Result<Task> {
        if let Message::Failed { reason } = message {
            return Err(AppError::Peer(reason));
        }
        let (at, task) = match (std::mem::replace(&mut self.at, At::Over), message) {
            (At::Agreed, Message::Session { raw, rdma }) => match self.acceptable(&raw, &rdma) {
                Err(reason) => (At::Over, Task::Refuse(reason)),
                Ok(()) => {
                    (self.raw, self.rdma) = (raw, rdma);
                    (At::Raw(0), Task::Say(Message::Accept))
                }
            },
            (At::Raw(next), Message::RawStart { index, mac: theirs })
                if index == next && next < self.raw.len() =>
            {
                (At::Raw(next + 1), Task::Raw(self.raw[next].clone(), mac(&theirs)?))
            }
            (At::Raw(next), Message::Open) if next == self.raw.len() && !self.rdma.is_empty() => {
                (At::Rdma(0), Task::Open)
            }
            (At::Rdma(next), Message::Start { index, end }) if index == next && next < self.rdma.len() => {
                let wanted = self.means.queue_pairs(&self.rdma[next]);
                self.gathered(next, Gather::begin(end, wanted).map_err(AppError::Misfit)?)?
            }
            (At::Telling(now, mut gather), Message::Qps { qps }) => {
                gather.more(qps).map_err(AppError::Misfit)?;
                self.gathered(now, gather)?
            }
            (At::Connected(now), Message::Go) => (At::Reported(now), Task::Measure),
            (At::Reported(now), Message::Done) => (At::Rdma(now + 1), Task::Release),
            (At::Raw(_) | At::Rdma(_), Message::Bye) => (At::Over, Task::End),
            (_, message) => return Err(out_of_turn(&message)),
        };
        self.at = at;
        Ok(task)
    }

    fn gathered(&self, now: usize, gather: Gather) -> Result<(At, Task)> {
        match gather.whole() {
            Ok(end) => {
                let spec = self.rdma[now].clone();
                let mtu = path_mtu(&spec, self.means.link_mtu, self.theirs.link_mtu)?;
                Ok((At::Connected(now), Task::Connect(spec, mtu, end)))
            }
            Err(gather) => Ok((At::Telling(now, gather), Task::Listen)),
        }
    }

    /// Refuses what this end cannot do, or will not.
    fn acceptable(&self, raw: &[RawSpec], rdma: &[Spec]) -> std::result::Result<(), String> {
        let Means { link_mtu, rdma_cm, limits } = self.means;
        if raw.len() + rdma.len() > SESSION_MAX {
            return Err(format!("a session has at most {SESSION_MAX} measurements"));
        }
        if rdma_cm && !raw.is_empty() {
            return Err("a server of rdma_cm measures no raw frames".into());
        }
        raw.iter().try_for_each(|spec| spec.check(link_mtu))?;
        for spec in rdma {
            spec.check()?;
            limits.check_memory(spec)?;
            path_mtu(spec, link_mtu, self.theirs.link_mtu).map_err(|e| e.to_string())?;
        }
        let raw = raw.iter().map(|spec| Duration::from_millis(spec.duration_ms));
        let rdma = rdma.iter().filter_map(Spec::expected);
        limits.check_time(raw.chain(rdma).sum())
    }
}

/// What a client waits for.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// The server's greeting.
    Hello,
    /// Its consent to the list.
    Consent,
    /// Its port, ready for frames.
    RawReady,
    /// What it saw of them.
    RawReport,
    /// Its device, open.
    Opened,
    /// So many queue pairs of it.
    End(usize),
    /// The rest of them.
    Rest(Gather),
    /// What it measured.
    Report,
}

/// What a client got.
#[derive(Clone, Debug)]
pub enum Answer {
    /// More has to come.
    More(Wanted),
    /// A greeting of the same program and version.
    Hello(Hello),
    /// Nothing but that it is so: consent, an open device.
    Yes,
    /// An Ethernet address.
    Mac(Mac),
    /// Frames received, those behind the first burst, the time of those.
    Frames(u64, u64, u64),
    /// A whole end.
    End(End),
    /// A report.
    Report(Report),
}

impl Wanted {
    /// For a person.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello => "a greeting",
            Self::Consent => "its consent",
            Self::RawReady => "a ready port",
            Self::RawReport => "its raw figures",
            Self::Opened => "an open device",
            Self::End(_) => "its queue pairs",
            Self::Rest(_) => "the rest of its queue pairs",
            Self::Report => "its report",
        }
    }

    /// Hears a message of the server.
    ///
    /// # Errors
    /// Its failure or refusal; what is out of turn, or does not fit what was agreed on.
    pub fn hear(self, message: Message) -> Result<Answer> {
        Ok(match (self, message) {
            (_, Message::Failed { reason }) => return Err(AppError::Peer(reason)),
            (Self::Hello, Message::Hello(hello)) => {
                hello.check().map_err(AppError::Misfit)?;
                Answer::Hello(hello)
            }
            (Self::Consent, Message::Accept) | (Self::Opened, Message::Opened) => Answer::Yes,
            (Self::Consent, Message::Refuse { reason }) => return Err(AppError::Peer(reason)),
            (Self::RawReady, Message::RawReady { mac: theirs }) => Answer::Mac(mac(&theirs)?),
            (Self::RawReport, Message::RawReport { received, timed, elapsed_ns }) => {
                Answer::Frames(received, timed, elapsed_ns)
            }
            (Self::End(wanted), Message::Ready { end }) => {
                gathered(Gather::begin(end, wanted).map_err(AppError::Misfit)?)
            }
            (Self::Rest(mut gather), Message::Qps { qps }) => {
                gather.more(qps).map_err(AppError::Misfit)?;
                gathered(gather)
            }
            (Self::Report, Message::Report(report)) => Answer::Report(report),
            (_, message) => return Err(out_of_turn(&message)),
        })
    }
}

fn gathered(gather: Gather) -> Answer {
    gather.whole().map_or_else(|gather| Answer::More(Wanted::Rest(gather)), Answer::End)
}
