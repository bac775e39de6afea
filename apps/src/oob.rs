//! The out-of-band channel of `roce-perf`: JSON messages, one per line, over TCP or a connection of `rdma_cm`.
//!
//! No call blocks longer than its limit; a wait runs the caller's own work between two polls of the socket, because in the
//! embedded drive the waiting thread is the one that drives the shard. Input of the other end is bounded: a line in bytes,
//! the session in time; an invalid message ends the channel with an error.

use crate::error::OobError;
use crate::protocol::Message;
use crate::stop;
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Bytes of the longest line, its newline included.
pub const LINE_MAX: usize = 1 << 20;
/// Bytes of the longest first line, before the peer has identified itself.
pub const GREETING_MAX: usize = 4096;
/// How long a peer may take to read a message that is sent to it.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// Time between two attempts to connect.
const CONNECT_RETRY: Duration = Duration::from_millis(100);
/// How long one attempt to connect may take: no signal is seen meanwhile.
const CONNECT_ATTEMPT: Duration = Duration::from_secs(1);
/// TCP keepalive: idle time and interval of the probes. A peer that leaves the following number of probes unanswered is gone.
const KEEPALIVE_S: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;
/// Bytes that are read from a refused peer: closing with unread bytes would discard the reason that was sent to it.
const DRAIN_MAX: usize = 256 << 10;

/// A description of the first bytes of a peer that is not `roce-perf`: the bytes, and the program that it seems to be.
pub fn describe_other_program(bytes: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(bytes).chars().take(60).collect();
    let hint = match bytes {
        _ if bytes.len() > 5 && bytes[4] == b':' && bytes[..4].iter().all(u8::is_ascii_hexdigit) => {
            " (the address of a pingpong: roce-pingpong, ibv_rc_pingpong)"
        }
        [b'{', ..] => " (a message of roce-perf)",
        [0x16, 0x03, ..] => " (TLS)",
        _ if bytes.starts_with(b"SSH-") => " (SSH)",
        _ if ["GET ", "HEAD ", "POST ", "PUT ", "OPTIONS ", "HTTP/"].iter().any(|m| shown.starts_with(m)) => {
            " (HTTP)"
        }
        _ => "",
    };
    format!("{shown:?}{hint}")
}

/// A non-blocking connection.
pub trait Stream: Read + Write + std::fmt::Debug {
    /// Ends the stream in this direction.
    fn end_writing(&mut self);
}
impl Stream for TcpStream {
    fn end_writing(&mut self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// One connection with line-based messages.
#[derive(Debug)]
pub struct Channel {
    stream: Box<dyn Stream>,
    inbox: Vec<u8>,
    /// Bytes of `inbox` that hold no newline.
    seen: usize,
    /// Bytes of the longest line that is accepted.
    line_max: usize,
    /// When the session has to be over, and its limit.
    until: Option<(Instant, Duration)>,
    /// Bytes discarded after the last message.
    drained: usize,
}

impl Channel {
    /// A channel over a connected stream.
    ///
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn new(stream: TcpStream) -> Result<Self, OobError> {
        prepare(&stream).map_err(OobError::Io)?;
        Ok(Self::over(stream))
    }

    /// A channel over a non-blocking stream.
    pub fn over(stream: impl Stream + 'static) -> Self {
        let stream = Box::new(stream);
        Self { stream, inbox: Vec::new(), seen: 0, line_max: GREETING_MAX, until: None, drained: 0 }
    }

    /// The other end has identified itself: from now on its lines may be longer, and the session has `limit`.
    pub fn begin_session(&mut self, limit: Option<Duration>) {
        self.line_max = LINE_MAX;
        self.until = limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
    }

    /// Sends one message.
    ///
    /// # Errors
    /// When the connection is gone or the peer does not read; a signal.
    pub fn send(&mut self, message: &Message) -> Result<(), OobError> {
        let mut line = serde_json::to_vec(message).map_err(|e| OobError::Malformed(e.to_string()))?;
        line.push(b'\n');
        if line.len() > LINE_MAX {
            return Err(OobError::TooLong(LINE_MAX));
        }
        let (mut rest, since) = (&line[..], Instant::now());
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(OobError::Closed),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if stop::requested() {
                        return Err(OobError::Interrupted);
                    }
                    if since.elapsed() > SEND_LIMIT {
                        return Err(OobError::Silent(SEND_LIMIT, "room for a message"));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(lost(e)),
            }
        }
        Ok(())
    }

    /// The next message, if a complete one has arrived; its numbers and texts are checked.
    ///
    /// # Errors
    /// [`OobError::Closed`] at the end of the stream; anything that is not a message; a session that lasts too long.
    pub fn try_recv(&mut self) -> Result<Option<Message>, OobError> {
        if let Some((until, limit)) = self.until
            && Instant::now() >= until
        {
            return Err(OobError::Overtime(limit));
        }
        let mut chunk = [0u8; 4096];
        loop {
            if let Some(at) = self.inbox[self.seen..].iter().position(|&b| b == b'\n') {
                let end = self.seen + at;
                let message = if end < self.line_max {
                    parse(&self.inbox[..end])
                } else {
                    Err(OobError::TooLong(self.line_max))
                };
                self.inbox.drain(..=end);
                self.seen = 0;
                return message.map(Some);
            }
            self.seen = self.inbox.len();
            // Every message begins with this byte: another program need not send a newline to be refused.
            if self.inbox.first().is_some_and(|&first| first != b'{') {
                return Err(OobError::OtherProgram(describe_other_program(&self.inbox)));
            }
            if self.seen >= self.line_max {
                return Err(OobError::TooLong(self.line_max));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(OobError::Closed),
                Ok(n) => self.inbox.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(lost(e)),
            }
        }
    }

    /// Sends the reason for leaving, if the other end still reads.
    pub fn leave(&mut self, reason: &str) {
        let _ = self.send(&Message::Failed { reason: reason.into() });
        self.stream.end_writing();
    }

    /// Discards input after the last message; returns whether the other end has closed, or sends too much.
    pub fn drain(&mut self) -> bool {
        drain(&mut self.stream, &mut self.drained)
    }
}

/// Makes a TCP stream non-blocking, with keepalive to detect a dead machine.
pub fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_S)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_S)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?)
}

/// Discards input of a refused peer; returns whether it has closed, or sends too much. `drained` counts the bytes.
pub fn drain(stream: &mut impl Read, drained: &mut usize) -> bool {
    let mut chunk = [0; 4096];
    while *drained < DRAIN_MAX {
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => *drained += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            _ => return true,
        }
    }
    true
}

/// The error for a broken stream: a reset is how the death of a process looks.
pub(crate) fn lost(e: std::io::Error) -> OobError {
    match e.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => OobError::Closed,
        _ => OobError::Io(e),
    }
}

fn parse(line: &[u8]) -> Result<Message, OobError> {
    if line.first() != Some(&b'{') {
        return Err(OobError::OtherProgram(describe_other_program(line)));
    }
    let message = serde_json::from_slice::<Message>(line).map_err(|e| {
        let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
        OobError::Malformed(format!("{shown:?} ({e})"))
    })?;
    message.checked().map_err(OobError::Malformed)
}

/// Every address of this machine, of both IP versions.
pub const EVERYWHERE: &str = "::";

/// Listens for clients, without blocking in `accept`.
///
/// Where this machine has no IPv6, [`EVERYWHERE`] is every address of IPv4.
///
/// # Errors
/// When the address is in use or not local.
pub fn listen(bind: &str, port: u16) -> Result<TcpListener, OobError> {
    let mut addr = resolve(bind, port)?;
    if bind == EVERYWHERE {
        addr.push((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let failed = |error| OobError::Listen { addr: show(bind, port), error };
    let listener = TcpListener::bind(&addr[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// A client that has connected, if one has.
///
/// # Errors
/// When the listening socket fails.
pub fn try_accept(listener: &TcpListener) -> Result<Option<(TcpStream, SocketAddr)>, OobError> {
    match listener.accept() {
        // A socket of both IP versions shows an IPv4 address as a mapped one.
        Ok((stream, from)) => match from.ip().to_canonical() {
            ip if ip.is_ipv4() => Ok(Some((stream, SocketAddr::new(ip, from.port())))),
            _ => Ok(Some((stream, from))),
        },
        Err(e) => match e.kind() {
            ErrorKind::InvalidInput => Err(OobError::Io(e)),
            // A connection that ended before it was accepted, or no free descriptor: neither ends a server.
            _ => Ok(None),
        },
    }
}

/// Connects to `host`, repeatedly for at most `patience`: the server may start after the client.
///
/// `idle` runs between two attempts; its error ends the wait.
///
/// # Errors
/// No answer in time.
pub fn connect<E: From<OobError>>(
    host: &str,
    port: u16,
    patience: Duration,
    mut idle: impl FnMut() -> Result<(), E>,
) -> Result<TcpStream, E> {
    let addrs = resolve(host, port)?;
    let since = Instant::now();
    loop {
        let mut last = None;
        for addr in &addrs {
            idle()?;
            let left = patience.saturating_sub(since.elapsed());
            match TcpStream::connect_timeout(addr, left.clamp(CONNECT_RETRY, CONNECT_ATTEMPT)) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = Some(e),
            }
        }
        if since.elapsed() >= patience {
            let error = last.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into());
            return Err(OobError::Connect { addr: show(host, port), error }.into());
        }
        let next = Instant::now() + CONNECT_RETRY;
        while Instant::now() < next {
            idle()?;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn show(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The addresses of a host, those of IPv4 first.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, OobError> {
    let fail = |error| OobError::Resolve { host: host.into(), error };
    let mut addrs: Vec<_> = (host, port).to_socket_addrs().map_err(fail)?.collect();
    // The default bind address of a server is an IPv4 one.
    addrs.sort_by_key(SocketAddr::is_ipv6);
    if addrs.is_empty() { Err(fail(ErrorKind::NotFound.into())) } else { Ok(addrs) }
}
