//! `roce-perf --rdma-cm`: the two ends connect by `rdma_cm`, without TCP.
//!
//! The exchange runs over a separate connection, as a stream of bytes in SENDs; each queue pair that is measured is connected
//! by `rdma_cm`, too. Every wait drives the shards, as everywhere in this crate, checks for signals, and has a timeout. An
//! end that receives nothing for a while probes whether the peer is still alive.

use crate::error::{AppError, Result};
use crate::measure::watch::out_of_turn;
use crate::oob::{Channel, Stream};
use crate::protocol::{Message, sentence};
use crate::rig::OpenDevice;
use crate::stop;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::rdma_cm::{CmEventType, CmId, CmOption, ConnParam, EventChannel, PortSpace};
use verbs::{
    Access, Context, Cq, Mr, Mtu, Pd, Qp, QpCap, QpInitAttr, Reactor, RecvWr, SendWr, VerbsError, Wc,
};

/// Private data of a request for the exchange.
const EXCHANGE: &[u8] = b"roce-perf exchange 1";
/// Private data of a request for a measured queue pair, followed by its index.
const MEASURED: &[u8] = b"roce-perf queue pair ";
/// Why a request during a session is refused.
const BUSY: &[u8] = b"this server measures with another client";
/// Why a request that is not from a `roce-perf` client is refused.
const STRANGER: &[u8] = b"this is roce-perf server -R; its clients are roce-perf client -R";
/// Reasons of REJ messages (IBA 12.6.7.2) with a special meaning here: for the first two another attempt may succeed; for the
/// last the private data holds the reason.
const NO_ROOM: u16 = 3;
const NO_LISTENER: u16 = 8;
const BY_PROGRAM: u16 = 28;
/// Bytes of a piece of the stream, and number of pieces outstanding.
const PIECE: usize = 4096;
const PIECES: usize = 16;
/// Tag of the request that probes the peer.
const PROBE: u64 = 2 * PIECES as u64;
/// How long the peer may be silent before it is probed.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// ACK timeout of the exchange, 4.096 us times 2 to this power: after eight without an answer (8.6 s and more) the peer
/// counts as dead. One that only registers much memory answers in time.
const ACK_TIMEOUT: u8 = 18;
/// Timeouts of the request for an exchange: 1.1 s, sixteen times. `--wait` ends it sooner.
const CM_RESPONSE_TIMEOUT: u8 = 18;
const CM_RETRIES: u8 = 15;
/// How long the other end may take for its part of a connection.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to reach the server.
const RETRY: Duration = Duration::from_millis(200);
/// Time between two checks for signals.
const LOOK: Duration = Duration::from_millis(20);
/// Requests that are handled in one call.
const REQUESTS: usize = 64;
/// How long the last messages of an exchange may take to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Private data of a measured queue pair.
pub fn measured(index: usize) -> Vec<u8> {
    [MEASURED, &(index as u32).to_be_bytes()].concat()
}

/// The purpose of a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Exchange,
    Measured(usize),
    Unknown,
}

fn purpose(id: &CmId) -> Purpose {
    let Some(event) = id.event() else { return Purpose::Unknown };
    let data = event.private_data();
    match data.strip_prefix(MEASURED).and_then(|rest| rest.first_chunk::<4>()) {
        Some(index) => Purpose::Measured(u32::from_be_bytes(*index) as usize),
        None if data.starts_with(EXCHANGE) => Purpose::Exchange,
        None => Purpose::Unknown,
    }
}

/// Why a call of `rdma_cm` failed.
#[derive(Debug)]
pub enum Failure {
    /// Another attempt may succeed: no answer, no listener, or a busy server. One sentence.
    NotYet(String),
    /// Another attempt would fail, too.
    Final(AppError),
}

impl From<VerbsError> for Failure {
    fn from(e: VerbsError) -> Self {
        Self::Final(e.into())
    }
}
impl From<AppError> for Failure {
    fn from(e: AppError) -> Self {
        Self::Final(e)
    }
}
impl From<Failure> for AppError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotYet(why) => Self::Timeout(why),
            Failure::Final(e) => e,
        }
    }
}

/// Waits for the result of a call of `id`, whose events go to `events`: until the event is `wanted`, at most until `until`.
///
/// # Errors
/// Another event; a signal.
pub fn await_event(
    events: &EventChannel,
    id: &CmId,
    wanted: CmEventType,
    until: Instant,
) -> std::result::Result<(), Failure> {
    let peer = id.peer_addr().map_or_else(|| "the other end".into(), |peer| peer.to_string());
    loop {
        stop::check()?;
        let left = until.saturating_duration_since(Instant::now());
        let Some(event) = events.get_event(left.min(LOOK))?.filter(|event| event.is_of(id)) else {
            if left.is_zero() {
                return Err(Failure::NotYet(format!("{peer} did not answer in time")));
            }
            continue;
        };
        let said = String::from_utf8_lossy(event.private_data().trim_ascii_end()).into_owned();
        let said = sentence(said.trim_end_matches('\0'));
        return match event.event() {
            what if what == wanted => Ok(()),
            CmEventType::Rejected => Err(match event.refusal().map_or(0, |refusal| refusal.reason) {
                NO_LISTENER => Failure::NotYet(format!("no program listens at {peer}")),
                NO_ROOM => Failure::NotYet(format!("{peer} has no room for another request just now")),
                BY_PROGRAM if event.private_data().starts_with(BUSY) => {
                    Failure::NotYet(format!("{peer} says: {said}"))
                }
                BY_PROGRAM => AppError::Peer(format!("{peer} refused: {said}")).into(),
                _ => {
                    let why =
                        event.refusal().map_or_else(|| "no reason".into(), |refusal| refusal.to_string());
                    AppError::Setup(format!("{peer} refused the connection: {why}")).into()
                }
            }),
            CmEventType::AddrError => Err(Failure::NotYet(format!("nobody has the address of {peer}"))),
            CmEventType::Unreachable => Err(Failure::NotYet(format!("{peer} does not answer"))),
            CmEventType::Disconnected => Err(Failure::NotYet(format!("{peer} ended the connection"))),
            other => {
                Err(AppError::Setup(format!("connecting to {peer} ended in {other} ({})", event.status()))
                    .into())
            }
        };
    }
}

/// The server's end: accepts connections.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
}

impl Listener {
    /// Listens on a port of every address.
    ///
    /// # Errors
    /// A port that is in use; errors of the device.
    pub fn new(device: &OpenDevice, port: u16) -> Result<Self> {
        let id = device.context.create_id(None, PortSpace::Tcp)?;
        id.bind_addr(SocketAddr::from(([0u16; 8], port)))?;
        id.listen(0)?;
        Ok(Self { id })
    }

    /// A client that requests an exchange, if any, and its address. The connection may not be established yet, or may fail.
    /// Requests for anything else are refused.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn try_accept(&self, device: &OpenDevice) -> Result<Option<(Exchange, SocketAddr)>> {
        for _ in 0..REQUESTS {
            let Some(id) = self.id.get_request(Duration::ZERO)? else { return Ok(None) };
            match purpose(&id) {
                Purpose::Exchange => {}
                // Fails if the peer has vanished meanwhile, which is no error here.
                Purpose::Measured(_) => drop(id.reject(BUSY)),
                Purpose::Unknown => drop(id.reject(STRANGER)),
            }
            if purpose(&id) != Purpose::Exchange {
                continue;
            }
            let from = id.peer_addr().unwrap_or(SocketAddr::from(([0; 4], 0)));
            if let Ok(exchange) = Exchange::accept(device, id) {
                return Ok(Some((exchange, from)));
            }
        }
        Ok(None)
    }

    /// Waits for the request for measured queue pair `index` of the client at `from`, whose exchange is `channel`.
    ///
    /// # Errors
    /// A timeout; the client's end or failure; a signal.
    pub fn take_measured(&self, index: usize, from: IpAddr, channel: &mut Channel) -> Result<CmId> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            stop::check()?;
            match channel.try_recv()? {
                Some(Message::Failed { reason }) => return Err(AppError::Peer(reason)),
                Some(message) => return Err(out_of_turn(&message)),
                None => {}
            }
            let Some(id) = self.id.get_request(LOOK)? else { continue };
            if purpose(&id) == Purpose::Measured(index)
                && id.peer_addr().is_some_and(|peer| peer.ip() == from)
            {
                return Ok(id);
            }
            drop(id.reject(if purpose(&id) == Purpose::Unknown { STRANGER } else { BUSY }));
        }
        Err(AppError::Timeout(format!("the client did not connect queue pair {index} within {PATIENCE:?}")))
    }
}

/// An identifier whose route to `to` is resolved, from the local address `from`; its events go to `events`.
///
/// # Errors
/// Errors of `rdma_cm`; a signal.
pub fn resolved(
    device: &OpenDevice,
    events: &EventChannel,
    from: Option<IpAddr>,
    to: SocketAddr,
    until: Instant,
) -> std::result::Result<CmId, Failure> {
    let id = device.context.create_id(Some(events), PortSpace::Tcp)?;
    let patience = until.saturating_duration_since(Instant::now()).max(LOOK);
    id.resolve_addr(from.map(|ip| SocketAddr::new(ip, 0)), to, patience)?;
    await_event(events, &id, CmEventType::AddrResolved, until + LOOK)?;
    id.resolve_route(patience)?;
    await_event(events, &id, CmEventType::RouteResolved, until + LOOK)?;
    Ok(id)
}

/// The stream of bytes of an exchange. Reading and writing never block.
#[derive(Debug)]
pub struct Exchange {
    reactors: Vec<Reactor>,
    qp: Arc<Qp>,
    mr: Mr,
    cq: Cq,
    /// Pieces that are free for sending.
    free: Vec<usize>,
    inbox: VecDeque<u8>,
    closed: bool,
    /// Nothing more will be written, and outstanding pieces need not arrive.
    left: bool,
    /// When the peer last showed that it is alive, and whether a probe is outstanding.
    last_seen: Instant,
    probing: bool,
    id: CmId,
    events: EventChannel,
    _pd: Pd,
}

impl Exchange {
    /// Connects to a server, repeatedly for at most `patience`: it may start later.
    ///
    /// # Errors
    /// No answer in time, with the last failure; a signal.
    pub fn connect(device: &OpenDevice, to: SocketAddr, patience: Duration) -> Result<Self> {
        let until = Instant::now() + patience;
        let mut last_failure = None;
        loop {
            let attempt = Instant::now();
            let events = EventChannel::new()?;
            let why = match Self::attempt(device, events, to, until) {
                Ok(exchange) => return Ok(exchange),
                Err(Failure::Final(e)) => return Err(e),
                // A failure because time ran out is less informative than the failure of the attempt before.
                Err(Failure::NotYet(why)) if Instant::now() >= until => last_failure.unwrap_or(why),
                Err(Failure::NotYet(why)) => why,
            };
            if Instant::now() + RETRY >= until {
                return Err(AppError::Setup(format!(
                    "no session at {to} by rdma_cm within {patience:?}: {why}; start roce-perf server -R there, check \
                     its address and port, or wait longer (--wait)"
                )));
            }
            last_failure = Some(why);
            while attempt.elapsed() < RETRY {
                stop::check()?;
                std::thread::sleep(LOOK);
            }
        }
    }

    fn attempt(
        device: &OpenDevice,
        events: EventChannel,
        to: SocketAddr,
        until: Instant,
    ) -> std::result::Result<Self, Failure> {
        let id = resolved(device, &events, None, to, until)?;
        id.set_option(CmOption::CmResponseTimeout(CM_RESPONSE_TIMEOUT))?;
        id.set_option(CmOption::MaxCmRetries(CM_RETRIES))?;
        id.set_option(CmOption::AckTimeout(ACK_TIMEOUT))?;
        // Every port carries this path MTU; that of the measurement is negotiated over the exchange.
        id.set_option(CmOption::PathMtu(Mtu::Mtu256))?;
        let exchange = Self::new(&device.context, id, events)?;
        exchange.id.connect(&ConnParam::with_data(EXCHANGE))?;
        await_event(&exchange.events, &exchange.id, CmEventType::Established, until)?;
        Ok(exchange)
    }

    /// Accepts a request for an exchange. The connection is established later; its failure shows when reading.
    fn accept(device: &OpenDevice, id: CmId) -> std::result::Result<Self, VerbsError> {
        let events = EventChannel::new()?;
        id.migrate_id(Some(&events))?;
        id.set_option(CmOption::AckTimeout(ACK_TIMEOUT))?;
        let exchange = Self::new(&device.context, id, events)?;
        exchange.id.accept(&ConnParam::default())?;
        Ok(exchange)
    }

    fn new(context: &Context, id: CmId, events: EventChannel) -> std::result::Result<Self, VerbsError> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * PIECES as u32 + 1)?;
        let mr = pd.reg_mr(2 * PIECES * PIECE, Access::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: PIECES as u32 + 1,
            max_recv_wr: PIECES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = id.create_qp(&pd, &QpInitAttr::rc(&cq, &cq).cap(cap))?;
        let reactors =
            (0..context.shards()).map(|s| context.reactor(s)).collect::<std::result::Result<_, _>>()?;
        let exchange = Self {
            reactors,
            qp,
            mr,
            cq,
            free: (PIECES..2 * PIECES).collect(),
            inbox: VecDeque::new(),
            closed: false,
            left: false,
            last_seen: Instant::now(),
            probing: false,
            id,
            events,
            _pd: pd,
        };
        for piece in 0..PIECES {
            exchange.post_receive(piece)?;
        }
        Ok(exchange)
    }

    fn post_receive(&self, piece: usize) -> std::result::Result<(), VerbsError> {
        let sge = self.mr.sge(piece * PIECE..(piece + 1) * PIECE)?;
        Ok(self.qp.post_recv(&[RecvWr::new(piece as u64, &[sge])])?)
    }

    /// Drives the shards and handles completions.
    fn look(&mut self) -> std::result::Result<(), VerbsError> {
        for reactor in &mut self.reactors {
            reactor.poll_once();
        }
        while let Some(event) = self.events.try_get_event() {
            use CmEventType::{ConnectError, Disconnected, Rejected, Unreachable};
            self.closed |= matches!(event.event(), ConnectError | Disconnected | Rejected | Unreachable);
        }
        let mut done = [Wc::default(); 2 * PIECES + 1];
        let n = self.cq.poll(&mut done)?;
        for wc in &done[..n] {
            let piece = wc.wr_id as usize;
            if wc.is_ok() {
                self.last_seen = Instant::now();
            }
            if !wc.is_ok() {
                self.closed = true;
            } else if wc.wr_id == PROBE {
                self.probing = false;
            } else if piece >= PIECES {
                self.free.push(piece);
            } else {
                let mut bytes = vec![0; wc.byte_len as usize];
                self.mr.read(piece * PIECE, &mut bytes)?;
                self.inbox.extend(bytes);
                // Fails if the connection has ended, which the next completion shows.
                let _ = self.post_receive(piece);
            }
        }
        if !self.closed && !self.probing && self.last_seen.elapsed() >= PROBE_AFTER {
            // An RDMA WRITE of 0 bytes: the peer's stack acknowledges it, without its program.
            self.probing = self.qp.post_send(&[SendWr::write(PROBE, &[], 0, 0).signaled()]).is_ok();
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
        let post = || -> std::result::Result<(), VerbsError> {
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

impl Stream for Exchange {
    fn end_writing(&mut self) {
        self.left = true;
    }
}

impl Drop for Exchange {
    /// Lets written data arrive before the connection ends, if the peer is alive.
    fn drop(&mut self) {
        let since = Instant::now();
        while self.free.len() < PIECES && !self.closed && !self.left && since.elapsed() < FLUSH_TIMEOUT {
            if self.look().is_err() {
                return;
            }
        }
    }
}
