//! The out-of-band exchange of `ibv_rc_pingpong`, byte for byte.
//!
//! Each end sends one text `LID:QPN:PSN:GID` of 51 characters and a NUL, the client first; then the client sends
//! `done` and a NUL, and the server may start. All numbers are hexadecimal, the GID is 32 digits.

use crate::error::{AppError, Result};
use crate::oob::OobError;
use crate::protocol::{gid_hex, parse_gid};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use verbs::Gid;

/// Bytes of a destination on the wire, its NUL included.
pub const LEN: usize = 52;
/// What the client says last.
pub const DONE: &[u8; 5] = b"done\0";

/// One end, as the exchange tells it.
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
    /// [`AppError::Peer`] with what came instead.
    pub fn from_bytes(bytes: &[u8; LEN]) -> Result<Self> {
        parse(bytes).ok_or_else(|| {
            let shown = String::from_utf8_lossy(bytes);
            AppError::Peer(format!(
                "it sent {:?}, which is not LID:QPN:PSN:GID; is it a pingpong?",
                shown.trim_end_matches('\0')
            ))
        })
    }
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

/// A TCP stream of the exchange. Waits run the caller's own work, as the shards need to be turned.
#[derive(Debug)]
pub struct Stream(TcpStream);

/// How long we stay for a stock tool that may need our last acknowledgement again: a few of its ACK timeouts (67 ms).
const REPEATS: Duration = Duration::from_millis(300);

/// How long the other end may think.
const PATIENCE: Duration = Duration::from_secs(30);

impl Stream {
    /// Takes over a connected stream.
    ///
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true).map_err(OobError::Io)?;
        stream.set_nodelay(true).map_err(OobError::Io)?;
        Ok(Self(stream))
    }

    /// Sends a few bytes.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // A fresh connection has room for a few bytes: no partial writes to expect.
        self.0.write_all(bytes).map_err(|e| OobError::Io(e).into())
    }

    /// Receives exactly as many bytes as `out` has.
    ///
    /// # Errors
    /// When the connection ends before, or nothing comes.
    pub fn recv(&mut self, out: &mut [u8], mut idle: impl FnMut() -> Result<()>) -> Result<()> {
        let (mut have, since) = (0, Instant::now());
        while have < out.len() {
            match self.0.read(&mut out[have..]) {
                Ok(0) => return Err(OobError::Closed.into()),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if since.elapsed() > PATIENCE {
                        return Err(OobError::Silent(PATIENCE, "its address").into());
                    }
                    for _ in 0..64 {
                        idle()?;
                    }
                }
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err(OobError::Closed.into()),
                Err(e) => return Err(OobError::Io(e).into()),
            }
        }
        Ok(())
    }

    /// Says that this end is through, and works on until the other end is, for at most `limit`: it may still need
    /// an answer repeated. The stock tool closes its end right after the exchange, so an end that was closed all
    /// along says nothing: then it is `REPEATS` that we stay.
    ///
    /// # Errors
    /// Those of `idle`.
    pub fn linger(mut self, limit: Duration, mut idle: impl FnMut() -> Result<()>) -> Result<()> {
        let _ = self.0.shutdown(std::net::Shutdown::Write);
        let early = self.is_closed();
        let limit = if early { REPEATS.min(limit) } else { limit };
        let since = Instant::now();
        let mut rest = [0; 16];
        while since.elapsed() < limit {
            match self.0.read(&mut rest) {
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

    /// Whether the other end's process has gone or is through. Says nothing about a stock tool, which closes early.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0))
    }
}

/// The client's half: tells `ours`, learns theirs.
///
/// # Errors
/// A stranger at the other end, a connection that ends.
pub fn ask(stream: &mut Stream, ours: &Destination, idle: impl FnMut() -> Result<()>) -> Result<Destination> {
    stream.send(&ours.to_bytes())?;
    let mut answer = [0; LEN];
    stream.recv(&mut answer, idle)?;
    let theirs = Destination::from_bytes(&answer)?;
    stream.send(DONE)?;
    Ok(theirs)
}

/// The server's half: learns theirs, connects to it, tells `ours`, waits for the client's `done`.
///
/// # Errors
/// A stranger at the other end, a connection that ends, those of `connect`.
pub fn answer(
    stream: &mut Stream,
    ours: &Destination,
    mut idle: impl FnMut() -> Result<()>,
    connect: impl FnOnce(&Destination) -> Result<()>,
) -> Result<Destination> {
    let mut question = [0; LEN];
    stream.recv(&mut question, &mut idle)?;
    let theirs = Destination::from_bytes(&question)?;
    connect(&theirs)?;
    stream.send(&ours.to_bytes())?;
    let mut done = [0; DONE.len()];
    stream.recv(&mut done, &mut idle)?;
    if &done != DONE {
        return Err(AppError::Peer(format!(
            "it said {:?} instead of \"done\"",
            String::from_utf8_lossy(&done)
        )));
    }
    Ok(theirs)
}
