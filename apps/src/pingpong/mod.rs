//! `roce-pingpong`: a first test of a connection.
//!
//! One queue pair, one buffer, one message sent back and forth, in the manner of `ibv_rc_pingpong`, `ibv_uc_pingpong` and
//! `ibv_ud_pingpong`: same exchange, same order of work, same lines of output.

mod end;
pub mod exchange;
mod rounds;

use crate::cli::parse::{self, Host};
use crate::cli::pingpong::PingpongCli;
use crate::counters::Counts;
use crate::error::{AppError, Result};
use crate::json::{JsonFile, Row};
use crate::oob;
use crate::out::say;
use crate::rig::{self, OpenDevice, Rig, Side};
use crate::stop;
use end::End;
use exchange::Stream;
use rounds::Rounds;
use std::net::TcpListener;
use std::time::Duration;

/// How long the end that is done first stays, so that the other end receives everything.
const LINGER: Duration = Duration::from_secs(2);

/// How the two ends meet over TCP.
enum Rendezvous<'a> {
    Listen(TcpListener),
    Reach(&'a Host),
}

/// Runs the program.
///
/// # Errors
/// Any error that ends it early.
pub fn run(cli: &PingpongCli) -> Result<()> {
    let json = cli.json.as_deref().map(JsonFile::create).transpose()?;
    let (side, rendezvous) = match &cli.host {
        Some(host) => (Side::Client, Rendezvous::Reach(host)),
        None => {
            let bind = cli.device.bind(cli.bind.as_ref());
            (Side::Server, Rendezvous::Listen(oob::listen(&bind.name, bind.port_or(cli.tcp_port))?))
        }
    };
    let mut rig = Rig::open(&cli.device, side)?;
    end::check_size(cli, &rig)?;
    let link = rig.port().clone();
    let peer = cli.host.as_ref().and_then(|host| parse::peer(&host.name, 0));
    let gid_index = rig.gid_index(cli.gid_idx, peer);
    let device = rig.device()?;
    let gid = device.gid(gid_index)?;
    let OpenDevice { context, driver, .. } = device;
    let end = End::new(cli, context, driver, gid, gid_index)?;
    let mut rounds = Rounds::new(&end, context)?;
    let ours = end.destination();
    say!("  local address:  {ours}")?;
    let mut idle = || {
        driver.turn();
        stop::check()
    };
    // The link must be up before the exchange: soft-RoCE looks up the route to the GID as soon as it receives the GID, and fails if its
    // end of the link has no carrier yet.
    let (theirs, mut stream) = match rendezvous {
        Rendezvous::Listen(listener) => exchange::serve(
            listener,
            &ours,
            &mut idle,
            |theirs, idle| {
                rig::await_link(&link, idle)?;
                end.connect(theirs)
            },
            || {
                end.reset()?;
                rounds.start_over()
            },
        )?,
        Rendezvous::Reach(host) => {
            let port = host.port_or(cli.tcp_port);
            let stream = oob::connect::<AppError>(&host.name, port, cli.wait, &mut idle)?;
            let mut stream = Stream::new(stream)?;
            rig::await_link(&link, &mut idle)?;
            let theirs = exchange::ask(&mut stream, &ours, &mut idle)?;
            end.connect(&theirs)?;
            (theirs, stream)
        }
    };
    // From now on the peer may wait for answers: neither a stopped terminal nor long checks may delay them.
    driver.meanwhile(|| say!("  remote address: {theirs}"))?;
    rounds.set_peer(&theirs)?;
    let elapsed = rounds.run(side, driver, &mut stream).map_err(|e| match e {
        AppError::Timeout(what) => {
            AppError::Timeout(match Counts::new(context.counters().iter()).notable() {
                noted if noted.is_empty() => what,
                noted => format!("{what} (counted here: {noted})"),
            })
        }
        other => other,
    })?;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    driver.meanwhile(|| {
        if cli.check {
            end.check_contents()?;
        }
        show(cli, seconds)
    })?;
    stream.linger(LINGER, || {
        driver.turn();
        stop::check()
    })?;
    drop(rounds);
    drop(end);
    match json {
        Some(file) => file.write(&[row(cli, seconds, &rig)]),
        None => Ok(()),
    }
}

/// Prints the result in the format of the stock tool.
fn show(cli: &PingpongCli, seconds: f64) -> Result<()> {
    let bytes = cli.message_size() * cli.iters * 2;
    say!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", bytes as f64 * 8.0 / seconds / 1e6)?;
    let each = seconds * 1e6 / cli.iters as f64;
    say!("{} iters in {seconds:.2} seconds = {each:.2} usec/iter", cli.iters)
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
