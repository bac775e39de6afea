//! The order of a session: turns the other end's messages into this end's next tasks, or into the error that ends it.
//!
//! Uses no device, socket or clock: the loops of [`server`](super::server) and [`client`](super::client) pass each message in,
//! and perform the task. Whatever messages arrive, the stored state is bounded by what was negotiated.

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
    text.parse().map_err(|e| AppError::ProtocolViolation(format!("it sent no Ethernet address: {e}")))
}

/// Properties and limits of this end.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Largest IP packet that the port carries to the other end.
    pub link_mtu: usize,
    /// Everything is connected by `rdma_cm`: ends list no queue pairs, and there are no raw frames.
    pub rdma_cm: bool,
    /// Limits of a session.
    pub limits: Limits,
}

impl Capabilities {
    fn queue_pairs(&self, spec: &Spec) -> usize {
        if self.rdma_cm { 0 } else { spec.qps as usize }
    }
}

/// A server's task after a message.
#[derive(Clone, Debug)]
pub enum Task {
    /// Receive the next message.
    Receive,
    /// Send this message, and receive the next one.
    Reply(Message),
    /// Send a refusal, and end.
    Refuse(String),
    /// Measure frames with a client that has this Ethernet address.
    Raw(RawSpec, Mac),
    /// Open the device and report that.
    Open,
    /// Create the server's end, connect it to the client's and send it.
    Connect(Spec, Mtu, End),
    /// Measure, and report.
    Measure,
    /// Destroy the queue pairs.
    Release,
    /// End.
    End,
}

/// The state of a session.
#[derive(Clone, Debug)]
enum SessionState {
    /// The list of measurements comes next.
    Agreed,
    /// Raw measurements come next, from this index on; then the device, or the end.
    Raw(usize),
    /// RDMA measurements come next, from this index on; then the end.
    Rdma(usize),
    /// The client is sending its queue pairs for this measurement.
    Collecting(usize, Gather),
    /// Both ends are connected.
    Connected(usize),
    /// The measurement is over, and reported.
    Reported(usize),
    /// Nothing more is expected.
    Over,
}

/// The server's side of a session, from the client's greeting on.
#[derive(Clone, Debug)]
pub struct Serving {
    own: Capabilities,
    theirs: Hello,
    raw: Vec<RawSpec>,
    rdma: Vec<Spec>,
    state: SessionState,
}

impl Serving {
    /// A session with the client that sent this greeting.
    pub fn new(own: Capabilities, theirs: Hello) -> Self {
        Self { own, theirs, raw: Vec::new(), rdma: Vec::new(), state: SessionState::Agreed }
    }

    /// The message expected now, for error messages.
    pub fn expects(&self) -> &'static str {
        match self.state {
            SessionState::Agreed => "the list of measurements",
            SessionState::Raw(_) | SessionState::Rdma(_) => "the next measurement",
            SessionState::Collecting(..) => "the rest of its queue pairs",
            SessionState::Connected(_) => "the start of the measurement",
            SessionState::Reported(_) => "the end of the measurement",
            SessionState::Over => "nothing more",
        }
    }

    /// Whether the next message continues a list: all lines of a list together have the timeout of one message.
    pub fn is_in_a_list(&self) -> bool {
        matches!(self.state, SessionState::Collecting(..))
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The other end's failure; a message that is out of order, or does not match what was negotiated.
    pub fn handle(&mut self, message: Message) -> Result<Task> {
        if let Message::Failed { reason } = message {
            return Err(AppError::Peer(reason));
        }
        let (state, task) = match (std::mem::replace(&mut self.state, SessionState::Over), message) {
            (SessionState::Agreed, Message::Session { raw, rdma }) => match self.acceptable(&raw, &rdma) {
                Err(reason) => (SessionState::Over, Task::Refuse(reason)),
                Ok(()) => {
                    (self.raw, self.rdma) = (raw, rdma);
                    (SessionState::Raw(0), Task::Reply(Message::Accept))
                }
            },
            (SessionState::Raw(next), Message::RawStart { index, mac: theirs })
                if index == next && next < self.raw.len() =>
            {
                (SessionState::Raw(next + 1), Task::Raw(self.raw[next].clone(), mac(&theirs)?))
            }
            (SessionState::Raw(next), Message::Open) if next == self.raw.len() && !self.rdma.is_empty() => {
                (SessionState::Rdma(0), Task::Open)
            }
            (SessionState::Rdma(next), Message::Start { index, end })
                if index == next && next < self.rdma.len() =>
            {
                let wanted = self.own.queue_pairs(&self.rdma[next]);
                self.gathered(next, Gather::begin(end, wanted).map_err(AppError::ProtocolViolation)?)?
            }
            (SessionState::Collecting(now, mut gather), Message::Qps { qps }) => {
                gather.more(qps).map_err(AppError::ProtocolViolation)?;
                self.gathered(now, gather)?
            }
            (SessionState::Connected(now), Message::Go) => (SessionState::Reported(now), Task::Measure),
            (SessionState::Reported(now), Message::Done) => (SessionState::Rdma(now + 1), Task::Release),
            (SessionState::Raw(_) | SessionState::Rdma(_), Message::Bye) => (SessionState::Over, Task::End),
            (_, message) => return Err(out_of_turn(&message)),
        };
        self.state = state;
        Ok(task)
    }

    fn gathered(&self, now: usize, gather: Gather) -> Result<(SessionState, Task)> {
        match gather.whole() {
            Ok(end) => {
                let spec = self.rdma[now].clone();
                let mtu = path_mtu(&spec, self.own.link_mtu, self.theirs.link_mtu)?;
                Ok((SessionState::Connected(now), Task::Connect(spec, mtu, end)))
            }
            Err(gather) => Ok((SessionState::Collecting(now, gather), Task::Receive)),
        }
    }

    /// Refuses what this end cannot or will not do.
    fn acceptable(&self, raw: &[RawSpec], rdma: &[Spec]) -> std::result::Result<(), String> {
        let Capabilities { link_mtu, rdma_cm, limits } = self.own;
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

/// The message that a client waits for.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// The server's greeting.
    Hello,
    /// The server's consent to the list of measurements.
    Consent,
    /// The server's port, ready for frames.
    RawReady,
    /// The server's counts of received frames.
    RawReport,
    /// The server's device, open.
    Opened,
    /// The server's end, with this many queue pairs.
    End(usize),
    /// The rest of the server's queue pairs.
    Rest(Gather),
    /// The server's results.
    Report,
}

/// The answer that a client got.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A part: further messages must follow.
    More(Wanted),
    /// A greeting of the same program and version.
    Hello(Hello),
    /// A confirmation: consent, an open device.
    Yes,
    /// An Ethernet address.
    Mac(Mac),
    /// Frames received in all, frames received after the first burst, and the time that the latter took.
    Frames(u64, u64, u64),
    /// The server's queue pairs and memory, complete.
    End(End),
    /// A report.
    Report(Report),
}

impl Wanted {
    /// A description for error messages.
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

    /// Handles a message of the server.
    ///
    /// # Errors
    /// The server's failure or refusal; a message that is out of order, or does not match what was negotiated.
    pub fn handle(self, message: Message) -> Result<Answer> {
        Ok(match (self, message) {
            (_, Message::Failed { reason }) => return Err(AppError::Peer(reason)),
            (Self::Hello, Message::Hello(hello)) => {
                hello.check().map_err(AppError::ProtocolViolation)?;
                Answer::Hello(hello)
            }
            (Self::Consent, Message::Accept) | (Self::Opened, Message::Opened) => Answer::Yes,
            (Self::Consent, Message::Refuse { reason }) => return Err(AppError::Peer(reason)),
            (Self::RawReady, Message::RawReady { mac: theirs }) => Answer::Mac(mac(&theirs)?),
            (Self::RawReport, Message::RawReport { received, timed, elapsed_ns }) => {
                Answer::Frames(received, timed, elapsed_ns)
            }
            (Self::End(wanted), Message::Ready { end }) => {
                gathered(Gather::begin(end, wanted).map_err(AppError::ProtocolViolation)?)
            }
            (Self::Rest(mut gather), Message::Qps { qps }) => {
                gather.more(qps).map_err(AppError::ProtocolViolation)?;
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
