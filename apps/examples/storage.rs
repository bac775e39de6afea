//! A storage target that embeds the stack: a block store in a file, served over RDMA.
//!
//! ```text
//! cargo run --release --example storage -- demo                     # both ends in one process
//! cargo run --release --example storage -- serve /tmp/disk.img      # two processes
//! cargo run --release --example storage -- client localhost
//! ```
//!
//! The point of the example is which loop drives the network. The target has one thread, its own, with one loop that polls
//! the network and does the file I/O; the library starts no thread (`Drive::Embedded`). A SPDK-like reactor, an io_uring loop
//! or a database's event loop would look the same:
//!
//! ```text
//! loop {
//!     reactor.poll_once();      // network: frames in, frames out
//!     target.step();            // storage: completions in, pread and pwrite, requests out
//! }
//! ```
//!
//! The protocol is that of every RDMA storage protocol in miniature. A client SENDs a small command with the
//! number of a block and the address and key of its own buffer. The *target* moves the data: it RDMA WRITEs the
//! block into that buffer, or RDMA READs it from there. Then it SENDs a small response with a status. The data
//! never pass through a receive queue, and the client's program takes no part in moving them.

use apps::cli::parse::{self, Host};
use apps::error::OobError;
use apps::oob;
use apps::pending::{Pending, PendingConn};
use clap::{Parser, Subcommand};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use verbs::port::{MemifRole, Port, PortSpec};
use verbs::{
    Access, Context, CqPoller, DeviceConfig, Drive, Mr, PortSource, Qp, QpCap, QpInitAttr, RcEndpoint,
    RcOptions, Reactor, RecvQueue, RecvWr, SendQueue, SendWr, Sge, Wc,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Default for how long a client may send no command.
const IDLE: Duration = Duration::from_secs(60);
/// Commands that a client may have outstanding: the depth of all queues, and the number of staging buffers.
const DEPTH: u32 = 16;

// ------------------------------------------------------------------------------------------------- the protocol

/// A client's command. On the wire: operation, tag, block, address, key; 32 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Command {
    op: Op,
    /// Returned in the response.
    tag: u32,
    /// Number of the block.
    block: u64,
    /// The client's buffer, `BLOCK` bytes, and its key.
    addr: u64,
    rkey: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read = 1,
    Write = 2,
}

impl Command {
    const LEN: usize = 32;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&(self.op as u32).to_le_bytes());
        b[4..8].copy_from_slice(&self.tag.to_le_bytes());
        b[8..16].copy_from_slice(&self.block.to_le_bytes());
        b[16..24].copy_from_slice(&self.addr.to_le_bytes());
        b[24..28].copy_from_slice(&self.rkey.to_le_bytes());
        b
    }

    /// Parses a command; `None` if the bytes are none, as a peer may send anything.
    fn from_bytes(b: &[u8]) -> Option<Self> {
        let b: &[u8; Self::LEN] = b.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let op = match u32_at(0) {
            1 => Op::Read,
            2 => Op::Write,
            _ => return None,
        };
        Some(Self { op, tag: u32_at(4), block: u64_at(8), addr: u64_at(16), rkey: u32_at(24) })
    }
}

/// The result of a command. On the wire: tag and status, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Response {
    tag: u32,
    status: Status,
}

/// 0, or the file system's error as an error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status(u32);

impl Status {
    const OK: Self = Self(0);
    /// EIO: an error without a number.
    const IO: Self = Self(5);
    /// EINVAL: not a command, or a block that does not exist.
    const INVALID: Self = Self(22);

    fn of(result: io::Result<()>) -> Self {
        match result {
            Ok(()) => Self::OK,
            Err(e) => e.raw_os_error().map_or(Self::IO, |n| Self(n as u32)),
        }
    }
}

impl Response {
    const LEN: usize = 8;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.tag.to_le_bytes());
        b[4..].copy_from_slice(&self.status.0.to_le_bytes());
        b
    }

    fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Self { tag: u32_at(0), status: Status(u32_at(4)) }
    }
}

// ---------------------------------------------------------------------------------------------------- the store

/// Blocks in a file. Independent of RDMA.
struct Store {
    file: File,
    blocks: u64,
}

impl Store {
    /// Opens the file, and extends it to its full length.
    fn open(path: &Path, blocks: u64, read_only: bool) -> Result<Self> {
        let grow = || -> io::Result<File> {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            if file.metadata()?.len() < blocks * BLOCK as u64 {
                file.set_len(blocks * BLOCK as u64)?;
            }
            if read_only { File::open(path) } else { Ok(file) }
        };
        let file = grow().map_err(|e| format!("the store {} cannot be opened: {e}", path.display()))?;
        Ok(Self { file, blocks })
    }

    fn read(&self, block: u64, out: &mut [u8; BLOCK]) -> Status {
        if block >= self.blocks {
            return Status::INVALID;
        }
        Status::of(self.file.read_exact_at(out, block * BLOCK as u64))
    }

    fn write(&self, block: u64, data: &[u8; BLOCK]) -> Status {
        if block >= self.blocks {
            return Status::INVALID;
        }
        Status::of(self.file.write_all_at(data, block * BLOCK as u64))
    }
}

// --------------------------------------------------------------------------------------------------- the target

/// One client's connection to the target.
///
/// Each of the `DEPTH` slots carries one command from its arrival to its response: a receive buffer, a staging
/// block, a response buffer. Registered memory is never a plain slice, as the peer may access it at any moment:
/// bytes are copied in and out by `Mr::read` and `Mr::write`.
struct Target<'a> {
    store: &'a Store,
    // Dropped in order: handles before their queue pair, and that before the memory that it uses.
    sq: SendQueue,
    rq: RecvQueue,
    cq: CqPoller,
    qp: Qp,
    commands: Mr,
    staging: Mr,
    responses: Mr,
    slots: [Option<Command>; DEPTH as usize],
    block: Box<[u8; BLOCK]>,
}

/// The kind of a completion: the upper half of a request's tag; the slot is the lower half.
const RECV: u64 = 1 << 32;
const FETCHED: u64 = 2 << 32;
const ANSWERED: u64 = 3 << 32;

impl<'a> Target<'a> {
    fn new(context: &Context, store: &'a Store) -> Result<Self> {
        let pd = context.alloc_pd()?;
        // A completion for every receive, and for every signalled send: at most one of each per slot.
        let cq = context.create_cq(4 * DEPTH)?;
        let cap = QpCap {
            max_send_wr: 2 * DEPTH, // the data and the response
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq).cap(cap))?;
        // INIT: receives can be posted before the client gets the endpoint, so that every command finds a receive.
        qp.init_rc(&options(context))?;
        let (sq, rq) = qp.split()?;
        let mut target = Self {
            store,
            sq,
            rq,
            cq: cq.poller()?,
            qp,
            commands: pd.reg_mr(DEPTH as usize * Command::LEN, Access::LOCAL_WRITE)?,
            staging: pd.reg_mr(DEPTH as usize * BLOCK, Access::LOCAL_WRITE)?,
            responses: pd.reg_mr(DEPTH as usize * Response::LEN, Access::LOCAL_WRITE)?,
            slots: [None; DEPTH as usize],
            block: Box::new([0; BLOCK]),
        };
        for slot in 0..DEPTH as usize {
            target.post_receive(slot)?;
        }
        Ok(target)
    }

    /// The storage part of the loop: advances each request that has completed by one step; returns their number. Never waits.
    fn step(&mut self) -> Result<usize> {
        let mut done = [Wc::default(); 16];
        let n = self.cq.poll(&mut done)?;
        for wc in &done[..n] {
            if !wc.is_ok() {
                return Err(format!("the connection failed: {} ({})", wc.status, wc.status.number()).into());
            }
            let slot = (wc.wr_id & 0xffff_ffff) as usize;
            match wc.wr_id & !0xffff_ffff {
                RECV => self.start(slot, wc.byte_len as usize)?,
                FETCHED => self.store_fetched(slot)?,
                _ => self.post_receive(slot)?, // The response is out: the slot is free for the next command.
            }
        }
        Ok(n)
    }

    /// A command has arrived.
    fn start(&mut self, slot: usize, len: usize) -> Result<()> {
        let mut bytes = vec![0; len.min(Command::LEN)];
        self.commands.read(slot * Command::LEN, &mut bytes)?;
        let Some(command) = Command::from_bytes(&bytes) else {
            return self.answer(slot, Response { tag: 0, status: Status::INVALID }, None);
        };
        self.slots[slot] = Some(command);
        match command.op {
            Op::Read => {
                let status = self.store.read(command.block, &mut self.block);
                if status != Status::OK {
                    return self.answer(slot, Response { tag: command.tag, status }, None);
                }
                self.staging.write(slot * BLOCK, &self.block[..])?;
                // The data, directly followed by the response. An RC queue pair keeps the order: when the client gets the
                // response, the data are in its memory. So the WRITE needs no completion.
                self.answer(slot, Response { tag: command.tag, status }, Some(command))
            }
            Op::Write => {
                let sge = [self.staging_sge(slot)?];
                let fetch = SendWr::read(FETCHED | slot as u64, &sge, command.addr, command.rkey);
                Ok(self.sq.post_send(&[fetch.signaled()])?)
            }
        }
    }

    /// The data of a write command have been read from the client.
    fn store_fetched(&mut self, slot: usize) -> Result<()> {
        let command = self.slots[slot].ok_or("a READ completed that belongs to no command")?;
        self.staging.read(slot * BLOCK, &mut self.block[..])?;
        let status = self.store.write(command.block, &self.block);
        self.answer(slot, Response { tag: command.tag, status }, None)
    }

    /// Posts the response, after the data of a read command.
    fn answer(&mut self, slot: usize, response: Response, data_for: Option<Command>) -> Result<()> {
        let at = slot * Response::LEN;
        self.responses.write(at, &response.to_bytes())?;
        let words = [self.responses.sge(at..at + Response::LEN)?];
        let reply = SendWr::send(ANSWERED | slot as u64, &words).signaled();
        match data_for {
            Some(command) => {
                let data = [self.staging_sge(slot)?];
                let write = SendWr::write(0, &data, command.addr, command.rkey);
                self.sq.post_send(&[write, reply])?;
            }
            None => self.sq.post_send(&[reply])?,
        }
        Ok(())
    }

    fn post_receive(&mut self, slot: usize) -> Result<()> {
        self.slots[slot] = None;
        let at = slot * Command::LEN;
        let sge = [self.commands.sge(at..at + Command::LEN)?];
        Ok(self.rq.post_recv(&[RecvWr::new(RECV | slot as u64, &sge)])?)
    }

    fn staging_sge(&self, slot: usize) -> Result<Sge> {
        Ok(self.staging.sge(slot * BLOCK..(slot + 1) * BLOCK)?)
    }
}

/// A TCP connection to the target. A client sends its endpoint in one line; the line's length and the time until it is
/// complete are limited.
struct ClientConn {
    tcp: TcpStream,
    line: Vec<u8>,
    drained: usize,
}

/// Bytes of a line with an endpoint, at most: an address and two numbers.
const LINE_MAX: usize = 100;

impl ClientConn {
    fn new(tcp: TcpStream) -> io::Result<Self> {
        oob::prepare(&tcp)?;
        Ok(Self { tcp, line: Vec::new(), drained: 0 })
    }

    fn hung_up(&mut self) -> bool {
        match self.tcp.read(&mut [0; 16]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        }
    }
}

impl PendingConn for ClientConn {
    type Greeting = RcEndpoint;
    fn greeting(&mut self) -> apps::error::Result<Option<RcEndpoint>> {
        let mut byte = [0];
        while self.line.len() < LINE_MAX && !self.line.contains(&b'\n') {
            match self.tcp.read(&mut byte) {
                Ok(0) => return Err(OobError::Closed.into()),
                Ok(_) => self.line.push(byte[0]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(OobError::Io(e).into()),
            }
        }
        let text = std::str::from_utf8(&self.line).ok().and_then(|line| line.trim_end().parse().ok());
        let stranger = || {
            let said = oob::describe_other_program(&self.line);
            apps::error::AppError::ProtocolViolation(format!(
                "it sent {said}, which is not where a queue pair is"
            ))
        };
        text.ok_or_else(stranger).map(Some)
    }
    fn leave(&mut self, reason: &str) {
        let _ = writeln!(self.tcp, "this is a storage target: {reason}");
        let _ = self.tcp.shutdown(Shutdown::Write);
    }
    fn is_gone(&mut self) -> bool {
        oob::drain(&mut self.tcp, &mut self.drained)
    }
}

/// The program's own loop: serves one client until it closes its connection, or sends no command for too long.
fn serve_client(
    context: &Context,
    reactor: &mut Reactor,
    store: &Store,
    client: &mut ClientConn,
    peer: &RcEndpoint,
    idle: Duration,
) -> Result<()> {
    let mut target = Target::new(context, store)?;
    target.qp.connect_rc(peer, &options(context))?;
    writeln!(client.tcp, "{}\nready", target.qp.endpoint(options(context).sgid_index)?)?;
    let mut active = Instant::now();
    for turn in 0u64.. {
        reactor.poll_once(); // network
        if target.step()? > 0 {
            active = Instant::now(); // storage: some requests advanced
        }
        if turn % 1024 == 0 && (client.hung_up() || apps::stop::requested()) {
            break;
        }
        if turn % 1024 == 0 && active.elapsed() > idle {
            return Err(format!("no command came for {idle:?}, and others may wait (--idle)").into());
        }
    }
    Ok(())
}

/// Serves clients, one after the other.
fn serve(
    context: &Context,
    store: &Store,
    listener: &TcpListener,
    clients: usize,
    idle: Duration,
) -> Result<()> {
    let mut reactor = context.reactor(0)?;
    listener.set_nonblocking(true)?;
    let mut pending = Pending::new("storage");
    let mut served = 0;
    while served < clients && !apps::stop::requested() {
        pending.accept_from(listener, ClientConn::new)?;
        let Some((mut client, peer, from)) = pending.next_greeted() else {
            // No client to serve: the host still answers its neighbours.
            reactor.poll_once();
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        if let Err(e) = serve_client(context, &mut reactor, store, &mut client, &peer, idle) {
            pending.refuse(client, &from, &e.to_string());
        }
        served += 1;
    }
    Ok(())
}

// --------------------------------------------------------------------------------------------------- the client

/// A client with one command outstanding.
struct Client {
    sq: SendQueue,
    rq: RecvQueue,
    cq: CqPoller,
    _qp: Qp,
    /// The block that the target reads or writes. Remote access is granted for this region alone.
    block: Mr,
    /// Command and response.
    messages: Mr,
    tag: u32,
    tcp: TcpStream,
}

impl Client {
    fn connect(context: &Context, mut tcp: TcpStream) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(8)?;
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq))?;
        let block = pd.reg_mr(BLOCK, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let messages = pd.reg_mr(Command::LEN + Response::LEN, Access::LOCAL_WRITE)?;
        let peer = exchange(&mut tcp, &qp, &options(context))?;
        qp.connect_rc(&peer, &options(context))?;
        if read_line(&mut tcp)? != "ready" {
            return Err("the target is not ready".into());
        }
        let (sq, rq) = qp.split()?;
        Ok(Self { sq, rq, cq: cq.poller()?, _qp: qp, block, messages, tag: 0, tcp })
    }

    /// One command, and its status.
    fn command(&mut self, op: Op, block: u64) -> Result<Status> {
        self.tag += 1;
        let command = Command { op, tag: self.tag, block, addr: self.block.addr(), rkey: self.block.rkey() };
        // First the receive for the response, then the command that causes it.
        let response = [self.messages.sge(Command::LEN..Command::LEN + Response::LEN)?];
        self.rq.post_recv(&[RecvWr::new(1, &response)])?;
        self.messages.write(0, &command.to_bytes())?;
        let sge = [self.messages.sge(0..Command::LEN)?];
        self.sq.post_send(&[SendWr::send(0, &sge).signaled()])?;

        let mut done = [Wc::default(); 2];
        let (mut sent, mut answered) = (false, false);
        let since = Instant::now();
        while !(sent && answered) {
            // With Drive::Caller, this poll drives the network on this side.
            let n = self.cq.poll(&mut done)?;
            for wc in &done[..n] {
                if !wc.is_ok() {
                    let (status, number, words) = (wc.status, wc.status.number(), self.refusal());
                    return Err(format!("the command failed: {status} ({number}){words}").into());
                }
                if wc.opcode.is_recv() { answered = true } else { sent = true }
            }
            if n == 0 && since.elapsed() > Duration::from_secs(30) {
                return Err(format!("the target does not answer{}", self.refusal()).into());
            }
        }
        let mut bytes = [0; Response::LEN];
        self.messages.read(Command::LEN, &mut bytes)?;
        let response = Response::from_bytes(&bytes);
        if response.tag != self.tag {
            return Err(format!("response {} to command {}", response.tag, self.tag).into());
        }
        Ok(response.status)
    }

    /// The target's reason for closing the connection, if it sent one.
    fn refusal(&mut self) -> String {
        let mut words = [0; 500];
        let _ = self.tcp.set_nonblocking(true);
        let n = self.tcp.read(&mut words).unwrap_or(0);
        let words = apps::protocol::sentence(String::from_utf8_lossy(&words[..n]).trim_end());
        if words.is_empty() { words } else { format!("; it said: {words}") }
    }

    fn write(&mut self, block: u64, data: &[u8; BLOCK]) -> Result<Status> {
        self.block.write(0, data)?;
        self.command(Op::Write, block)
    }

    fn read(&mut self, block: u64, out: &mut [u8; BLOCK]) -> Result<Status> {
        let status = self.command(Op::Read, block)?;
        self.block.read(0, out)?;
        Ok(status)
    }
}

/// Writes every block, reads every block back, compares, and checks that what cannot work is refused.
fn exercise(client: &mut Client, blocks: u64, read_only: bool) -> Result<()> {
    let contents = |block: u64| -> [u8; BLOCK] {
        let mut data = [0; BLOCK];
        for (n, chunk) in data.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(
                &((block << 16 | n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes(),
            );
        }
        data
    };
    let (mut found, mut out) = ([0; BLOCK], io::stdout());
    let since = Instant::now();
    if read_only {
        let status = client.write(0, &contents(0))?;
        if status == Status::OK {
            return Err("a read-only store took a write".into());
        }
        writeln!(out, "block 0: write refused with status {}, as the store is read-only", status.0)?;
    } else {
        for block in 0..blocks {
            let status = client.write(block, &contents(block))?;
            if status != Status::OK {
                return Err(format!("writing block {block} ended with status {}", status.0).into());
            }
        }
    }
    for block in 0..blocks {
        let status = client.read(block, &mut found)?;
        if status != Status::OK {
            return Err(format!("reading block {block} ended with status {}", status.0).into());
        }
        if !read_only && found != contents(block) {
            return Err(
                format!("block {block} came back with other contents than it was written with").into()
            );
        }
    }
    let written = if read_only { 0 } else { blocks };
    writeln!(out, "{written} blocks written, {blocks} blocks read and compared in {:.1?}", since.elapsed())?;
    match client.read(u64::MAX, &mut found)? {
        Status::INVALID => {
            writeln!(out, "block {}: read refused with status 22, as it does not exist", u64::MAX)?
        }
        other => return Err(format!("a block that does not exist was read with status {}", other.0).into()),
    }
    Ok(())
}

// -------------------------------------------------------------------------------------- opening and connecting

/// The connection's attributes; the local address is the first of IPv4.
fn options(context: &Context) -> RcOptions {
    let at = context.gid_table().iter().position(|gid| gid.to_ip().is_ipv4());
    RcOptions::default().sgid_index(at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0))
}

/// A device on a link of its own, with this address.
fn on_link(port: impl Into<PortSource>, addr: [u8; 4]) -> DeviceConfig {
    DeviceConfig::new(port).addrs(vec![(IpAddr::from(addr), 24)])
}

/// A device as the command line says. The ports of the host have its addresses; over memif one end listens on the socket and the
/// other connects to it.
fn device(mut port: PortSpec, ours: MemifRole, addr: [u8; 4]) -> DeviceConfig {
    match &mut port {
        PortSpec::Host { .. } | PortSpec::Udp { .. } => return DeviceConfig::new(port),
        PortSpec::Memif { role: role @ None, .. } => *role = Some(ours),
        _ => {}
    }
    on_link(port, addr)
}

fn open(config: DeviceConfig, drive: Drive) -> Result<Context> {
    let context = Context::open(config.drive(drive))?;
    // Now, not with the first queue pair: an unusable port is reported at once, and a server is reachable.
    context.start()?;
    Ok(context)
}

/// The client's half of the exchange: sends the target this endpoint, one line of text over TCP, and returns the target's.
fn exchange(tcp: &mut TcpStream, qp: &Qp, options: &RcOptions) -> Result<RcEndpoint> {
    writeln!(tcp, "{}", qp.endpoint(options.sgid_index)?)?;
    Ok(read_line(tcp)?.parse()?)
}

/// A line, read byte by byte: nothing after it may be consumed.
fn read_line(tcp: &mut TcpStream) -> Result<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    let since = Instant::now();
    while line.len() < LINE_MAX && since.elapsed() < ANSWER {
        tcp.read_exact(&mut byte)?;
        match byte[0] {
            b'\n' => return Ok(String::from_utf8(line)?),
            byte => line.push(byte),
        }
    }
    Err(format!("the target sent {}, and no line of its own", oob::describe_other_program(&line)).into())
}

/// How long the target may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Connects, for up to ten seconds: the target may start later.
fn reach(host: &str, port: u16) -> Result<TcpStream> {
    let since = Instant::now();
    loop {
        // Every address that the host has: localhost may be ::1 first, and the target at 127.0.0.1.
        let addrs: Vec<_> = (host, port).to_socket_addrs()?.collect();
        match TcpStream::connect(&addrs[..]) {
            Ok(tcp) => {
                tcp.set_read_timeout(Some(ANSWER))?;
                return Ok(tcp);
            }
            Err(e) if since.elapsed() > Duration::from_secs(10) => {
                return Err(format!("no target answers at {host}:{port} ({e})").into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// A target and a client in one process, joined by an in-process link. Two contexts, as two machines would have.
fn demo(file: &Path, blocks: u64, read_only: bool) -> Result<()> {
    let store = Store::open(file, blocks, read_only)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let tcp_port = listener.local_addr()?.port();
    let (a, b): (Box<dyn Port>, Box<dyn Port>) = verbs::port::pair(1);
    let target = open(on_link(a, [10, 77, 0, 1]), Drive::Embedded)?;
    let client = open(on_link(b, [10, 77, 0, 2]), Drive::Caller)?;
    std::thread::scope(|scope| {
        // The demo's thread that stands for the target's process.
        let served = scope.spawn(|| serve(&target, &store, &listener, 1, IDLE));
        let result = reach("127.0.0.1", tcp_port)
            .and_then(|tcp| Client::connect(&client, tcp))
            .and_then(|mut client| exercise(&mut client, blocks, read_only));
        let served = served.join().map_err(|_| "the target's thread panicked")?;
        result.and(served)
    })
}

/// A block store in a file, served over RDMA
#[derive(Parser)]
#[command(name = "storage", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Serve a file
    Serve {
        /// The file; it is made, and grown, as needed
        file: PathBuf,
        /// Blocks of 4096 bytes in it
        #[arg(long, default_value_t = 256)]
        blocks: u64,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        /// Port to send and receive frames on
        #[arg(long, default_value = "host")]
        port: PortSpec,
        /// TCP port for the exchange of addresses
        #[arg(long, default_value_t = 18516)]
        tcp_port: u16,
        /// Address to listen on: for clients on other machines one of this machine's, or 0.0.0.0 or :: for all of them
        #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1", value_parser = parse::host)]
        bind: Host,
        /// How long a client may ask for nothing
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse::duration)]
        idle: Duration,
        /// End after so many clients
        #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
        clients: usize,
    },
    /// Write and read all blocks of a target, and compare
    Client {
        /// Host of the target. A port behind it counts instead of --tcp-port: localhost:18600, [fd00::1]:18600
        #[arg(value_name = "HOST[:PORT]", value_parser = parse::host)]
        host: Host,
        /// Blocks to use
        #[arg(long, default_value_t = 256)]
        blocks: u64,
        /// The target is read-only
        #[arg(long)]
        read_only: bool,
        /// Port to send and receive frames on
        #[arg(long, default_value = "host")]
        port: PortSpec,
        /// TCP port of the target
        #[arg(long, default_value_t = 18516)]
        tcp_port: u16,
    },
    /// Both in one process, over an in-process link
    Demo {
        /// The file [default: one in the temporary directory, removed afterwards]
        #[arg(long)]
        file: Option<PathBuf>,
        /// Blocks to use
        #[arg(long, default_value_t = 256)]
        blocks: u64,
        /// Serve the file read-only
        #[arg(long)]
        read_only: bool,
    },
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Cmd::Serve { file, blocks, read_only, port, tcp_port, bind, idle, clients } => {
            apps::stop::install()?;
            let store = Store::open(&file, blocks, read_only)?;
            let listener = oob::listen(&bind.name, bind.port_or(tcp_port))?;
            let context = open(device(port, MemifRole::Server, [10, 77, 0, 1]), Drive::Embedded)?;
            serve(&context, &store, &listener, clients, idle)
        }
        Cmd::Client { host, blocks, read_only, port, tcp_port } => {
            let context = open(device(port, MemifRole::Client, [10, 77, 0, 2]), Drive::Caller)?;
            let mut client = Client::connect(&context, reach(&host.name, host.port_or(tcp_port))?)?;
            exercise(&mut client, blocks, read_only)
        }
        Cmd::Demo { file: Some(file), blocks, read_only } => demo(&file, blocks, read_only),
        Cmd::Demo { file: None, blocks, read_only } => {
            let file = std::env::temp_dir().join(format!("storage-demo-{}.img", std::process::id()));
            let result = demo(&file, blocks, read_only);
            let _ = std::fs::remove_file(&file);
            result
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "storage: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("storage-test-{}-{name}.img", std::process::id()))
    }

    #[test]
    fn blocks_come_back_as_they_were_written() {
        let file = store("rw");
        let result = demo(&file, 40, false);
        let len = std::fs::metadata(&file).map(|m| m.len());
        let _ = std::fs::remove_file(&file);
        result.unwrap();
        assert_eq!(len.unwrap(), 40 * BLOCK as u64);
    }

    // Peers at the TCP port that are silent, slow or other programs end nothing and delay no client.
    #[test]
    fn a_target_outlives_strangers_and_silent_clients() {
        let file = store("strangers");
        let store = Store::open(&file, 4, false).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (a, b): (Box<dyn Port>, Box<dyn Port>) = verbs::port::pair(1);
        let target = open(on_link(a, [10, 77, 0, 1]), Drive::Embedded).unwrap();
        let client = open(on_link(b, [10, 77, 0, 2]), Drive::Caller).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                serve(&target, &store, &listener, 1, Duration::from_millis(200))?;
                serve(&target, &store, &listener, 1, IDLE)
            });
            let _silent = TcpStream::connect(addr).unwrap();
            let mut slow = TcpStream::connect(addr).unwrap();
            slow.write_all(b"10.77.0.").unwrap();
            for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[b'x'; 2 * LINE_MAX], b"\xff\n"] {
                let mut stranger = TcpStream::connect(addr).unwrap();
                stranger.write_all(said).unwrap();
                let mut words = String::new();
                stranger.read_to_string(&mut words).unwrap();
                assert!(words.contains("this is a storage target: "), "{words}");
            }
            drop(TcpStream::connect(addr).unwrap());
            // A client that never sends a command is disconnected.
            let mut lazy = Client::connect(&client, reach("127.0.0.1", addr.port()).unwrap()).unwrap();
            let mut words = String::new();
            lazy.tcp.read_to_string(&mut words).unwrap();
            assert!(words.contains("no command came"), "{words}");
            let mut next = Client::connect(&client, reach("127.0.0.1", addr.port()).unwrap()).unwrap();
            exercise(&mut next, 4, false).unwrap();
            drop(next);
            served.join().unwrap().unwrap();
        });
        let _ = std::fs::remove_file(&file);
    }

    #[test]
    fn a_read_only_store_refuses_writes_and_serves_reads() {
        let file = store("ro");
        let result = demo(&file, 4, true);
        let _ = std::fs::remove_file(&file);
        result.unwrap();
    }

    #[test]
    fn errors_of_the_file_become_statuses() {
        let file = store("short");
        let store = Store::open(&file, 4, false).unwrap();
        OpenOptions::new().write(true).open(&file).unwrap().set_len(BLOCK as u64).unwrap();
        let mut block = [0; BLOCK];
        assert_eq!(store.read(0, &mut block), Status::OK);
        assert_eq!(store.read(2, &mut block), Status::IO);
        assert_eq!(store.read(4, &mut block), Status::INVALID);
        assert_eq!(store.write(4, &block), Status::INVALID);
        let _ = std::fs::remove_file(&file);
    }

    #[test]
    fn commands_and_responses_come_back_from_their_bytes() {
        let command =
            Command { op: Op::Write, tag: 7, block: 1 << 40, addr: 0x7f00_dead_b000, rkey: 0x1234_5678 };
        assert_eq!(Command::from_bytes(&command.to_bytes()), Some(command));
        let mut unknown = command.to_bytes();
        unknown[0] = 3;
        assert_eq!(Command::from_bytes(&unknown), None);
        assert_eq!(Command::from_bytes(&unknown[..31]), None);
        let response = Response { tag: 9, status: Status(28) };
        assert_eq!(Response::from_bytes(&response.to_bytes()), response);
    }
}
