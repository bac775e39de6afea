//! What the two ends of `roce-perf` say to each other over the out-of-band channel.
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
//! finish(sent)                  <->     finish(sent)     (whoever sends says when it is through)
//!                                <-     report
//! done                           ->
//! bye                            ->
//! ```
//!
//! Either end may say `failed` at any time instead, with a sentence.

use crate::counters::Counts;
use crate::plan::{RawSpec, Spec};
use serde::{Deserialize, Serialize};

/// Version of this exchange. Programs with different versions refuse each other.
pub const VERSION: u32 = 2;
/// Queue pairs that one line tells of, at most.
pub const QPS_A_LINE: usize = 8192;
/// Name under which the programs greet each other.
pub const PROGRAM: &str = "roce-perf";

/// One line of the exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// First of all: who we are.
    Hello(Hello),
    /// What the client wants to measure.
    Session {
        /// Raw measurements, first.
        raw: Vec<RawSpec>,
        /// RDMA measurements.
        rdma: Vec<Spec>,
    },
    /// The server will measure it.
    Accept,
    /// The server will not.
    Refuse {
        /// Why, as a sentence.
        reason: String,
    },
    /// Raw measurement `index` begins.
    RawStart {
        /// Position in the session's list.
        index: usize,
        /// Our Ethernet address.
        mac: String,
    },
    /// The server listens for frames.
    RawReady {
        /// Its Ethernet address.
        mac: String,
    },
    /// The client sends no more frames.
    RawFinish {
        /// How many it sent.
        sent: u64,
    },
    /// What the server saw.
    RawReport {
        /// Frames received.
        received: u64,
        /// Those behind the first burst.
        timed: u64,
        /// Time between the first and the last of them.
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
        /// Its queue pairs and memory.
        end: End,
    },
    /// More queue pairs of the [`End`] before, until all are told.
    Qps {
        /// The next ones.
        qps: Vec<QpEnd>,
    },
    /// The client is connected and has posted its receives.
    Go,
    /// All requests of this end have completed.
    Finish {
        /// Messages of each queue pair.
        sent: Vec<u64>,
    },
    /// What the server measured.
    Report(Report),
    /// The client has everything; the queue pairs may go.
    Done,
    /// This end cannot go on.
    Failed {
        /// Why, as a sentence.
        reason: String,
    },
    /// The session is over.
    Bye,
}

/// Who speaks.
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
    /// Ours.
    pub fn ours(link_mtu: usize) -> Self {
        Self { program: PROGRAM.into(), version: VERSION, link_mtu }
    }
    /// Refuses strangers.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.program != PROGRAM {
            return Err(format!("the other end is {:?}, not {PROGRAM}", self.program));
        }
        if self.version != VERSION {
            return Err(format!(
                "the other end speaks version {} of the exchange, this one {VERSION}; use the same build",
                self.version
            ));
        }
        Ok(())
    }
}

/// One end of a measurement: what the other end needs to know to connect to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// GID, 32 hexadecimal digits.
    pub gid: String,
    /// Queue pairs: the first [`QPS_A_LINE`]; the others follow in lines of their own.
    pub qps: Vec<QpEnd>,
    /// How many there are.
    pub qps_total: usize,
    /// Address of the memory that the other end may access.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
    /// Its length.
    pub len: u64,
}

/// One queue pair of an [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpEnd {
    /// Number.
    pub qpn: u32,
    /// First packet sequence number.
    pub psn: u32,
}

/// What one end measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its requests, as far as it sent any.
    pub sent: Flow,
    /// What it received (SEND only).
    pub received: Flow,
    /// What its device and port counted meanwhile.
    pub counters: Counts,
}

/// Messages counted by completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// All messages.
    pub messages: u64,
    /// Those that count for the rate.
    pub timed: u64,
    /// The time they took.
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
