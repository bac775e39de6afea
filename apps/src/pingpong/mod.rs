//! `roce-pingpong`: a first test of a connection.
//!
//! One queue pair, one buffer, one message sent back and forth, in the manner of `ibv_rc_pingpong`, `ibv_uc_pingpong` and
//! `ibv_ud_pingpong`: same exchange, same order of work, same lines of output.

pub mod exchange;

use crate::cli::parse::{self, Host};
use crate::cli::pingpong::{PingpongCli, Service};
use crate::completion;
use crate::counters::Counts;
use crate::error::{AppError, Result};
use crate::json::{JsonFile, Row};
use crate::oob;
use crate::out::say;
use crate::rig::{self, Driver, OpenDevice, Rig, Side};
use crate::stop;
use exchange::{Destination, Stream};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use verbs::{
    Access, Ah, AttrMask, Context, CqPoller, Discard, GRH_LEN, Mr, Psn, QpAttr, QpCap, QpInitAttr, QpState,
    QpType, Qpn, RcEndpoint, RcOptions,
};
use verbs::{RecvQueue, RecvWr, SendQueue, SendWr, Wc, ah_attr_to};

/// Tags of requests, with the numbers of the stock tool.
const RECV_ID: u64 = 1;
const SEND_ID: u64 = 2;
/// Contents of the buffer, and the distance of the bytes that `--chk` sets and checks.
const FILL: u8 = 0x7b;
const PAGE: usize = 4096;
/// Q_Key of the stock tool's datagrams.
const QKEY: u32 = 0x1111_1111;
/// How long the end that is done first stays, for the other to receive everything.
const LINGER: Duration = Duration::from_secs(2);

/// The TCP connection of the two ends.
enum Meeting<'a> {
    Listen(TcpListener),
    Reach(&'a Host),
}

/// Runs the program.
///
/// # Errors
/// Any error that ends it early.
pub fn run(cli: &PingpongCli) -> Result<()> {
    let json = cli.json.as_deref().map(JsonFile::create).transpose()?;
    let (side, meeting) = match &cli.host {
        Some(host) => (Side::Client, Meeting::Reach(host)),
        None => (Side::Server, Meeting::Listen(oob::listen(&cli.bind.name, cli.bind.port_or(cli.tcp_port))?)),
    };
    let mut rig = Rig::open(&cli.device, side)?;
    let path_mtu = rig.path_mtu();
    let size = cli.message_size() as usize;
    if cli.transport == Service::Ud && size > path_mtu.bytes() {
        return Err(AppError::Usage(format!(
            "a datagram is one packet, of at most {} bytes through a port of {} bytes; use -s or a larger --link-mtu",
            path_mtu.bytes(),
            rig.link_mtu()
        )));
    }
    if cli.transport != Service::Ud && cli.mtu > path_mtu {
        return Err(AppError::Usage(format!(
            "path MTU {} does not fit through a port of {} bytes; use -m {} or a larger --link-mtu",
            cli.mtu.bytes(),
            rig.link_mtu(),
            path_mtu.bytes()
        )));
    }
    let peer_ip = cli.device.peer_ip;
    let link = rig.port().clone();
    let peer = cli.host.as_ref().and_then(|host| parse::peer(&host.name, 0));
    let gid_idx = rig.gid_index(cli.gid_idx, peer);
    let device = rig.device()?;
    let gid = device.gid(gid_idx)?;
    let OpenDevice { context, driver, .. } = device;

    let pd = context.alloc_pd()?;
    // A datagram is received with its network header in front of the message.
    let head = if cli.transport == Service::Ud { GRH_LEN } else { 0 };
    let mr = driver.meanwhile(|| {
        let mr = pd.reg_mr(head + size, Access::LOCAL_WRITE)?;
        mr.fill(0..head + size, FILL).map(|()| mr)
    })?;
    let cq = context.create_cq(cli.rx_depth + 1)?;
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: cli.rx_depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp_type = match cli.transport {
        Service::Rc => QpType::Rc,
        Service::Uc => QpType::Uc,
        Service::Ud => QpType::Ud,
    };
    let qp = pd.create_qp(&QpInitAttr::new(qp_type, &cq, &cq).cap(cap))?;
    let options = RcOptions {
        sgid_index: gid_idx,
        path_mtu: Some(cli.mtu),
        access: Access::empty(),
        timeout: cli.timeout,
        sl: cli.sl,
        traffic_class: cli.sl << 5,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..RcOptions::default()
    };
    let prepare = || match cli.transport {
        Service::Rc | Service::Uc => qp.init_rc(&options),
        Service::Ud => qp.activate_ud(QKEY),
    };
    prepare()?;
    let poller = cq.poller()?;
    let (sq, rq) = qp.split()?;
    let mut message_loop = MessageLoop {
        mr: &mr,
        head,
        context,
        sq,
        rq,
        poller,
        cli,
        posted: 0,
        repeated: 0,
        peer: gid,
        to: None,
    };
    message_loop.post_receives()?;

    let ours = Destination { lid: 0, qpn: qp.qp_num().get(), psn: qp.first_psn().get(), gid };
    say!("  local address:  {ours}")?;
    let address = |theirs: &Destination| peer_ip.map_or(theirs.gid, verbs::Gid::from_ip);
    let connect = |theirs: &Destination| -> Result<()> {
        let endpoint =
            RcEndpoint { gid: address(theirs), qpn: Qpn::new(theirs.qpn), psn: Psn::new(theirs.psn) };
        match cli.transport {
            Service::Rc => qp.connect_rc(&endpoint, &options)?,
            Service::Uc => qp.connect_uc(&endpoint, &options)?,
            Service::Ud => {} // each datagram names its destination
        }
        Ok(())
    };
    let mut idle = || {
        driver.turn();
        stop::check()
    };
    // The link before the exchange: soft-RoCE looks up the route to the GID when it receives it, and gives up if its end of
    // the link has no carrier yet.
    let (theirs, mut stream) = match meeting {
        Meeting::Listen(listener) => exchange::serve(
            listener,
            &ours,
            &mut idle,
            |theirs, idle| {
                rig::await_link(&link, idle)?;
                connect(theirs)
            },
            || {
                qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE)?;
                prepare()?;
                message_loop.posted = 0;
                message_loop.post_receives()
            },
        )?,
        Meeting::Reach(host) => {
            let port = host.port_or(cli.tcp_port);
            let stream = oob::connect::<AppError>(&host.name, port, cli.wait, &mut idle)?;
            let mut stream = Stream::new(stream)?;
            rig::await_link(&link, &mut idle)?;
            let theirs = exchange::ask(&mut stream, &ours, &mut idle)?;
            connect(&theirs)?;
            (theirs, stream)
        }
    };
    // From now on the peer may wait for answers: neither a stopped terminal nor long checks may delay them.
    driver.meanwhile(|| say!("  remote address: {theirs}"))?;
    message_loop.peer = theirs.gid;
    if cli.transport == Service::Ud {
        let mut attr = ah_attr_to(address(&theirs), gid_idx);
        attr.sl = cli.sl;
        if let Some(grh) = &mut attr.grh {
            grh.traffic_class = options.traffic_class;
        }
        message_loop.to = Some((pd.create_ah(&attr)?, Qpn::new(theirs.qpn)));
    }

    let elapsed = message_loop.run(side, driver, &mut stream).map_err(|e| match e {
        AppError::Timeout(what) => {
            AppError::Timeout(match Counts::new(context.counters().iter()).notable() {
                noted if noted.is_empty() => what,
                noted => format!("{what} (counted here: {noted})"),
            })
        }
        other => other,
    })?;
    if cli.check {
        driver.meanwhile(|| check_contents(&mr, head))?;
    }
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let bytes = cli.message_size() * cli.iters * 2;
    driver.meanwhile(|| {
        say!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", bytes as f64 * 8.0 / seconds / 1e6)?;
        say!(
            "{} iters in {seconds:.2} seconds = {:.2} usec/iter",
            cli.iters,
            seconds * 1e6 / cli.iters as f64
        )
    })?;
    stream.linger(LINGER, || {
        driver.turn();
        stop::check()
    })?;
    drop(message_loop);
    drop(qp);
    match json {
        Some(file) => file.write(&[row(cli, seconds, &rig)]),
        None => Ok(()),
    }
}

fn row(cli: &PingpongCli, seconds: f64, rig: &Rig) -> Row {
    let messages = cli.iters * 2;
    let rate = messages as f64 / seconds;
    let totals = rig.counts().totals();
    Row {
        op: "pingpong",
        mode: "lat",
        size: cli.message_size(),
        mtu: Some(cli.mtu.bytes() as u64),
        qps: Some(1),
        port: cli.device.port.to_string(),
        msgs_per_s: Some(rate),
        gbit_per_s: Some(rate * cli.message_size() as f64 * 8.0 / 1e9),
        retries: Some(totals.retries),
        naks: Some(totals.naks),
        rnr: Some(totals.rnr),
        drops: Some(totals.drops),
        messages,
        verified: cli.check,
        ..Row::default()
    }
}

/// Checks the last message: zero at the start of each page, the fill everywhere else.
fn check_contents(mr: &Mr, head: usize) -> Result<()> {
    let data = mr.to_vec(head..mr.len())?;
    match data.iter().enumerate().find(|(n, b)| **b != if n % PAGE == 0 { 0 } else { FILL }) {
        None => Ok(()),
        Some((n, b)) => Err(AppError::Verify(format!(
            "byte {n} of the message is {b:#04x}; does the other end check contents as well (-c)?"
        ))),
    }
}

/// State of the message loop.
struct MessageLoop<'a> {
    mr: &'a Mr,
    /// Bytes in front of the message.
    head: usize,
    context: &'a Context,
    sq: SendQueue,
    rq: RecvQueue,
    poller: CqPoller,
    cli: &'a PingpongCli,
    /// Receives that are posted.
    posted: u32,
    /// Own packets that never left, and whose message was sent again.
    repeated: u64,
    peer: verbs::Gid,
    /// Destination of datagrams.
    to: Option<(Ah, Qpn)>,
}

impl MessageLoop<'_> {
    /// Fills the receive queue up.
    fn post_receives(&mut self) -> Result<()> {
        let sge = [self.mr.sge(0..self.mr.len())?];
        while self.posted < self.cli.rx_depth {
            self.rq.post_recv(&[RecvWr::new(RECV_ID, &sge)])?;
            self.posted += 1;
        }
        Ok(())
    }

    fn post_send(&mut self) -> Result<()> {
        let sge = [self.mr.sge(self.head..self.mr.len())?];
        let wr = SendWr::send(SEND_ID, &sge).signaled();
        let wr = match &self.to {
            Some((ah, qpn)) => wr.to(ah, *qpn, QKEY),
            None => wr,
        };
        Ok(self.sq.post_send(&[wr])?)
    }

    /// Own packets that could not leave because the peer's Ethernet address could not be resolved.
    fn never_left(&self) -> u64 {
        self.context.counters().discarded(Discard::Unreachable)
    }

    /// Whether the last message never left: the other end cannot have received it, so it may be sent again.
    fn is_held_up(&self) -> bool {
        self.never_left() > self.repeated
    }

    /// Runs all rounds; returns the time that they took.
    fn run(&mut self, side: Side, driver: &mut Driver, stream: &mut Stream) -> Result<Duration> {
        if self.cli.check {
            for page in (self.head..self.mr.len()).step_by(PAGE) {
                self.mr.write(page, &[0])?;
            }
        }
        let (mut sent, mut received) = (0u64, 0u64);
        let (mut sending, mut receiving) = (false, true);
        let mut wcs = [Wc::default(); 2];
        let (mut turns, mut idle_turns) = (0u32, 0u32);
        let (mut closed_since, mut quiet_since, mut repeated) = (None, None, None);
        let start = Instant::now();
        if side == Side::Client {
            self.post_send()?;
            sending = true;
        }
        // A reliable connection retries by itself.
        let unreliable = self.cli.transport != Service::Rc;
        while received < self.cli.iters || sent < self.cli.iters || unreliable && self.is_held_up() {
            driver.turn();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(4096) {
                stop::check()?;
            }
            let n = self.poller.poll(&mut wcs)?;
            for wc in &wcs[..n] {
                let is_send = wc.wr_id == SEND_ID;
                if !wc.is_ok() {
                    return Err(completion::failed(if is_send { "SEND" } else { "receive" }, wc, &self.peer));
                }
                if is_send {
                    (sent, sending) = (sent + 1, false);
                } else {
                    (received, receiving) = (received + 1, false);
                    (closed_since, quiet_since) = (None, None);
                    self.posted -= 1;
                    if self.posted <= self.cli.rx_depth / 2 {
                        self.post_receives()?;
                    }
                }
            }
            // The next round: the peer's message has arrived, and the own send has completed.
            if n > 0 && !sending && !receiving && sent < self.cli.iters {
                self.post_send()?;
                (sending, receiving) = (true, true);
            }
            idle_turns = if n > 0 { 0 } else { idle_turns.wrapping_add(1) };
            if idle_turns % 4096 == 4095 {
                let now = Instant::now();
                if unreliable && !sending && self.is_held_up() && repeated.is_none_or(|at| now - at > AGAIN) {
                    self.repeated = self.never_left();
                    self.post_send()?;
                    (sent, sending, repeated) = (sent - 1, true, Some(now));
                }
                // The stock tool closes its end right after the exchange. So a closed connection matters only when no message
                // arrives for long; outstanding requests fail by themselves.
                let quiet = now - *quiet_since.get_or_insert(now);
                if quiet > SILENCE {
                    return Err(AppError::Timeout(format!(
                        "no message came for {SILENCE:?} after {received} of {}, though the other end is there; does it \
                         still run?",
                        self.cli.iters
                    )));
                }
                if unreliable && quiet > QUIET {
                    return Err(AppError::Timeout(format!(
                        "no message came for {QUIET:?} after {received} of {}: one was lost, which over {} nobody \
                         repeats",
                        self.cli.iters,
                        self.cli.transport.name(),
                    )));
                }
                if !sending && stream.is_closed() {
                    let since = *closed_since.get_or_insert(now);
                    if now - since > GONE {
                        return Err(AppError::Timeout(format!(
                            "no message came for {GONE:?}, and the other end closed its TCP connection; it ended \
                             after {received} of {} messages",
                            self.cli.iters
                        )));
                    }
                }
            }
        }
        Ok(start.elapsed())
    }
}

/// How long a peer whose TCP connection is closed may be silent.
const GONE: Duration = Duration::from_secs(10);
/// How long a peer that still answers may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Time between two attempts to send a message that could not leave.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an unreliable message may take. Repeating one that has left would not help: the other end could not distinguish
/// it from the next message, and the stock tools count messages.
const QUIET: Duration = Duration::from_secs(10);
