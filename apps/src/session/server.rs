//! The server: one client after the other.

use super::{Measured, await_message, path_mtu, peer_override, run, send_end, tell_failure, whole_end};
use crate::cli::perf::ServerArgs;
use crate::cm::Listener;
use crate::error::{AppError, Result};
use crate::measure::link::Link;
use crate::measure::raw::Raw;
use crate::measure::watch::{Watch, out_of_turn};
use crate::oob::{self, Channel};
use crate::out::note;
use crate::plan::{Mode, RawSpec, Spec};
use crate::protocol::{Hello, Message, Report};
use crate::rig::{Rig, Side};
use crate::stop;
use std::time::Duration;
use verbs::Mac;

/// Measurements of one session, at most.
const SESSION_MAX: usize = 4096;
/// GID that the server uses: its first address.
const GID_INDEX: u8 = 1;

/// Serves clients until it is told to end.
///
/// # Errors
/// What is wrong with the port or the TCP address; with `--once`, how the session ended.
pub fn serve(args: &ServerArgs) -> Result<()> {
    if args.rdma_cm {
        return serve_rdma_cm(args);
    }
    let port = args.bind.port_or(args.oob_port);
    let listener = oob::listen(&args.bind.name, port)?;
    let mut rig = Rig::open(&args.device, Side::Server)?;
    note!("roce-perf: waiting for a client on TCP port {port}, {} on port {}", rig.addr(), args.device.port);
    loop {
        let Some((stream, from)) = oob::try_accept(&listener)? else {
            stop::check()?;
            rig.idle();
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let result = Channel::new(stream).map_err(AppError::from).and_then(|c| session(c, &mut rig, None));
        if args.once || matches!(result, Err(AppError::Interrupted)) {
            return result;
        }
        tell_end(&from.to_string(), &result);
    }
}

/// The same by `rdma_cm`: the device is open all the time.
fn serve_rdma_cm(args: &ServerArgs) -> Result<()> {
    let mut rig = Rig::open(&args.device, Side::Server)?;
    let listener = Listener::new(rig.device()?, args.oob_port)?;
    note!(
        "roce-perf: waiting for a client on port {} of rdma_cm, {} on port {}",
        args.oob_port,
        rig.addr(),
        args.device.port
    );
    loop {
        let Some(exchange) = listener.try_accept(rig.device()?)? else {
            stop::check()?;
            rig.idle();
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let result = session(Channel::over(exchange), &mut rig, Some(&listener));
        if args.once || matches!(result, Err(AppError::Interrupted)) {
            return result;
        }
        tell_end("a client", &result);
    }
}

fn tell_end(from: &str, result: &Result<()>) {
    match result {
        Err(e) => note!("roce-perf: the session with {from} ended early: {e}"),
        Ok(()) => note!("roce-perf: the session with {from} is over"),
    }
}

/// Serves one client; by `rdma_cm` where there is a listener for its queue pairs.
fn session(mut channel: Channel, rig: &mut Rig, listener: Option<&Listener>) -> Result<()> {
    let result = talk(&mut channel, rig, listener);
    if let Err(e) = &result {
        tell_failure(&mut channel, e);
    }
    result
}

fn talk(channel: &mut Channel, rig: &mut Rig, listener: Option<&Listener>) -> Result<()> {
    let hello = match await_message(channel, rig, "a greeting")? {
        Message::Hello(hello) => hello,
        other => return Err(out_of_turn(&other)),
    };
    channel.send(&Message::Hello(Hello::ours(rig.link_mtu())))?;
    hello.check().map_err(AppError::Peer)?;
    let (raw, rdma) = match await_message(channel, rig, "the list of measurements")? {
        Message::Session { raw, rdma } => (raw, rdma),
        other => return Err(out_of_turn(&other)),
    };
    let no_raw =
        listener.filter(|_| !raw.is_empty()).map(|_| "a server of rdma_cm measures no raw frames".into());
    let refused = no_raw.or_else(|| acceptable(&raw, &rdma, rig, &hello).err());
    if let Some(reason) = refused {
        channel.send(&Message::Refuse { reason: reason.clone() })?;
        return Err(AppError::Peer(format!("it asked for what this end refuses: {reason}")));
    }
    channel.send(&Message::Accept)?;
    loop {
        match await_message(channel, rig, "the next measurement")? {
            Message::RawStart { index, mac } if index < raw.len() => {
                measure_raw(channel, rig, &raw[index], &mac)?;
            }
            Message::Open => {
                rig.device()?;
                rig.wait_for_link()?;
                channel.send(&Message::Opened)?;
            }
            Message::Start { index, end } if index < rdma.len() => {
                let spec = &rdma[index];
                let mtu = path_mtu(spec, rig.link_mtu(), hello.link_mtu)?;
                let peer = peer_override(rig.args());
                let end = whole_end(channel, rig, end)?;
                let before = rig.counts();
                let mut link =
                    Link::new(rig.device()?, spec, Side::Server, GID_INDEX, mtu, listener.is_some())?;
                match listener {
                    None => {
                        link.connect(&end, spec, peer, || rig.idle())?;
                        send_end(channel, link.end(), |end| Message::Ready { end })?;
                    }
                    Some(listener) => {
                        link.learn(&end, spec, None)?;
                        send_end(channel, link.end(), |end| Message::Ready { end })?;
                        for index in 0..spec.qps as usize {
                            link.accept(listener.take_measured(index)?, spec)?;
                        }
                    }
                }
                match await_message(channel, rig, "the start of the measurement")? {
                    Message::Go => {}
                    other => return Err(out_of_turn(&other)),
                }
                let Measured { sent, received, .. } =
                    run(&mut link, spec, &mut rig.device()?.crank, channel)?;
                let counters = rig.counts().since(&before);
                channel.send(&Message::Report(Report { sent, received, counters }))?;
                // The queue pairs live until the client is through as well: it may still need an answer repeated.
                match await_message(channel, rig, "the end of the measurement")? {
                    Message::Done => {}
                    other => return Err(out_of_turn(&other)),
                }
            }
            Message::Bye => return Ok(()),
            other => return Err(out_of_turn(&other)),
        }
    }
}

/// Refuses what this end cannot do.
fn acceptable(raw: &[RawSpec], rdma: &[Spec], rig: &Rig, hello: &Hello) -> std::result::Result<(), String> {
    if raw.len() + rdma.len() > SESSION_MAX {
        return Err(format!("a session has at most {SESSION_MAX} measurements"));
    }
    raw.iter().try_for_each(|spec| spec.check(rig.link_mtu()))?;
    for spec in rdma {
        spec.check()?;
        path_mtu(spec, rig.link_mtu(), hello.link_mtu).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn measure_raw(channel: &mut Channel, rig: &mut Rig, spec: &RawSpec, mac: &str) -> Result<()> {
    let theirs: Mac = mac.parse().map_err(|e| AppError::Peer(format!("it sent no MAC address: {e}")))?;
    let queue = rig.raw_queue()?;
    rig.wait_for_link()?;
    let port = rig.port();
    let mut raw = Raw::new(port, queue, theirs);
    channel.send(&Message::RawReady { mac: verbs::port::Port::info(port).mac.to_string() })?;
    let mut watch = Watch::new(channel, Duration::ZERO);
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
