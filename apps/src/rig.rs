//! The port and the device of a program: opened from the command line's options, usable without and with the stack.

use crate::cli::device::{DeviceArgs, DriveArg};
use crate::counters::Counts;
use crate::error::{AppError, Result};
use crate::metrics::MetricsServer;
use crate::out::note;
use crate::reusable_port::ReusablePort;
use crate::{pin, stop};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use verbs::port::{self, MemifRole, Port, PortOptions, PortQueue, PortSpec, PortStats};
use verbs::{Context, DeviceConfig, Drive, Gid, Mtu, PortSource, Reactor, VerbsError, stats};

/// How long the peer's end of the link may take to come up.
const LINK_PATIENCE: Duration = Duration::from_secs(30);
/// After this time the program reports what it waits for.
const LINK_SILENCE: Duration = Duration::from_secs(1);
/// How long a closed device may take to return its queues.
const RETURN_PATIENCE: Duration = Duration::from_secs(2);

/// The end of a session; it determines defaults of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Listens.
    Server,
    /// Connects.
    Client,
}

impl Side {
    fn addr(self) -> (IpAddr, u8) {
        let last = if self == Self::Server { 1 } else { 2 };
        let [a, b, c] = PRIVATE_NETWORK;
        (IpAddr::V4(Ipv4Addr::new(a, b, c, last)), 24)
    }
    fn core(self) -> usize {
        usize::from(self == Self::Client)
    }
    fn memif_role(self) -> MemifRole {
        match self {
            Self::Server => MemifRole::Server,
            Self::Client => MemifRole::Client,
        }
    }
}

/// The network of the default addresses, on a link whose ends have no addresses of the host.
const PRIVATE_NETWORK: [u8; 3] = [10, 77, 0];

/// Whether `addr` is in that network.
fn is_of_private_link(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V4(addr) if addr.octets()[..3] == PRIVATE_NETWORK)
}

/// The error for an address of that network where the port uses the host's addresses.
const PRIVATE_LINK: &str = "is an address of the private link memif, which was the port of programs that name none; that is host now, \
                            with the addresses of this host: use one of these, or --port memif at both ends";

/// Checks, without opening the device, that it would have this address, and that what its port names exists.
///
/// # Errors
/// A sentence.
pub fn check_address(args: &DeviceArgs, side: Side, address: SocketAddr) -> std::result::Result<(), String> {
    let (addr, port) = (address.ip(), &args.port);
    let among = |all: &[IpAddr]| {
        let all: Vec<_> = all.iter().map(IpAddr::to_string).collect();
        format!("port {port} has no address {addr}; it has {}", all.join(", "))
    };
    match port {
        PortSpec::Udp { .. } | PortSpec::Host { .. } => {
            let addrs = if let PortSpec::Udp { addrs, .. } = port { addrs.as_slice() } else { &[] };
            if !addrs.is_empty() && !addr.is_unspecified() && !addrs.contains(&addr) {
                return Err(among(addrs));
            }
            let named = addrs.iter().map(|addr| SocketAddr::new(*addr, 0));
            let mut own = address;
            own.set_port(0);
            // With any port number: only a host that has the address can bind it.
            for addr in named.chain([own]) {
                UdpSocket::bind(addr).map_err(|e| {
                    let hint = is_of_private_link(addr.ip()).then(|| format!("; it {PRIVATE_LINK}"));
                    format!("this host has no address {}: {e}{}", addr.ip(), hint.unwrap_or_default())
                })?;
            }
            Ok(())
        }
        _ => {
            if let PortSpec::AfPacket { iface, .. } = port
                && !Path::new("/sys/class/net").join(iface).exists()
            {
                return Err(format!("port {port}: there is no interface {iface}"));
            }
            let has: Vec<_> = args.ip.iter().map(|(addr, _)| *addr).collect();
            let has = if has.is_empty() { vec![side.addr().0] } else { has };
            // A link-local address follows from the port's Ethernet address.
            let open =
                addr.is_unspecified() || matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
            if open || has.contains(&addr) {
                return Ok(());
            }
            Err(format!("{}; give the address by --ip", among(&has)))
        }
    }
}

impl From<VerbsError> for AppError {
    fn from(e: VerbsError) -> Self {
        Self::Setup(e.to_string())
    }
}

impl From<verbs::PostError> for AppError {
    fn from(e: verbs::PostError) -> Self {
        Self::Completion(format!("a request could not be posted: {e}"))
    }
}

/// Drives the shards, if that is the duty of the measuring thread.
#[derive(Debug, Default)]
pub struct Driver {
    reactors: Vec<Reactor>,
}

impl Driver {
    /// One turn of every shard that this thread drives.
    #[inline]
    pub fn turn(&mut self) {
        for reactor in &mut self.reactors {
            let _ = reactor.poll_once();
        }
    }
    /// One turn between two slices of other work.
    ///
    /// # Errors
    /// [`AppError::Interrupted`].
    #[inline]
    pub fn turn_between(&mut self) -> Result<()> {
        self.turn();
        stop::check()
    }
    /// Runs `work` on another thread and drives the shards until it is done, so that peers get answers while memory is registered or
    /// a terminal is slow.
    pub fn meanwhile<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        if !self.is_mine() {
            return work();
        }
        std::thread::scope(|threads| {
            let work = threads.spawn(work);
            while !work.is_finished() {
                self.turn();
            }
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
    /// Whether this thread drives the shards only by [`turn`](Self::turn); otherwise polling a completion queue may drive
    /// them.
    #[inline]
    pub fn is_mine(&self) -> bool {
        !self.reactors.is_empty()
    }
}

/// An open device and the means to drive it.
#[derive(Debug)]
pub struct OpenDevice {
    /// Before the context, so that it is dropped first.
    pub driver: Driver,
    /// Before the context, so that the server no longer reads its counters when the context is dropped.
    metrics: Option<MetricsServer>,
    /// The device.
    pub context: Context,
}

impl OpenDevice {
    /// The address at which collectors find the device's counters.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }
    /// The local GID with this index.
    ///
    /// # Errors
    /// A sentence that lists the existing GIDs.
    pub fn gid(&self, index: u8) -> Result<Gid> {
        self.context.query_gid(1, usize::from(index)).map_err(|_| {
            let all = (0..usize::from(u8::MAX)).map_while(|n| self.context.query_gid(1, n).ok());
            let all: Vec<_> = all.enumerate().map(|(n, gid)| format!("{n}: {gid}")).collect();
            AppError::Usage(format!("there is no GID with index {index}; there are {}", all.join(", ")))
        })
    }
}

/// Waits until the link of `port` is up, and runs `idle` meanwhile.
///
/// # Errors
/// A sentence when it does not come up; errors of `idle`.
pub fn await_link(port: &ReusablePort, mut idle: impl FnMut() -> Result<()>) -> Result<()> {
    let since = Instant::now();
    let mut said = false;
    while !port.link_up() {
        if !said && since.elapsed() > LINK_SILENCE {
            said = true;
            note!("port {}: waiting for the other end; is it running?", port.info().name);
        }
        if since.elapsed() > LINK_PATIENCE {
            return Err(AppError::Timeout(format!(
                "port {}: the link is still down after {LINK_PATIENCE:?}; is the other end running, on the same \
                 socket or cable?",
                port.info().name
            )));
        }
        idle()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The port, and the device on it while it is open.
pub struct Rig {
    args: DeviceArgs,
    side: Side,
    device: Option<OpenDevice>,
    port: ReusablePort,
}

impl Rig {
    /// Opens the port and pins the calling thread.
    ///
    /// # Errors
    /// Errors of the options, or of the port.
    pub fn open(args: &DeviceArgs, side: Side) -> Result<Self> {
        match args.cores.first() {
            Some(&core) => pin::pin(core)?,
            None if args.drive == DriveArg::Embedded => pin::pin_if_possible(side.core()),
            None => {}
        }
        let mut spec = args.port.clone();
        if let PortSpec::Memif { role: role @ None, .. } = &mut spec {
            *role = Some(side.memif_role());
        }
        let options = PortOptions {
            queues: usize::from(args.shards),
            mtu: usize::from(args.link_mtu),
            mac: args.mac,
            ..PortOptions::default()
        };
        let mut port = spec.open(&options).map_err(|e| AppError::Setup(e.to_string()))?;
        if let Some(path) = &args.pcap {
            port = port::capture(port, path).map_err(|e| AppError::Setup(format!("--pcap: {e}")))?;
        }
        Ok(Self { args: args.clone(), side, device: None, port: ReusablePort::new(port) })
    }

    /// The options of the device.
    pub fn args(&self) -> &DeviceArgs {
        &self.args
    }

    /// The bare port.
    pub fn port(&self) -> &ReusablePort {
        &self.port
    }

    /// Largest IP packet of the port.
    pub fn link_mtu(&self) -> usize {
        self.port.info().mtu
    }

    /// Largest IP packet that the port carries to a peer, as far as it knows.
    pub fn link_mtu_to(&self, peer: Option<IpAddr>) -> usize {
        let known = peer.and_then(|peer| self.port.host()?.mtu_to(peer));
        known.map_or(self.link_mtu(), |mtu| mtu.min(self.link_mtu()))
    }

    /// Largest path MTU of the port.
    pub fn path_mtu(&self) -> Mtu {
        Mtu::of_link(self.link_mtu()).unwrap_or(Mtu::Mtu256)
    }

    /// The first local address.
    pub fn addr(&self) -> IpAddr {
        let of_host = self.port.host().and_then(|host| host.addresses().first().copied());
        self.args.ip.first().map(|(addr, _)| *addr).or(of_host).unwrap_or(self.side.addr().0)
    }

    /// The default address of a server on this machine: the first address of the host, or on a port with addresses of its own the
    /// server's default address.
    pub fn server_addr(&self) -> IpAddr {
        if self.port.host().is_some() { self.addr() } else { Side::Server.addr().0 }
    }

    /// Warns, and names the fix, where `peer` is an address of the private link that was the default port before `host`.
    pub fn warn_of_private_link(&self, peer: IpAddr) {
        let ours = self.port.host().is_none_or(|host| host.addresses().contains(&peer));
        if is_of_private_link(peer) && !ours {
            note!("port {}: {peer} {PRIVATE_LINK}", self.args.port);
        }
    }

    /// The local addresses to set: the given ones, else this side's default, or none on a port that uses the host's addresses.
    fn addrs(&self) -> Vec<(IpAddr, u8)> {
        if self.args.ip.is_empty() && self.port.host().is_none() {
            vec![self.side.addr()]
        } else {
            self.args.ip.clone()
        }
    }

    /// Index of the local GID: `asked`, if given. Otherwise, on a port that uses the host's addresses, the index of the source address
    /// towards `peer`, or 0. On other ports 1, because index 0 holds the link-local address.
    pub fn gid_index(&self, asked: Option<u8>, peer: Option<SocketAddr>) -> u8 {
        let of_host = || {
            let Some(host) = self.port.host() else { return 1 };
            let scope = |peer| if let SocketAddr::V6(peer) = peer { peer.scope_id() } else { 0 };
            let source = peer.and_then(|peer| host.source_to(peer.ip(), scope(peer)));
            let at = host.addresses().iter().position(|addr| Some(*addr) == source);
            at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
        };
        asked.unwrap_or_else(of_host)
    }

    /// The port's counters.
    pub fn stats(&self) -> PortStats {
        self.port.stats()
    }

    /// Waits until the link is up.
    ///
    /// # Errors
    /// A sentence when it does not come up.
    pub fn wait_for_link(&mut self) -> Result<()> {
        let port = self.port.clone();
        await_link(&port, || {
            self.idle();
            stop::check()
        })
    }

    /// Lets the host answer its neighbours. To be called regularly while nothing is measured.
    pub fn idle(&mut self) {
        match &mut self.device {
            Some(device) => device.driver.turn(),
            None => self.port.maintain(),
        }
    }

    /// Queue 0 of the bare port, without a device on it.
    ///
    /// # Errors
    /// When the queue does not come back from the device that was closed for it.
    pub fn raw_queue(&mut self) -> Result<Box<dyn PortQueue>> {
        self.device = None;
        let since = Instant::now();
        loop {
            if let Some(queue) = self.port.take_queue(0) {
                return Ok(queue);
            }
            if since.elapsed() > RETURN_PATIENCE {
                return Err(AppError::Setup(format!("port {}: its queue is still in use", self.args.port)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The device; opens it on the port if it is not open.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn device(&mut self) -> Result<&mut OpenDevice> {
        if self.device.is_none() {
            self.device = Some(self.open_device()?);
        }
        Ok(self.device.as_mut().expect("it was just opened"))
    }

    fn open_device(&self) -> Result<OpenDevice> {
        let args = &self.args;
        let shards = usize::from(args.shards);
        let drive = match args.drive {
            DriveArg::Embedded => Drive::Embedded,
            DriveArg::Caller => Drive::Caller,
            DriveArg::Dedicated => Drive::Dedicated { cores: self.shard_cores(shards) },
        };
        let mut config = DeviceConfig::new(PortSource::Opened(Box::new(self.port.clone())))
            .addrs(self.addrs())
            .gateway(args.gateway)
            .gateway6(args.gateway6)
            .vlan(args.vlan)
            .neighbours(args.neighbour.clone())
            .shards(shards)
            .drive(drive)
            // As many as a run can request; an unused number costs a few bytes.
            .qps_per_shard(verbs::limits::QPS_PER_SHARD_MAX);
        config.stats = self.stats_path()?;
        let context = Context::open(config)?;
        context.start()?;
        let mut driver = Driver::default();
        if args.drive == DriveArg::Embedded {
            for shard in 0..shards {
                driver.reactors.push(context.reactor(shard)?);
            }
        }
        let metrics = args.metrics.map(|address| {
            let reader = context.stats_reader();
            MetricsServer::open(address, move || reader.snapshot())
                .map_err(|e| AppError::Setup(e.to_string()))
        });
        Ok(OpenDevice { driver, metrics: metrics.transpose()?, context })
    }

    /// Path of the socket that shows the device's counters: as given, or where `roce-stat` searches.
    fn stats_path(&self) -> Result<Option<PathBuf>> {
        match &self.args.stats {
            None => Ok(None),
            Some(Some(path)) => Ok(Some(path.clone())),
            Some(None) => {
                stats::runtime_dir().map(Some).map_err(|e| AppError::Setup(format!("--stats: {e}")))
            }
        }
    }

    /// Cores for the device's threads: those after the first on the command line, or from this side's default core on.
    fn shard_cores(&self, shards: usize) -> Vec<usize> {
        if self.args.cores.len() > 1 {
            return self.args.cores[1..].iter().copied().cycle().take(shards).collect();
        }
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..shards).map(|n| (self.side.core() + n) % count).collect()
    }

    /// All counters of the device and its port.
    pub fn counts(&self) -> Counts {
        let stats = self.port.stats();
        let port = [
            ("port_rx_dropped", stats.rx_dropped),
            ("port_tx_dropped", stats.tx_dropped),
            ("port_rx_strayed", stats.rx_strayed),
            ("port_passed_on", stats.passed_on),
            ("port_restarts", stats.restarts),
            ("port_refused", stats.refused),
        ];
        let port = Counts::new(port);
        match &self.device {
            Some(device) => Counts::new(device.context.counters().iter()).plus(&port),
            None => port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Access, QpInitAttr, RcOptions, SendWr, Wc};

    #[test]
    fn an_address_that_the_port_would_not_have_is_said_before_it_is_opened() {
        let of = |port: &str, ip: &[&str]| {
            let words = ["test", "--port", port].into_iter().chain(ip.iter().flat_map(|ip| ["--ip", ip]));
            #[derive(clap::Parser)]
            struct Cli {
                #[command(flatten)]
                device: DeviceArgs,
            }
            <Cli as clap::Parser>::try_parse_from(words).unwrap().device
        };
        let check = |args: &DeviceArgs, at: &str| check_address(args, Side::Server, at.parse().unwrap());
        assert_eq!(check(&of("memif", &[]), "10.77.0.1:4420"), Ok(()));
        let wrong = check(&of("memif", &[]), "192.168.9.1:4420").unwrap_err();
        assert!(wrong.contains("has no address 192.168.9.1; it has 10.77.0.1; give"), "{wrong}");
        assert_eq!(check(&of("loopback", &["192.168.9.1/24"]), "192.168.9.1:4420"), Ok(()));
        assert_eq!(check(&of("loopback", &["192.168.9.1/24"]), "[fe80::1]:4420"), Ok(()));
        assert_eq!(check(&of("udp", &[]), "127.0.0.1:4420"), Ok(()));
        assert_eq!(check(&of("udp:127.0.0.1", &[]), "0.0.0.0:4420"), Ok(()));
        let wrong = check(&of("udp", &[]), "192.0.2.7:4420").unwrap_err();
        assert!(wrong.contains("this host has no address 192.0.2.7"), "{wrong}");
        let wrong = check(&of("udp:127.0.0.1", &[]), "127.0.0.2:4420").unwrap_err();
        assert!(wrong.contains("it has 127.0.0.1"), "{wrong}");
        assert!(check(&of("udp:192.0.2.7", &[]), "192.0.2.7:4420").is_err());
    }

    // The work waits for a message, which arrives only if the shard is driven.
    #[test]
    fn shards_are_turned_while_other_work_goes_on() {
        let config = DeviceConfig::loopback().drive(Drive::Embedded);
        let context = Context::open(config).unwrap();
        let mut driver = Driver { reactors: vec![context.reactor(0).unwrap()] };
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4).unwrap();
        let mr = pd.reg_mr(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = pd.create_qp(&QpInitAttr::rc(&cq, &cq)).unwrap();
        let options = RcOptions::default().sgid_index(1);
        qp.connect_rc(&qp.endpoint(1).unwrap(), &options).unwrap();
        let done = driver.meanwhile(|| {
            let sge = [mr.sge(0..8).unwrap()];
            qp.post_send(&[SendWr::write(7, &sge, mr.addr(), mr.rkey()).signaled()]).unwrap();
            let mut done = [Wc::default()];
            while cq.poll(&mut done).unwrap() == 0 {
                std::thread::yield_now();
            }
            done[0]
        });
        assert!(done.is_ok() && done.wr_id == 7, "{done:?}");
    }
}
