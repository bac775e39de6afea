//! A session of `roce-perf`: the list of measurements that a client and a server agree on, and how both run it.

pub mod client;
pub mod order;
pub mod server;

use crate::cli::device::DeviceArgs;
use crate::error::{AppError, OobError, Result};
use crate::measure::queues::QueueSet;
use crate::measure::watch::Watch;
use crate::measure::{Latency, flow, lat, visit};
use crate::oob::Channel;
use crate::plan::{Mode, Op, Pattern, Spec};
use crate::protocol::{End, Flow, Message, QPS_A_LINE};
use crate::rig::{Driver, Rig, Side};
use crate::stop;
use std::time::{Duration, Instant};
use verbs::{Gid, Mtu};

/// How long the other end may take for an answer, with all its lines.
const ANSWER: Duration = Duration::from_secs(30);

/// Waits for the next message, and drives the device meanwhile: until `patience` has passed since `since`.
///
/// # Errors
/// A timeout, the peer's failure, a signal.
pub fn await_message(
    channel: &mut Channel,
    rig: &mut Rig,
    what: &'static str,
    (since, patience): (Instant, Duration),
) -> Result<Message> {
    let mut turns = 0u32;
    loop {
        rig.idle();
        turns += 1;
        // Turns are much cheaper than polls of a socket.
        if !turns.is_multiple_of(64) {
            continue;
        }
        stop::check()?;
        match channel.try_recv()? {
            Some(message) => return Ok(message),
            None if since.elapsed() > patience => return Err(OobError::Silent(patience, what).into()),
            None if since.elapsed() > Duration::from_millis(50) => {
                std::thread::sleep(Duration::from_micros(200))
            }
            None => {}
        }
    }
}

/// Sends an end's queue pairs and memory, in as many lines as necessary; `first` makes the message of the first line.
///
/// # Errors
/// Those of the channel.
pub fn send_end(channel: &mut Channel, mut end: End, first: impl FnOnce(End) -> Message) -> Result<()> {
    let rest = end.qps.split_off(end.qps.len().min(QPS_A_LINE));
    channel.send(&first(end))?;
    for qps in rest.chunks(QPS_A_LINE) {
        channel.send(&Message::Qps { qps: qps.to_vec() })?;
    }
    Ok(())
}

/// The results of one end.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The requests that this end sent.
    pub sent: Flow,
    /// The messages that this end received.
    pub received: Flow,
    /// Latencies, at the client.
    pub latency: Option<Latency>,
}

/// Runs one end of a connected measurement.
///
/// # Errors
/// See [`flow::run`], [`visit::run`] and [`lat::run`].
pub fn run(
    queues: &mut QueueSet,
    spec: &Spec,
    driver: &mut Driver,
    channel: &mut Channel,
) -> Result<Measured> {
    let side = queues.role.side;
    let mut watch = Watch::new(channel, spec.retry_span(), spec.patience());
    let passive = side == Side::Server && !queues.role.requests;
    if spec.mode == Mode::Lat && !passive {
        let latency = lat::run(side, queues, spec, driver, &mut watch)?;
        return Ok(Measured { latency, ..Measured::default() });
    }
    let outcome = match spec.pattern {
        Pattern::All => flow::run(queues, spec, driver, &mut watch)?,
        Pattern::Random => visit::run(queues, spec, driver, &mut watch)?,
    };
    Ok(Measured { sent: outcome.sent, received: outcome.received, latency: None })
}

/// The path MTU of a measurement, for ports with these largest IP packets.
///
/// # Errors
/// A sentence when the requested path MTU does not fit.
pub fn path_mtu(spec: &Spec, ours: usize, theirs: usize) -> Result<Mtu> {
    let Some(largest) = Mtu::of_link(ours.min(theirs)) else {
        let least = Mtu::Mtu256.of_packet();
        return Err(AppError::Usage(format!(
            "the smallest path MTU takes ports of {least} bytes; there are {ours} here and {theirs} at the other end"
        )));
    };
    match spec.mtu.and_then(|m| Mtu::from_bytes(m as usize)) {
        Some(mtu) if mtu > largest => Err(AppError::Usage(format!(
            "path MTU {} does not fit through both ports, of {ours} bytes here and {theirs} at the other end; use --mtu \
             {} or a larger --queues-mtu",
            mtu.bytes(),
            largest.bytes()
        ))),
        Some(mtu) => Ok(mtu),
        None => Ok(largest),
    }
}

/// The address of the peer, if the command line overrides the one that it sends.
pub fn peer_override(args: &DeviceArgs) -> Option<Gid> {
    args.peer_ip.map(Gid::from_ip)
}

/// Whether the figure of `op` is taken at the receiver of the messages.
pub fn counted_at_receiver(op: Op) -> bool {
    op == Op::Send
}
