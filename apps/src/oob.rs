//! The out-of-band channel of `roce-perf`: JSON messages, one a line, over TCP or a connection of `rdma_cm`.
//!
//! Never blocks inside a call for longer than its limit; a wait runs the caller's own work between two looks
//! at the socket, because in the embedded drive the waiting thread is the one that turns the shard. A line is
//! bounded, a message that cannot be understood ends the channel with a sentence.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Bytes of the longest line, its newline included.
pub const LINE_MAX: usize = 1 << 20;
/// How long a peer may take to read what is sent to it.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// Time between two attempts to connect.
const CONNECT_RETRY: Duration = Duration::from_millis(100);

/// Why the channel cannot be used (any more).
#[derive(Debug, thiserror::Error)]
pub enum OobError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr} ({error}); {}", listen_remedy(error))]
    Listen {
        /// The address.
        addr: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Nobody answers.
    #[error("no server answers at {addr} ({error}); start the server first, or check host and port")]
    Connect {
        /// The address.
        addr: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The host has no address.
    #[error("the host {host:?} cannot be found ({error})")]
    Resolve {
        /// The host's name.
        host: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The other end closed the connection.
    #[error("the other end closed the connection before the session was over")]
    Closed,
    /// The connection broke.
    #[error("the connection to the other end broke: {0}")]
    Io(std::io::Error),
    /// A line is longer than [`LINE_MAX`].
    #[error("the other end sent a line of more than {LINE_MAX} bytes; is it roce-perf?")]
    TooLong,
    /// A line is not a message.
    #[error("the other end sent a line that is not a message of this program: {0}")]
    Malformed(String),
    /// Nothing came for too long.
    #[error("the other end said nothing for {0:?} while {1} was expected")]
    Silent(Duration, &'static str),
}

/// What to do when a TCP port cannot be listened on.
pub fn listen_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "choose a TCP port from 1024 on, or run as root",
        ErrorKind::AddrNotAvailable => "the address to listen on must be one of this machine's",
        _ => "choose another TCP port, or end the program that uses it",
    }
}

/// A connection that neither reads nor writes longer than it must.
pub trait Stream: Read + Write + std::fmt::Debug {}
impl Stream for TcpStream {}
impl Stream for crate::cm::Exchange {}

/// One connection with line-based messages.
#[derive(Debug)]
pub struct Channel {
    stream: Box<dyn Stream>,
    inbox: Vec<u8>,
    /// Bytes of `inbox` that hold no newline.
    seen: usize,
}

impl Channel {
    /// Takes over a connected stream.
    ///
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn new(stream: TcpStream) -> Result<Self, OobError> {
        stream.set_nonblocking(true).map_err(OobError::Io)?;
        stream.set_nodelay(true).map_err(OobError::Io)?;
        Ok(Self::over(stream))
    }

    /// Takes over a stream that never blocks.
    pub fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), inbox: Vec::new(), seen: 0 }
    }

    /// Sends one message.
    ///
    /// # Errors
    /// When the connection is gone or the peer does not read.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), OobError> {
        let mut line = serde_json::to_vec(message).map_err(|e| OobError::Malformed(e.to_string()))?;
        line.push(b'\n');
        if line.len() > LINE_MAX {
            return Err(OobError::TooLong);
        }
        let (mut rest, since) = (&line[..], Instant::now());
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(OobError::Closed),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
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

    /// The next message, if a whole one is there.
    ///
    /// # Errors
    /// [`OobError::Closed`] at the end of the stream; anything that is not a message.
    pub fn try_recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, OobError> {
        let mut chunk = [0u8; 4096];
        loop {
            if let Some(at) = self.inbox[self.seen..].iter().position(|&b| b == b'\n') {
                let end = self.seen + at;
                let message = parse(&self.inbox[..end]);
                self.inbox.drain(..=end);
                self.seen = 0;
                return message.map(Some);
            }
            self.seen = self.inbox.len();
            if self.seen >= LINE_MAX {
                return Err(OobError::TooLong);
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
}

/// What a broken stream means: a reset is how the death of a process looks.
fn lost(e: std::io::Error) -> OobError {
    match e.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => OobError::Closed,
        _ => OobError::Io(e),
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, OobError> {
    serde_json::from_slice(line).map_err(|e| {
        let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
        OobError::Malformed(format!("{shown:?} ({e})"))
    })
}

/// Listens for clients, without blocking in `accept`.
///
/// # Errors
/// When the address is taken or not ours.
pub fn listen(bind: &str, port: u16) -> Result<TcpListener, OobError> {
    let addr = resolve(bind, port)?;
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
        Ok((stream, from)) => Ok(Some((stream, from))),
        Err(e) => match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => Ok(None),
            _ => Err(OobError::Io(e)),
        },
    }
}

/// Connects to `host`, again and again for at most `patience`: the server may start after the client.
///
/// `idle` runs between two attempts; its error ends the wait.
///
/// # Errors
/// When nobody answers in time.
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
            match TcpStream::connect_timeout(addr, Duration::from_secs(5)) {
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

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, OobError> {
    let fail = |error| OobError::Resolve { host: host.into(), error };
    let mut addrs: Vec<_> = (host, port).to_socket_addrs().map_err(fail)?.collect();
    // The default bind address of a server is an IPv4 one.
    addrs.sort_by_key(SocketAddr::is_ipv6);
    if addrs.is_empty() { Err(fail(ErrorKind::NotFound.into())) } else { Ok(addrs) }
}
