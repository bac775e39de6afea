//! The messages of the two ends of `roce-perf` on the out-of-band channel.
//!
//! The client drives:
//!
//! ```text
//! client                                server
//! hello                          ->
//!                                <-     hello            (versions, ports, link MTUs)
//! session(raw[], rdma[])         ->
//!                                <-     accept           (or refuse with a sentence)
//! raw_start(i)                   ->
//!                                <-     raw_ready        (for each raw measurement)
//! raw_finish                     ->
//!                                <-     raw_report
//! open                           ->
//!                                <-     opened           (both have their devices)
//! start(i, end)                  ->
//! qps[]                          ->                      (where there are more queue pairs than one line holds)
//!                                <-     ready(end)       (for each RDMA measurement: queue pairs, memory)
//!                                <-     qps[]
//! go                             ->
//! finish(sent)                  <->     finish(sent)     (from each end that sends, when it is done)
//!                                <-     report
//! done                           ->
//! bye                            ->
//! ```
//!
//! Either end may send `failed` at any time instead, with a sentence. [`session::order`](crate::session::order) enforces this
//! order at both ends.

use crate::counters::Counts;
use crate::plan::{RawSpec, Spec};
use serde::{Deserialize, Serialize};

/// Version of this protocol. Programs with different versions refuse each other.
pub const VERSION: u32 = 3;
/// Most queue pairs in one line.
pub const QPS_A_LINE: usize = 8192;
/// Largest number that an end may report of a measurement. Sums of thousands of such numbers still fit; in nanoseconds the number is
/// three days.
const NUMBER_MAX: u64 = 1 << 48;
/// Most counters in a report, and most bytes in the name of a counter or of a program.
const COUNTERS_MAX: usize = 1024;
const NAME_MAX: usize = 64;
/// Characters that are shown of a text from the other end.
const SENTENCE_MAX: usize = 500;
/// Name with which the programs identify themselves.
pub const PROGRAM: &str = "roce-perf";

/// One line of the exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// The first message: identifies the program.
    Hello(Hello),
    /// The measurements that the client requests.
    Session {
        /// Raw measurements, first.
        raw: Vec<RawSpec>,
        /// RDMA measurements.
        rdma: Vec<Spec>,
    },
    /// The server accepts them.
    Accept,
    /// The server refuses them.
    Refuse {
        /// Why, as a sentence.
        reason: String,
    },
    /// Raw measurement `index` begins.
    RawStart {
        /// Position in the session's list.
        index: usize,
        /// The client's Ethernet address.
        mac: String,
    },
    /// The server is ready for frames.
    RawReady {
        /// The server's Ethernet address.
        mac: String,
    },
    /// The client sends no more frames.
    RawFinish {
        /// How many it sent.
        sent: u64,
    },
    /// The server's counts.
    RawReport {
        /// Frames received.
        received: u64,
        /// Frames after the first burst.
        timed: u64,
        /// Time between the first and the last timed frame.
        elapsed_ns: u64,
    },
    /// The raw part is over: open the device.
    Open,
    /// The server's device is open, and its link is up.
    Opened,
    /// RDMA measurement `index` begins.
    Start {
        /// Position in the session's list.
        index: usize,
        /// The client's queue pairs and memory.
        end: End,
    },
    /// The server is connected and has posted its receives.
    Ready {
        /// The server's queue pairs and memory.
        end: End,
    },
    /// More queue pairs of the preceding [`End`], until it is complete.
    Qps {
        /// The next queue pairs of the list.
        qps: Vec<QpEnd>,
    },
    /// The client is connected and has posted its receives.
    Go,
    /// All requests of this end have completed.
    Finish {
        /// Messages of each queue pair.
        sent: Vec<u64>,
    },
    /// The server's results.
    Report(Report),
    /// The client has received everything; the queue pairs may be destroyed.
    Done,
    /// This end failed.
    Failed {
        /// Why, as a sentence.
        reason: String,
    },
    /// The session is over.
    Bye,
}

impl Message {
    /// The message, checked for use: impossible numbers are refused, and text to be shown is short and without control
    /// characters.
    ///
    /// # Errors
    /// A sentence.
    pub fn checked(mut self) -> Result<Self, String> {
        match &mut self {
            Self::Hello(hello) if hello.program.len() > NAME_MAX => {
                return Err("its name is too long".into());
            }
            Self::RawStart { mac, .. } | Self::RawReady { mac } if mac.len() > NAME_MAX => {
                return Err("its Ethernet address is too long".into());
            }
            Self::Refuse { reason } | Self::Failed { reason } => *reason = sentence(reason),
            Self::RawFinish { sent } => in_range([*sent])?,
            Self::RawReport { received, timed, elapsed_ns } => in_range([*received, *timed, *elapsed_ns])?,
            Self::Finish { sent } => in_range(sent.iter().copied())?,
            Self::Report(report) => report.check()?,
            _ => {}
        }
        Ok(self)
    }
}

/// Refuses numbers whose sum no measurement can reach.
fn in_range(numbers: impl IntoIterator<Item = u64>) -> Result<(), String> {
    let sum = numbers.into_iter().try_fold(0u64, |sum, n| sum.checked_add(n)).unwrap_or(u64::MAX);
    if sum > NUMBER_MAX {
        return Err(format!("it counted {sum}, and no measurement has more than {NUMBER_MAX}"));
    }
    Ok(())
}

/// A text of the other end, made safe for a terminal: a limited number of characters, no control characters.
pub fn sentence(text: &str) -> String {
    text.chars().take(SENTENCE_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The identity of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROGRAM`].
    pub program: String,
    /// [`VERSION`].
    pub version: u32,
    /// Largest IP packet of the port.
    pub link_mtu: usize,
}

impl Hello {
    /// The identity of this program.
    pub fn ours(link_mtu: usize) -> Self {
        Self { program: PROGRAM.into(), version: VERSION, link_mtu }
    }
    /// Refuses other programs and versions.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.program != PROGRAM {
            return Err(format!("it is {:?}, not {PROGRAM}", self.program));
        }
        if self.version != VERSION {
            return Err(format!(
                "it speaks version {} of the exchange, this one {VERSION}; use the same build at both ends",
                self.version
            ));
        }
        Ok(())
    }
}

/// One end of a measurement, as the other end needs it to connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// GID, 32 hexadecimal digits.
    pub gid: String,
    /// Queue pairs: the first [`QPS_A_LINE`]; the others follow in [`Message::Qps`].
    pub qps: Vec<QpEnd>,
    /// The total number of queue pairs.
    pub qps_total: usize,
    /// Address of the memory that the other end may access.
    pub addr: u64,
    /// The key of that memory.
    pub rkey: u32,
    /// The length of that memory.
    pub len: u64,
}

/// The queue pairs of the other end, collected from several lines.
#[derive(Clone, Debug)]
pub struct Gather {
    end: End,
}

impl Gather {
    /// Begins with the first line, from an end that must have `wanted` queue pairs.
    ///
    /// # Errors
    /// A sentence; nothing is stored then.
    pub fn begin(end: End, wanted: usize) -> Result<Self, String> {
        if end.qps_total != wanted {
            return Err(format!("its end has {} queue pairs instead of {wanted}", end.qps_total));
        }
        let mut gather = Self { end };
        let first = std::mem::take(&mut gather.end.qps);
        gather.add(first)?;
        Ok(gather)
    }
    /// Adds the queue pairs of a line.
    ///
    /// # Errors
    /// A sentence for more than were announced, and for an empty line.
    pub fn more(&mut self, qps: Vec<QpEnd>) -> Result<(), String> {
        if qps.is_empty() {
            return Err("a line of its queue pairs has none".into());
        }
        self.add(qps)
    }
    fn add(&mut self, qps: Vec<QpEnd>) -> Result<(), String> {
        if qps.len() > self.end.qps_total - self.end.qps.len() {
            return Err(format!("its end has more queue pairs than the {} it told of", self.end.qps_total));
        }
        self.end.qps.extend(qps);
        Ok(())
    }
    /// The end, once it is complete.
    ///
    /// # Errors
    /// The incomplete collection, until then.
    pub fn whole(self) -> Result<End, Self> {
        if self.end.qps.len() == self.end.qps_total { Ok(self.end) } else { Err(self) }
    }
}

/// One queue pair of an [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpEnd {
    /// Number.
    pub qpn: u32,
    /// First packet sequence number.
    pub psn: u32,
}

/// The results of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The requests that this end sent, if any.
    pub sent: Flow,
    /// What it received (SEND only).
    pub received: Flow,
    /// Increments of the counters of this end's device and port during the measurement.
    pub counters: Counts,
}

impl Report {
    fn check(&self) -> Result<(), String> {
        for flow in [self.sent, self.received] {
            in_range([flow.messages])?;
            in_range([flow.timed])?;
            in_range([flow.elapsed_ns])?;
        }
        let counters = &self.counters.0;
        let named = |name: &str| {
            name.len() <= NAME_MAX && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if counters.len() > COUNTERS_MAX || !counters.keys().all(|name| named(name)) {
            return Err("its counters are not ones of this program".into());
        }
        in_range(counters.values().copied())
    }
}

/// Messages counted by completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// All messages.
    pub messages: u64,
    /// The timed messages.
    pub timed: u64,
    /// The time that the timed messages took.
    pub elapsed_ns: u64,
}

impl Flow {
    /// Messages a second.
    pub fn rate(&self) -> Option<f64> {
        (self.timed > 0 && self.elapsed_ns > 0).then(|| self.timed as f64 * 1e9 / self.elapsed_ns as f64)
    }
}

/// A GID as 32 hexadecimal digits.
pub fn gid_hex(gid: &verbs::Gid) -> String {
    gid.0.iter().map(|b| format!("{b:02x}")).collect()
}

/// The GID of 32 hexadecimal digits.
pub fn parse_gid(text: &str) -> Option<verbs::Gid> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    Some(verbs::Gid(u128::from_str_radix(text, 16).ok()?.to_be_bytes()))
}
