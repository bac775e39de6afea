//! The commands of `roce-nvmf` (`serve`, `check`) and `roce-nvmf-perf` (`discover`, `identify`, `run`, `overhead`).
//! [`manage`](crate::manage) has the commands that change a running target.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apps::error::{AppError, Result};
use apps::json::{JsonFile, Row};
use apps::out::say;
use apps::progress::Progress;
use apps::rig::{Rig, Side, check_address};
use apps::{out, report, service, stop};
use nvmf::Nqn;
use nvmf::wire::discovery::Record;
use verbs::Drive;

use crate::cli::{DEFAULT_SUBSYSTEM, OverheadArgs, ReachArgs, RunArgs, ServeArgs};
use crate::config::{self, Offer};
use crate::control::{self, Control, ControlSocket};
use crate::host::{Controller, Host, HostError, Options};
use crate::overhead;
use crate::perf::{self, Load, PerfError, Phase, Report};
use crate::target::{Config, Core, Meters, run_all};

impl From<HostError> for AppError {
    fn from(e: HostError) -> Self {
        match e {
            HostError::Interrupted => Self::Interrupted,
            e => Self::Setup(e.to_string()),
        }
    }
}
impl From<PerfError> for AppError {
    fn from(e: PerfError) -> Self {
        match e {
            PerfError::Wrong(_) => Self::Verify(e.to_string()),
            PerfError::Load(what) => Self::Usage(what),
            PerfError::Stuck => Self::Timeout(e.to_string()),
            PerfError::Host(HostError::Interrupted) => Self::Interrupted,
            e => Self::Completion(e.to_string()),
        }
    }
}

/// The configuration that the command line asks for, and where it is written.
struct Wanted {
    offer: Offer,
    /// The name of the file or the option, for messages.
    name: String,
    /// The text of the file, to find the line of a mistake.
    text: String,
}

impl Wanted {
    /// Reads the configuration that the command line asks for. Checks what can be checked without opening anything: that there is enough
    /// memory, and that the device has the addresses.
    fn of(args: &ServeArgs) -> Result<Self> {
        let wanted = match (&args.file, args.memory) {
            (Some(file), _) => Self::read(file)?,
            (None, Some(bytes)) => {
                Self { offer: memory_offer(args, bytes)?, name: "--memory".into(), text: String::new() }
            }
            (None, None) => return Err(AppError::Usage("give a file, or --memory SIZE".into())),
        };
        let buffers = args.buffers.saturating_mul(args.device.shards.into());
        config::fits(&wanted.offer, buffers).map_err(|e| wanted.mistake(&e))?;
        for &address in &wanted.offer.ports {
            check_address(&args.device, Side::Server, address)
                .map_err(|e| AppError::Setup(format!("{}: {e}", wanted.name)))?;
        }
        Ok(wanted)
    }
    fn read(file: &Path) -> Result<Self> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|e| AppError::Setup(format!("{name}: {e}")))?;
        let offer = config::parse(&text).map_err(|e| AppError::Setup(e.at(&name, &text)))?;
        Ok(Self { offer, name, text })
    }
    fn mistake(&self, e: &config::Mistake) -> AppError {
        AppError::Setup(e.at(&self.name, &self.text))
    }
}

/// `roce-nvmf check`: makes the checks of `serve` and changes nothing.
///
/// # Errors
/// The first mistake, with the file and the line.
pub fn check(args: &ServeArgs) -> Result<()> {
    let wanted = Wanted::of(args)?;
    config::build_dry(&wanted.offer, &served_now(args)).map_err(|e| wanted.mistake(&e))?;
    let subsystems = &wanted.offer.subsystems;
    let namespaces: usize = subsystems.iter().map(|subsystem| subsystem.namespaces.len()).sum();
    say!("{}: subsystems: {}, namespaces: {namespaces}", wanted.name, subsystems.len())
}

/// The files that a running target serves; empty if none runs and answers. They are locked. A configuration may be checked while its target
/// runs, so [`config::build_dry`] accepts that these are in use.
fn served_now(args: &ServeArgs) -> Vec<PathBuf> {
    let found = || control::find(&verbs::stats::runtime_dir().ok()?).ok();
    let Some(socket) = args.control.clone().or_else(found) else { return Vec::new() };
    let Ok(control::Answer::List(list)) = control::ask(&socket, &control::Request::List) else {
        return Vec::new();
    };
    let namespaces = list.subsystems.into_iter().flat_map(|subsystem| subsystem.namespaces);
    namespaces.filter_map(|namespace| std::fs::canonicalize(namespace.file?).ok()).collect()
}

/// The configuration for `--memory`: one subsystem with a namespace in memory.
fn memory_offer(args: &ServeArgs, bytes: u64) -> Result<Offer> {
    if bytes == 0 || !bytes.is_multiple_of(args.block.into()) {
        let block = args.block;
        return Err(AppError::Usage(format!(
            "--memory {bytes}: give a multiple of the block size, {block} bytes, and at least one block"
        )));
    }
    Ok(Offer::of_memory(&args.nqn, bytes, args.block))
}

/// `roce-nvmf serve`: runs a target until it is asked to stop.
///
/// # Errors
/// A mistake in the configuration, or a failure of the device, of a core or of the control socket.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let wanted = Wanted::of(args)?;
    let mut rig = Rig::open(&args.device, Side::Server)?;
    let address = rig.addr();
    let device = rig.device()?;
    let metrics = device.metrics();
    let context = &device.context;
    let pd = Arc::new(context.alloc_pd()?);
    let built = config::build(&wanted.offer, address, &pd).map_err(|e| wanted.mistake(&e))?;
    let shown = args.device.stats.is_some() || args.device.metrics.is_some();
    let meters = shown.then(Arc::<Meters>::default);
    if let Some(meters) = meters.clone() {
        context.add_stats(move || meters.table());
    }
    let cores = (0..context.shards()).map(|shard| {
        let config = Config {
            shard,
            receives: args.receives,
            buffers: args.buffers as usize,
            connections: args.connections as usize,
            meters: meters.clone(),
            ..Config::default()
        };
        Core::new(context, pd.clone(), built.target.clone(), built.stores.clone(), config)
    });
    let mut cores = cores.collect::<std::result::Result<Vec<_>, _>>()?;
    let control = Control::new(built.target.clone(), built.stores.clone(), built.opener, &wanted.name);
    let _control = ControlSocket::open(&control_path(args)?, control)
        .map_err(|e| AppError::Setup(format!("--control: {e}")))?;
    let (first, others) = cores.split_first_mut().expect("a device has a shard");
    others.iter().for_each(|other| first.share_with(other));
    for &(id, at) in &built.ports {
        let at = first.listen(id, at)?;
        say!("listening on {at}")?;
    }
    if let Some(at) = metrics {
        say!("metrics at http://{at}/metrics")?;
    }
    for subsystem in &wanted.offer.subsystems {
        say!("{}: namespaces: {}", subsystem.nqn, subsystem.namespaces.len())?;
    }
    service::ready();
    let ended = run_all(&mut cores, stop::requested);
    service::stopping();
    Ok(ended?)
}

/// The path of the control socket.
fn control_path(args: &ServeArgs) -> Result<PathBuf> {
    match &args.control {
        Some(path) => Ok(path.clone()),
        None => match verbs::stats::runtime_dir() {
            Ok(dir) => Ok(dir.join(control::socket_name())),
            Err(e) => Err(AppError::Setup(format!("{e}; give --control PATH"))),
        },
    }
}

/// Opens the device that the command line names, and calls `f` with an NVMe host on it and the address of the target.
fn with_host(args: &ReachArgs, f: impl FnOnce(&mut Host<'_>, SocketAddr) -> Result<()>) -> Result<()> {
    let mut rig = Rig::open(&args.device, Side::Client)?;
    // Some ports find their link only while they are polled.
    rig.device()?;
    // If the target has just lost another host, its link comes up again in a moment.
    rig.wait_for_link()?;
    let target = args.target.unwrap_or_else(|| SocketAddr::new(rig.server_addr(), config::PORT));
    rig.warn_of_private_link(target.ip());
    let context = &rig.device()?.context;
    let id = config::host_id(&args.host_nqn);
    let mut host = Host::new(context, &Drive::Embedded, args.host_nqn.clone(), id)?;
    f(&mut host, target)
}

/// `roce-nvmf-perf discover`.
///
/// # Errors
/// If the target does not answer, or refuses.
pub fn discover(args: &ReachArgs) -> Result<()> {
    with_host(args, |host, target| {
        for record in crate::host::discover(host, target)? {
            let name =
                Nqn::of_field(&record.subsystem).map_or_else(|e| e.to_string(), |nqn| nqn.as_str().into());
            let field =
                |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches([' ', '\0']).to_string();
            let kind = match record.subtype {
                Record::NVM => "nvme subsystem",
                Record::CURRENT => "current discovery subsystem",
                _ => "other",
            };
            say!("{kind}: {name} at {} {}", field(&record.address), field(&record.service))?;
        }
        Ok(())
    })
}

/// `roce-nvmf-perf identify`.
///
/// # Errors
/// If the target does not answer, or refuses.
pub fn identify(args: &ReachArgs) -> Result<()> {
    with_host(args, |host, target| {
        let mut controller = Controller::connect(host, target, &args.nqn, Options::default())?;
        let identity = controller.identity();
        let field = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_string();
        say!("sn      : {}", field(&identity.sn))?;
        say!("mn      : {}", field(&identity.mn))?;
        say!("fr      : {}", field(&identity.fr))?;
        say!("mdts    : {}", identity.mdts)?;
        say!("cntlid  : {:#x}", identity.cntlid.get())?;
        say!("ver     : {:#x}", identity.ver.get())?;
        say!("nn      : {}", identity.nn.get())?;
        say!("oncs    : {:#x}", identity.oncs.get())?;
        say!("vwc     : {:#x}", identity.vwc)?;
        say!("sgls    : {:#x}", identity.sgls.get())?;
        say!("ioccsz  : {}", identity.ioccsz.get())?;
        for namespace in controller.namespaces(host)? {
            let guid: String = namespace.nguid.iter().map(|byte| format!("{byte:02x}")).collect();
            let (nsid, blocks, block) = (namespace.nsid, namespace.blocks, namespace.block);
            say!("namespace {nsid}: {blocks} blocks of {block} bytes, nguid {guid}")?;
        }
        Ok(controller.shutdown(host)?)
    })
}

/// `roce-nvmf-perf run`.
///
/// # Errors
/// If the load does not fit the namespace, a command fails, or data are wrong.
pub fn run(args: &RunArgs) -> Result<()> {
    let load = Load {
        queues: args.queues,
        depth: args.depth,
        size: args.size as usize,
        read_percent: args.read,
        sequential: args.sequential,
        time: args.time,
        count: None,
        verify: args.verify,
        span: args.span.unwrap_or(0),
        in_capsule: !args.no_in_capsule,
    };
    let json = args.json.as_deref().map(JsonFile::create).transpose()?;
    with_host(&args.reach, |host, target| {
        let options = Options { queues: args.queues, ..Options::default() };
        let mut controller = Controller::connect(host, target, &args.reach.nqn, options)?;
        let namespaces = controller.namespaces(host)?;
        let wanted = |nsid: u32| args.namespace.is_none_or(|wanted| wanted == nsid);
        let namespace = namespaces.iter().find(|namespace| wanted(namespace.nsid));
        let namespace = namespace.ok_or_else(|| AppError::Usage("there is no such namespace".into()))?;
        let mut shown = None;
        let mut on_progress = |phase, part| show(&mut shown, args, phase, part);
        let report = perf::run(host, &mut controller, namespace, &load, &mut on_progress)?;
        drop(shown);
        let quantile = |q| report::time(report.latency.value_at_quantile(q));
        say!(
            "{} IOPS, {:.3} Gb/s; latency p50 {}, p99 {}, p99.9 {}, max {}",
            report::per_second(report.iops()),
            report.gbit_per_s(),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            report::time(report.latency.max())
        )?;
        if load.verify {
            say!("{} reads were checked", report.checked)?;
        }
        if let Some(json) = &json {
            json.write(&[row(args, &report)])?;
        }
        Ok(controller.shutdown(host)?)
    })
}

/// Shows the progress of a run: a message when a phase begins, and a progress bar on a terminal.
fn show(shown: &mut Option<(Phase, Progress)>, args: &RunArgs, phase: Phase, part: f64) {
    match shown {
        Some((is, bar)) if *is == phase => bar.set(part),
        _ => {
            *shown = None;
            let what = match phase {
                Phase::Fill => "writing everything once (--verify)".into(),
                Phase::Check => "reading everything once more (--verify)".into(),
                Phase::Load => {
                    let RunArgs { queues, depth, size, read, time, .. } = args;
                    format!(
                        "{queues} queues, {depth} commands of {size} bytes on each, {read} % reads, for {time:?}"
                    )
                }
            };
            out::remark(format_args!("{what}"));
            *shown = Some((phase, Progress::of_parts()));
        }
    }
}

/// `roce-nvmf-perf overhead`.
///
/// # Errors
/// If a device, a connection or a command fails.
pub fn overhead(args: &OverheadArgs) -> Result<()> {
    let json = args.json.as_deref().map(JsonFile::create).transpose()?;
    let nqn = DEFAULT_SUBSYSTEM.parse().expect("it is an NQN");
    let out = overhead::measure(&nqn, args.rounds as usize, args.commands)?;
    say!(
        "a command, both ends: {:.0} ns; the same bytes by SEND, RDMA WRITE and SEND: {:.0} ns; added by NVMe: {:.0} ns",
        out.nvme_ns,
        out.bare_ns,
        out.added_ns
    )?;
    if let Some(json) = &json {
        let row = Row {
            op: "nvme_read",
            mode: "cost",
            size: overhead::SIZE as u64,
            qps: Some(1),
            port: "pair".into(),
            p50_ns: Some(out.nvme_ns as u64),
            limit: Some(out.bare_ns),
            limit_kind: Some("ns"),
            messages: args.commands * u64::from(args.rounds),
            ..Row::default()
        };
        json.write(&[row])?;
    }
    Ok(())
}

/// The result of `run`, as a row of the JSON output.
fn row(args: &RunArgs, report: &Report) -> Row {
    let quantile = |q| Some(report.latency.value_at_quantile(q));
    Row {
        op: match args.read {
            100 => "nvme_read",
            0 => "nvme_write",
            _ => "nvme_mixed",
        },
        mode: if args.depth == 1 { "lat" } else { "rate" },
        size: args.size,
        qps: Some(args.queues.into()),
        port: args.reach.device.port.to_string(),
        msgs_per_s: Some(report.iops()),
        gbit_per_s: Some(report.gbit_per_s()),
        min_ns: Some(report.latency.min()),
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        max_ns: Some(report.latency.max()),
        latency: Some("round_trip"),
        messages: report.commands,
        in_flight: Some(u64::from(args.queues) * u64::from(args.depth)),
        verified: args.verify,
        ..Row::default()
    }
}
