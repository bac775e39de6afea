//! The server: serves one client after the other, chosen from its pending connections.

use super::order::{Capabilities, Serving, Task};
use super::{ANSWER, Measured, await_message, peer_override, run, send_end};
use crate::cli::perf::ServerArgs;
use crate::cm::Listener;
use crate::error::{AppError, Result};
use crate::measure::queues::QueueSet;
use crate::measure::raw::Raw;
use crate::measure::watch::{Watch, out_of_turn};
use crate::oob::{self, Channel};
use crate::out::note;
use crate::pending::{Pending, PendingConn};
use crate::plan::{Limits, Mode, RawSpec, Spec};
use crate::protocol::{End, Hello, Message, Report, parse_gid};
use crate::rig::{Rig, Side};
use crate::stop;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use verbs::{Gid, Mac, Mtu};

impl PendingConn for Channel {
    type Greeting = Hello;
    fn greeting(&mut self) -> Result<Option<Hello>> {
        match self.try_recv()? {
            Some(Message::Hello(hello)) => {
                hello.check().map(|()| Some(hello)).map_err(AppError::ProtocolViolation)
            }
            Some(other) => Err(out_of_turn(&other)),
            None => Ok(None),
        }
    }
    fn leave(&mut self, reason: &str) {
        Self::leave(self, reason);
    }
    fn is_gone(&mut self) -> bool {
        self.drain()
    }
}

/// Listens for clients, over TCP or by `rdma_cm`.
enum Acceptor {
    Tcp(TcpListener),
    RdmaCm(Listener),
}

impl Acceptor {
    /// Adds new connections to the pending ones.
    fn accept(&self, rig: &mut Rig, pending: &mut Pending<Channel>) -> Result<()> {
        match self {
            Self::Tcp(listener) => pending.accept_from(listener, Channel::new),
            Self::RdmaCm(listener) => {
                if let Some((exchange, from)) = listener.try_accept(rig.device()?)? {
                    pending.add(Channel::over(exchange), from.to_string());
                }
                Ok(())
            }
        }
    }
}

/// Serves clients until it is stopped.
///
/// # Errors
/// Errors of the port or the TCP address; with `--once`, the error of the session.
pub fn serve(args: &ServerArgs) -> Result<()> {
    let (mut rig, acceptor, place);
    if args.rdma_cm {
        // The device stays open.
        rig = Rig::open(&args.device, Side::Server)?;
        acceptor = Acceptor::RdmaCm(Listener::new(rig.device()?, args.oob_port)?);
        place = format!("port {} of rdma_cm", args.oob_port);
    } else {
        let bind = args.device.bind(args.bind.as_ref());
        let port = bind.port_or(args.oob_port);
        acceptor = Acceptor::Tcp(oob::listen(&bind.name, port)?);
        rig = Rig::open(&args.device, Side::Server)?;
        place = match args.bind {
            None if bind.name == oob::EVERYWHERE => format!("TCP port {port}"),
            _ => format!("TCP port {port} of {bind}"),
        };
    }
    note!("roce-perf: waiting for a client on {place}, {} on port {}", rig.addr(), args.device.port);
    let limits = Limits { time: args.max_session, memory: args.max_memory };
    let mut pending = Pending::new("roce-perf");
    loop {
        stop::check()?;
        rig.idle();
        acceptor.accept(&mut rig, &mut pending)?;
        let Some((mut channel, hello, from)) = pending.next_greeted() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let client = from.parse().ok().map(|from: SocketAddr| from.ip());
        let link_mtu = rig.link_mtu_to(rig.args().peer_ip.or(client));
        let own = Capabilities { link_mtu, rdma_cm: args.rdma_cm, limits };
        let result = session(&mut channel, &mut rig, &acceptor, own, hello);
        match &result {
            Ok(()) => note!("roce-perf: the session with {from} is over"),
            Err(AppError::Interrupted) => {}
            Err(e) => note!("roce-perf: the session with {from} ended early: {e}"),
        }
        let ends = args.once || matches!(result, Err(AppError::Interrupted));
        if let Err(e) = &result {
            pending.dismiss(channel, &e.to_string());
        }
        if ends {
            pending.close();
            return result;
        }
    }
}

/// Serves one client that has sent its greeting.
fn session(
    channel: &mut Channel,
    rig: &mut Rig,
    acceptor: &Acceptor,
    own: Capabilities,
    hello: Hello,
) -> Result<()> {
    channel.begin_session(Some(own.limits.time));
    channel.send(&Message::Hello(Hello::ours(own.link_mtu)))?;
    let mut order = Serving::new(own, hello);
    let mut since = Instant::now();
    // The connected measurement, and the counters before it.
    let mut running = None;
    loop {
        let message = await_message(channel, rig, order.expects(), (since, ANSWER))?;
        match order.handle(message)? {
            Task::Receive => {}
            Task::Reply(message) => channel.send(&message)?,
            Task::Refuse(reason) => {
                channel.send(&Message::Refuse { reason: reason.clone() })?;
                return Err(AppError::Peer(format!("it asked for what this end refuses: {reason}")));
            }
            Task::Raw(spec, theirs) => measure_raw(channel, rig, &spec, theirs)?,
            Task::Open => {
                rig.device()?;
                rig.wait_for_link()?;
                channel.send(&Message::Opened)?;
            }
            Task::Connect(spec, mtu, end) => {
                let before = rig.counts();
                let queues = connect(channel, rig, acceptor, &spec, mtu, &end)?;
                running = Some((spec, queues, before));
            }
            Task::Measure => {
                let Some((spec, queues, before)) = &mut running else { continue };
                let Measured { sent, received, .. } = run(queues, spec, &mut rig.device()?.driver, channel)?;
                let counters = rig.counts().since(before);
                channel.send(&Message::Report(Report { sent, received, counters }))?;
            }
            // The queue pairs exist until the client is done as well: the client may still need an answer repeated.
            Task::Release => running = None,
            Task::End => return Ok(()),
        }
        if !order.is_in_a_list() {
            since = Instant::now();
        }
    }
}

/// Creates this end of a measurement and connects it to the client's.
fn connect(
    channel: &mut Channel,
    rig: &mut Rig,
    acceptor: &Acceptor,
    spec: &Spec,
    mtu: Mtu,
    end: &End,
) -> Result<QueueSet> {
    let peer = peer_override(rig.args());
    let theirs = peer.or_else(|| parse_gid(&end.gid)).map(Gid::to_ip);
    let gid_index = rig.gid_index(None, theirs.map(|ip| SocketAddr::new(ip, 0)));
    let by_cm = matches!(acceptor, Acceptor::RdmaCm(_));
    let mut queues = QueueSet::new(rig.device()?, spec, Side::Server, gid_index, mtu, by_cm)?;
    match acceptor {
        Acceptor::Tcp(_) => {
            queues.connect(end, spec, peer, || rig.idle())?;
            send_end(channel, queues.end(), |end| Message::Ready { end })?;
        }
        Acceptor::RdmaCm(listener) => {
            queues.learn(end, spec, None)?;
            send_end(channel, queues.end(), |end| Message::Ready { end })?;
            let from: IpAddr = queues.peer.to_ip();
            for index in 0..spec.qps as usize {
                let id = listener.take_measured(index, from, channel)?;
                queues.accept(id, spec)?;
            }
        }
    }
    Ok(queues)
}

fn measure_raw(channel: &mut Channel, rig: &mut Rig, spec: &RawSpec, theirs: Mac) -> Result<()> {
    let queue = rig.raw_queue()?;
    rig.wait_for_link()?;
    let port = rig.port();
    let mut raw = Raw::new(port, queue, theirs);
    channel.send(&Message::RawReady { mac: verbs::port::Port::info(port).mac.to_string() })?;
    let patience = Duration::from_millis(spec.duration_ms) + ANSWER;
    let mut watch = Watch::new(channel, Duration::ZERO, Some(patience));
    let report = match spec.mode {
        Mode::Lat => Message::RawReport { received: raw.pong(spec, &mut watch)?, timed: 0, elapsed_ns: 0 },
        Mode::Bw | Mode::Rate => {
            let seen = raw.receive(spec, &mut watch)?;
            Message::RawReport { received: seen.frames, timed: seen.timed, elapsed_ns: seen.elapsed_ns }
        }
    };
    channel.send(&report)?;
    Ok(())
}
