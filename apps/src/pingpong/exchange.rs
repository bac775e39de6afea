//! The out-of-band exchange of `ibv_rc_pingpong`, byte for byte.
//!
//! Each end sends one text `LID:QPN:PSN:GID` of 51 characters and a NUL, the client first; then the client sends
//! `done` and a NUL, and the server may start. All numbers are hexadecimal, the GID is 32 digits.

use crate::error::{AppError, OobError, Result};
use crate::oob;
use crate::pending::{self, Pending, PendingConn};
use crate::protocol::{Message, gid_hex, parse_gid, sentence};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use verbs::Gid;

/// Bytes of a destination on the wire, its NUL included.
pub const LEN: usize = 52;
/// The client's last message.
pub const DONE: &[u8; 5] = b"done\0";

/// One end, as the exchange describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number.
    pub psn: u32,
    /// GID.
    pub gid: Gid,
}

impl Destination {
    /// The bytes on the wire.
    pub fn to_bytes(&self) -> [u8; LEN] {
        let text = format!("{:04x}:{:06x}:{:06x}:{}\0", self.lid, self.qpn, self.psn, gid_hex(&self.gid));
        text.into_bytes().try_into().expect("24-bit numbers have six digits")
    }

    /// From the bytes on the wire.
    ///
    /// # Errors
    /// [`AppError::Peer`] with the bytes that arrived instead.
    pub fn from_bytes(bytes: &[u8; LEN]) -> Result<Self> {
        parse(bytes).ok_or_else(|| stranger(bytes))
    }
}

fn stranger(bytes: &[u8]) -> AppError {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    AppError::ProtocolViolation(format!(
        "it sent {}, which is not LID:QPN:PSN:GID; is it a pingpong?",
        oob::describe_other_program(bytes)
    ))
}

/// Whether a destination can begin like this.
fn may_begin(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(at, byte)| match at {
        4 | 11 | 18 => *byte == b':',
        _ if at == LEN - 1 => *byte == 0,
        _ => byte.is_ascii_hexdigit(),
    })
}

fn parse(bytes: &[u8; LEN]) -> Option<Destination> {
    let text = std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()?;
    let mut parts = text.split(':');
    let mut number = |digits: usize| {
        let part = parts.next()?;
        let hex = part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
        if hex { u32::from_str_radix(part, 16).ok() } else { None }
    };
    let (lid, qpn, psn) = (number(4)? as u16, number(6)?, number(6)?);
    let gid = parse_gid(parts.next()?)?;
    if parts.next().is_some() { None } else { Some(Destination { lid, qpn, psn, gid }) }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {:#06x}, QPN {:#08x}, PSN {:#08x}, GID {}", self.lid, self.qpn, self.psn, self.gid)
    }
}

/// A TCP stream of the exchange. Waits run the caller's own work, which drives the shards.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    /// The bytes of a destination that have arrived.
    question: Vec<u8>,
    /// Bytes discarded after the last message.
    drained: usize,
}

/// How long this end answers a stock tool that may need its last acknowledgement again: a few of that tool's ACK timeouts (67 ms).
const REPEATS: Duration = Duration::from_millis(300);

/// How long a refusal may take to arrive completely.
const LINGER: Duration = Duration::from_secs(1);

/// How long the other end may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

impl Stream {
    /// A stream of the exchange over a connected one.
    ///
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn new(stream: TcpStream) -> Result<Self> {
        oob::prepare(&stream).map_err(OobError::Io)?;
        Ok(Self { tcp: stream, question: Vec::new(), drained: 0 })
    }

    /// Sends a few bytes.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // A fresh connection has room for a few bytes: no partial writes to expect.
        self.tcp.write_all(bytes).map_err(|e| oob::lost(e).into())
    }

    /// Waits for the client's `done`.
    fn await_done(&mut self, idle: &mut impl FnMut() -> Result<()>) -> Result<()> {
        let mut done = [0; DONE.len()];
        let (mut have, since) = (0, Instant::now());
        while have < done.len() {
            match self.tcp.read(&mut done[have..]) {
                Ok(0) => return Err(OobError::Closed.into()),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if since.elapsed() > pending::GREETING {
                        return Err(OobError::Silent(pending::GREETING, "\"done\"").into());
                    }
                    for _ in 0..64 {
                        idle()?;
                    }
                }
                Err(e) => return Err(oob::lost(e).into()),
            }
        }
        if &done != DONE {
            let said = String::from_utf8_lossy(&done).into_owned();
            return Err(AppError::ProtocolViolation(format!("it said {said:?} instead of \"done\"")));
        }
        Ok(())
    }

    /// The reason of a refusal by a server of this crate, if a refusal and not an address began to arrive.
    fn refusal(&mut self, idle: &mut impl FnMut() -> Result<()>) -> Result<Option<String>> {
        let since = Instant::now();
        let mut chunk = [0; 512];
        let words = &mut self.question;
        while words.starts_with(b"{") && !words.ends_with(b"\n") && since.elapsed() < LINGER {
            match self.tcp.read(&mut chunk) {
                Ok(n) if n > 0 && words.len() < oob::GREETING_MAX => words.extend_from_slice(&chunk[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => idle()?,
                _ => break,
            }
        }
        match serde_json::from_slice(words) {
            Ok(Message::Failed { reason }) => Ok(Some(sentence(&reason))),
            _ => Ok(None),
        }
    }

    /// Signals that this end is done, and calls `idle` until the other end is done, for at most `limit`: the other end may still
    /// need an answer repeated. The stock tool closes its end right after the exchange, so an already closed connection proves
    /// nothing: then this end continues for `REPEATS`.
    ///
    /// # Errors
    /// Those of `idle`.
    pub fn linger(mut self, limit: Duration, mut idle: impl FnMut() -> Result<()>) -> Result<()> {
        let _ = self.tcp.shutdown(std::net::Shutdown::Write);
        let early = self.is_closed();
        let limit = if early { REPEATS.min(limit) } else { limit };
        let since = Instant::now();
        let mut rest = [0; 16];
        while since.elapsed() < limit {
            match self.tcp.read(&mut rest) {
                _ if early => {}
                Ok(n) if n > 0 => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                _ => break,
            }
            for _ in 0..64 {
                idle()?;
            }
        }
        Ok(())
    }

    /// Whether the other end's process has ended or is done. Proves nothing about a stock tool, which closes early.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.tcp.read(&mut [0; 1]), Ok(0))
    }
}

impl PendingConn for Stream {
    type Greeting = Destination;
    fn greeting(&mut self) -> Result<Option<Destination>> {
        let mut chunk = [0; LEN];
        loop {
            if !may_begin(&self.question) {
                return Err(stranger(&self.question));
            }
            if let Ok(whole) = self.question[..].try_into() {
                return Destination::from_bytes(whole).map(Some);
            }
            match self.tcp.read(&mut chunk[self.question.len()..]) {
                Ok(0) => return Err(OobError::Closed.into()),
                Ok(n) => {
                    let from = self.question.len();
                    self.question.extend_from_slice(&chunk[from..from + n]);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(oob::lost(e).into()),
            }
        }
    }
    /// Sends the reason in the format of `roce-perf`, whose clients may connect here by mistake; other programs can show the text.
    fn leave(&mut self, reason: &str) {
        let words = Message::Failed { reason: format!("this is roce-pingpong: {reason}") };
        if let Ok(words) = serde_json::to_string(&words) {
            let _ = self.tcp.write_all(format!("{words}\n").as_bytes());
        }
        let _ = self.tcp.shutdown(Shutdown::Write);
    }
    fn is_gone(&mut self) -> bool {
        oob::drain(&mut self.tcp, &mut self.drained)
    }
}

/// The client's half: sends `ours`, returns theirs.
///
/// # Errors
/// Another program at the other end, a connection that ends, those of `idle`.
pub fn ask(
    stream: &mut Stream,
    ours: &Destination,
    mut idle: impl FnMut() -> Result<()>,
) -> Result<Destination> {
    stream.send(&ours.to_bytes())?;
    let since = Instant::now();
    let theirs = loop {
        match stream.greeting() {
            Ok(Some(theirs)) => break theirs,
            Ok(None) if since.elapsed() > PATIENCE => {
                return Err(OobError::Silent(PATIENCE, "its address").into());
            }
            Ok(None) => {}
            Err(e) => return Err(stream.refusal(&mut idle)?.map_or(e, AppError::Peer)),
        }
        for _ in 0..64 {
            idle()?;
        }
    };
    stream.send(DONE)?;
    Ok(theirs)
}

/// The server's half: accepts connections on `listener` and serves the first that sends a client's greeting. Reads its address,
/// connects to it, sends `ours`, waits for its `done`. `disconnect` undoes the connection if the client vanishes before.
///
/// # Errors
/// Those of the listener, of `idle` and of `disconnect`. Peers that are no clients are refused, and end nothing.
pub fn serve<I: FnMut() -> Result<()>>(
    listener: TcpListener,
    ours: &Destination,
    mut idle: I,
    mut connect: impl FnMut(&Destination, &mut I) -> Result<()>,
    mut disconnect: impl FnMut() -> Result<()>,
) -> Result<(Destination, Stream)> {
    let mut pending = Pending::new("roce-pingpong");
    loop {
        idle()?;
        pending.accept_from(&listener, Stream::new)?;
        let Some((mut stream, theirs, from)) = pending.next_greeted() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut answer = || {
            connect(&theirs, &mut idle)?;
            stream.send(&ours.to_bytes())?;
            stream.await_done(&mut idle)
        };
        match answer() {
            Ok(()) => {
                pending.refuse_all("another client came first");
                return Ok((theirs, stream));
            }
            Err(AppError::Interrupted) => return Err(AppError::Interrupted),
            Err(e) => {
                pending.refuse(stream, &from, &e.to_string());
                disconnect()?;
            }
        }
    }
}
