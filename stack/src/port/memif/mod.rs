//! Ethernet frames through memory that two processes share, by the memif protocol 2.0. It needs neither DPDK nor privileges, and no thread
//! except while a link comes up or goes down ([`meeting`]).
//!
//! The two ends connect by a unix socket, on which one of them, the server, listens. The client creates the memory with rings and buffers
//! and passes it to the server ([`link`], [`handshake`], [`region`]); from then on frames cross only that memory ([`queue_end`], [`rx`],
//! [`tx`]). The peer is another process and not trusted: it can damage its own frames and the link, and nothing else. Its data are copied
//! before they are examined.

use super::peers::Peers;
use super::socket_file::{self, SocketFile};
use super::{lazy, stock};
use crate::port::error::PortError;
use crate::port::frame::HeapPool;
use crate::port::info::{PortInfo, PortOptions};
use crate::port::spec::{MemifRole, PortSpec};
use crate::port::traits::Port;
use crate::runtime::{self, Unusable};
use crate::sync::asymmetric;
use link::{End, State};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(in crate::port) mod connection;
mod growing;
mod growth;
mod handshake;
mod link;
mod meeting;
mod message;
mod port;
mod queue;
pub(in crate::port) mod queue_end;
pub(in crate::port) mod region;
pub(in crate::port) mod ring;
pub(in crate::port) mod rx;
mod shared;
pub(in crate::port) mod shm;
pub(in crate::port) mod slots;
mod socket;
pub(in crate::port) mod tx;
pub(in crate::port) mod wake;

/// Base-2 logarithm of the slots of a ring, unless the options say otherwise.
const RSIZE: u8 = 10;
/// Longest time for which a peer that takes no frames counts as stalled (see [`Stalled`](crate::port::Stalled)), unless the options say
/// otherwise; and the upper bound of that option, in seconds.
const STALL: Duration = Duration::from_secs(60);
const STALL_MAX: u32 = 86_400;

/// The parsed specification of a port.
struct Settings {
    path: PathBuf,
    role: Option<MemifRole>,
    terms: handshake::Terms,
    /// Bytes of a buffer.
    buffer: u32,
    peers: Peers,
    /// User and group that become the owner of the socket file.
    owner: (Option<u32>, Option<u32>),
    /// Longest time for which a peer that takes no frames counts as stalled.
    stall: Duration,
}

/// Opens a port. Its peer need not exist yet.
pub(super) fn open(
    spec: &PortSpec,
    path: &Path,
    role: Option<MemifRole>,
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    let settings = settings(path, role, more, options).map_err(fail)?;
    // Registers this process for the barrier that a sleeping peer issues: see `Rx::arm`.
    asymmetric::join();
    for _ in 1..TRIES {
        let (port, found_server) = make(spec, &settings, options).map_err(fail)?;
        if !found_server || await_link(&port, &settings.path) {
            return Ok(Box::new(port));
        }
    }
    make(spec, &settings, options).map(|(port, _)| Box::new(port) as _).map_err(fail)
}

/// Makes a port. Also returns whether it is the client because a server was found.
fn make(
    spec: &PortSpec,
    settings: &Settings,
    options: &PortOptions,
) -> Result<(port::MemifPort, bool), String> {
    let end = end(settings)?;
    let found_server = settings.role.is_none() && matches!(end, End::Client { .. });
    let info = PortInfo::of(spec, options);
    // Copies of frames write whole blocks of 16 bytes, past the end of the frame.
    let pool = HeapPool::new(options.queues * (options.frames + stock::STOCK), room(info.max_frame()));
    let common = meeting::Common::new(info.name.clone(), settings.terms.clone(), settings.peers.clone())
        .map_err(|error| format!("no descriptor is left: {error}"))?;
    let state = State::new(common, end);
    let shared = shared::Shared::new(state, pool, &info, settings.stall);
    Ok((port::MemifPort::new(info, shared), found_server))
}

/// Most attempts of an end without a role to find out which end it is.
const TRIES: u32 = 4;
/// How long a client without a role waits until the link to the server that it found is up.
const LINK_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// How often such a client checks that the server still exists.
const PROBE_EVERY: Duration = Duration::from_millis(20);

/// Waits until the link is up, for at most [`LINK_UP_TIMEOUT`]. Otherwise the first frames of the program that starts second would be lost,
/// and lost datagrams are not retransmitted.
///
/// Returns `false` if no process listens any more: the server that was found has ended, and may have belonged to an earlier pair of
/// programs. Both ends of a new pair may have found it. So the caller decides again which end it is; otherwise both would stay clients
/// forever.
fn await_link(port: &port::MemifPort, path: &Path) -> bool {
    let start = Instant::now();
    let mut probe_at = start + PROBE_EVERY;
    while !port.link_up() {
        let now = Instant::now();
        if now >= probe_at {
            if socket_file::probe(path) != Ok(socket_file::Found::Alive) {
                return false;
            }
            probe_at = now + PROBE_EVERY;
        }
        if now.saturating_duration_since(start) >= LINK_UP_TIMEOUT {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// As [`open`], but the decision which end is the server is deferred to the start of the port: a port that is only queried must not listen.
pub(super) fn open_lazy(
    spec: &PortSpec,
    path: &Path,
    role: Option<MemifRole>,
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<Box<dyn Port>, PortError> {
    let fail = |reason: String| PortError::Open { port: spec.to_string(), reason };
    settings(path, role, more, options).map_err(fail)?;
    Ok(lazy::later(PortInfo::of(spec, options), spec, options))
}

/// Bytes of a buffer for frames of up to `max_frame` bytes.
fn room(max_frame: usize) -> usize {
    max_frame.next_multiple_of(64)
}

/// Makes the socket of an end. Without a role, the end that finds no listening process is the server.
fn end(settings: &Settings) -> Result<End, String> {
    if settings.role != Some(MemifRole::Client) {
        match listen(settings) {
            Ok(end) => return Ok(end),
            // Another process may have started to listen meanwhile.
            Err(_)
                if settings.role.is_none()
                    && socket_file::probe(&settings.path) == Ok(socket_file::Found::Alive) => {}
            Err(reason) => return Err(reason),
        }
    }
    Ok(End::client(settings.path.clone(), settings.buffer))
}

fn listen(settings: &Settings) -> Result<End, String> {
    let path = &settings.path;
    let lock = socket_file::lock_and_clear(path)?;
    let shown = path.display();
    let listener = socket::Listener::new(path).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            format!("another process took {shown} just now: take another path, or the other role")
        }
        _ => format!(
            "the socket {shown} cannot be made ({error}): take a path in a directory that you may write to"
        ),
    })?;
    drop(lock);
    let file = SocketFile::new(path).map_err(|error| format!("the socket {shown} is gone again: {error}"))?;
    let (user, group) = settings.owner;
    if user.is_some() || group.is_some() {
        std::os::unix::fs::chown(path, user, group)
            .map_err(|error| format!("the socket {shown} cannot be given to another owner: {error}"))?;
    }
    listener.listen().map_err(|error| format!("nobody can connect to the socket {shown}: {error}"))?;
    Ok(End::server(listener, file))
}

/// The names of the options.
const OPTIONS: &str = "rsize, bsize, id, secret, owner-uid, owner-gid, peer-uid, stall";

fn settings(
    path: &Path,
    role: Option<MemifRole>,
    more: &[(String, String)],
    options: &PortOptions,
) -> Result<Settings, String> {
    let max_frame = options.mtu + super::L2_OVERHEAD;
    let mut terms =
        handshake::Terms { queues: options.queues, log2: RSIZE, id: 0, secret: [0; message::SECRET] };
    // A stride that is not a power of two spreads the buffers over the sets of a cache. the buffers over the sets of a cache.
    let mut buffer = room(max_frame) as u32 + 64;
    let mut peers = Peers::default();
    let mut owner = (None, None);
    let mut stall = STALL;
    for (key, value) in more {
        let number = || value.parse::<u32>().map_err(|_| format!("{key}={value} is not a number"));
        match key.as_str() {
            "rsize" => {
                let log2 = number()?;
                if !(1..=u32::from(ring::LOG2_MAX)).contains(&log2) {
                    return Err(format!(
                        "rsize={log2} is out of range: rings have 2^1 to 2^{} slots",
                        ring::LOG2_MAX
                    ));
                }
                terms.log2 = log2 as u8;
            }
            "bsize" => {
                buffer = number()?;
                if (buffer as usize) < max_frame || buffer > u32::from(u16::MAX) {
                    return Err(format!(
                        "bsize={buffer} is out of range: a buffer holds a frame of {max_frame} bytes and at most 65535"
                    ));
                }
            }
            "id" => terms.id = number()?,
            "secret" if value.len() > message::SECRET => {
                return Err(format!(
                    "a secret has {} bytes at most; this one has {}",
                    message::SECRET,
                    value.len()
                ));
            }
            "secret" => terms.secret[..value.len()].copy_from_slice(value.as_bytes()),
            "owner-uid" => {
                owner.0 = Some(number()?);
                peers.add(number()?);
            }
            "owner-gid" => owner.1 = Some(number()?),
            "peer-uid" => peers.take(value)?,
            "stall" => {
                let seconds = number()?;
                if seconds > STALL_MAX {
                    return Err(format!(
                        "stall={seconds} is out of range: it is 0 (off) to {STALL_MAX} seconds"
                    ));
                }
                stall = Duration::from_secs(seconds.into());
            }
            "zero-copy" => {
                return Err(
                    "zero-copy is off for good: the peer could change a frame that was checked already"
                        .into(),
                );
            }
            _ => return Err(format!("there is no option {key}; the options are {OPTIONS}")),
        }
    }
    region::Layout { queues: terms.queues, log2: terms.log2, buffer }.check()?;
    let path = match path.as_os_str().is_empty() {
        true => runtime::dir()
            .map_err(|Unusable { path, reason }| format!("the directory {} {reason}", path.display()))?
            .join("memif.sock"),
        false => socket_file::absolute(path)?.into(),
    };
    Ok(Settings { path, role, terms, buffer, peers, owner, stall })
}

#[cfg(test)]
mod tests;
