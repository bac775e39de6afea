//! Fuzz targets: arbitrary bytes as the peer's messages of a session. Their cost must stay within the session's limits.
//!
//! The bytes are a program that generates these messages: of any kind, with any numbers, in any order, and bytes that are no
//! message. `scripts/fuzz` looks for new inputs, and `apps/tests/fuzz_replay.rs` replays the saved ones. No input takes long,
//! and each is deterministic.

use crate::counters::Counts;
use crate::oob::{Channel, LINE_MAX, Stream};
use crate::pending::PendingConn;
use crate::pingpong::exchange::Destination;
use crate::plan::{Limits, Mode, Op, Pattern, RawSpec, Spec};
use crate::protocol::{End, Flow, Hello, Message, QpEnd, Report};
use crate::session::order::{Answer, Capabilities, Serving, Task, Wanted};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// A target: its name, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[("session_bytes", session_bytes)];

/// Limits of a session here.
const LIMITS: Limits = Limits { time: Duration::from_secs(60), memory: 16 << 20 };
const LINK_MTU: usize = 1500;

/// Reads numbers from an input; after the end of the input they are zero.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
    /// A small number, a power of two, one less than a power of two, or one of the largest.
    fn number(&mut self) -> u64 {
        match self.u8() {
            n @ 0..=199 => n.into(),
            n @ 200..=239 => 1 << (n - 199),
            n @ 240..=249 => (1 << (n - 218)) - 1,
            n => u64::MAX - u64::from(255 - n),
        }
    }
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::from(self.u8()) % items.len()]
    }
    fn text(&mut self) -> String {
        let len = self.u8().into();
        String::from_utf8_lossy(self.take(len)).into_owned()
    }
    fn qps(&mut self) -> Vec<QpEnd> {
        let n = self.u8() % 8;
        (0..n).map(|_| QpEnd { qpn: self.number() as u32, psn: self.number() as u32 }).collect()
    }
    fn flow(&mut self) -> Flow {
        Flow { messages: self.number(), timed: self.number(), elapsed_ns: self.number() }
    }
    fn end(&mut self) -> End {
        let gid = self.pick(&["00000000000000000000ffff0a4d0001", "", "x"]).into();
        let (qps, qps_total) = (self.qps(), self.number() as usize);
        End { gid, qps, qps_total, addr: self.number(), rkey: self.number() as u32, len: self.number() }
    }
    /// A valid specification, except for what the input changes.
    fn spec(&mut self) -> Spec {
        let mut spec = Spec {
            op: self.pick(&Op::ALL),
            mode: self.pick(&[Mode::Bw, Mode::Lat, Mode::Rate]),
            size: 8,
            iters: None,
            duration_ms: 1,
            tx_depth: 4,
            rx_depth: 8,
            qps: 1,
            mtu: None,
            inline: false,
            post_list: 1,
            cq_mod: 1,
            outs: 1,
            bidirectional: false,
            tclass: 0,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            verify: false,
            pattern: Pattern::All,
            visit: 1,
            in_flight: 1,
            srq: false,
        };
        for _ in 0..self.u8() % 4 {
            match self.u8() % 12 {
                0 => spec.size = self.number(),
                1 => spec.iters = Some(self.number()),
                2 => spec.duration_ms = self.number(),
                3 => spec.tx_depth = self.number() as u32,
                4 => spec.rx_depth = self.number() as u32,
                5 => spec.qps = self.number() as u32,
                6 => spec.mtu = Some(self.number() as u32),
                7 => spec.outs = self.u8(),
                8 => spec.timeout = self.u8(),
                9 => (spec.pattern, spec.visit) = (Pattern::Random, self.number() as u32),
                10 => spec.in_flight = self.number() as u32,
                _ => (spec.srq, spec.verify) = (self.u8() & 1 != 0, self.u8() & 1 != 0),
            }
        }
        spec
    }
    fn message(&mut self) -> Message {
        match self.u8() % 21 {
            0 => Message::Hello(Hello::ours(self.number() as usize)),
            1 => Message::Hello(Hello { program: self.text(), version: self.u8().into(), link_mtu: 1500 }),
            2 => {
                let (raw, rdma) = (self.u8() % 3, self.u8() % 4);
                let frame = |input: &mut Self| RawSpec {
                    mode: input.pick(&[Mode::Lat, Mode::Rate]),
                    frame: 60 + input.number() as u32 % 2048,
                    duration_ms: input.number(),
                };
                Message::Session {
                    raw: (0..raw).map(|_| frame(self)).collect(),
                    rdma: (0..rdma).map(|_| self.spec()).collect(),
                }
            }
            3 => Message::Accept,
            4 => Message::Refuse { reason: self.text() },
            5 => Message::RawStart { index: self.number() as usize, mac: "02:00:00:00:00:01".into() },
            6 => Message::RawStart { index: self.number() as usize, mac: self.text() },
            7 => Message::RawReady { mac: self.text() },
            8 => Message::RawFinish { sent: self.number() },
            9 => Message::RawReport {
                received: self.number(),
                timed: self.number(),
                elapsed_ns: self.number(),
            },
            10 => Message::Open,
            11 => Message::Opened,
            12 => Message::Start { index: self.number() as usize, end: self.end() },
            13 => Message::Ready { end: self.end() },
            14 => Message::Qps { qps: self.qps() },
            15 => Message::Go,
            16 => Message::Finish { sent: self.qps().iter().map(|qp| qp.qpn.into()).collect() },
            17 => {
                let counters = Counts([(self.text(), self.number())].into());
                Message::Report(Report { sent: self.flow(), received: self.flow(), counters })
            }
            18 => Message::Done,
            19 => Message::Bye,
            _ => Message::Failed { reason: self.text() },
        }
    }
    /// All bytes that the other end sends.
    fn script(&mut self) -> Vec<u8> {
        let mut script = Vec::new();
        while !self.0.is_empty() && script.len() < 3 * LINE_MAX {
            match self.u8() {
                0 => {
                    let n = self.u8().into();
                    script.extend_from_slice(self.take(n));
                }
                1 => script.resize(script.len() + LINE_MAX / 2, self.u8()),
                _ => {
                    script.extend(serde_json::to_vec(&self.message()).expect("messages are JSON"));
                    script.push(b'\n');
                }
            }
        }
        script
    }
}

/// The other end: sends its script, in pieces, and accepts everything.
#[derive(Debug)]
struct ScriptedPeer {
    script: Vec<u8>,
    at: usize,
    piece: usize,
    pause: bool,
}

impl Read for ScriptedPeer {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.pause = !self.pause;
        if self.pause {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = self.piece.min(out.len()).min(self.script.len() - self.at);
        out[..n].copy_from_slice(&self.script[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
impl Write for ScriptedPeer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
impl Stream for ScriptedPeer {
    fn end_writing(&mut self) {}
}

/// Arbitrary bytes from the other end: to a server, to a client, to a pingpong.
pub fn session_bytes(data: &[u8]) {
    let mut input = Input(data);
    let (end, piece) = (input.u8(), 1 + usize::from(input.u8()) * 16);
    if end % 8 == 7 {
        return pingpong(input.0);
    }
    let peer = ScriptedPeer { script: input.script(), at: 0, piece, pause: false };
    let mut channel = Channel::over(peer);
    match end % 8 {
        0..=3 => server(&mut channel, end & 1 != 0),
        wanted => client(&mut channel, wanted),
    }
}

fn next(channel: &mut Channel) -> Option<Message> {
    loop {
        match channel.try_recv() {
            Ok(Some(message)) => return Some(message),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
}

fn server(channel: &mut Channel, rdma_cm: bool) {
    let hello = loop {
        match channel.greeting() {
            Ok(Some(hello)) => break hello,
            Ok(None) => {}
            Err(_) => return channel.leave("no greeting"),
        }
    };
    channel.begin_session(None);
    let own = Capabilities { link_mtu: LINK_MTU, rdma_cm, limits: LIMITS };
    let theirs = hello.link_mtu;
    let mut order = Serving::new(own, hello);
    // The connected measurement, and the number of measurements so far.
    let (mut connected, mut measured, mut agreed) = (None, 0, 0);
    while let Some(message) = next(channel) {
        if let Message::Session { raw, rdma } = &message {
            agreed = raw.len() + rdma.len();
        }
        let Ok(task) = order.handle(message) else { return };
        match task {
            Task::Receive | Task::Reply(_) | Task::Open => {}
            Task::Refuse(reason) => return assert!(!reason.is_empty()),
            Task::Raw(spec, _) => {
                assert!(!rdma_cm);
                spec.check(LINK_MTU).expect("only what was agreed on is measured");
                measured += 1;
            }
            Task::Connect(spec, mtu, end) => {
                spec.check().expect("only what was agreed on is measured");
                LIMITS.check_memory(&spec).expect("and what may take so much memory");
                assert_eq!(end.qps.len(), if rdma_cm { 0 } else { spec.qps as usize });
                assert!(Some(mtu) <= verbs::Mtu::of_link(theirs.min(LINK_MTU)));
                assert!(connected.replace(spec).is_none(), "one measurement at a time");
                measured += 1;
            }
            Task::Measure => {
                assert!(connected.is_some(), "nothing is connected");
                // In the programs, the measurement loops would receive now.
                if let Some(Message::Finish { sent }) = next(channel) {
                    assert!(sent.iter().try_fold(0u64, |sum, n| sum.checked_add(*n)).is_some());
                }
            }
            Task::Release => assert!(connected.take().is_some()),
            Task::End => return,
        }
        assert!(measured <= agreed, "{measured} measurements of {agreed}");
    }
}

fn client(channel: &mut Channel, first: u8) {
    let mut wanted = match first {
        4 => Wanted::Hello,
        5 => Wanted::End(5),
        _ => Wanted::Report,
    };
    while let Some(message) = next(channel) {
        wanted = match wanted.handle(message) {
            Err(_) => return,
            Ok(Answer::More(more)) => more,
            Ok(Answer::Hello(_)) => {
                channel.begin_session(None);
                Wanted::Consent
            }
            Ok(Answer::Yes) => Wanted::RawReady,
            Ok(Answer::Mac(_)) => Wanted::RawReport,
            Ok(Answer::Frames(..)) => Wanted::Opened,
            Ok(Answer::End(end)) => {
                assert_eq!(end.qps.len(), 5);
                Wanted::Report
            }
            Ok(Answer::Report(report)) => {
                // A client's use of the report: sums, totals, text.
                let counts = (0..4096).fold(Counts::default(), |all, _| all.plus(&report.counters));
                let _ = (counts.totals(), counts.notable(), report.sent.rate());
                Wanted::End(5)
            }
        };
    }
}

fn pingpong(data: &[u8]) {
    let mut line = *b"0000:000031:12cf4f:00000000000000000000ffff0a630003\0";
    for (at, byte) in data.iter().take(line.len()).enumerate() {
        line[at] = if byte & 0x80 == 0 { *byte } else { line[at] };
    }
    if let Ok(destination) = Destination::from_bytes(&line) {
        assert!(destination.qpn < 1 << 24 && destination.psn < 1 << 24);
        assert_eq!(destination.to_bytes().to_ascii_lowercase(), line.to_ascii_lowercase());
    }
}
