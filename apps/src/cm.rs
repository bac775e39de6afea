//! `roce-perf --rdma-cm`: the two ends find each other by `rdma_cm`, without TCP.
//!
//! The exchange runs over a connection of its own, as a stream of bytes in SENDs; each queue pair that is measured
//! is connected by `rdma_cm`, too. Whoever waits turns the shards, as everywhere in this crate.

use crate::error::{AppError, Result};
use crate::rig::OpenDevice;
use crate::stop;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::error::errno::ECONNREFUSED;
use verbs::rdma_cm::{CmId, CmOption, ConnParam, PortSpace};
use verbs::{Access, Cq, Mr, Pd, Qp, QpCap, QpInitAttr, Reactor, RecvWr, SendWr, Wc};

/// What a request for the exchange says.
const EXCHANGE: &[u8] = b"roce-perf exchange 1";
/// What a request for a measured queue pair says, its position behind it.
const MEASURED: &[u8] = b"roce-perf queue pair ";
/// Bytes of a piece of the stream, and pieces under way.
const PIECE: usize = 4096;
const PIECES: usize = 16;
/// How long the other end may take to do its part of a connection.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to find the server.
const RETRY: Duration = Duration::from_millis(200);
/// How long the last words of an exchange may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Private data of a measured queue pair.
pub fn measured(index: usize) -> Vec<u8> {
    [MEASURED, &(index as u32).to_be_bytes()].concat()
}

/// What somebody who connects wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Exchange,
    Measured(usize),
    Unknown,
}

fn wish(id: &CmId) -> Wish {
    let Some(event) = id.event() else { return Wish::Unknown };
    let data = event.private_data();
    match data.strip_prefix(MEASURED).and_then(|rest| rest.first_chunk::<4>()) {
        Some(index) => Wish::Measured(u32::from_be_bytes(*index) as usize),
        None if data.starts_with(EXCHANGE) => Wish::Exchange,
        None => Wish::Unknown,
    }
}

/// The server's end: takes connections.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
}

impl Listener {
    /// Listens on a port of every address.
    ///
    /// # Errors
    /// A port that is in use, what the device says.
    pub fn new(device: &OpenDevice, port: u16) -> Result<Self> {
        let id = device.context.create_id(None, PortSpace::Tcp)?;
        id.bind_addr(SocketAddr::from(([0u16; 8], port)))?;
        id.listen(0)?;
        Ok(Self { id })
    }

    /// A client that wants to talk, if there is one. Others are refused.
    ///
    /// # Errors
    /// What the device says.
    pub fn try_accept(&self, device: &OpenDevice) -> Result<Option<Exchange>> {
        let Some(id) = self.id.get_request(Duration::ZERO)? else { return Ok(None) };
        if wish(&id) != Wish::Exchange {
            id.reject(b"this server measures one client at a time")?;
            return Ok(None);
        }
        let exchange = Exchange::new(device, id)?;
        // A client that gave up meanwhile is no failure of ours.
        Ok(exchange.id.accept(&ConnParam::default()).is_ok().then_some(exchange))
    }

    /// The request for measured queue pair `index`.
    ///
    /// # Errors
    /// When it does not come.
    pub fn take_measured(&self, index: usize) -> Result<CmId> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            stop::check()?;
            let Some(id) = self.id.get_request(RETRY)? else { continue };
            if wish(&id) == Wish::Measured(index) {
                return Ok(id);
            }
            id.reject(b"this server is measuring")?;
        }
        Err(AppError::Timeout(format!("the client did not connect queue pair {index} within {PATIENCE:?}")))
    }
}

/// An identifier whose route to `to` is resolved, from our address `from`.
///
/// # Errors
/// What `rdma_cm` says.
pub fn resolved(
    device: &OpenDevice,
    from: Option<IpAddr>,
    to: SocketAddr,
    patience: Duration,
) -> std::result::Result<CmId, verbs::VerbsError> {
    let id = device.context.create_id(None, PortSpace::Tcp)?;
    id.resolve_addr(from.map(|ip| SocketAddr::new(ip, 0)), to, patience)?;
    id.resolve_route(patience)?;
    Ok(id)
}

/// The stream of bytes of an exchange. Reading and writing never block.
#[derive(Debug)]
pub struct Exchange {
    reactors: Vec<Reactor>,
    qp: Arc<Qp>,
    mr: Mr,
    cq: Cq,
    /// Pieces that can be sent in.
    free: Vec<usize>,
    inbox: VecDeque<u8>,
    closed: bool,
    id: CmId,
    _pd: Pd,
}

impl Exchange {
    /// Connects to a server, again and again for at most `patience`: it may start later.
    ///
    /// # Errors
    /// When nobody answers in time.
    pub fn connect(device: &OpenDevice, to: SocketAddr, patience: Duration) -> Result<Self> {
        let since = Instant::now();
        loop {
            let attempt = Instant::now();
            let tried = resolved(device, None, to, RETRY).and_then(|id| {
                // A server that starts may have an address before it listens.
                id.set_option(CmOption::CmResponseTimeout(16))?;
                id.set_option(CmOption::MaxCmRetries(7))?;
                let exchange = Self::new(device, id)?;
                exchange.id.connect(&ConnParam::with_data(EXCHANGE))?;
                Ok(exchange)
            });
            let error = match tried {
                Ok(exchange) => return Ok(exchange),
                Err(e) => e,
            };
            let again = matches!(error.errno(), verbs::error::errno::ETIMEDOUT | ECONNREFUSED);
            if !again || since.elapsed() >= patience {
                return Err(AppError::Setup(format!("no server answers at {to} by rdma_cm: {error}")));
            }
            while attempt.elapsed() < RETRY {
                stop::check()?;
                (0..device.context.shards()).filter_map(|s| device.context.reactor(s).ok()).for_each(
                    |mut r| {
                        r.poll_once();
                    },
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn new(device: &OpenDevice, id: CmId) -> std::result::Result<Self, verbs::VerbsError> {
        let context = &device.context;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * PIECES as u32)?;
        let mr = pd.reg_mr(2 * PIECES * PIECE, Access::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: PIECES as u32,
            max_recv_wr: PIECES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq).cap(cap))?;
        let reactors =
            (0..context.shards()).map(|s| context.reactor(s)).collect::<std::result::Result<_, _>>()?;
        let free = (PIECES..2 * PIECES).collect();
        let exchange =
            Self { reactors, qp, mr, cq, free, inbox: VecDeque::new(), closed: false, id, _pd: pd };
        for piece in 0..PIECES {
            exchange.post_receive(piece)?;
        }
        Ok(exchange)
    }

    fn post_receive(&self, piece: usize) -> std::result::Result<(), verbs::VerbsError> {
        let sge = self.mr.sge(piece * PIECE..(piece + 1) * PIECE)?;
        Ok(self.qp.post_recv(&[RecvWr::new(piece as u64, &[sge])])?)
    }

    /// Turns the shards and takes what has completed.
    fn look(&mut self) -> std::result::Result<(), verbs::VerbsError> {
        for reactor in &mut self.reactors {
            reactor.poll_once();
        }
        let mut done = [Wc::default(); 2 * PIECES];
        let n = self.cq.poll(&mut done)?;
        for wc in &done[..n] {
            let piece = wc.wr_id as usize;
            if !wc.is_ok() {
                self.closed = true;
            } else if piece >= PIECES {
                self.free.push(piece);
            } else {
                let mut bytes = vec![0; wc.byte_len as usize];
                self.mr.read(piece * PIECE, &mut bytes)?;
                self.inbox.extend(bytes);
                // It fails where the connection has ended, which the next completion tells.
                let _ = self.post_receive(piece);
            }
        }
        Ok(())
    }
}

impl Read for Exchange {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.look().map_err(io::Error::other)?;
        match self.inbox.read(out)? {
            0 if self.closed => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }
}

impl Write for Exchange {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.look().map_err(io::Error::other)?;
        if self.closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let piece = self.free.pop().ok_or(ErrorKind::WouldBlock)?;
        let len = bytes.len().min(PIECE);
        let post = || -> std::result::Result<(), verbs::VerbsError> {
            self.mr.write(piece * PIECE, &bytes[..len])?;
            let sge = [self.mr.sge(piece * PIECE..piece * PIECE + len)?];
            Ok(self.qp.post_send(&[SendWr::send(piece as u64, &sge).signaled()])?)
        };
        post().map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
        Ok(len)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Exchange {
    /// What was written arrives, if the other end is there, before the connection ends.
    fn drop(&mut self) {
        let since = Instant::now();
        while self.free.len() < PIECES && !self.closed && since.elapsed() < LAST_WORDS {
            if self.look().is_err() {
                return;
            }
        }
    }
}
