//! The first contact of two processes: one connects a queue pair and notifies the other, as programs do by TCP. The other then connects
//! and sends a message. The stack requests the link when the first of the two connects, not with the first message.

use super::greet;
use crate::many::objects::Objects;
use crate::many::order::{RemoteEnd, Report};
use apps::error::{AppError, Result};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a peer may take to join.
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket named after a member's process, on which peers notify the member that they have joined.
pub struct JoinSocket(UnixDatagram);

impl JoinSocket {
    /// The socket of this process.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn new() -> Result<Self> {
        let bind = || {
            let socket = UnixDatagram::bind_addr(&name(std::process::id())?)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        bind()
            .map(Self)
            .map_err(|e: io::Error| AppError::Setup(format!("a socket for the other members: {e}")))
    }

    /// Connects a queue pair, and sends its peer's process the time at which that began.
    ///
    /// # Errors
    /// Errors of the device; the process has ended.
    pub fn join(
        &self,
        objects: &mut Objects,
        queue: usize,
        remote: RemoteEnd,
        notify: u32,
    ) -> Result<Report> {
        let began = now();
        objects.connect_one(queue, remote)?;
        let told = name(notify).and_then(|to| self.0.send_to_addr(&began.as_nanos().to_ne_bytes(), &to));
        told.map_err(|e| AppError::Setup(format!("process {notify} cannot be told: {e}")))?;
        Ok(Report::Done)
    }

    /// Waits for a peer, connects to it and sends it a message.
    ///
    /// # Errors
    /// Errors of the device; no peer joins; the message failed.
    pub fn meet(&self, objects: &mut Objects, queue: usize, remote: RemoteEnd) -> Result<Report> {
        let mut began = [0; 16];
        let came =
            self.0.recv(&mut began).map_err(|e| AppError::Timeout(format!("no peer has joined: {e}")))?;
        if came != began.len() {
            return Err(AppError::ProtocolViolation(format!(
                "{came} bytes came, where a peer says when it began to join"
            )));
        }
        objects.connect_one(queue, remote)?;
        let posted = Instant::now();
        objects.send(queue, true)?;
        greet::complete(objects)?;
        let all = now().as_nanos().saturating_sub(u128::from_ne_bytes(began));
        Ok(Report::Times(vec![posted.elapsed().as_nanos() as u64, u64::try_from(all).unwrap_or(u64::MAX)]))
    }
}

/// The address of a member's socket.
fn name(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("roce-many-{pid}"))
}

/// The time of the system's clock, which all members share.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
