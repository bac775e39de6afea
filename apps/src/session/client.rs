//! The client: requests the measurements, runs them, shows the result.

use super::order::{Answer, Wanted};
use super::{ANSWER, Measured, await_message, counted_at_receiver, path_mtu, peer_override, run, send_end};
use crate::cli::parse;
use crate::cli::perf::{ClientArgs, RawClientArgs, ReachArgs};
use crate::cli::specs::{raw_specs_of, specs_of};
use crate::cm::Exchange;
use crate::counters::Counts;
use crate::error::{AppError, OobError, Result};
use crate::json::{JsonFile, Row};
use crate::measure::queues::QueueSet;
use crate::measure::raw::Raw;
use crate::measure::watch::Watch;
use crate::measure::{Latency, QUANTILES};
use crate::oob::{self, Channel};
use crate::out::say;
use crate::plan::{self, Mode, Pattern, RawSpec, Spec};
use crate::progress::Progress;
use crate::protocol::{Flow, Hello, Message, Report};
use crate::report;
use crate::rig::{Rig, Side};
use crate::stop;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use verbs::Mtu;
use verbs::port::{Port as _, PortSpec};

/// Runs `roce-perf client`.
///
/// # Errors
/// Any error that ends the session early.
pub fn run_client(args: &ClientArgs) -> Result<()> {
    let measure = &args.measure;
    let specs = specs_of(measure)?;
    let json = measure.json.as_deref().map(JsonFile::create).transpose()?;
    let mut rig = Rig::open(&args.device, Side::Client)?;
    if measure.limit {
        carries_raw_frames(&rig, &args.device.port)?;
    }
    let ipv6 = rig.addr().is_ipv6();
    let mut client = match args.rdma_cm {
        true => Client::connect_rdma_cm(&args.reach, &mut rig)?,
        false => Client::connect(&args.reach, &mut rig)?,
    };
    let mut mtus = Vec::with_capacity(specs.len());
    for spec in &specs {
        mtus.push(path_mtu(spec, client.link_mtu, client.server.link_mtu)?);
    }
    let mut raw: Vec<RawSpec> = Vec::new();
    let limit_of = |spec: &Spec, mtu| plan::limit_of(spec, mtu, ipv6, measure.limit_duration);
    for (spec, &mtu) in specs.iter().zip(&mtus).filter(|_| measure.limit) {
        let Some(wanted) = limit_of(spec, mtu) else { continue };
        if !raw.iter().any(|have| have.same_as(&wanted)) {
            raw.push(wanted);
        }
    }
    let limits = raw.clone();
    let mut rows = Rows::new(&rig);
    let result = client.run(&mut rig, raw, &specs, &mut rows, |client, rig, rows, progress| {
        client.channel.send(&Message::Open)?;
        let peer = parse::peer(&args.reach.host.name, args.reach.port());
        let gid_index = rig.gid_index(measure.gid_index, peer);
        rig.device()?.gid(gid_index)?;
        rig.wait_for_link()?;
        client.get(rig, Wanted::Opened)?;
        for (index, (spec, &mtu)) in specs.iter().zip(&mtus).enumerate() {
            progress.start(spec.title());
            let (measured, theirs, ours) = client.measure(rig, index, spec, gid_index, mtu)?;
            let wanted = limit_of(spec, mtu).filter(|_| measure.limit);
            let limit = wanted.and_then(|wanted| limits.iter().position(|have| have.same_as(&wanted)));
            rows.add(spec, mtu, &measured, &theirs, &ours, limit);
            progress.step();
        }
        Ok(())
    });
    rows.show(json.as_ref(), result)
}

/// Runs `roce-perf raw client`.
///
/// # Errors
/// Any error that ends the session early.
pub fn run_raw(args: &RawClientArgs) -> Result<()> {
    let specs = raw_specs_of(args);
    let json = args.json.as_deref().map(JsonFile::create).transpose()?;
    let mut rig = Rig::open(&args.device, Side::Client)?;
    carries_raw_frames(&rig, &args.device.port)?;
    for spec in &specs {
        spec.check(rig.link_mtu()).map_err(AppError::Usage)?;
    }
    let mut client = Client::connect(&args.reach, &mut rig)?;
    let mut rows = Rows::new(&rig);
    let result = client.run(&mut rig, specs, &[], &mut rows, |_, _, _, _| Ok(()));
    rows.show(json.as_ref(), result)
}

/// Refuses a port that carries only RoCE packets.
fn carries_raw_frames(rig: &Rig, port: &PortSpec) -> Result<()> {
    if rig.port().host().is_none() {
        return Ok(());
    }
    Err(AppError::Usage(format!(
        "port {port} carries RoCE alone and cannot be measured bare: measure another one, or leave out --limit"
    )))
}

/// A connected client.
struct Client {
    channel: Channel,
    server: Hello,
    /// Largest IP packet that the port carries to the server.
    link_mtu: usize,
    /// The server's address, if exchange and queue pairs are connected by `rdma_cm`.
    rdma_cm: Option<SocketAddr>,
}

/// The timeout of the greeting is `--wait`, but at least this: a running server may be busy for a moment.
const GREETING_MIN: Duration = Duration::from_secs(5);
/// How long the server may take to read the reason why this end gives up.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

impl Client {
    fn connect(reach: &ReachArgs, rig: &mut Rig) -> Result<Self> {
        let stream = oob::connect::<AppError>(&reach.host.name, reach.port(), reach.wait, || {
            rig.idle();
            stop::check()
        })?;
        Self::greet(Channel::new(stream)?, rig, reach, None)
    }

    /// Connects to the server by `rdma_cm`.
    fn connect_rdma_cm(reach: &ReachArgs, rig: &mut Rig) -> Result<Self> {
        let to = match parse::peer(&reach.host.name, reach.port()) {
            Some(to) => to,
            // A port with the addresses of its host is reached at the address that the host's name resolves to.
            None if rig.args().is_of_host() => oob::resolve(&reach.host.name, reach.port())?[0],
            None => {
                let host = &reach.host;
                return Err(AppError::Usage(format!(
                    "with -R the host is the server's RDMA address, as 10.77.0.1, [fd00::1] or [fe80::1%eth0] with an interface of \
                     this host, not {host}"
                )));
            }
        };
        rig.device()?;
        rig.warn_of_private_link(to.ip());
        rig.wait_for_link()?;
        let exchange = Exchange::connect(rig.device()?, to, reach.wait)?;
        Self::greet(Channel::over(exchange), rig, reach, Some(to))
    }

    fn greet(
        mut channel: Channel,
        rig: &mut Rig,
        reach: &ReachArgs,
        rdma_cm: Option<SocketAddr>,
    ) -> Result<Self> {
        let link_mtu = rig.link_mtu_to(reach.host.name.parse().ok());
        channel.send(&Message::Hello(Hello::ours(link_mtu)))?;
        let wait = reach.wait.max(GREETING_MIN);
        let message = await_message(&mut channel, rig, Wanted::Hello.name(), (Instant::now(), wait)).map_err(
            |e| match e {
                AppError::Oob(OobError::Silent(wait, _)) => AppError::Timeout(format!(
                    "the server took the connection and said nothing for {wait:?}: it may be busy with another \
                     client, or not be roce-perf; wait longer (--wait), or look at it"
                )),
                e => e,
            },
        )?;
        match Wanted::Hello.handle(message)? {
            Answer::Hello(server) => {
                channel.begin_session(None);
                Ok(Self { channel, server, link_mtu, rdma_cm })
            }
            _ => Err(unexpected()),
        }
    }

    /// Receives the wanted answer from the server, which may consist of several lines.
    fn get(&mut self, rig: &mut Rig, mut wanted: Wanted) -> Result<Answer> {
        let since = Instant::now();
        loop {
            let message = await_message(&mut self.channel, rig, wanted.name(), (since, ANSWER))?;
            match wanted.handle(message)? {
                Answer::More(more) => wanted = more,
                answer => return Ok(answer),
            }
        }
    }

    /// Sends the server the reason why this end ends the session.
    fn leave(&mut self, reason: &str) {
        self.channel.leave(reason);
        let since = Instant::now();
        while !self.channel.drain() && since.elapsed() < LEAVE_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Negotiates the measurements, runs the raw ones, then `rdma`, and ends the session.
    fn run(
        &mut self,
        rig: &mut Rig,
        raw: Vec<RawSpec>,
        specs: &[Spec],
        rows: &mut Rows,
        rdma: impl FnOnce(&mut Self, &mut Rig, &mut Rows, &Progress) -> Result<()>,
    ) -> Result<()> {
        let expected: Option<Duration> = specs.iter().map(Spec::expected).sum::<Option<Duration>>();
        let expected =
            expected.map(|t| t + raw.iter().map(|r| Duration::from_millis(r.duration_ms)).sum::<Duration>());
        let progress = Progress::new(raw.len() + specs.len(), expected);
        let result = self.session(rig, &raw, specs, rows, rdma, &progress);
        drop(progress);
        match &result {
            Ok(()) => drop(self.channel.send(&Message::Bye)),
            Err(e) => self.leave(&e.to_string()),
        }
        result
    }

    fn session(
        &mut self,
        rig: &mut Rig,
        raw: &[RawSpec],
        specs: &[Spec],
        rows: &mut Rows,
        rdma: impl FnOnce(&mut Self, &mut Rig, &mut Rows, &Progress) -> Result<()>,
        progress: &Progress,
    ) -> Result<()> {
        self.channel.send(&Message::Session { raw: raw.to_vec(), rdma: specs.to_vec() })?;
        self.get(rig, Wanted::Consent)?;
        for (index, spec) in raw.iter().enumerate() {
            progress.start(spec.title());
            self.measure_raw(rig, index, spec, rows)?;
            progress.step();
        }
        if specs.is_empty() { Ok(()) } else { rdma(self, rig, rows, progress) }
    }

    fn measure_raw(&mut self, rig: &mut Rig, index: usize, spec: &RawSpec, rows: &mut Rows) -> Result<()> {
        let queue = rig.raw_queue()?;
        let mac = verbs::port::Port::info(rig.port()).mac.to_string();
        self.channel.send(&Message::RawStart { index, mac })?;
        let Answer::Mac(theirs) = self.get(rig, Wanted::RawReady)? else { return Err(unexpected()) };
        rig.wait_for_link()?;
        let mut raw = Raw::new(rig.port(), queue, theirs);
        let mut watch = Watch::new(&mut self.channel, Duration::ZERO, None);
        let mut latency = None;
        let (sent, mut drops) = match spec.mode {
            Mode::Lat => {
                let (figures, sent, lost) = raw.ping(spec, &mut watch)?;
                latency = Some(figures);
                (sent, lost)
            }
            Mode::Bw | Mode::Rate => (raw.stream(spec, &mut watch)?, 0),
        };
        drop(raw);
        self.channel.send(&Message::RawFinish { sent })?;
        let Answer::Frames(received, timed, elapsed_ns) = self.get(rig, Wanted::RawReport)? else {
            return Err(unexpected());
        };
        if latency.is_none() {
            drops = sent.saturating_sub(received);
            if received == 0 {
                return Err(AppError::Timeout(format!(
                    "port {}: none of {sent} frames of {} bytes arrived; are both ends on the same socket or cable, \
                     with the same MTU?",
                    rows.port, spec.frame
                )));
            }
        }
        rows.add_raw(spec, latency, Flow { messages: received, timed, elapsed_ns }, drops);
        Ok(())
    }

    /// Runs one RDMA measurement; returns both ends' results, and the counters of this device.
    fn measure(
        &mut self,
        rig: &mut Rig,
        index: usize,
        spec: &Spec,
        gid_index: u8,
        mtu: Mtu,
    ) -> Result<(Measured, Report, Counts)> {
        let before = rig.counts();
        let peer = peer_override(rig.args());
        let mut queues =
            QueueSet::new(rig.device()?, spec, Side::Client, gid_index, mtu, self.rdma_cm.is_some())?;
        send_end(&mut self.channel, queues.end(), |end| Message::Start { index, end })?;
        let theirs = if self.rdma_cm.is_some() { 0 } else { spec.qps as usize };
        let Answer::End(end) = self.get(rig, Wanted::End(theirs))? else { return Err(unexpected()) };
        match self.rdma_cm {
            None => queues.connect(&end, spec, peer, || rig.idle())?,
            Some(to) => {
                queues.learn(&end, spec, None)?;
                for index in 0..spec.qps as usize {
                    queues.connect_rdma_cm(rig.device()?, to, index, spec)?;
                }
            }
        }
        self.channel.send(&Message::Go)?;
        let measured = run(&mut queues, spec, &mut rig.device()?.driver, &mut self.channel)?;
        let Answer::Report(report) = self.get(rig, Wanted::Report)? else { return Err(unexpected()) };
        self.channel.send(&Message::Done)?;
        drop(queues);
        Ok((measured, report, rig.counts().since(&before)))
    }
}

/// The error for an answer of [`Wanted::handle`] that does not match the request.
fn unexpected() -> AppError {
    AppError::ProtocolViolation("it answered something else".into())
}

/// The rows so far, and the counters of both ends.
struct Rows {
    port: String,
    rows: Vec<Row>,
    /// The number of raw rows, which come first.
    raw: usize,
    client: Counts,
    server: Counts,
}

impl Rows {
    fn new(rig: &Rig) -> Self {
        Self {
            port: rig.args().port.to_string(),
            rows: Vec::new(),
            raw: 0,
            client: Counts::default(),
            server: Counts::default(),
        }
    }

    fn add_raw(&mut self, spec: &RawSpec, latency: Option<Latency>, flow: Flow, drops: u64) {
        let rate = if latency.is_some() { None } else { flow.rate() };
        let mut row = Row {
            op: "raw",
            mode: spec.mode.name(),
            size: u64::from(spec.frame),
            port: self.port.clone(),
            msgs_per_s: rate,
            gbit_per_s: rate.map(|r| r * f64::from(spec.frame) * 8.0 / 1e9),
            drops: Some(drops),
            messages: flow.messages,
            ..Row::default()
        };
        put_latency(&mut row, latency, "one_way");
        self.rows.push(row);
        self.raw += 1;
    }

    fn add(
        &mut self,
        spec: &Spec,
        mtu: Mtu,
        ours: &Measured,
        theirs: &Report,
        counts: &Counts,
        limit: Option<usize>,
    ) {
        let totals = counts.plus(&theirs.counters).totals();
        self.client = self.client.plus(counts);
        self.server = self.server.plus(&theirs.counters);
        // SEND is counted at its receiver, every other operation where it completes.
        let flows = match counted_at_receiver(spec.op) {
            true => [theirs.received, ours.received],
            false => [ours.sent, theirs.sent],
        };
        let rates: Vec<f64> = flows.iter().filter_map(Flow::rate).collect();
        let rate = (!rates.is_empty()).then(|| rates.iter().sum::<f64>());
        let random = spec.pattern == Pattern::Random;
        let mut row = Row {
            op: spec.op.name(),
            mode: spec.mode.name(),
            size: spec.size,
            mtu: Some(mtu.bytes() as u64),
            qps: Some(u64::from(spec.qps)),
            port: self.port.clone(),
            msgs_per_s: rate,
            gbit_per_s: rate.map(|r| r * spec.size as f64 * 8.0 / 1e9),
            retries: Some(totals.retries),
            naks: Some(totals.naks),
            rnr: Some(totals.rnr),
            drops: Some(totals.drops),
            messages: flows.iter().map(|f| f.messages).sum::<u64>() + ours.latency.map_or(0, |l| l.count),
            srq: spec.srq,
            bidirectional: spec.bidirectional,
            verified: spec.verify,
            pattern: Some(spec.pattern.name()),
            visit: random.then_some(spec.visit.into()),
            in_flight: random.then_some(spec.in_flight.into()),
            ..Row::default()
        };
        if spec.mode == Mode::Lat {
            (row.msgs_per_s, row.gbit_per_s) = (None, None);
        }
        put_latency(&mut row, ours.latency, if spec.op.answers() { "round_trip" } else { "one_way" });
        if let Some(raw) = limit.and_then(|n| self.rows.get(n)).filter(|_| !spec.bidirectional) {
            put_limit(&mut row, raw, spec, mtu);
        }
        self.rows.push(row);
    }

    /// Writes and prints the rows so far, also when the session ended early.
    fn show(&self, json: Option<&JsonFile>, result: Result<()>) -> Result<()> {
        let written = json.map_or(Ok(()), |file| file.write(&self.rows));
        result.and(written).and(self.print())
    }

    fn print(&self) -> Result<()> {
        if !self.rows.is_empty() {
            say!("{}", report::table(&self.rows))?;
            if self.rows.len() > self.raw {
                say!("{}", report::counters(&self.client, &self.server))?;
            }
        }
        Ok(())
    }
}

fn put_latency(row: &mut Row, latency: Option<Latency>, kind: &'static str) {
    if let Some(l) = latency {
        row.latency = Some(kind);
        row.min_ns = Some(l.min_ns);
        row.p50_ns = Some(l.p50_ns);
        row.p99_ns = Some(l.p99_ns);
        row.p999_ns = Some(l.p999_ns);
        row.max_ns = Some(l.max_ns);
        // The curve reaches only as far into the tail as the number of messages supports.
        let shown = QUANTILES.into_iter().zip(l.curve).filter(|(q, _)| (1.0 - q) * l.count as f64 >= 1.0);
        row.quantiles = Some(shown.collect());
        row.messages = l.count;
    }
}

/// Adds the raw figure of the same kind to a row.
fn put_limit(row: &mut Row, raw: &Row, spec: &Spec, mtu: Mtu) {
    let packets = f64::from(mtu.packets(spec.size as u32));
    let (limit, figure, kind) = match spec.mode {
        Mode::Bw => (raw.gbit_per_s, row.gbit_per_s, "gbit_per_s"),
        Mode::Rate => (raw.msgs_per_s.map(|r| r / packets), row.msgs_per_s, "frames_per_s"),
        Mode::Lat => {
            let (ways, kind) = if spec.op.answers() { (2, "round_trip_ns") } else { (1, "one_way_ns") };
            (raw.p50_ns.map(|ns| (ns * ways) as f64), row.p50_ns.map(|ns| ns as f64), kind)
        }
    };
    let Some(limit) = limit.filter(|l| *l > 0.0) else { return };
    row.limit = Some(limit);
    row.limit_kind = Some(kind);
    row.ratio = figure.map(|f| f / limit);
}
